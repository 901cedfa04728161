//! What a Linux kernel in guest memory knows about itself: its functions and those of its modules.

use crate::memory::{GuestRam, layout};
use cpu::state::Cpu;
use ledger::symbols::{self, Kallsyms, Symbol};
use x86::page::PAGE;

/// Linear addresses of the kernel's image, wherever KASLR puts it: at a multiple of [`ALIGNMENT`].
pub const IMAGE: std::ops::Range<u64> = 0xffff_ffff_8000_0000..0xffff_ffff_c000_0000;
/// What it is aligned to.
pub const ALIGNMENT: u64 = 2 << 20;
/// With page-table isolation the root of the user's tables is the page behind that of the kernel's.
const ISOLATED: u64 = 1 << 12;

/// The kernel that a processor runs, if its symbols can be found where its page tables have it.
pub fn running(cpu: &Cpu, ram: &GuestRam) -> Option<Kallsyms> {
    View::of(cpu).kallsyms(ram)
}

/// Likewise, of any of these processors. A kernel that has not yet set its tables up may be anywhere below 4 GiB.
pub fn find<'a>(cpus: impl Iterator<Item = &'a Cpu>, ram: &GuestRam) -> Option<Kallsyms> {
    let mapped = views(cpus).find_map(|view| view.kallsyms(ram));
    mapped.or_else(|| ram.with_ram(0, layout::LOW_RAM_END, |ram| symbols::kallsyms(ram, None)).ok())
}

/// Functions of the modules that a kernel has loaded, as any of these processors has them.
pub fn modules<'a>(kernel: &Kallsyms, cpus: impl Iterator<Item = &'a Cpu>) -> Vec<(String, Vec<Symbol>)> {
    let of = |view: View| symbols::modules(&kernel.landmarks, |linear, out| view.read(linear, out));
    views(cpus).map(of).find(|modules| !modules.is_empty()).unwrap_or_default()
}

/// Every way to look at a guest's memory after its run: by the tables of a process, and by those of the kernel that serves it.
fn views<'a>(cpus: impl Iterator<Item = &'a Cpu>) -> impl Iterator<Item = View<'a>> {
    cpus.flat_map(|cpu| {
        let own = View::of_machine(cpu);
        [own.root, own.root & !ISOLATED].map(|root| View { root, ..own })
    })
}

/// Linear memory by one root of page tables.
#[derive(Clone, Copy)]
pub struct View<'a> {
    cpu: &'a Cpu,
    root: u64,
    /// The processor runs a guest of a hypervisor on the machine, and the tables are that hypervisor's.
    of_host: bool,
}

impl<'a> View<'a> {
    /// By the tables that a processor uses, or that its guest believes it uses.
    pub fn of(cpu: &'a Cpu) -> Self {
        Self { cpu, root: cpu.visible().cr3, of_host: false }
    }

    /// By the tables of the machine's own kernel, also where its hypervisor runs a guest.
    fn of_machine(cpu: &'a Cpu) -> Self {
        match cpu.host_registers() {
            Some(host) => Self { cpu, root: host.cr3, of_host: true },
            None => Self::of(cpu),
        }
    }

    /// Address in the board's memory of a linear one.
    pub fn look_up(&self, linear: u64) -> Option<u64> {
        match self.of_host {
            true => self.cpu.look_up_in_host(self.root, linear),
            false => self.cpu.look_up_on_board(self.root, linear),
        }
    }

    /// The symbols of the kernel's image.
    fn kallsyms(&self, ram: &GuestRam) -> Option<Kallsyms> {
        let (linear, physical, len) = self.image()?;
        ram.with_ram(physical, len, |image| symbols::kallsyms(image, Some(linear))).ok()
    }

    /// Linear and guest-physical start and length of the kernel's image: it is in one piece, though not all of it stays mapped.
    fn image(&self) -> Option<(u64, u64, u64)> {
        if !self.cpu.visible().long_mode() {
            return None;
        }
        let mapped = |linear: u64| Some((linear, self.look_up(linear)?));
        let (linear, physical) = IMAGE.step_by(ALIGNMENT as usize).find_map(mapped)?;
        let distance = |(linear, physical): (u64, u64)| physical.wrapping_sub(linear);
        let first = distance((linear, physical));
        let pages = (linear..IMAGE.end).step_by(PAGE as usize).filter_map(mapped);
        let last = pages.filter(|page| distance(*page) == first).last().map_or(linear, |page| page.0);
        Some((linear, physical, last - linear + PAGE))
    }

    /// Reads linear memory: all of the bytes, or it returns `false`.
    pub fn read(&self, linear: u64, out: &mut [u8]) -> bool {
        read_by_pages(linear, out, |linear, part| {
            self.look_up(linear).is_some_and(|physical| self.cpu.wiring.ram.read_bytes(physical, part))
        })
    }
}

/// Reads linear memory in parts that are each within a page: all of them, or it returns `false`.
pub fn read_by_pages(mut linear: u64, mut out: &mut [u8], read: impl Fn(u64, &mut [u8]) -> bool) -> bool {
    while !out.is_empty() {
        let n = out.len().min((PAGE - linear % PAGE) as usize);
        let (now, later) = out.split_at_mut(n);
        if !read(linear, now) {
            return false;
        }
        (linear, out) = (linear.wrapping_add(n as u64), later);
    }
    true
}

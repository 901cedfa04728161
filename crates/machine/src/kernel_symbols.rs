//! Symbols of a Linux kernel and its modules, read from guest memory.

use crate::memory::{GuestRam, layout};
use cpu::state::Cpu;
use ledger::symbols::mappings::Lookup;
use ledger::symbols::{self, Kallsyms, KallsymsError, ModulesError, Symbol};
use x86::page::PAGE;

/// Range of linear addresses in which KASLR places the kernel's image, at a multiple of [`ALIGNMENT`].
pub const IMAGE: std::ops::Range<u64> = 0xffff_ffff_8000_0000..0xffff_ffff_c000_0000;
/// Alignment of the image.
pub const ALIGNMENT: u64 = 2 << 20;
/// Distance from the root of the kernel's page tables to that of the user's with page-table isolation (KPTI).
const ISOLATED: u64 = 1 << 12;
/// Bits of CR3 with the address of the page tables' root.
const TABLE: u64 = 0x000f_ffff_ffff_f000;

/// Returns the symbols of the kernel that a processor runs, if they can be found through its page tables.
pub fn running(cpu: &Cpu, ram: &GuestRam) -> Option<Kallsyms> {
    View::of(cpu).kallsyms(ram)?.ok()
}

/// Returns the symbols of the kernel that any of these processors runs. A kernel that has not yet set up its page
/// tables may be anywhere below 4 GiB.
pub fn find<'a>(cpus: impl Iterator<Item = &'a Cpu>, ram: &GuestRam) -> Result<Kallsyms, KallsymsError> {
    let mut mapped = None;
    for found in views(cpus).filter_map(|view| view.kallsyms(ram)) {
        match found {
            Ok(kernel) => return Ok(kernel),
            Err(reason) => mapped = mapped.max(Some(reason)),
        }
    }
    let anywhere = ram.with_ram(0, layout::LOW_RAM_END, |ram| symbols::kallsyms(ram, None));
    anywhere.map_err(|reason| mapped.unwrap_or(reason))
}

/// The functions of modules, by the name of the module.
pub type Modules = Vec<(String, Vec<Symbol>)>;

/// Returns the functions of the loaded modules of a kernel, as mapped by any of these processors.
pub fn modules<'a>(kernel: &Kallsyms, cpus: impl Iterator<Item = &'a Cpu>) -> Result<Modules, ModulesError> {
    let of = |view: View| symbols::modules(&kernel.landmarks, |linear, out| view.read(linear, out));
    let mut found = Ok(Modules::new());
    for view in views(cpus) {
        found = of(view);
        if found.as_ref().is_ok_and(|modules| !modules.is_empty()) {
            break;
        }
    }
    found
}

/// Returns all views of a guest's memory after its run: through the page tables of a process, and through those of the
/// kernel that serves it.
fn views<'a>(cpus: impl Iterator<Item = &'a Cpu>) -> impl Iterator<Item = View<'a>> {
    cpus.flat_map(|cpu| {
        let own = View::of_machine(cpu);
        [own, own.isolated()]
    })
}

/// A view of linear memory through one root of page tables.
#[derive(Clone, Copy)]
pub struct View<'a> {
    cpu: &'a Cpu,
    root: u64,
    /// True if the processor runs a guest of a hypervisor on the machine, and the tables are that hypervisor's.
    of_host: bool,
}

impl<'a> View<'a> {
    /// Creates a view through the tables that a processor uses, or that its guest believes it uses.
    pub fn of(cpu: &'a Cpu) -> Self {
        Self { cpu, root: cpu.visible().cr3, of_host: false }
    }

    /// Creates a view through the tables of the machine's own kernel, even if its hypervisor runs a guest.
    fn of_machine(cpu: &'a Cpu) -> Self {
        match cpu.host_registers() {
            Some(host) => Self { cpu, root: host.cr3, of_host: true },
            None => Self::of(cpu),
        }
    }

    /// Returns the address in the board's memory of a linear address.
    pub fn look_up(&self, linear: u64) -> Option<u64> {
        match self.of_host {
            true => self.cpu.look_up_in_host(self.root, linear),
            false => self.cpu.look_up_on_board(self.root, linear),
        }
    }

    /// Returns the view through the kernel's tables where the user's are in use with page-table isolation.
    pub fn isolated(self) -> Self {
        Self { root: self.root & !ISOLATED, ..self }
    }

    /// Returns the symbols of the kernel's image, or `None` if no image is mapped.
    fn kallsyms(&self, ram: &GuestRam) -> Option<Result<Kallsyms, KallsymsError>> {
        let (linear, physical, len) = self.image()?;
        Some(ram.with_ram(physical, len, |image| symbols::kallsyms(image, Some(linear))))
    }

    /// Returns the linear start, the guest-physical start and the length of the kernel's image. The image is
    /// contiguous, though not all of it stays mapped.
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

    /// Reads linear memory. Returns false unless all bytes could be read.
    pub fn read(&self, linear: u64, out: &mut [u8]) -> bool {
        read_by_pages(linear, out, |linear, part| {
            self.look_up(linear).is_some_and(|physical| self.cpu.wiring.ram.read_bytes(physical, part))
        })
    }
}

impl Lookup for View<'_> {
    fn read(&self, linear: u64, out: &mut [u8]) -> bool {
        View::read(self, linear, out)
    }

    fn physical(&self, linear: u64) -> Option<u64> {
        self.look_up(linear)
    }

    fn root(&self) -> u64 {
        self.root & TABLE
    }
}

/// Reads linear memory in pieces that lie within one page each. Returns false unless all pieces could be read.
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

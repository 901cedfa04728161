//! What a Linux kernel in guest memory knows about itself: its functions and those of its modules.

use crate::machine::Machine;
use crate::memory::layout;
use cpu::state::Cpu;
use ledger::symbols::{self, Kallsyms, Symbol};

const PAGE: u64 = 4096;
/// Linear addresses of the kernel's image, wherever KASLR puts it.
const IMAGE: std::ops::Range<u64> = 0xffff_ffff_8000_0000..0xffff_ffff_c000_0000;
/// With page-table isolation the root of the user's tables is the page behind that of the kernel's.
const ISOLATED: u64 = 1 << 12;

/// Symbols of a Linux kernel.
pub struct Linux {
    /// Its own functions.
    pub functions: Vec<Symbol>,
    /// Those of each module it has loaded.
    pub modules: Vec<(String, Vec<Symbol>)>,
}

impl Linux {
    /// Looks for a kernel where the page tables of a processor have it. Only one that has not yet set them up may be anywhere,
    /// below 4 GiB.
    pub fn find(machine: &Machine) -> Option<Self> {
        let cpus = machine.vcpus.all.iter().map(|v| &v.cpu);
        let views = cpus.flat_map(|cpu| {
            // A guest that is still under its hypervisor has a root of its own.
            let root = cpu.vmx.visible.map_or(cpu.cr3, |guest| guest.cr3);
            [root, root & !ISOLATED].map(|root| View { cpu, root })
        });
        let mapped = views.into_iter().find_map(|view| {
            let (start, len) = view.image()?;
            let kernel = machine.ram.with_ram(start, len, |image| symbols::kallsyms(image, 0)).ok()?;
            let Kallsyms { functions, landmarks } = kernel;
            Some(Self { functions, modules: symbols::modules(&landmarks, |linear, out| view.read(linear, out)) })
        });
        mapped.or_else(|| {
            let found = machine.ram.with_ram(0, layout::LOW_RAM_END, |ram| symbols::kallsyms(ram, 0)).ok()?;
            Some(Self { functions: found.functions, modules: Vec::new() })
        })
    }
}

/// Linear memory by one root of page tables.
struct View<'a> {
    cpu: &'a Cpu,
    root: u64,
}

impl View<'_> {
    fn look_up(&self, linear: u64) -> Option<u64> {
        self.cpu.long_mode().then(|| self.cpu.look_up_from(self.root, linear))?
    }

    /// Guest-physical start and length of the kernel's image: it is in one piece, though not all of it stays mapped.
    fn image(&self) -> Option<(u64, u64)> {
        let pages = IMAGE.step_by(PAGE as usize);
        let mut mapped = pages.filter_map(|linear| Some((linear, self.look_up(linear)?)));
        let (linear, physical) = mapped.next()?;
        let distance = |(linear, physical): (u64, u64)| physical.wrapping_sub(linear);
        let first = distance((linear, physical));
        let last = mapped.filter(|page| distance(*page) == first).last().map_or(linear, |page| page.0);
        Some((physical, last - linear + PAGE))
    }

    fn read(&self, mut linear: u64, mut out: &mut [u8]) -> bool {
        while !out.is_empty() {
            let n = out.len().min((PAGE - linear % PAGE) as usize);
            let (now, later) = out.split_at_mut(n);
            if !self.look_up(linear).is_some_and(|physical| self.cpu.ram.read_bytes(physical, now)) {
                return false;
            }
            (linear, out) = (linear.wrapping_add(n as u64), later);
        }
        true
    }
}

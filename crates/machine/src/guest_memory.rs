//! Memory of a guest of a hypervisor that runs on the machine, looked at from outside.
//!
//! Such a hypervisor maps a page when the guest touches it, and may take a mapping away again: KVM does when a huge page is
//! executed on a processor with the iTLB multihit erratum, and what it makes for shadow paging is never complete. But the guest's memory is
//! also that of a program of the machine, such as QEMU, where pieces that follow each other for the guest do so for the program. So
//! one page that the hypervisor has mapped shows where the others are.

use crate::kernel_symbols::{IMAGE, View, read_by_pages};
use cpu::Cpu;
use ledger::symbols::{self, Kallsyms, Symbol};
use x86::control::CR4_LA57;
use x86::page::{ADDRESS, P, PAGE, PS, SHIFT};

/// Entries of page tables that are read in search of a page, at most.
const PATIENCE: usize = 1 << 21;
/// Bits of a linear address that one level of tables translates.
const BITS: u32 = 9;

/// An image begins at most so many bytes before any address in it, and ends at most so many behind it.
const FURTHEST: u64 = 32 << 20;
const LONGEST_IMAGE: u64 = 96 << 20;

/// The memory of the guest that a processor runs.
pub struct GuestMemory<'a> {
    view: View<'a>,
    cpu: &'a Cpu,
    /// An address in the image of the guest's kernel.
    known: u64,
    /// The root of the tables of the program that the guest belongs to.
    program: u64,
    /// From a linear address in the guest's kernel, and from a guest-physical one, to where the program has it.
    from_linear: u64,
    from_physical: Option<u64>,
}

impl<'a> GuestMemory<'a> {
    /// The memory around `known`, a linear address of the guest's kernel whose image is in one piece. `None`: that is not mapped, or no program's.
    pub fn around(cpu: &'a Cpu, known: u64) -> Option<Self> {
        let view = View::of(cpu);
        let host = cpu.host_registers().filter(|host| host.long_mode())?;
        let (program, top) = (host.cr3, if host.cr4 & CR4_LA57 != 0 { 4 } else { 3 });
        let mut search = Search { cpu, wanted: view.look_up(known)?, top, patience: PATIENCE };
        let place = search.table(program & ADDRESS, 0, top)?;
        let from_physical = cpu.arch.vmx.ept.then(|| cpu.look_up(known)).flatten();
        let from_physical = from_physical.map(|physical| place.wrapping_sub(physical));
        Some(Self { view, cpu, known, program, from_linear: place.wrapping_sub(known), from_physical })
    }

    /// The tables of the guest's kernel, if its symbols can be found.
    pub fn kernel(&self) -> Option<Kallsyms> {
        let start = self.known.saturating_sub(FURTHEST).max(IMAGE.start) & !(PAGE - 1);
        let end = self.known.saturating_add(LONGEST_IMAGE).min(IMAGE.end);
        let image = self.copy_image(start, end.checked_sub(start)? as usize);
        symbols::kallsyms(&image, Some(start)).ok()
    }

    /// Functions of the modules that the kernel has loaded.
    pub fn modules(&self, kernel: &Kallsyms) -> Vec<(String, Vec<Symbol>)> {
        symbols::modules(&kernel.landmarks, |linear, out| self.read(linear, out))
    }

    /// Address in the board's memory of a linear one of the kernel's image.
    fn image(&self, linear: u64) -> Option<u64> {
        let by_program = || self.cpu.look_up_in_host(self.program, linear.wrapping_add(self.from_linear));
        self.view.look_up(linear).or_else(by_program)
    }

    /// Likewise of any linear one, as far as the guest's own tables can be seen: not under shadow paging.
    fn anywhere(&self, linear: u64) -> Option<u64> {
        self.view.look_up(linear).or_else(|| {
            let place = self.cpu.look_up(linear)?.wrapping_add(self.from_physical?);
            self.cpu.look_up_in_host(self.program, place)
        })
    }

    /// A copy of the image from `start` on, page by page; with zeros for what is not there.
    pub fn copy_image(&self, start: u64, len: usize) -> Vec<u8> {
        let mut copy = vec![0; len];
        for (linear, page) in (start..).step_by(PAGE as usize).zip(copy.chunks_mut(PAGE as usize)) {
            if let Some(physical) = self.image(linear) {
                self.cpu.wiring.ram.read_bytes(physical, page);
            }
        }
        copy
    }

    /// Reads linear memory: all of the bytes, or it returns `false`.
    fn read(&self, linear: u64, out: &mut [u8]) -> bool {
        read_by_pages(linear, out, |linear, part| {
            self.anywhere(linear).is_some_and(|physical| self.cpu.wiring.ram.read_bytes(physical, part))
        })
    }
}

/// Looks in page tables for the linear address of a page.
struct Search<'a> {
    cpu: &'a Cpu,
    /// The address in the board's memory.
    wanted: u64,
    /// The level of the root.
    top: u32,
    patience: usize,
}

impl Search<'_> {
    /// In the part of a program's addresses that a table translates, from `linear` on.
    fn table(&mut self, table: u64, linear: u64, level: u32) -> Option<u64> {
        // Programs have the lower half.
        let entries = 1u64 << if level == self.top { BITS - 1 } else { BITS };
        let shift = SHIFT + BITS * level;
        (0..entries).find_map(|number| {
            self.patience = self.patience.checked_sub(1)?;
            let entry = self.cpu.wiring.ram.read::<u64>(table + 8 * number).filter(|entry| entry & P != 0)?;
            let linear = linear + (number << shift);
            if level != 0 && entry & PS == 0 {
                return self.table(entry & ADDRESS, linear, level - 1);
            }
            let inside = (1 << shift) - 1;
            (entry & ADDRESS & !inside == self.wanted & !inside).then_some(linear + (self.wanted & inside))
        })
    }
}

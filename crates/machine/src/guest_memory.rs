//! Memory of a guest of a hypervisor that runs on the machine (a nested guest), as seen from outside.
//!
//! Such a hypervisor maps a page when the guest touches it, and may remove a mapping again. KVM does so when a huge
//! page is executed on a processor with the iTLB multihit erratum, and its shadow page tables are never complete. But
//! the guest's memory also belongs to a program of the machine, such as QEMU, and a range that is contiguous for the
//! guest is contiguous for the program. Therefore one page that the hypervisor has mapped gives the location of the
//! others.

use crate::kernel_symbols::{IMAGE, Modules, View, read_by_pages};
use cpu::Cpu;
use ledger::symbols::{self, Kallsyms, KallsymsError, ModulesError};
use x86::control::CR4_LA57;
use x86::page::{ADDRESS, P, PAGE, PS, SHIFT};

/// Maximum number of page-table entries that a search for a page reads.
const PATIENCE: usize = 1 << 21;
/// Number of bits of a linear address that one level of page tables translates.
const BITS: u32 = 9;

/// Maximum distance between an address in an image and the image's start or end.
const FURTHEST: u64 = 32 << 20;
const LONGEST_IMAGE: u64 = 96 << 20;

/// Memory of the guest that a processor runs.
pub struct GuestMemory<'a> {
    view: View<'a>,
    cpu: &'a Cpu,
    /// An address in the image of the guest's kernel.
    known: u64,
    /// Root of the page tables of the program that the guest belongs to.
    program: u64,
    /// Offsets from a linear address in the guest's kernel, and from a guest-physical address, to the address in the
    /// program.
    from_linear: u64,
    from_physical: Option<u64>,
}

impl<'a> GuestMemory<'a> {
    /// Locates the memory around `known`, a linear address in the contiguous image of the guest's kernel. Returns
    /// `None` if `known` is not mapped, or belongs to no program.
    pub fn around(cpu: &'a Cpu, known: u64) -> Option<Self> {
        let view = View::of(cpu);
        let host = cpu.host_registers().filter(|host| host.long_mode())?;
        let (program, top) = (host.cr3, if host.cr4 & CR4_LA57 != 0 { 4 } else { 3 });
        let mut search = Search { cpu, wanted: view.look_up(known)?, top, patience: PATIENCE };
        let place = search.table(program & ADDRESS, 0, top)?;
        let from_physical = cpu.look_up_in_nested_guest(known).map(|physical| place.wrapping_sub(physical));
        Some(Self { view, cpu, known, program, from_linear: place.wrapping_sub(known), from_physical })
    }

    /// Returns the symbol tables of the guest's kernel, if they can be found.
    pub fn kernel(&self) -> Result<Kallsyms, KallsymsError> {
        let start = self.known.saturating_sub(FURTHEST).max(IMAGE.start) & !(PAGE - 1);
        let end = self.known.saturating_add(LONGEST_IMAGE).min(IMAGE.end);
        let image = self.copy_image(start, end.saturating_sub(start) as usize);
        symbols::kallsyms(&image, Some(start))
    }

    /// Returns the functions of the loaded kernel modules.
    pub fn modules(&self, kernel: &Kallsyms) -> Result<Modules, ModulesError> {
        symbols::modules(&kernel.landmarks, |linear, out| self.read(linear, out))
    }

    /// Returns true if the guest's hypervisor gives it shadow page tables: only what these map can be read outside of
    /// the kernel's image.
    pub fn is_shadowed(&self) -> bool {
        self.from_physical.is_none()
    }

    /// Returns the address in the board's memory of a linear address in the kernel's image.
    fn image(&self, linear: u64) -> Option<u64> {
        let by_program = || self.cpu.look_up_in_host(self.program, linear.wrapping_add(self.from_linear));
        self.view.look_up(linear).or_else(by_program)
    }

    /// Returns the address in the board's memory of any linear address, if the guest's own page tables can be read
    /// (under shadow paging they can't).
    fn anywhere(&self, linear: u64) -> Option<u64> {
        self.view.look_up(linear).or_else(|| {
            let place = self.cpu.look_up_in_nested_guest(linear)?.wrapping_add(self.from_physical?);
            self.cpu.look_up_in_host(self.program, place)
        })
    }

    /// Copies the image from `start` on, page by page. Pages that are not mapped read as zeros.
    pub fn copy_image(&self, start: u64, len: usize) -> Vec<u8> {
        let mut copy = vec![0; len];
        for (linear, page) in (start..).step_by(PAGE as usize).zip(copy.chunks_mut(PAGE as usize)) {
            if let Some(physical) = self.image(linear) {
                self.cpu.wiring.ram.read_bytes(physical, page);
            }
        }
        copy
    }

    /// Reads linear memory. Returns false unless all bytes could be read.
    pub fn read(&self, linear: u64, out: &mut [u8]) -> bool {
        read_by_pages(linear, out, |linear, part| {
            let in_image = || self.image(linear).filter(|_| IMAGE.contains(&linear));
            let place = self.anywhere(linear).or_else(in_image);
            place.is_some_and(|physical| self.cpu.wiring.ram.read_bytes(physical, part))
        })
    }
}

/// A search in page tables for the linear address of a page.
struct Search<'a> {
    cpu: &'a Cpu,
    /// Address of the page in the board's memory.
    wanted: u64,
    /// Level of the root table.
    top: u32,
    patience: usize,
}

impl Search<'_> {
    /// Searches the part of a program's address space that a table translates, which begins at `linear`.
    fn table(&mut self, table: u64, linear: u64, level: u32) -> Option<u64> {
        // User programs occupy the lower half.
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

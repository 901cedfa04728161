//! The kernels in guests of a hypervisor, such as KVM, that runs on the machine. Their functions have names in the
//! ledger, like those of the machine's own kernel. A guest may be gone long before the run ends, so its kernel is
//! looked for while it runs: after it has set the entry point for system calls, and again whenever its hypervisor
//! creates another EPT. Its modules, and a kernel that was not found, are looked for at growing intervals of virtual
//! time.

use crate::guest_memory::GuestMemory;
use crate::kernel_symbols::IMAGE;
use crate::state::{StateError, require};
use cpu::Cpu;
use ledger::symbols::Kallsyms;
use ledger::{AddressSpace, Symbol, Symbols, Ticks};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum number of distinct guests, of kernels, and of unsuccessful searches; further ones have no names.
const MOST_GUESTS: usize = 256;
const MOST_KERNELS: usize = 16;
const MOST_FAILURES: usize = 64;
/// Maximum number of functions of all kernels together, and of all modules.
const MOST_FUNCTIONS: usize = 1 << 22;
const MOST_MODULE_FUNCTIONS: usize = 1 << 20;
/// Number of bytes at the system call entry by which a kernel is recognized.
const ENTRY: usize = 64;
/// Interval from the first search to the second, in ticks: 10 million cycles. Each interval is twice the one before.
const FIRST_INTERVAL: Ticks = 10_000_000_000;
/// Maximum interval.
const LONGEST_INTERVAL: Ticks = 100 * FIRST_INTERVAL;

/// A kernel in a guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Kernel {
    /// System call entry point, and the code there.
    entry: u64,
    code: Vec<u8>,
    tables: Kallsyms,
}

/// A guest, as distinguished by [`ledger::Origin::guest`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Guest {
    /// Last seen value of IA32_LSTAR.
    entry: u64,
    /// Number of its kernel.
    kernel: Option<u32>,
    modules: Vec<(String, Vec<Symbol>)>,
    /// Time of the next search, and the interval to the one after it.
    next: Ticks,
    interval: Ticks,
}

/// Returns the number of functions in modules.
fn functions(modules: &[(String, Vec<Symbol>)]) -> usize {
    modules.iter().map(|module| module.1.len()).sum()
}

/// All guests and their kernels.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Guests {
    kernels: Vec<Kernel>,
    guests: BTreeMap<u64, Guest>,
    failures: usize,
}

impl Guests {
    /// Looks for the kernel of the guest that a processor runs.
    pub fn look(&mut self, guest: u64, cpu: &Cpu) {
        let entry = cpu.arch.msr.lstar;
        // Only addresses in the image give the location of the image.
        let in_image = |address: u64| IMAGE.contains(&address);
        if !cpu.wiring.model.recorded || cpu.arch.cpl != 0 || !in_image(entry) || !in_image(cpu.arch.rip) {
            return;
        }
        let known = self.guests.get(&guest).filter(|known| known.entry == entry);
        if known.is_none_or(|known| cpu.micro.clock >= known.next) {
            self.look_again(guest, cpu);
        }
    }

    #[cold]
    fn look_again(&mut self, guest: u64, cpu: &Cpu) {
        if self.guests.len() >= MOST_GUESTS && !self.guests.contains_key(&guest) {
            return;
        }
        let (entry, now) = (cpu.arch.msr.lstar, cpu.micro.clock);
        let before = self.guests.remove(&guest).filter(|before| before.entry == entry);
        let before =
            before.unwrap_or(Guest { entry, kernel: None, modules: Vec::new(), next: 0, interval: FIRST_INTERVAL });
        let memory = GuestMemory::around(cpu, cpu.arch.rip);
        let kernel = before.kernel.or_else(|| self.kernel(entry, memory.as_ref()?));
        let tables = kernel.map(|kernel| &self.kernels[kernel as usize].tables);
        let found = memory.zip(tables).map(|(memory, tables)| memory.modules(tables));
        // Between two searches some modules may be removed, but not all of them.
        let others = self.guests.values().map(|guest| functions(&guest.modules)).sum::<usize>();
        let found = found.filter(|found| !found.is_empty() && others + functions(found) <= MOST_MODULE_FUNCTIONS);
        let modules = found.unwrap_or(before.modules);
        let interval = (before.interval.saturating_mul(2)).min(LONGEST_INTERVAL);
        let next = now.saturating_add(before.interval);
        self.guests.insert(guest, Guest { entry, kernel, modules, next, interval });
    }

    /// Returns the number of the kernel in a guest's memory.
    fn kernel(&mut self, entry: u64, memory: &GuestMemory) -> Option<u32> {
        let code = memory.copy_image(entry, ENTRY);
        let same = |kernel: &Kernel| (kernel.entry, &kernel.code) == (entry, &code);
        if let Some(known) = self.kernels.iter().position(same) {
            return Some(known as u32);
        }
        if self.kernels.len() >= MOST_KERNELS || self.failures >= MOST_FAILURES {
            return None;
        }
        let tables = memory.kernel();
        let room = MOST_FUNCTIONS - self.kernels.iter().map(|kernel| kernel.tables.functions.len()).sum::<usize>();
        let enters =
            |tables: &Kallsyms| tables.functions.binary_search_by_key(&entry, |function| function.start).is_ok();
        let Some(tables) = tables.filter(|tables| tables.functions.len() <= room && enters(tables)) else {
            self.failures += 1;
            return None;
        };
        self.kernels.push(Kernel { entry, code, tables });
        Some(self.kernels.len() as u32 - 1)
    }

    /// Adds the functions of kernels and modules to `symbols`.
    pub fn add_to(&self, symbols: &mut Symbols) {
        for (&guest, known) in &self.guests {
            let Some(kernel) = known.kernel else { continue };
            symbols.add_kernel(guest, &self.kernels[kernel as usize].tables);
            for (name, functions) in &known.modules {
                symbols.add(name, AddressSpace::all_of(guest), functions.clone());
            }
        }
    }

    /// Checks that a saved state is possible.
    pub fn check(&self) -> Result<(), StateError> {
        let known = |guest: &Guest| guest.kernel.is_none_or(|kernel| (kernel as usize) < self.kernels.len());
        require(self.guests.values().all(known), "a guest's kernel")?;
        require(self.guests.len() <= MOST_GUESTS && self.kernels.len() <= MOST_KERNELS, "too many guests")?;
        let functions = || self.kernels.iter().flat_map(|kernel| kernel.tables.functions.iter());
        require(functions().count() <= MOST_FUNCTIONS, "too many functions of guests")?;
        let modules = self.guests.values().flat_map(|guest| guest.modules.iter().flat_map(|module| &module.1));
        let ends = functions().chain(modules).map(|function| function.start.checked_add(function.size));
        require(ends.into_iter().all(|end| end.is_some()), "a guest's functions")
    }
}

//! The kernels in guests of a hypervisor, such as KVM, that runs on the machine. Their functions have names in the
//! ledger, like those of the machine's own kernel. A guest may be gone long before the run ends, so its kernel is
//! looked for while it runs: after it has set the entry point for system calls, and again whenever its hypervisor
//! creates another EPT. A kernel that was not found is looked for at growing intervals of virtual time. Its modules are
//! read when the kernel's list of modules has a new first entry, which is looked at often; where that list can't be read,
//! they are looked for at growing intervals too.

use super::kernel::Kernel as Observed;
use super::kernel::TasksError;
use crate::guest_memory::GuestMemory;
use crate::kernel_symbols::{IMAGE, Modules, View};
use crate::state::{StateError, require};
use cpu::Cpu;
use ledger::summary::Part;
use ledger::symbols::{Kallsyms, KallsymsError, ModulesError};
use ledger::{AddressSpace, Symbols, Ticks};
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
/// Interval from the first search to the second, in ticks: 10 million cycles. Each interval is twice the one before, unless the list of modules can be looked at.
const FIRST_INTERVAL: Ticks = 10_000_000_000;
/// Maximum interval.
const LONGEST_INTERVAL: Ticks = 100 * FIRST_INTERVAL;

/// The reason for which code has no name although the kernel is known.
pub const OF_NO_FUNCTION: &str =
    "it is in no function of the kernel's table: code of another kernel, or made at run time";
/// The reason for which code at low addresses has no name.
pub const LOW: &str =
    "it is code before the kernel proper: firmware, a boot loader, or the decompressor of the kernel's image";
/// The reason for which code at the addresses of modules has no name although they are known.
pub const OF_NO_MODULE: &str = "it is in no function of a loaded module: code of a module without symbols or already unloaded, of a module's initialization, or made at run time (BPF)";

/// A kernel in a guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Kernel {
    /// System call entry point, and the code there.
    entry: u64,
    code: Vec<u8>,
    tables: Kallsyms,
    /// Its tasks, if they can be observed.
    observed: Option<Observed>,
}

/// The reason for which the tasks of a guest have no names where those of its hypervisor have none.
const OF_NO_THREAD: &str =
    "the tasks of its hypervisor are not known, and a task of a guest is found by the hypervisor's thread that runs it";

/// The outcome of a look at a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Its kernel is not known, or was known before.
    Nothing,
    /// Its kernel was found when the guest was first looked at.
    AtOnce,
    /// Its kernel was found later.
    Later,
}

/// The reason why functions in a guest have no names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
enum Unknown {
    #[error("its memory was not found in the address space of a program of its hypervisor")]
    Memory,
    #[error(transparent)]
    Kernel(KallsymsError),
    #[error("the kernel that is in its memory has no function at the processor's system call entry")]
    OtherKernel,
    #[error("this run has more nested guests, or their kernels more functions, than a ledger names")]
    TooMany,
    #[error(
        "its modules are not in the kernel's image, and the rest of its memory can't be read through its hypervisor's shadow page tables"
    )]
    Shadow,
    #[error(transparent)]
    Modules(ModulesError),
}

/// A guest, as distinguished by [`ledger::Origin::guest`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Guest {
    /// Last seen value of IA32_LSTAR.
    entry: u64,
    /// Number of its kernel, or the outcome of the last search for it.
    kernel: Result<u32, Unknown>,
    modules: Modules,
    /// The first entry of the kernel's list of modules when they were read, which is the newest module.
    newest: Option<u64>,
    /// True if another entry was first at the reading before: the kernel may not have filled in the newest module yet.
    is_fresh: bool,
    /// The reason for which the last search for its modules failed.
    no_modules: Option<Unknown>,
    /// Time of the next search, and the interval to the one after it.
    next: Ticks,
    interval: Ticks,
}

/// Returns the number of functions in modules.
fn functions(modules: &Modules) -> usize {
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
    pub fn look(&mut self, guest: u64, cpu: &Cpu) -> Found {
        let entry = cpu.arch.msr.lstar;
        // Only addresses in the image give the location of the image.
        let in_image = |address: u64| IMAGE.contains(&address);
        if !cpu.wiring.model.recorded || cpu.arch.cpl != 0 || !in_image(entry) || !in_image(cpu.arch.rip) {
            return Found::Nothing;
        }
        let known = self.guests.get(&guest).filter(|known| known.entry == entry);
        if known.is_some_and(|known| cpu.micro.clock < known.next) {
            return Found::Nothing;
        }
        let (first, found) = (known.is_none(), known.is_some_and(|known| known.kernel.is_ok()));
        let newest = known.and_then(|known| self.newest_module(known, cpu));
        if let Some(known) = self.guests.get_mut(&guest).filter(|known| known.entry == entry)
            && newest.is_some()
            && newest == known.newest
            && !known.is_fresh
        {
            known.next = cpu.micro.clock.saturating_add(FIRST_INTERVAL);
            return Found::Nothing;
        }
        self.look_again(guest, cpu);
        match self.guests.get(&guest) {
            Some(guest) if guest.kernel.is_ok() && !found && first => Found::AtOnce,
            Some(guest) if guest.kernel.is_ok() && !found => Found::Later,
            _ => Found::Nothing,
        }
    }

    /// Returns the kernel that a processor runs in a guest: the one with its system call entry. A guest's memory gets another name whenever its
    /// hypervisor creates another EPT.
    fn running(&self, cpu: &Cpu) -> Option<usize> {
        self.kernels.iter().position(|kernel| kernel.entry == cpu.arch.msr.lstar)
    }

    /// Returns the tasks of the kernel that a processor runs in a guest.
    pub fn observed(&self, cpu: &Cpu) -> Option<&Observed> {
        self.kernels[self.running(cpu)?].observed.as_ref()
    }

    /// Likewise, to learn from what it does.
    pub fn observed_mut(&mut self, cpu: &Cpu) -> Option<&mut Observed> {
        let number = self.running(cpu)?;
        self.kernels[number].observed.as_mut()
    }

    /// Returns the addresses of the probes on the kernel that a processor runs in a guest.
    pub fn addresses(&self, cpu: &Cpu) -> Vec<u64> {
        self.observed(cpu).into_iter().flat_map(Observed::addresses).collect()
    }

    /// Returns the addresses of all probes.
    pub fn all_addresses(&self) -> impl Iterator<Item = u64> {
        self.kernels.iter().filter_map(|kernel| kernel.observed.as_ref()).flat_map(Observed::addresses)
    }

    /// Returns the address of the task that the kernel that a processor runs in a guest begins with.
    pub fn first_task(&self, cpu: &Cpu) -> Option<u64> {
        self.kernels[self.running(cpu)?].tables.landmarks.init_task
    }

    /// Returns the first entry of the list of modules of the kernel that a processor runs in a guest, if it can be read.
    fn newest_module(&self, guest: &Guest, cpu: &Cpu) -> Option<u64> {
        let head = self.kernels[guest.kernel.ok()? as usize].tables.landmarks.modules?;
        let mut first = [0; 8];
        View::of(cpu).read(head, &mut first).then(|| u64::from_le_bytes(first))
    }

    #[cold]
    fn look_again(&mut self, guest: u64, cpu: &Cpu) {
        if self.guests.len() >= MOST_GUESTS && !self.guests.contains_key(&guest) {
            return;
        }
        let (entry, now) = (cpu.arch.msr.lstar, cpu.micro.clock);
        let before = self.guests.remove(&guest).filter(|before| before.entry == entry);
        let before = before.unwrap_or(Guest {
            entry,
            kernel: Err(Unknown::Memory),
            modules: Modules::new(),
            newest: None,
            is_fresh: false,
            no_modules: None,
            next: 0,
            interval: FIRST_INTERVAL,
        });
        let memory = GuestMemory::around(cpu, cpu.arch.rip).ok_or(Unknown::Memory);
        let kernel = before.kernel.or_else(|_| self.kernel(cpu, memory.as_ref().map_err(|reason| *reason)?));
        let found = kernel.and_then(|kernel| self.modules(kernel, memory.as_ref().map_err(|reason| *reason)?));
        let shadowed = memory.is_ok_and(|memory| memory.is_shadowed());
        // Between two searches some modules may be removed, but not all of them.
        let (modules, no_modules) = match found {
            Ok(found) if !found.is_empty() => (found, None),
            Ok(_) if shadowed => (before.modules, Some(Unknown::Shadow)),
            Ok(_) => (before.modules, None),
            Err(reason) => (before.modules, Some(reason)),
        };
        let mut known = Guest {
            newest: None,
            is_fresh: false,
            next: now.saturating_add(before.interval),
            interval: before.interval.saturating_mul(2).min(LONGEST_INTERVAL),
            entry,
            kernel,
            modules,
            no_modules,
        };
        known.newest = self.newest_module(&known, cpu).filter(|_| no_modules.is_none());
        if known.newest.is_some() {
            known.is_fresh = known.newest != before.newest;
            (known.next, known.interval) = (now.saturating_add(FIRST_INTERVAL), before.interval);
        }
        self.guests.insert(guest, known);
    }

    /// Returns the functions of the modules of a kernel in a guest's memory.
    fn modules(&self, kernel: u32, memory: &GuestMemory) -> Result<Modules, Unknown> {
        let found = memory.modules(&self.kernels[kernel as usize].tables).map_err(|reason| match reason {
            ModulesError::Unreadable if memory.is_shadowed() => Unknown::Shadow,
            reason => Unknown::Modules(reason),
        })?;
        let others = self.guests.values().map(|guest| functions(&guest.modules)).sum::<usize>();
        if others + functions(&found) > MOST_MODULE_FUNCTIONS { Err(Unknown::TooMany) } else { Ok(found) }
    }

    /// Returns the number of the kernel in a guest's memory.
    fn kernel(&mut self, cpu: &Cpu, memory: &GuestMemory) -> Result<u32, Unknown> {
        let entry = cpu.arch.msr.lstar;
        let code = memory.copy_image(entry, ENTRY);
        let same = |kernel: &Kernel| (kernel.entry, &kernel.code) == (entry, &code);
        if let Some(known) = self.kernels.iter().position(same) {
            return Ok(known as u32);
        }
        if self.kernels.len() >= MOST_KERNELS || self.failures >= MOST_FAILURES {
            return Err(Unknown::TooMany);
        }
        let room = MOST_FUNCTIONS - self.kernels.iter().map(|kernel| kernel.tables.functions.len()).sum::<usize>();
        let enters =
            |tables: &Kallsyms| tables.functions.binary_search_by_key(&entry, |function| function.start).is_ok();
        let tables = match memory.kernel() {
            Ok(tables) if tables.functions.len() > room => Err(Unknown::TooMany),
            Ok(tables) if !enters(&tables) => Err(Unknown::OtherKernel),
            Ok(tables) => Ok(tables),
            Err(reason) => Err(Unknown::Kernel(reason)),
        };
        self.failures += usize::from(tables.is_err());
        let tables = tables?;
        let observed =
            Observed::with(cpu, &tables.functions, &tables.landmarks, |linear, out| memory.read(linear, out));
        self.kernels.push(Kernel { entry, code, tables, observed });
        Ok(self.kernels.len() as u32 - 1)
    }

    /// Returns the reason for which code of a guest has no name.
    pub fn why_unnamed(&self, guest: u64, part: Part) -> String {
        let Some(known) = self.guests.get(&guest) else {
            return match self.guests.len() {
                MOST_GUESTS.. => Unknown::TooMany.to_string(),
                _ => "no kernel was seen in it: a 64-bit Linux is looked for when it runs in its image after it has set its system call entry"
                    .to_owned(),
            };
        };
        match (known.kernel, part) {
            (Err(reason), _) => reason.to_string(),
            (Ok(_), Part::Modules) => match known.no_modules.filter(|_| known.modules.is_empty()) {
                Some(reason) => reason.to_string(),
                None => format!("{OF_NO_MODULE}, when they were last looked for"),
            },
            (Ok(_), Part::Low) => LOW.to_owned(),
            (Ok(_), _) => OF_NO_FUNCTION.to_owned(),
        }
    }

    /// Returns the reason for which the tasks of a guest have no names, if they have none. `outside` is true if those of its hypervisor have.
    pub fn why_no_tasks(&self, outside: bool) -> Option<String> {
        let of = |guest: &Guest| match guest.kernel {
            Err(reason) => Some(reason.to_string()),
            Ok(_) if !outside => Some(OF_NO_THREAD.to_owned()),
            Ok(kernel) => {
                let Kernel { tables, observed, .. } = &self.kernels[kernel as usize];
                let observed = observed.as_ref().ok_or(TasksError::NoKernel);
                let named = observed.and_then(|observed| observed.names_tasks(Some(tables)));
                named.err().map(|reason| reason.to_string())
            }
        };
        // A guest whose kernel was named under one EPT is not without names because it was not found under another.
        let reasons: Option<Vec<String>> = self.guests.values().map(of).collect();
        reasons?.into_iter().next()
    }

    /// Adds the functions of kernels and modules to `symbols`.
    pub fn add_to(&self, symbols: &mut Symbols) {
        for (&guest, known) in &self.guests {
            let Ok(kernel) = known.kernel else { continue };
            symbols.add_kernel(guest, &self.kernels[kernel as usize].tables);
            for (name, functions) in &known.modules {
                symbols.add(name, AddressSpace::all_of(guest), functions.clone());
            }
        }
    }

    /// Checks that a saved state is possible.
    pub fn check(&self) -> Result<(), StateError> {
        let known = |guest: &Guest| guest.kernel.map_or(true, |kernel| (kernel as usize) < self.kernels.len());
        require(self.guests.values().all(known), "a guest's kernel")?;
        require(self.guests.len() <= MOST_GUESTS && self.kernels.len() <= MOST_KERNELS, "too many guests")?;
        let functions = || self.kernels.iter().flat_map(|kernel| kernel.tables.functions.iter());
        require(functions().count() <= MOST_FUNCTIONS, "too many functions of guests")?;
        let modules = self.guests.values().flat_map(|guest| guest.modules.iter().flat_map(|module| &module.1));
        let ends = functions().chain(modules).map(|function| function.start.checked_add(function.size));
        require(ends.into_iter().all(|end| end.is_some()), "a guest's functions")?;
        self.kernels.iter().filter_map(|kernel| kernel.observed.as_ref()).try_for_each(Observed::check)
    }
}

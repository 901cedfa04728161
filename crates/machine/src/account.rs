//! The ledger of a machine's run: its charges with names and symbols.

use crate::board::Board;
use crate::kernel_symbols;
use crate::machine::Machine;
use crate::platform::Platform;
use crate::stacks::NamedTree;
use crate::tasks::{self, LOW, OF_NO_FUNCTION, OF_NO_MODULE, TasksError};
use ledger::profile::Profile;
use ledger::summary::Part;
use ledger::symbols::{self, Kallsyms, KallsymsError, Symbol, Symbols};
use ledger::{AddressSpace, Family, Header, Kind, Ledger};
use std::cell::LazyCell;

/// Maximum number of modules that a reason names.
const MOST_MODULES: usize = 8;
/// The reasons for which programs have no names.
const OF_PROGRAM: &str = "functions of programs are named only from files given with `run --symbols`, or, with `exec --sample`, from packed or shared files that were sampled";
const OF_NESTED_PROGRAM: &str = "functions in programs of nested guests are not named";

/// The outcome of a search for a kernel.
type Kernel = Result<Kallsyms, KallsymsError>;

impl Machine {
    /// Returns the symbols of the guest: those of `files` (name and functions), those of the image if it is an ELF
    /// file, and those of a Linux kernel and its modules as found in guest memory.
    pub fn symbols(&self, files: Vec<(String, Vec<Symbol>)>) -> Symbols {
        let mut all = Symbols::default();
        for (name, found) in files {
            all.add(&name, AddressSpace::default(), found);
        }
        if self.image.starts_with(b"\x7fELF")
            && let Ok(found) = symbols::elf(&self.image, 0)
        {
            all.add("", AddressSpace::default(), found);
        }
        match self.kernel() {
            Ok(kernel) => {
                let modules = kernel_symbols::modules(&kernel, self.vcpus.cpus());
                all.add_kernel(0, &kernel);
                for (name, found) in modules.unwrap_or_default() {
                    all.add(&name, AddressSpace::default(), found);
                }
            }
            Err(reason) => all.no_kernel = Some(reason),
        }
        self.vcpus.tasks.guests().add_to(&mut all);
        if let Some(stacks) = &self.vcpus.stacks {
            stacks.add_programs(self.recorder(), &mut all);
        }
        all
    }

    /// Sets the trees that hold the files of the guest's programs. Functions in call stacks get their names from these files, and stacks are unwound
    /// by the files' tables. A tree's name is its directory in the guest's virtio file system; the tree `root` holds the guest's root.
    pub fn use_programs(&self, trees: Vec<NamedTree>) {
        if let Some(stacks) = &self.vcpus.stacks {
            stacks.use_programs(trees);
        }
    }

    /// Sets the functions that the user has given. The machine observes those of a kernel that has no tables of its own.
    pub fn use_functions(&mut self, functions: &[&Symbol]) {
        let probed = functions.iter().filter(|symbol| tasks::is_probed(symbol));
        self.vcpus.tasks.use_functions(probed.map(|symbol| (*symbol).clone()).collect());
        if let Some(stacks) = &self.vcpus.stacks {
            stacks.use_functions(functions);
        }
    }

    /// Returns the symbol tables of the running Linux kernel, if there is one.
    pub(crate) fn kernel(&self) -> Kernel {
        match self.vcpus.tasks.kernel() {
            Some(kernel) => Ok(kernel.clone()),
            None => kernel_symbols::find(self.vcpus.cpus(), &self.ram),
        }
    }

    /// Returns the reason for which code of the machine itself, or of a nested guest, has no name. `kernel` is the
    /// outcome of the search for the machine's kernel.
    fn why_unnamed(&self, kernel: &LazyCell<Kernel, impl FnOnce() -> Kernel>, part: Part, guest: u64) -> String {
        match part {
            Part::Programs if guest != 0 => return OF_NESTED_PROGRAM.to_owned(),
            Part::Programs => return OF_PROGRAM.to_owned(),
            _ if guest != 0 => return self.vcpus.tasks.guests().why_unnamed(guest, part),
            _ => {}
        }
        let kernel = match &**kernel {
            Ok(kernel) => kernel,
            Err(reason) => {
                let stripped = self.image.starts_with(b"\x7fELF") && symbols::elf(&self.image, 0).is_err();
                let image =
                    if stripped { ", and the ELF file that was booted has no symbols (it is stripped)" } else { "" };
                return format!("{reason}{image}; `--symbols` gives names");
            }
        };
        match part {
            Part::Modules => match kernel_symbols::modules(kernel, self.vcpus.cpus()) {
                Err(reason) => reason.to_string(),
                Ok(modules) => {
                    let silent = modules.iter().filter(|module| module.1.is_empty()).map(|module| module.0.as_str());
                    let silent = silent.take(MOST_MODULES).collect::<Vec<_>>().join(", ");
                    let silent = if silent.is_empty() { silent } else { format!(" (without symbols: {silent})") };
                    format!("{OF_NO_MODULE}, at the end of the run{silent}")
                }
            },
            Part::Low => LOW.to_owned(),
            _ => OF_NO_FUNCTION.to_owned(),
        }
    }

    /// Returns the reason for which the tasks of the guest's kernel have no names, if there is a kernel and they have none.
    fn why_no_tasks(&self, kernel: &LazyCell<Kernel, impl FnOnce() -> Kernel>) -> Option<String> {
        match self.vcpus.tasks.are_named() {
            None | Some(Ok(())) => None,
            Some(Err(TasksError::NoKernel)) => Some(match &**kernel {
                Ok(_) => TasksError::NoKernel.to_string(),
                Err(reason) => {
                    format!("{reason}, so that its switches of tasks can't be observed; `--symbols` gives names")
                }
            }),
            Some(Err(reason)) => Some(reason.to_string()),
        }
    }

    /// Checks that the hypervisor, if there is one, has consistent tables and has leaked no page of them. The error
    /// describes the fault.
    pub fn check(&self) -> Result<(), String> {
        match &self.vcpus.hypervisor {
            Some(vm) => vm.check(self.vcpus.all.iter().filter_map(|vcpu| vcpu.guest.as_ref())),
            None => Ok(()),
        }
    }

    /// Returns the ledger, after [`Machine::run`], or of what has run so far, after [`Machine::gather`].
    pub fn ledger(&self, symbols: &Symbols) -> Ledger {
        let clocks = match &self.on_kvm {
            Some(report) => report.outside.clone(),
            None => self.vcpus.all.iter().map(|v| v.cpu.micro.clock).collect(),
        };
        let mut header = match self.platform {
            Platform::Emulated => Header::priced(&self.profile, &self.profile.emulated_costs(), clocks),
            Platform::Bare | Platform::Hvm(_) => Header::new(&self.profile, clocks),
        };
        let mut facts = self.provenance();
        if let Some(vm) = &self.vcpus.hypervisor {
            facts.extend(vm.summary());
            facts.push(("mmu check", self.check().err().unwrap_or_else(|| "clean".to_owned())));
        }
        header.metadata = facts.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        header.metadata.extend(self.on_kvm.iter().flat_map(|report| report.facts()));
        let mut ledger = Ledger::new(header, self.recorder(), symbols);
        let board = self.board();
        ledger.name_kinds(|kind| name(kind, &self.profile, &board));
        drop(board);
        // The search reads all low memory if there is no kernel: it is not repeated.
        let kernel = LazyCell::new(|| symbols.no_kernel.map_or_else(|| self.kernel(), Err));
        ledger.explain_unnamed(|part, guest| self.why_unnamed(&kernel, part, guest));
        if let Some(reason) = self.why_no_tasks(&kernel) {
            ledger.explain_tasks(false, reason);
        }
        let outside = self.vcpus.tasks.are_named() == Some(Ok(()));
        if let Some(reason) = self.vcpus.tasks.guests().why_no_tasks(outside) {
            ledger.explain_tasks(true, reason);
        }
        ledger
    }
}

/// Returns the name of a kind whose parameter is a number assigned by the board or the decoder.
fn name(kind: Kind, profile: &Profile, board: &Board) -> Option<String> {
    match kind.family {
        Family::PortIn | Family::PortOut => {
            let port = u16::try_from(kind.param).ok()?;
            board.port_name(port).map(str::to_owned)
        }
        Family::MmioRead | Family::MmioWrite => board.memory_name(kind.param).map(str::to_owned),
        Family::Undefined => {
            let name = cpu::table::code_name(kind.param)?;
            let real = cpu::features::of_real_processor(kind.param, profile);
            Some(
                real.map_or(name.clone(), |(_, names)| {
                    format!("{name} ({names}, which {} has)", profile.identity.name)
                }),
            )
        }
        _ => None,
    }
}

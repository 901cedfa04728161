//! A guest's memory and its kernel's tables, as unwinding reads them.

use super::mapped::Mapped;
use super::programs::Programs;
use super::unwind::{USER, Unwindable};
use crate::kernel_symbols::{View, read_by_pages};
use cpu::Cpu;
use ledger::stack;
use ledger::symbols::mappings::{Mapping, MappingLayout};
use ledger::symbols::orc::{Entry, ModuleTables, Places, Table};
use ledger::symbols::program::Row;
use ledger::symbols::{Kallsyms, Landmarks};
use ledger::{Recorder, Symbol};
use std::ops::Range;
use std::sync::Arc;
use x86::page::PAGE;

/// Number of failed searches for a kernel's tables after which they are given up.
const MOST_FAILURES: u32 = 100;
/// Number of failed searches for the layout of its mappings after which they are given up: the types of a kernel are
/// millions of bytes.
const MOST_UNKNOWN: u32 = 3;
/// Number of pages whose addresses are cached while one stack is unwound.
const PAGES: usize = 8;

/// A kernel and its ORC tables.
pub struct Kernel {
    functions: Arc<[Symbol]>,
    landmarks: Landmarks,
    /// The tables are read on first use: then the kernel runs, and its memory is mapped.
    tables: Option<Tables>,
    failures: u32,
    /// The layout of a process's mappings is read on first use, too.
    mappings: Option<MappingLayout>,
    unknown: u32,
}

struct Tables {
    places: Places,
    kernel: Table,
    modules: ModuleTables,
}

impl Kernel {
    /// Creates the kernel of these symbols.
    pub fn new(symbols: &Kallsyms) -> Self {
        Self {
            functions: symbols.functions.clone(),
            landmarks: symbols.landmarks,
            tables: None,
            failures: 0,
            mappings: None,
            unknown: 0,
        }
    }

    /// Returns true if this is the kernel of these symbols.
    pub fn is(&self, symbols: &Kallsyms) -> bool {
        Arc::ptr_eq(&self.functions, &symbols.functions)
    }

    /// Returns the entry for an address.
    fn entry(&mut self, view: &View, address: u64) -> Option<Entry> {
        let read = |linear: u64, out: &mut [u8]| view.read(linear, out);
        if self.tables.is_none() && self.failures < MOST_FAILURES {
            self.tables = Places::of(&self.landmarks, &read).and_then(|places| {
                let kernel = places.kernel(&read)?;
                Some(Tables { places, kernel, modules: ModuleTables::default() })
            });
            self.failures += u32::from(self.tables.is_none());
        }
        let Tables { places, kernel, modules } = self.tables.as_mut()?;
        kernel.find(address).or_else(|| modules.find(places, &read, address))
    }
}

impl Kernel {
    /// Returns the layout of a process's mappings.
    fn mappings(&mut self, view: &View) -> Option<&MappingLayout> {
        if self.mappings.is_none() && self.unknown < MOST_UNKNOWN {
            self.mappings = MappingLayout::from_btf(&self.landmarks, |linear, out| view.read(linear, out));
            self.unknown += u32::from(self.mappings.is_none());
        }
        self.mappings.as_ref()
    }
}

/// A mapping, with the number of the file and the offset in it of the first address.
type Found = (Range<u64>, Option<(u32, u64)>);

/// The process of the current task, and the files of its programs.
///
/// The mappings are read anew for each stack, so that a stack follows from the guest's state alone.
pub struct Process<'a> {
    programs: &'a mut Programs,
    recorder: &'a Recorder,
    /// Address of the task's `struct task_struct`.
    task: u64,
    /// The view of the kernel's data, and the address of the process's `struct mm_struct`. `None` before the first use, and within it if the page
    /// tables in use are not the process's.
    mm: Option<Option<(View<'a>, u64)>>,
    /// The mappings of this stack.
    found: Vec<Found>,
}

impl<'a> Process<'a> {
    /// Creates the process of a task whose `struct task_struct` is at an address.
    pub fn new(programs: &'a mut Programs, recorder: &'a Recorder, task: u64) -> Self {
        Self { programs, recorder, task, mm: None, found: Vec::new() }
    }

    /// Returns the number of the file and the offset in it of an address.
    fn place(&mut self, view: View<'a>, kernel: &mut Kernel, address: u64) -> Option<(u32, u64)> {
        let known = self.found.iter().find(|(range, _)| range.contains(&address));
        let (range, place) = match known {
            Some(known) => known.clone(),
            None => {
                let found = self.look_up(view, kernel, address).unwrap_or((address..address + 1, None));
                self.found.push(found.clone());
                found
            }
        };
        let (number, offset) = place?;
        Some((number, offset.checked_add(address - range.start)?))
    }

    fn look_up(&mut self, view: View<'a>, kernel: &mut Kernel, address: u64) -> Option<Found> {
        let task = self.task;
        let (view, mm) = (*self.mm.get_or_insert_with(|| {
            // With page-table isolation, the user's tables do not map the kernel's data.
            let view = if view.read(task, &mut [0; 8]) { view } else { view.isolated() };
            Some((view, kernel.mappings(&view)?.mm(&view, task)?))
        }))?;
        let Mapping { range, offset, file } = kernel.mappings(&view)?.find(&view, mm, address)?;
        let number = file.and_then(|file| self.programs.number(self.recorder, file));
        Some((range, number.map(|number| (number, offset))))
    }
}

/// The memory that a processor sees.
pub struct Memory<'a> {
    cpu: &'a Cpu,
    view: View<'a>,
    kernel: Option<&'a mut Kernel>,
    process: Option<Process<'a>>,
    /// Linear pages and their physical addresses.
    pages: [Option<(u64, u64)>; PAGES],
}

impl<'a> Memory<'a> {
    /// Creates the view of a processor, whose code below ring 3 is this kernel's, and whose other code is this
    /// process's.
    pub fn new(cpu: &'a Cpu, kernel: Option<&'a mut Kernel>, process: Option<Process<'a>>) -> Self {
        Self { cpu, view: View::of(cpu), kernel, process, pages: [None; PAGES] }
    }

    /// Returns the place in a file of a program's address, in the form in which stacks have it.
    pub fn in_file(&mut self, address: u64) -> Option<u64> {
        let (number, offset) = self.place(address)?;
        stack::in_file(number, offset)
    }

    /// Returns the mappings of files in which the stack has addresses.
    pub fn found(&mut self) -> Vec<Mapped> {
        let found = self.process.iter_mut().flat_map(|process| std::mem::take(&mut process.found));
        found.filter_map(|(range, place)| place.map(|(number, offset)| Mapped { range, number, offset })).collect()
    }

    fn place(&mut self, address: u64) -> Option<(u32, u64)> {
        if !USER.contains(&address) {
            return None;
        }
        self.process.as_mut()?.place(self.view, self.kernel.as_mut()?, address)
    }
}

impl Unwindable for Memory<'_> {
    fn read(&mut self, linear: u64, out: &mut [u8]) -> bool {
        let Self { cpu, view, pages, .. } = self;
        let place = std::cell::RefCell::new(pages);
        read_by_pages(linear, out, |linear, part| {
            let (page, offset) = (linear & !(PAGE - 1), linear & (PAGE - 1));
            let slot = &mut place.borrow_mut()[(linear / PAGE) as usize % PAGES];
            let found = slot.filter(|known| known.0 == page).or_else(|| Some((page, view.look_up(page)?)));
            *slot = found.or(*slot);
            found.is_some_and(|(_, physical)| cpu.wiring.ram.read_bytes(physical + offset, part))
        })
    }

    fn entry(&mut self, address: u64) -> Option<Entry> {
        self.kernel.as_mut()?.entry(&self.view, address)
    }

    fn row(&mut self, address: u64) -> Option<Row> {
        let (number, offset) = self.place(address)?;
        let Process { programs, recorder, .. } = self.process.as_mut()?;
        programs.row(recorder, number, offset)
    }
}

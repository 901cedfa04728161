//! A guest's memory and its kernel's tables, as unwinding reads them.

use super::unwind::Unwindable;
use crate::kernel_symbols::{View, read_by_pages};
use cpu::Cpu;
use ledger::Symbol;
use ledger::symbols::orc::{Entry, Places, Table};
use ledger::symbols::{Kallsyms, Landmarks};
use std::sync::Arc;
use x86::page::PAGE;

/// How often a kernel's tables are looked for in vain.
const MOST_FAILURES: u32 = 100;
/// Pages whose places are remembered while one stack is unwound.
const PAGES: usize = 8;

/// A kernel with its ORC tables.
pub struct Kernel {
    functions: Arc<[Symbol]>,
    landmarks: Landmarks,
    /// Read when they are needed first: then the kernel runs, and its memory is mapped.
    tables: Option<Tables>,
    failures: u32,
}

struct Tables {
    places: Places,
    kernel: Table,
    modules: Vec<Table>,
    /// What was first in the list of modules when they were read.
    newest: Option<u64>,
}

impl Kernel {
    /// The kernel of these symbols.
    pub fn new(symbols: &Kallsyms) -> Self {
        Self { functions: symbols.functions.clone(), landmarks: symbols.landmarks, tables: None, failures: 0 }
    }

    /// Whether it is the kernel of these symbols.
    pub fn is(&self, symbols: &Kallsyms) -> bool {
        Arc::ptr_eq(&self.functions, &symbols.functions)
    }

    /// The entry for an address.
    fn entry(&mut self, view: &View, address: u64) -> Option<Entry> {
        let read = |linear: u64, out: &mut [u8]| view.read(linear, out);
        if self.tables.is_none() && self.failures < MOST_FAILURES {
            self.tables = Places::of(&self.landmarks, &read).and_then(|places| {
                let kernel = places.kernel(&read)?;
                Some(Tables { places, kernel, modules: Vec::new(), newest: None })
            });
            self.failures += u32::from(self.tables.is_none());
        }
        let tables = self.tables.as_mut()?;
        if let Some(entry) = tables.kernel.find(address) {
            return Some(entry);
        }
        let newest = tables.places.newest_module(&read);
        if newest.is_some() && newest != tables.newest {
            tables.modules = tables.places.modules(&read);
            tables.newest = newest;
        }
        tables.modules.iter().find_map(|module| module.find(address))
    }
}

/// What a processor sees of memory.
pub struct Memory<'a> {
    cpu: &'a Cpu,
    view: View<'a>,
    kernel: Option<&'a mut Kernel>,
    /// Linear pages and where they are.
    pages: [Option<(u64, u64)>; PAGES],
}

impl<'a> Memory<'a> {
    /// The memory that a processor sees, whose code below ring 3 is this kernel's.
    pub fn new(cpu: &'a Cpu, kernel: Option<&'a mut Kernel>) -> Self {
        Self { cpu, view: View::of(cpu), kernel, pages: [None; PAGES] }
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
}

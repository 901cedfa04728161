//! The ledger of a machine's run: its charges with names and symbols.

use crate::board::{MMIO_DEVICES, PORT_DEVICES};
use crate::machine::Machine;
use ledger::symbols::{self, Symbols};
use ledger::{Family, Header, Kind, Ledger};

/// A file with symbols, and what it is.
pub enum SymbolFile {
    /// An ELF file and by how much it was moved.
    Elf(Vec<u8>, u64),
    /// Text of a System.map or /proc/kallsyms.
    Map(String),
}

impl Machine {
    /// The symbols of what runs: the image's own if it is an ELF file, the kernel's from guest memory, and those of `files`.
    pub fn symbols(&self, files: &[(String, SymbolFile)]) -> Symbols {
        let mut all = Symbols::default();
        for (name, file) in files {
            let found = match file {
                SymbolFile::Elf(bytes, slide) => symbols::elf(bytes, *slide).unwrap_or_default(),
                SymbolFile::Map(text) => symbols::system_map(text, 0),
            };
            all.add(name, 0, found);
        }
        if let Some(found) = self.elf.as_deref().and_then(|bytes| symbols::elf(bytes, 0).ok()) {
            all.add("", 0, found);
        }
        // A Linux kernel has relocated its table itself.
        if let Ok(found) = self.ram.with_low_ram(|ram| symbols::kallsyms(ram, 0)) {
            all.add("", 0, found);
        }
        all
    }

    /// The ledger, after [`Machine::run`].
    pub fn ledger(&self, symbols: &Symbols) -> Ledger {
        let recorder = self.recorder.borrow();
        let clocks = self.vcpus.all.iter().map(|v| v.cpu.clock).collect();
        let mut header = Header::new(&self.profile, clocks);
        for (key, value) in &self.description {
            header.metadata.insert((*key).to_owned(), value.clone());
        }
        let kinds = recorder.events().map(|(_, _, _, kind, _)| kind);
        header.names = kinds.filter_map(|kind| Some((kind, name(kind)?))).collect();
        Ledger::new(header, &recorder, symbols)
    }
}

/// Name of a kind whose parameter is a number of the board's or the decoder's.
fn name(kind: Kind) -> Option<String> {
    match kind.family {
        Family::PortIn | Family::PortOut => {
            let port = u16::try_from(kind.param).ok()?;
            let (_, device) = PORT_DEVICES.iter().find(|(ports, _)| ports.contains(&port))?;
            Some((*device).to_owned())
        }
        Family::MmioRead | Family::MmioWrite => {
            MMIO_DEVICES.get(kind.param as usize).map(|device| (*device).to_owned())
        }
        Family::Undefined => cpu::table::code_name(kind.param),
        _ => None,
    }
}

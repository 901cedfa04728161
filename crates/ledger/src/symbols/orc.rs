//! ORC: the tables by which a Linux kernel unwinds its own stacks, read from its memory.
//!
//! For each range of code there is an entry: where the caller's stack pointer is, where its RBP was saved, and of which kind the frame is. The
//! kernel has a table of addresses and one of entries, and so has each of its modules. What the bits of an entry mean changed in Linux 6.4; its
//! BTF tells which of the two it has. The memory is a guest's: every size is bounded, and an entry that makes no sense ends a stack.

use super::btf::Btf;
use super::kallsyms::Landmarks;
use super::modules::{LARGEST_TEXT, Layout, MOST_MODULES, UNFORMED};
use std::collections::BTreeSet;

/// Bytes of an entry, and of an address in the table of addresses.
const ENTRY: usize = 6;
const ADDRESS: usize = 4;
/// The most entries of a kernel, and of all of its modules.
const MOST_ENTRIES: usize = 1 << 22;

/// What an offset counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// Nothing: the value is not known, or unchanged.
    Undefined,
    /// The caller's stack pointer.
    CallerSp,
    /// RDX.
    Dx,
    /// RDI.
    Di,
    /// RBP.
    Bp,
    /// RSP.
    Sp,
    /// R10.
    R10,
    /// R13.
    R13,
    /// The value in memory at RBP plus the offset.
    AtBp,
    /// The value in memory at RSP, plus the offset.
    AtSp,
}

const BASES: [Base; 10] = [
    Base::Undefined,
    Base::CallerSp,
    Base::Dx,
    Base::Di,
    Base::Bp,
    Base::Sp,
    Base::R10,
    Base::R13,
    Base::AtBp,
    Base::AtSp,
];

/// What lies below the caller's stack pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The stack can't be followed from here.
    Undefined,
    /// There is no caller.
    End,
    /// The return address of a call.
    Call,
    /// All registers, as an exception or interrupt has saved them (`struct pt_regs`).
    Registers,
    /// What the processor has saved for an exception or interrupt.
    Interrupt,
}

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The caller's stack pointer: an offset from this.
    pub sp: (Base, i16),
    /// Where the caller's RBP is.
    pub bp: (Base, i16),
    /// What kind of frame it is.
    pub frame: Frame,
}

/// Which bits of an entry are what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Format {
    kind: (u32, u32),
    /// Before Linux 6.4: the frame has no caller.
    end: Option<u32>,
}

impl Format {
    fn of(btf: &Btf) -> Option<Self> {
        let entry = btf.structure("orc_entry")?;
        let kind = btf.bits(entry, "type")?;
        Some(Self { kind, end: btf.bits(entry, "end").map(|bits| bits.0) })
    }

    fn entry(&self, bytes: [u8; ENTRY]) -> Entry {
        let word = |at: usize| i16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let all = u64::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], 0, 0]);
        let base = |nibble: u8| BASES.get(usize::from(nibble)).copied().unwrap_or(Base::Undefined);
        let (sp, bp) = ((base(bytes[4] & 15), word(0)), (base(bytes[4] >> 4), word(2)));
        let kind = all >> self.kind.0.min(63) & ((1 << self.kind.1.min(8)) - 1);
        // Three bits since Linux 6.4, with two kinds more in front.
        let frame = match (self.kind.1, kind) {
            (3, 1) => Frame::End,
            (3, 2) | (2, 0) => Frame::Call,
            (3, 3) | (2, 1) => Frame::Registers,
            (3, 4) | (2, 2) => Frame::Interrupt,
            _ => Frame::Undefined,
        };
        let ends = self.end.is_some_and(|bit| all >> bit.min(63) & 1 != 0);
        let frame = match (sp.0, ends) {
            (Base::Undefined, true) => Frame::End,
            (Base::Undefined, false) if frame != Frame::End => Frame::Undefined,
            _ => frame,
        };
        Entry { sp, bp, frame }
    }
}

/// The entries of a kernel or of a module.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its code.
    code: std::ops::Range<u64>,
    /// Where the range of each entry begins, from the start of the code; sorted.
    starts: Vec<u32>,
    entries: Vec<[u8; ENTRY]>,
    format: Format,
}

impl Table {
    /// The entry for an address. `None`: that is not in this code.
    pub fn find(&self, address: u64) -> Option<Entry> {
        if !self.code.contains(&address) {
            return None;
        }
        let offset = u32::try_from(address - self.code.start).ok()?;
        let at = self.starts.partition_point(|start| *start <= offset).checked_sub(1)?;
        Some(self.format.entry(self.entries[at]))
    }

    /// A table of so many entries, whose addresses count each from its own place.
    fn read(read: &Read, format: Format, [addresses, entries]: [u64; 2], count: usize) -> Option<Self> {
        if count == 0 || count > MOST_ENTRIES {
            return None;
        }
        let mut bytes = vec![0; count * ADDRESS];
        if !read(addresses, &mut bytes) {
            return None;
        }
        let places = (addresses..).step_by(ADDRESS);
        let starts = bytes.as_chunks::<ADDRESS>().0.iter().zip(places);
        let starts = starts.map(|(bytes, place)| place.wrapping_add(i64::from(i32::from_le_bytes(*bytes)) as u64));
        let starts: Vec<u64> = starts.collect();
        let first = *starts.first()?;
        let starts = starts.into_iter().map(|start| u32::try_from(start.wrapping_sub(first)).ok());
        let starts: Vec<u32> = starts.collect::<Option<_>>()?;
        let last = u64::from(*starts.last()?);
        let mut bytes = vec![0; count * ENTRY];
        if !starts.is_sorted() || !read(entries, &mut bytes) {
            return None;
        }
        let entries = bytes.as_chunks::<ENTRY>().0.to_vec();
        Some(Self { code: first..first.checked_add(last)?.checked_add(1)?, starts, entries, format })
    }
}

/// Reads linear memory: all of the bytes, or it returns `false`.
pub type Read<'a> = dyn Fn(u64, &mut [u8]) -> bool + 'a;

/// Where the tables of a kernel are.
#[derive(Clone, Debug)]
pub struct Places {
    format: Format,
    kernel: [(u64, u64); 2],
    /// The head of the list of modules, their layout, and where each says how many entries it has and where these are.
    modules: Option<(u64, ModuleLayout)>,
}

/// Offsets in `struct module`.
#[derive(Clone, Copy, Debug)]
struct ModuleLayout {
    list: u64,
    state: u64,
    text: (u64, u64),
    count: u64,
    addresses: u64,
    entries: u64,
}

impl ModuleLayout {
    fn of(btf: &Btf) -> Option<Self> {
        let layout = Layout::new(btf)?;
        let arch = btf.field(btf.structure("module")?, "arch")?;
        let at = |name: &str| Some(arch.offset + btf.field(arch.of, name)?.offset);
        Some(Self {
            list: layout.list,
            state: layout.state,
            text: layout.text,
            count: at("num_orcs")?,
            addresses: at("orc_unwind_ip")?,
            entries: at("orc_unwind")?,
        })
    }
}

impl Places {
    /// Of the kernel of these landmarks. `None`: it has no such tables, or no types that say what they are like.
    pub fn of(landmarks: &Landmarks, read: &Read) -> Option<Self> {
        let kernel = landmarks.orc?;
        let bytes = landmarks.btf_bytes(read)?;
        let btf = Btf::parse(&bytes)?;
        let modules = landmarks.modules.zip(ModuleLayout::of(&btf));
        Some(Self { format: Format::of(&btf)?, kernel, modules })
    }

    /// The kernel's own table.
    pub fn kernel(&self, read: &Read) -> Option<Table> {
        let [addresses, entries] = self.kernel;
        let count = addresses.1.checked_sub(addresses.0)? as usize / ADDRESS;
        let table = Table::read(read, self.format, [addresses.0, entries.0], count)?;
        (entries.1.checked_sub(entries.0)? as usize / ENTRY == count).then_some(table)
    }

    /// What is first in the list of modules: it changes when a module is loaded.
    pub fn newest_module(&self, read: &Read) -> Option<u64> {
        pointer(read, self.modules.as_ref()?.0)
    }

    /// The tables of the modules that are loaded.
    pub fn modules(&self, read: &Read) -> Vec<Table> {
        let Some((head, layout)) = &self.modules else { return Vec::new() };
        let mut tables = Vec::new();
        let mut room = MOST_ENTRIES;
        let mut seen = BTreeSet::from([*head]);
        let mut link = pointer(read, *head);
        while let Some(at) = link.filter(|at| seen.len() <= MOST_MODULES && seen.insert(*at)) {
            tables.extend(self.module(read, layout, at.wrapping_sub(layout.list), &mut room));
            link = pointer(read, at);
        }
        tables
    }

    fn module(&self, read: &Read, layout: &ModuleLayout, module: u64, room: &mut usize) -> Option<Table> {
        let at = |offset: u64| module.wrapping_add(offset);
        if number(read, at(layout.state))? == UNFORMED {
            return None;
        }
        let count = number(read, at(layout.count))? as usize;
        *room = room.checked_sub(count)?;
        let tables = [pointer(read, at(layout.addresses))?, pointer(read, at(layout.entries))?];
        let text = pointer(read, at(layout.text.0))?;
        let size = u64::from(number(read, at(layout.text.1))?);
        let mut table = Table::read(read, self.format, tables, count)?;
        if size > LARGEST_TEXT || !(text..text.checked_add(size)?).contains(&table.code.start) {
            return None;
        }
        table.code.end = text + size;
        Some(table)
    }
}

fn pointer(read: &Read, address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    read(address, &mut bytes).then(|| u64::from_le_bytes(bytes))
}

fn number(read: &Read, address: u64) -> Option<u32> {
    let mut bytes = [0; 4];
    read(address, &mut bytes).then(|| u32::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NEW: Format = Format { kind: (40, 3), end: None };
    const OLD: Format = Format { kind: (40, 2), end: Some(42) };

    #[test]
    fn entries_of_both_formats_are_read() {
        // sp = RSP + 16, bp at the caller's stack pointer - 16, a call.
        let entry = |flags: u8| [16, 0, 0xf0, 0xff, 0x15, flags];
        let call = Entry { sp: (Base::Sp, 16), bp: (Base::CallerSp, -16), frame: Frame::Call };
        assert_eq!(NEW.entry(entry(2)), call);
        assert_eq!(OLD.entry(entry(0)), call);
        for (kind, frame) in [(0, Frame::Undefined), (1, Frame::End), (3, Frame::Registers), (4, Frame::Interrupt)] {
            assert_eq!(NEW.entry(entry(kind)).frame, frame);
        }
        assert_eq!(OLD.entry(entry(2)).frame, Frame::Interrupt);
        assert_eq!(OLD.entry([0, 0, 0, 0, 0, 4]).frame, Frame::End);
        assert_eq!(OLD.entry([0, 0, 0, 0, 0, 0]).frame, Frame::Undefined);
        assert_eq!(NEW.entry([0, 0, 0, 0, 0, 1]).frame, Frame::End);
    }

    /// Two entries at 0x1000, about code at 0x9000 and 0x9010.
    fn memory() -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&0x8000i32.to_le_bytes());
        bytes.extend_from_slice(&(0x9010i32 - 0x1004).to_le_bytes());
        bytes.extend_from_slice(&[8, 0, 0, 0, 5, 2, 0, 0, 0, 0, 0, 1]);
        bytes
    }

    fn read_from(memory: &[u8]) -> impl Fn(u64, &mut [u8]) -> bool + '_ {
        |linear, out| {
            let bytes = linear.checked_sub(0x1000).and_then(|at| memory.get(at as usize..)?.get(..out.len()));
            bytes.map(|bytes| out.copy_from_slice(bytes)).is_some()
        }
    }

    #[test]
    fn the_entry_of_an_address_is_the_last_that_begins_there_or_before() {
        let memory = memory();
        let table = Table::read(&read_from(&memory), NEW, [0x1000, 0x1008], 2).unwrap();
        assert_eq!(table.find(0x8fff), None);
        assert_eq!(table.find(0x900f).unwrap().frame, Frame::Call);
        assert_eq!(table.find(0x9010).unwrap().frame, Frame::End);
        assert_eq!(table.find(0x9011), None);
        assert!(Table::read(&read_from(&memory), NEW, [0x1000, 0x1008], 3).is_none());
        assert!(Table::read(&read_from(&memory), NEW, [0x1000, 0x1008], usize::MAX / 8).is_none());
    }

    proptest! {
        #[test]
        fn no_memory_makes_it_panic(memory in prop::collection::vec(any::<u8>(), 0..256), at in any::<[u8; 6]>(), address in any::<u64>()) {
            let read = read_from(&memory);
            let layout = ModuleLayout { list: 8, state: 0, text: (16, 24), count: 28, addresses: 32, entries: 40 };
            let kernel = [(0x1000, 0x1010), (0x1010, 0x1020)];
            let places = Places { format: NEW, kernel, modules: Some((0x1010, layout)) };
            let tables = places.kernel(&read).into_iter().chain(places.modules(&read));
            for table in tables {
                let _ = table.find(address);
            }
            let _ = (OLD.entry(at), NEW.entry(at), places.newest_module(&read));
        }
    }
}

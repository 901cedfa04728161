//! ORC: the tables by which a Linux kernel unwinds its own stacks, read from its memory.
//!
//! An entry describes the frames of a range of code: the place of the caller's stack pointer, the place of its saved RBP, and the kind of frame.
//! The kernel and each of its modules have a table of addresses and a table of entries. Linux 6.4 changed the bits of an entry; the kernel's BTF
//! tells its format. The guest's memory may hold any values: every size is bounded, and an invalid entry ends a stack.

use super::btf::Btf;
use super::kallsyms::Landmarks;
use super::modules::{LARGEST_TEXT, Layout, MOST_MODULES, UNFORMED};
use std::collections::BTreeSet;
use std::ops::Range;

/// Bytes of an entry, and of an address in the table of addresses.
const ENTRY: usize = 6;
const ADDRESS: usize = 4;
/// Largest number of entries of a kernel, and of all of its modules together.
const MOST_ENTRIES: usize = 1 << 22;

/// The base of an offset.
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

/// The data below the caller's stack pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The stack cannot be followed from here.
    Undefined,
    /// There is no caller.
    End,
    /// The return address of a call.
    Call,
    /// All registers, as an exception or interrupt has saved them (`struct pt_regs`).
    Registers,
    /// The frame that the processor has saved for an exception or interrupt.
    Interrupt,
}

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The caller's stack pointer: an offset from a base.
    pub sp: (Base, i16),
    /// The place of the caller's RBP.
    pub bp: (Base, i16),
    /// The kind of frame.
    pub frame: Frame,
}

/// The bits of an entry.
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
struct Entries {
    first: u64,
    /// The first address of each entry, counted from `first`; sorted.
    starts: Vec<u32>,
    entries: Vec<[u8; ENTRY]>,
    format: Format,
}

impl Entries {
    /// Reads a table of `count` entries. Each address counts from its own place.
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
        let mut bytes = vec![0; count * ENTRY];
        if !starts.is_sorted() || !read(entries, &mut bytes) {
            return None;
        }
        let entries = bytes.as_chunks::<ENTRY>().0.to_vec();
        Some(Self { first, starts, entries, format })
    }

    /// Returns the last entry that begins at an address or before.
    fn find(&self, address: u64) -> Option<Entry> {
        let offset = u32::try_from(address.checked_sub(self.first)?).ok()?;
        let at = self.starts.partition_point(|start| *start <= offset).checked_sub(1)?;
        Some(self.format.entry(self.entries[at]))
    }

    /// Returns the range from the first address to the last one.
    fn code(&self) -> Option<Range<u64>> {
        let last = u64::from(*self.starts.last()?);
        Some(self.first..self.first.checked_add(last)?.checked_add(1)?)
    }
}

/// The table of a kernel.
#[derive(Clone, Debug)]
pub struct Table {
    code: Range<u64>,
    entries: Entries,
}

impl Table {
    /// Returns the entry for an address in the kernel's code.
    pub fn find(&self, address: u64) -> Option<Entry> {
        self.code.contains(&address).then(|| self.entries.find(address))?
    }
}

/// Reads linear memory: all of the bytes, or it returns `false`.
pub type Read<'a> = dyn Fn(u64, &mut [u8]) -> bool + 'a;

/// The addresses of a kernel's tables.
#[derive(Clone, Debug)]
pub struct Places {
    format: Format,
    kernel: [(u64, u64); 2],
    /// The head of the list of modules, and the layout of a module.
    modules: Option<(u64, ModuleLayout)>,
}

/// Offsets in `struct module`.
#[derive(Clone, Copy, Debug)]
struct ModuleLayout {
    list: u64,
    state: u64,
    text: (u64, u64),
    init: Option<(u64, u64)>,
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
            init: layout.init,
            count: at("num_orcs")?,
            addresses: at("orc_unwind_ip")?,
            entries: at("orc_unwind")?,
        })
    }
}

impl Places {
    /// Returns the addresses for the kernel of these landmarks. `None` if it has no such tables, or no BTF that describes them.
    pub fn of(landmarks: &Landmarks, read: &Read) -> Option<Self> {
        let kernel = landmarks.orc?;
        let bytes = landmarks.btf_bytes(read)?;
        let btf = Btf::parse(&bytes)?;
        let modules = landmarks.modules.zip(ModuleLayout::of(&btf));
        Some(Self { format: Format::of(&btf)?, kernel, modules })
    }

    /// Reads the kernel's own table.
    pub fn kernel(&self, read: &Read) -> Option<Table> {
        let [addresses, entries] = self.kernel;
        let count = addresses.1.checked_sub(addresses.0)? as usize / ADDRESS;
        let table = Entries::read(read, self.format, [addresses.0, entries.0], count)?;
        let code = table.code()?;
        (entries.1.checked_sub(entries.0)? as usize / ENTRY == count).then_some(Table { code, entries: table })
    }

    /// Returns the head of a module's structure, unless it is not filled in.
    fn module(read: &Read, layout: &ModuleLayout, module: u64) -> Option<Module> {
        let at = |offset: u64| module.wrapping_add(offset);
        if number(read, at(layout.state))? == UNFORMED {
            return None;
        }
        let area = |(base, size): (u64, u64)| {
            let (start, size) = (pointer(read, at(base))?, u64::from(number(read, at(size))?));
            (size <= LARGEST_TEXT).then(|| Some(start..start.checked_add(size)?))?
        };
        Some(Module {
            module,
            code: [area(layout.text)?, layout.init.and_then(area).unwrap_or_default()],
            count: number(read, at(layout.count))? as usize,
            tables: [pointer(read, at(layout.addresses))?, pointer(read, at(layout.entries))?],
        })
    }

    /// Returns the module in whose code an address is.
    fn module_at(&self, read: &Read, address: u64) -> Option<Module> {
        let (head, layout) = self.modules.as_ref()?;
        let mut seen = BTreeSet::from([*head]);
        let mut link = pointer(read, *head);
        while let Some(at) = link.filter(|at| seen.len() <= MOST_MODULES && seen.insert(*at)) {
            let module = Self::module(read, layout, at.wrapping_sub(layout.list));
            if let Some(module) = module.filter(|module| module.contains(address)) {
                return Some(module);
            }
            link = pointer(read, at);
        }
        None
    }
}

/// The fields of a module's structure that its table depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Module {
    /// The address of the structure.
    module: u64,
    /// The code, and the code that the kernel frees after it has run.
    code: [Range<u64>; 2],
    count: usize,
    tables: [u64; 2],
}

impl Module {
    fn contains(&self, address: u64) -> bool {
        self.code.iter().any(|code| code.contains(&address))
    }
}

/// The tables of a kernel's modules that have been read. An entry follows from the guest's memory alone: a table is used as
/// long as the module's structure is the same.
#[derive(Debug, Default)]
pub struct ModuleTables {
    known: Vec<(Module, Option<Entries>)>,
}

impl ModuleTables {
    /// Returns the entry for an address.
    pub fn find(&mut self, places: &Places, read: &Read, address: u64) -> Option<Entry> {
        let layout = &places.modules.as_ref()?.1;
        let known = self.known.iter().position(|(module, _)| module.contains(address));
        let is_current =
            |module: &Module| Places::module(read, layout, module.module).is_some_and(|now| now == *module);
        if let Some(at) = known.filter(|at| is_current(&self.known[*at].0)) {
            return self.known[at].1.as_ref()?.find(address);
        }
        let module = places.module_at(read, address)?;
        let entries = Entries::read(read, places.format, module.tables, module.count);
        let entry = entries.as_ref().and_then(|entries| entries.find(address));
        self.known.retain(|(known, _)| known.module != module.module && !known.contains(address));
        let sizes = self.known.iter().filter_map(|(_, entries)| Some(entries.as_ref()?.entries.len()));
        let new = entries.as_ref().map_or(0, |entries| entries.entries.len());
        if sizes.sum::<usize>() + new > MOST_ENTRIES || self.known.len() >= MOST_MODULES {
            self.known.clear();
        }
        self.known.push((module, entries));
        entry
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
        let entries = Entries::read(&read_from(&memory), NEW, [0x1000, 0x1008], 2).unwrap();
        let table = Table { code: entries.code().unwrap(), entries };
        assert_eq!(table.find(0x8fff), None);
        assert_eq!(table.find(0x900f).unwrap().frame, Frame::Call);
        assert_eq!(table.find(0x9010).unwrap().frame, Frame::End);
        assert_eq!(table.find(0x9011), None);
        assert!(Entries::read(&read_from(&memory), NEW, [0x1000, 0x1008], 3).is_none());
        assert!(Entries::read(&read_from(&memory), NEW, [0x1000, 0x1008], usize::MAX / 8).is_none());
    }

    const LAYOUT: ModuleLayout =
        ModuleLayout { list: 8, state: 0, text: (16, 24), init: Some((48, 56)), count: 28, addresses: 32, entries: 40 };

    /// Places of a kernel whose list of modules begins at 0x1020, and memory with one module at 0x1030. Its code is at 0x9010,
    /// and the code that is freed after its start at 0x9000, in front of it.
    fn one_module() -> (Places, Vec<u8>) {
        let mut bytes = memory();
        bytes.resize(0x20, 0);
        for word in [0x1038u64, 0, UNFORMED.into(), 0x1020, 0x9010, 0x2_0000_0100, 0x1000, 0x1008, 0x9000, 0x10] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        (Places { format: NEW, kernel: [(0, 0); 2], modules: Some((0x1020, LAYOUT)) }, bytes)
    }

    #[test]
    fn a_module_that_is_filled_in_after_the_first_search_is_found() {
        let (places, mut bytes) = one_module();
        let mut tables = ModuleTables::default();
        let mut frame = |bytes: &[u8], address| Some(tables.find(&places, &read_from(bytes), address)?.frame);
        assert_eq!(frame(&bytes, 0x9014), None);
        bytes[0x30] = 2;
        let count = bytes[0x4c];
        bytes[0x4c] = 0;
        assert_eq!(frame(&bytes, 0x9014), None);
        bytes[0x4c] = count;
        assert_eq!(frame(&bytes, 0x9014), Some(Frame::End));
    }

    #[test]
    fn code_in_front_of_a_module_s_own_is_followed_until_it_is_freed() {
        let (places, mut bytes) = one_module();
        bytes[0x30] = 2;
        let mut tables = ModuleTables::default();
        let mut frame = |bytes: &[u8], address| Some(tables.find(&places, &read_from(bytes), address)?.frame);
        assert_eq!(frame(&bytes, 0x9004), Some(Frame::Call));
        assert_eq!(frame(&bytes, 0x9014), Some(Frame::End));
        bytes[0x60..0x70].fill(0);
        assert_eq!(frame(&bytes, 0x9004), None);
        assert_eq!(frame(&bytes, 0x9014), Some(Frame::End));
        assert_eq!(frame(&bytes, 0x9110), None);
    }

    proptest! {
        #[test]
        fn no_memory_makes_it_panic(memory in prop::collection::vec(any::<u8>(), 0..256), at in any::<[u8; 6]>(), address in any::<u64>()) {
            let read = read_from(&memory);
            let kernel = [(0x1000, 0x1010), (0x1010, 0x1020)];
            let places = Places { format: NEW, kernel, modules: Some((0x1010, LAYOUT)) };
            let _ = places.kernel(&read).and_then(|table| table.find(address));
            let mut modules = ModuleTables::default();
            let _ = modules.find(&places, &read, address);
            let _ = modules.find(&places, &read, address & 0xffff);
            let _ = (OLD.entry(at), NEW.entry(at));
        }
    }
}

//! Page walk for every layout of paging structures: 32-bit, PAE, 4-level and 5-level paging, and EPT.
//!
//! This loop serves the processor, inspection from outside, EPT, and a hypervisor's walk of its guest's tables. They
//! differ in the access to entries ([`ReadEntry`], [`UpdateEntry`]), in the use of the entries on the path ([`Visit`]),
//! and in the handling of the result: the caller implements faults, permission checks and the order in which flags are
//! set. All of it is monomorphic, so that inspection does not pay for the flags that the processor sets.

use x86::control::*;
use x86::ept;
use x86::page::*;

/// A layout of paging structures: the meaning of the bits of an entry.
pub trait Layout {
    /// True if entries have eight bytes; otherwise they have four.
    const WIDE: bool;
    /// Accessed flag.
    const ACCESSED: u64;
    /// Dirty flag.
    const DIRTY: u64;
    /// Bits of [`Path::common`] that deny a permission when set; the others grant one.
    const FORBIDS: u64;

    /// Returns true if an entry is present.
    fn is_present(&self, entry: u64) -> bool;
    /// Returns true if a present entry maps a page, in a table whose entries map 2^`shift` bytes.
    fn is_page(&self, entry: u64, shift: u32) -> bool;
    /// Returns true if a present entry has a reserved bit or combination of bits; `page` is true if it maps a page.
    fn is_reserved(&self, entry: u64, shift: u32, page: bool) -> bool;
    /// Returns the address of the table to which an entry points; the default is for eight-byte entries.
    #[inline(always)]
    fn table(&self, entry: u64) -> u64 {
        entry & ADDRESS
    }
    /// Returns the address of the page that an entry maps; the default is for eight-byte entries.
    #[inline(always)]
    fn page(&self, entry: u64, shift: u32) -> u64 {
        entry & ADDRESS & !((1 << shift) - 1)
    }
}

/// Returns log2 of the number of entries in a table.
const fn index_bits<L: Layout>() -> u32 {
    if L::WIDE { 9 } else { 10 }
}

/// Returns the level of tables whose entries map 2^`shift` bytes; tables at level 1 map the smallest pages.
pub const fn level<L: Layout>(shift: u32) -> u8 {
    ((shift - SHIFT) / index_bits::<L>() + 1) as u8
}

/// Four-byte entries: 32-bit paging (SDM vol. 3, 4.3).
#[derive(Clone, Copy, Debug)]
pub struct Layout32 {
    /// True if 4 MiB pages are enabled.
    pse: bool,
    /// Reserved bits of entries that map 4 MiB pages.
    reserved_4m: u64,
}

impl Layout32 {
    /// Creates the layout with or without 4 MiB pages, whose addresses may exceed 32 bits up to the processor's width
    /// (PSE-36).
    #[inline]
    pub fn new(pse: bool, physical_bits: u32) -> Self {
        let usable = physical_bits.saturating_sub(32).min(8);
        Self { pse, reserved_4m: RESERVED_4M | HIGH_4M & !(((1 << usable) - 1) << HIGH_4M_SHIFT) }
    }
}

impl Layout for Layout32 {
    const WIDE: bool = false;
    const ACCESSED: u64 = A;
    const DIRTY: u64 = D;
    const FORBIDS: u64 = 0;

    #[inline(always)]
    fn is_present(&self, entry: u64) -> bool {
        entry & P != 0
    }

    #[inline(always)]
    fn is_page(&self, entry: u64, shift: u32) -> bool {
        shift == SHIFT || entry & PS != 0 && self.pse
    }

    #[inline(always)]
    fn is_reserved(&self, entry: u64, shift: u32, page: bool) -> bool {
        page && shift != SHIFT && entry & self.reserved_4m != 0
    }

    #[inline(always)]
    fn table(&self, entry: u64) -> u64 {
        entry & ADDRESS_32
    }

    #[inline(always)]
    fn page(&self, entry: u64, shift: u32) -> u64 {
        match shift {
            SHIFT => entry & ADDRESS_32,
            _ => entry & ADDRESS_4M | (entry & HIGH_4M) >> HIGH_4M_SHIFT << 32,
        }
    }
}

/// Eight-byte entries: PAE, 4-level and 5-level paging (SDM vol. 3, 4.4 and 4.5).
#[derive(Clone, Copy, Debug)]
pub struct Layout64 {
    /// Reserved bits of every entry.
    reserved: u64,
}

impl Layout64 {
    /// Creates the layout for long mode or not, with or without EFER.NXE.
    #[inline]
    pub fn new(long: bool, nxe: bool, physical_bits: u32) -> Self {
        let beyond = ADDRESS & !((1u64 << physical_bits) - 1);
        Self { reserved: beyond | if nxe { 0 } else { NX } | if long { 0 } else { RESERVED_PAE } }
    }
}

impl Layout for Layout64 {
    const WIDE: bool = true;
    const ACCESSED: u64 = A;
    const DIRTY: u64 = D;
    const FORBIDS: u64 = NX;

    #[inline(always)]
    fn is_present(&self, entry: u64) -> bool {
        entry & P != 0
    }

    #[inline(always)]
    fn is_page(&self, entry: u64, shift: u32) -> bool {
        shift == SHIFT || entry & PS != 0 && shift <= SHIFT_1G
    }

    #[inline(always)]
    fn is_reserved(&self, entry: u64, shift: u32, page: bool) -> bool {
        // For a large page, the address bits below its size except PAT. Above 1 GiB there are no pages, and PS is
        // reserved.
        let here = if page { ((1 << shift) - 1) & !(PAT_LARGE | (PAT_LARGE - 1)) } else { PS };
        entry & (self.reserved | here) != 0
    }
}

/// Extended page tables (SDM vol. 3, 28.3.2).
#[derive(Clone, Copy, Debug)]
pub struct LayoutEpt {
    /// Address bits beyond the processor's width.
    beyond: u64,
    /// Bits of which a present entry has at least one.
    present: u64,
    /// Bits that require read permission in the same entry.
    with_read: u64,
    /// Log2 of the size of the largest pages.
    largest: u32,
}

impl LayoutEpt {
    /// Creates the layout of a processor without physical addresses in the bits `beyond`, with execute-only
    /// translations and pages of all sizes.
    #[inline]
    pub fn new(beyond: u64) -> Self {
        Self { beyond: beyond & ADDRESS, present: ept::RIGHTS, with_read: ept::WRITE, largest: SHIFT_1G }
    }

    /// Enables or disables execute-only translations.
    #[inline]
    pub fn execute_only(self, on: bool) -> Self {
        let fetches = if on { 0 } else { ept::EXECUTE | ept::USER_EXECUTE };
        Self { with_read: ept::WRITE | fetches, ..self }
    }

    /// Sets the maximum page size to 2^`shift` bytes.
    #[inline]
    pub fn largest(self, shift: u32) -> Self {
        Self { largest: shift, ..self }
    }

    /// Enables or disables mode-based execute control, with a separate permission for user code.
    #[inline]
    pub fn mode_based(self, on: bool) -> Self {
        Self { present: if on { ept::RIGHTS | ept::USER_EXECUTE } else { ept::RIGHTS }, ..self }
    }
}

impl Layout for LayoutEpt {
    const WIDE: bool = true;
    const ACCESSED: u64 = ept::ACCESSED;
    const DIRTY: u64 = ept::DIRTY;
    const FORBIDS: u64 = 0;

    #[inline(always)]
    fn is_present(&self, entry: u64) -> bool {
        entry & self.present != 0
    }

    #[inline(always)]
    fn is_page(&self, entry: u64, shift: u32) -> bool {
        shift == SHIFT || entry & ept::LARGE != 0 && shift <= self.largest
    }

    /// Returns true if the entry is misconfigured (SDM vol. 3, 28.3.3.1).
    #[inline(always)]
    fn is_reserved(&self, entry: u64, shift: u32, page: bool) -> bool {
        let here = if page { ((1 << shift) - 1) & ADDRESS } else { ept::RESERVED_TABLE };
        let kind = entry >> ept::TYPE_SHIFT & ept::TYPE_MASK;
        entry & ept::READ == 0 && entry & self.with_read & self.present != 0
            || entry & (here | self.beyond) != 0
            || page && ept::RESERVED_TYPES >> kind & 1 != 0
    }
}

/// Start of a walk.
#[derive(Clone, Copy, Debug)]
pub struct Root {
    /// Address of the topmost table.
    pub table: u64,
    /// Log2 of the number of bytes that an entry of the topmost table maps.
    pub shift: u32,
}

/// Root and layout of the tables that the registers select.
#[derive(Clone, Copy, Debug)]
pub enum Tables {
    /// 32-bit paging.
    Bits32(Layout32, Root),
    /// Every other mode.
    Bits64(Layout64, Root),
}

/// Registers that control the translation of linear addresses, with paging enabled.
#[derive(Clone, Copy, Debug)]
pub struct PagingRegisters<'a> {
    /// CR3.
    pub cr3: u64,
    /// CR4.
    pub cr4: u64,
    /// IA32_EFER.
    pub efer: u64,
    /// PDPTEs, used under PAE paging outside long mode.
    pub pdpte: &'a [u64; 4],
    /// Physical address width of the processor.
    pub physical_bits: u32,
}

impl PagingRegisters<'_> {
    /// Returns the tables for an address, or `None` if its PDPTE is not present.
    #[inline(always)]
    pub fn tables(&self, linear: u64) -> Option<Tables> {
        let long = self.efer & EFER_LMA != 0;
        if self.cr4 & CR4_PAE == 0 {
            let layout = Layout32::new(self.cr4 & CR4_PSE != 0, self.physical_bits);
            return Some(Tables::Bits32(layout, Root { table: self.cr3 & CR3_ADDRESS_32, shift: SHIFT_4M }));
        }
        let root = if !long {
            let pdpte = self.pdpte[(linear >> SHIFT_1G) as usize & 3];
            if pdpte & P == 0 {
                return None;
            }
            Root { table: pdpte & ADDRESS, shift: SHIFT_2M }
        } else {
            let shift = if self.cr4 & CR4_LA57 != 0 { SHIFT_PML5 } else { SHIFT_PML4 };
            Root { table: self.cr3 & ADDRESS, shift }
        };
        Some(Tables::Bits64(Layout64::new(long, self.efer & EFER_NXE != 0, self.physical_bits), root))
    }
}

/// Reads entries for a walk.
pub trait ReadEntry {
    /// Reason for which an entry cannot be accessed.
    type Stop;
    /// Returns the entry at an address, of eight bytes if `wide`, else of four.
    fn read(&mut self, address: u64, wide: bool) -> Result<u64, Self::Stop>;
}

/// Sets flags in entries.
pub trait UpdateEntry: ReadEntry {
    /// Writes the entry at an address.
    fn update(&mut self, address: u64, wide: bool, value: u64) -> Result<(), Self::Stop>;
}

/// Receives the entries on the path of a walk.
pub trait Visit {
    /// Called for each present and well-formed entry, from the topmost table down.
    fn visit<L: Layout>(&mut self, address: u64, entry: u64);
}

/// Ignores the entries.
impl Visit for () {
    #[inline(always)]
    fn visit<L: Layout>(&mut self, _: u64, _: u64) {}
}

/// An entry that a walk has read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry {
    /// Its address.
    pub address: u64,
    /// Its value.
    pub value: u64,
}

/// All entries of a path, and their common bits.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    entries: [Entry; 5],
    depth: usize,
    common: u64,
}

impl Default for Path {
    #[inline(always)]
    fn default() -> Self {
        Self { entries: [Entry::default(); 5], depth: 0, common: !0 }
    }
}

impl Visit for Path {
    #[inline(always)]
    fn visit<L: Layout>(&mut self, address: u64, entry: u64) {
        // A walk has at most five levels.
        if let Some(slot) = self.entries.get_mut(self.depth) {
            *slot = Entry { address, value: entry };
            self.depth += 1;
        }
        self.common &= entry ^ L::FORBIDS;
    }
}

impl Path {
    /// Returns the bits that every entry has, with those of [`Layout::FORBIDS`] inverted: the permissions that all
    /// entries grant.
    #[inline(always)]
    pub fn common(&self) -> u64 {
        self.common
    }

    /// Returns the bits that every entry except the last has, without inversion.
    #[inline(always)]
    pub fn above(&self) -> u64 {
        let depth = self.depth.min(self.entries.len()).saturating_sub(1);
        self.entries[..depth].iter().fold(!0, |common, entry| common & entry.value)
    }

    /// Returns the entries, from the topmost table down.
    #[inline(always)]
    pub fn entries(&self) -> &[Entry] {
        &self.entries[..self.depth.min(self.entries.len())]
    }

    /// Sets the accessed flag in every entry that lacks it, from the topmost table down, and the dirty flag in the last
    /// one if the access is a `write`.
    #[inline(always)]
    pub fn mark<L: Layout, T: UpdateEntry>(&mut self, tables: &mut T, write: bool) -> Result<(), T::Stop> {
        let depth = self.depth.min(self.entries.len());
        for (i, entry) in self.entries[..depth].iter_mut().enumerate() {
            let dirty = if write && i + 1 == depth { L::DIRTY } else { 0 };
            let wanted = entry.value | L::ACCESSED | dirty;
            if wanted != entry.value {
                entry.value = wanted;
                tables.update(entry.address, L::WIDE, wanted)?;
            }
        }
        Ok(())
    }
}

/// The entry that maps the page of an address.
#[derive(Clone, Copy, Debug)]
pub struct Leaf {
    /// The entry, as it was read.
    pub entry: u64,
    /// Log2 of the size of the page.
    pub shift: u32,
}

/// Reason for which a walk found no page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop<E> {
    /// An entry is not present.
    Absent,
    /// An entry is present and has reserved bits.
    Reserved,
    /// An entry could not be accessed.
    Unreachable(E),
}

/// Walks from `root` to the entry that maps the page of `address`.
#[inline(always)]
pub fn walk<L: Layout, T: ReadEntry, V: Visit>(
    layout: &L,
    root: Root,
    address: u64,
    tables: &mut T,
    visitor: &mut V,
) -> Result<Leaf, Stop<T::Stop>> {
    let size = if L::WIDE { 8 } else { 4 };
    let Root { mut table, mut shift } = root;
    loop {
        let at = table + (address >> shift & ((1 << index_bits::<L>()) - 1)) * size;
        let entry = tables.read(at, L::WIDE).map_err(Stop::Unreachable)?;
        if !layout.is_present(entry) {
            return Err(Stop::Absent);
        }
        // Both cases are written out, so that the compiled code computes only the reserved bits of one of them.
        if layout.is_page(entry, shift) {
            if layout.is_reserved(entry, shift, true) {
                return Err(Stop::Reserved);
            }
            visitor.visit::<L>(at, entry);
            return Ok(Leaf { entry, shift });
        }
        if layout.is_reserved(entry, shift, false) {
            return Err(Stop::Reserved);
        }
        visitor.visit::<L>(at, entry);
        table = layout.table(entry);
        shift -= index_bits::<L>();
    }
}

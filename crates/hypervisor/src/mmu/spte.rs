//! Entries of the hypervisor's own tables, in both formats: ordinary page tables and EPT.

use x86::ept;
use x86::page::{self, A, D, NX, P, PS, RW, US};

/// Instructions may be fetched.
pub const EXEC: u8 = 1;
/// Writes are allowed.
pub const WRITE: u8 = 2;
/// User-mode code may access it.
pub const USER: u8 = 4;
/// Everything is allowed.
pub const ALL: u8 = EXEC | WRITE | USER;
/// Reads are allowed: the same bit in EPT, which has no user bit.
pub const READ: u8 = USER;
/// User-mode code may be fetched, with mode-based execute control of EPT; [`EXEC`] then applies to supervisor code.
pub const USER_EXEC: u8 = 8;

/// Address bits of a table or frame.
pub const ADDRESS: u64 = page::ADDRESS & !RESERVED;
/// The entry maps a page in a table above the last level: the same bit in both formats.
const LARGE: u64 = PS;
const _: () = assert!(LARGE == ept::LARGE);

/// An address bit beyond the processor's width: accesses fault with a reserved bit, which distinguishes MMIO from
/// unmapped addresses.
const RESERVED: u64 = 1 << 51;

const EPT_WRITE_BACK: u64 = ept::WRITE_BACK << ept::TYPE_SHIFT;
/// Permission bits of EPT entries, including mode-based execute control; without it no entry has that bit.
const EPT_RIGHTS: u64 = ept::RIGHTS | ept::USER_EXECUTE;
/// Writable but not readable: accesses cause an EPT misconfiguration, which distinguishes MMIO from unmapped addresses.
const EPT_MMIO: u64 = ept::WRITE | ept::EXECUTE;

/// Format of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Page tables of the processor (PAE, 4 or 5 levels).
    Paging {
        /// True if there is an address bit beyond the processor's width.
        mmio: bool,
    },
    /// Extended page tables.
    Ept {
        /// True if the processor maintains accessed and dirty flags.
        flags: bool,
    },
}

impl Format {
    /// Returns an entry that marks a frame without a slot, or `None` if the processor does not support one.
    pub fn mmio(self, gfn: u64) -> Option<u64> {
        match self {
            Self::Paging { mmio } => (mmio && gfn < 1 << 39).then_some(P | RW | US | RESERVED | gfn << 12),
            Self::Ept { .. } => (gfn < 1 << 36).then_some(EPT_MMIO | gfn << 12),
        }
    }

    /// Returns true if an entry marks MMIO.
    pub fn is_mmio(self, entry: u64) -> bool {
        match self {
            Self::Paging { .. } => entry & (P | RESERVED) == P | RESERVED,
            Self::Ept { .. } => entry & ept::RIGHTS == EPT_MMIO,
        }
    }

    /// Returns true if an entry maps a page or points to a table.
    pub fn is_present(self, entry: u64) -> bool {
        match self {
            Self::Paging { .. } => entry & P != 0 && entry & RESERVED == 0,
            Self::Ept { .. } => entry & EPT_RIGHTS != 0 && entry & ept::RIGHTS != EPT_MMIO,
        }
    }

    /// Returns true if an entry in a table of `level` maps a page.
    pub fn is_leaf(self, entry: u64, level: u8) -> bool {
        self.is_present(entry) && (level == 1 || entry & LARGE != 0)
    }

    /// Returns true if an entry in a table of `level` points to a table.
    pub fn is_table(self, entry: u64, level: u8) -> bool {
        self.is_present(entry) && level > 1 && entry & LARGE == 0
    }

    /// Returns an entry that points to a table: permissions are set at the last level only.
    pub fn table(self, hpa: u64, mode_based: bool) -> u64 {
        match self {
            Self::Paging { .. } => hpa | P | RW | US | A,
            Self::Ept { flags } => {
                let rights = if mode_based { EPT_RIGHTS } else { ept::RIGHTS };
                hpa | rights | if flags { ept::ACCESSED } else { 0 }
            }
        }
    }

    /// Returns an entry of the page directory pointer table of PAE paging that points to a table.
    pub fn pdpte(hpa: u64) -> u64 {
        hpa | P
    }

    /// Returns an entry in a table of `level` that maps a page. `write` is true if the hypervisor permits writes.
    pub fn leaf(self, hpa: u64, level: u8, access: u8, used: bool) -> u64 {
        let write = access & WRITE != 0;
        let large = if level > 1 { LARGE } else { 0 };
        let permissions = match self {
            Self::Paging { .. } => {
                P | if write { RW | D } else { 0 }
                    | if access & USER != 0 { US } else { 0 }
                    | if access & EXEC == 0 { NX } else { 0 }
                    | if used { A } else { 0 }
            }
            Self::Ept { flags } => {
                EPT_WRITE_BACK
                    | if access & READ != 0 { ept::READ } else { 0 }
                    | if access & USER_EXEC != 0 { ept::USER_EXECUTE } else { 0 }
                    | if write { ept::WRITE } else { 0 }
                    | if access & EXEC != 0 { ept::EXECUTE } else { 0 }
                    | if flags && used { ept::ACCESSED } else { 0 }
                    | if flags && write { ept::DIRTY } else { 0 }
            }
        };
        hpa | large | permissions | if write { self.may_write() } else { 0 }
    }

    /// Returns the bit that marks a page as write-protected only for the dirty log.
    const fn may_write(self) -> u64 {
        match self {
            Self::Paging { .. } => 1 << 10,
            Self::Ept { .. } => 1 << 58,
        }
    }

    /// Returns true if an entry permits writes.
    pub fn is_writable(self, entry: u64) -> bool {
        entry & RW != 0
    }

    /// Returns true if a write-protected entry would permit writes without the dirty log.
    pub fn could_be_writable(self, entry: u64) -> bool {
        entry & self.may_write() != 0
    }

    /// Returns the entry without write permission, for the dirty log or permanently.
    pub fn write_protected(self, entry: u64, for_log: bool) -> u64 {
        let dirty = match self {
            Self::Paging { .. } => D,
            Self::Ept { .. } => ept::DIRTY,
        };
        entry & !(RW | dirty) & if for_log { u64::MAX } else { !self.may_write() }
    }

    /// Returns the entry with write permission, which only the dirty log had removed.
    pub fn write_allowed(self, entry: u64) -> u64 {
        match self {
            Self::Paging { .. } => entry | RW | D,
            Self::Ept { flags } => entry | ept::WRITE | if flags { ept::DIRTY } else { 0 },
        }
    }

    /// Returns the permissions of an entry that maps a page.
    pub fn access(self, entry: u64) -> u8 {
        let write = if entry & RW != 0 { WRITE } else { 0 };
        match self {
            Self::Paging { .. } => {
                write | if entry & US != 0 { USER } else { 0 } | if entry & NX == 0 { EXEC } else { 0 }
            }
            Self::Ept { .. } => {
                let bit = |right, bit| if entry & right != 0 { bit } else { 0 };
                write | bit(ept::READ, READ) | bit(ept::EXECUTE, EXEC) | bit(ept::USER_EXECUTE, USER_EXEC)
            }
        }
    }

    /// Returns one of the pieces of a large page, as an entry of the level below.
    pub fn piece(self, entry: u64, level: u8, number: u64) -> u64 {
        let below = level - 1;
        let size = 1u64 << (12 + 9 * (below - 1));
        let kept = if below == 1 { entry & !LARGE } else { entry };
        kept + number * size
    }

    /// Returns true if the TLB must be flushed after a change from one entry to another.
    pub fn needs_flush(self, old: u64, new: u64) -> bool {
        if !self.is_present(old) {
            return false;
        }
        if !self.is_present(new) || (old ^ new) & (ADDRESS | LARGE) != 0 {
            return true;
        }
        let (old, new) = (self.access(old), self.access(new));
        // A change between user page and supervisor page matters to SMEP and SMAP.
        old & !new != 0 || matches!(self, Self::Paging { .. }) && (old ^ new) & USER != 0
    }
}

/// Returns the address of the page that an entry maps, or of the table to which it points.
pub fn address(entry: u64) -> u64 {
    entry & ADDRESS
}

/// Marks entries of `shadow-nocache` below which there are pieces of one large guest page.
pub const PIECES: u64 = 1 << 11;

/// Returns log2 of the number of 4 KiB frames that an entry in a table of `level` spans.
pub const fn frames_shift(level: u8) -> u32 {
    9 * (level as u32 - 1)
}

/// Returns the number of 4 KiB frames that an entry in a table of `level` spans.
pub const fn frames(level: u8) -> u64 {
    1 << frames_shift(level)
}

/// Returns the index in a table of `level` for a linear or guest-physical address.
pub const fn index(address: u64, level: u8) -> usize {
    (address >> (12 + frames_shift(level)) & 0x1ff) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMATS: [Format; 3] =
        [Format::Paging { mmio: true }, Format::Ept { flags: true }, Format::Ept { flags: false }];

    #[test]
    fn kinds_of_entries_are_told_apart() {
        for format in FORMATS {
            let mmio = format.mmio(0xfee00).unwrap();
            assert!(format.is_mmio(mmio) && !format.is_present(mmio));
            assert!(!format.is_mmio(0) && !format.is_present(0));
            let table = format.table(0xd000_1000, false);
            assert!(format.is_table(table, 2) && !format.is_leaf(table, 2) && format.is_leaf(table, 1));
            let large = format.leaf(0x20_0000, 2, ALL, true);
            assert!(format.is_leaf(large, 2) && !format.is_table(large, 2) && !format.is_mmio(large));
            assert_eq!(format.access(large), ALL);
        }
    }

    #[test]
    fn the_log_takes_write_permission_and_gives_it_back() {
        for format in FORMATS {
            let entry = format.leaf(0x5000, 1, ALL, true);
            let logged = format.write_protected(entry, true);
            assert!(!format.is_writable(logged) && format.could_be_writable(logged));
            assert_eq!(format.write_allowed(logged), entry);
            assert_eq!(format.write_allowed(entry), entry);
            assert!(!format.could_be_writable(format.write_protected(entry, false)));
            assert!(format.needs_flush(entry, logged) && !format.needs_flush(logged, entry));
        }
    }

    #[test]
    fn a_large_page_is_cut_into_pieces() {
        for format in FORMATS {
            let huge = format.leaf(0x4000_0000, 3, ALL, true);
            let large = format.piece(huge, 3, 3);
            assert_eq!((address(large), format.is_leaf(large, 2)), (0x4060_0000, true));
            assert_eq!(format.piece(large, 2, 5), format.leaf(0x4060_5000, 1, ALL, true));
        }
    }

    /// The bits of SDM vol. 3, tables 4-20 and 28-6: all others of an entry are ignored by the processor, or its address.
    #[test]
    fn entries_have_the_bits_of_the_manual() {
        let paging = Format::Paging { mmio: true };
        let (flags, plain) = (Format::Ept { flags: true }, Format::Ept { flags: false });
        let logged = 1 << 58;
        for (format, level, access, used, bits) in [
            (paging, 1, ALL, true, 0x467),
            (paging, 1, ALL, false, 0x447),
            (paging, 2, ALL, true, 0x4e7),
            (paging, 1, WRITE, false, NX | 0x443),
            (paging, 1, USER, true, NX | 0x25),
            (paging, 1, EXEC, true, 0x21),
            (flags, 1, ALL, true, logged | 0x337),
            (flags, 1, ALL, false, logged | 0x237),
            (flags, 3, ALL, true, logged | 0x3b7),
            (flags, 1, READ, true, 0x131),
            (flags, 1, READ | EXEC | USER_EXEC, true, 0x535),
            (flags, 1, USER_EXEC, false, 0x430),
            (plain, 1, ALL, true, logged | 0x37),
            (plain, 1, EXEC, true, 0x34),
        ] {
            let entry = format.leaf(0x4000_0000, level, access, used);
            assert_eq!(entry, 0x4000_0000 | bits, "{format:?} level {level} access {access:#x}");
            assert_eq!((format.access(entry), address(entry)), (access, 0x4000_0000));
            assert!(format.is_leaf(entry, level) && !format.is_table(entry, level));
        }
        let tables = [paging, flags, plain].map(|format| format.table(0x5000, false));
        assert_eq!(tables, [0x5027, 0x5107, 0x5007]);
        let tables = [paging, flags, plain].map(|format| format.table(0x5000, true));
        assert_eq!(tables, [0x5027, 0x5507, 0x5407]);
        assert_eq!(Format::pdpte(0x5000), 0x5001);
        // Write-protected: for the log, and for ever.
        for (format, for_log, for_ever) in
            [(paging, 0x425, 0x25), (flags, logged | 0x135, 0x135), (plain, logged | 0x35, 0x35)]
        {
            let entry = format.leaf(0, 1, ALL, true);
            assert_eq!(
                (format.write_protected(entry, true), format.write_protected(entry, false)),
                (for_log, for_ever)
            );
        }
    }

    #[test]
    fn devices_have_entries_up_to_the_largest_frame() {
        let paging = Format::Paging { mmio: true };
        let reserved = 1 << 51;
        assert_eq!(paging.mmio((1 << 39) - 1), Some(reserved | 0x7_ffff_ffff_f007));
        assert_eq!((paging.mmio(1 << 39), Format::Paging { mmio: false }.mmio(0)), (None, None));
        assert!(!paging.is_mmio(reserved | RW) && !paging.is_present(reserved | P) && !paging.is_present(RW));
        for format in [Format::Ept { flags: true }, Format::Ept { flags: false }] {
            assert_eq!(format.mmio((1 << 36) - 1), Some(0xffff_ffff_f006));
            assert_eq!(format.mmio(1 << 36), None);
            assert!(!format.is_mmio(7) && !format.is_mmio(2) && !format.is_mmio(4));
            assert!(format.is_present(ept::USER_EXECUTE) && !format.is_present(EPT_WRITE_BACK));
        }
    }

    /// SDM vol. 3, 4.10.4.3: a change that only grants more needs no invalidation, because the fault that follows from
    /// an old translation invalidates it.
    #[test]
    fn only_what_takes_something_away_is_flushed() {
        for format in FORMATS {
            let paging = matches!(format, Format::Paging { .. });
            // EPT entries that are writable and unreadable mark devices.
            let accesses = || (0..16u8).filter(|access| paging || access & READ != 0 || access & WRITE == 0);
            for (old, new) in accesses().flat_map(|old| accesses().map(move |new| (old, new))) {
                let [from, to] = [old, new].map(|access| format.leaf(0x20_0000, 1, access, true));
                let (old, new) = (format.access(from), format.access(to));
                let taken = old & !new != 0 || paging && (old ^ new) & USER != 0;
                assert_eq!(format.needs_flush(from, to), taken, "{format:?} {old:#x} {new:#x}");
                assert!(!format.needs_flush(0, to));
                assert_eq!(format.needs_flush(from, 0), format.is_present(from));
            }
            let entry = format.leaf(0x20_0000, 2, ALL, true);
            assert!(format.needs_flush(entry, format.leaf(0x40_0000, 2, ALL, true)));
            assert!(format.needs_flush(entry, format.table(0x20_0000, false)));
            assert!(!format.needs_flush(format.mmio(0x200).unwrap(), entry));
        }
    }

    #[test]
    fn levels_divide_an_address() {
        let indexes = [83, 302, 449, 156, 375];
        let address = indexes.iter().fold(0, |address, index| address << 9 | *index as u64) << 12;
        assert_eq!([5, 4, 3, 2, 1].map(|level| index(address, level)), indexes);
        assert_eq!([1, 2, 3, 4].map(frames), [1, 1 << 9, 1 << 18, 1 << 27]);
        assert_eq!([1, 2, 3].map(frames_shift), [0, 9, 18]);
    }
}

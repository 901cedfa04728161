//! The hypervisor's own walk of the guest's page tables: what the processor would do, on the guest's view of memory.

use super::role::Paging;
use super::spte::{ALL, EXEC, USER, WRITE};
use super::{Guest, Mmu};
use ledger::Operation;
use x86::control::*;
use x86::flags;
use x86::page::*;

/// A page fault for the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFault {
    /// For CR2.
    pub linear: u64,
    /// The error code.
    pub code: u32,
}

/// What the walk read at one level.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step {
    /// Frame of the table.
    pub gfn: u64,
    /// Guest-physical address of the entry.
    pub address: u64,
    /// The entry.
    pub value: u64,
    /// What the entries above allow.
    pub access: u8,
}

/// A translation that the guest's tables allow.
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    /// What was read, by level less one. Entries above the top level are empty.
    pub steps: [Step; 5],
    /// Level of the entry that maps the page.
    pub level: u8,
    /// Frame of the address.
    pub gfn: u64,
    /// What all entries together allow.
    pub access: u8,
    /// The entry that maps the page is dirty.
    pub dirty: bool,
    /// Some table lies where there is no memory.
    pub unbacked: bool,
}

/// What an access wants, as bits of an error code: W, U, I.
pub fn wanted(code: u32) -> u32 {
    code & (code::WRITE | code::USER | code::FETCH)
}

impl Paging {
    /// The bits of an entry at `level` that must be clear; `large`: it maps a page.
    fn reserved(&self, value: u64, level: u8, large: bool, physical_bits: u32) -> u64 {
        if !self.pae {
            if !large || level != 2 {
                return 0;
            }
            // PSE-36: bits 20:13 are address bits 39:32, as many as the processor has; bit 21 is reserved.
            let usable = physical_bits.saturating_sub(32).min(8);
            return value & (0x0020_0000 | 0x001f_e000 & !(((1u64 << usable) - 1) << 13));
        }
        let mut bits = ADDRESS & !((1u64 << physical_bits) - 1);
        if !self.nxe {
            bits |= NX;
        }
        if !self.long {
            bits |= 0x7ff0_0000_0000_0000;
        }
        bits |= match (large, level) {
            (true, 2) => 0x001f_e000,
            (true, 3) => 0x3fff_e000,
            (false, 4..) => PS,
            _ => 0,
        };
        value & bits
    }

    /// What an entry allows.
    fn entry_access(&self, value: u64) -> u8 {
        let execute = !(self.pae && self.nxe && value & NX != 0);
        let bit = |yes, bit| if yes { bit } else { 0 };
        bit(execute, EXEC) | bit(value & RW != 0, WRITE) | bit(value & US != 0, USER)
    }

    /// Whether an entry at `level` that is present maps a page.
    fn is_page(&self, value: u64, level: u8) -> bool {
        match level {
            1 => true,
            2 => value & PS != 0 && (self.pae || self.pse),
            3 => value & PS != 0,
            _ => false,
        }
    }
}

/// The frame of the page that an entry at `level` maps, or of the table it points to.
fn entry_frame(paging: &Paging, value: u64, level: u8, page: bool) -> u64 {
    match (paging.pae, page && level > 1) {
        (true, false) => (value & ADDRESS) >> 12,
        (true, true) => ((value & ADDRESS) >> 12) & !(super::spte::frames(level) - 1),
        (false, false) => (value & 0xffff_f000) >> 12,
        (false, true) => ((value & 0xffc0_0000) | (value >> 13 & 0xff) << 32) >> 12,
    }
}

/// Whether `access` of a page's entries forbids what is wanted; if so, the error-code bits beyond W, U and I.
fn denied(guest: &Guest, paging: &Paging, access: u8, leaf: u64, want: u32) -> Option<u32> {
    let user_page = access & USER != 0;
    let user = want & code::USER != 0;
    let write = want & code::WRITE != 0;
    let fetch = want & code::FETCH != 0;
    let key_denied = !fetch && key_denies(guest, paging, user_page, leaf, write, user);
    let no = match (user, fetch) {
        (true, _) if !user_page => true,
        (_, true) if access & EXEC == 0 => true,
        (true, true) => false,
        (false, true) => user_page && paging.smep,
        (false, false) if user_page && paging.smap && guest.smap_applies() => true,
        _ => write && access & WRITE == 0 && (user || paging.wp),
    };
    (no || key_denied).then_some(code::PRESENT | if key_denied { code::KEY } else { 0 })
}

/// Whether the protection key of a page forbids a data access.
fn key_denies(guest: &Guest, paging: &Paging, user_page: bool, leaf: u64, write: bool, user: bool) -> bool {
    let keys = match user_page {
        true if paging.pke => guest.pkru,
        false if guest.cr4 & CR4_PKS != 0 && !user => guest.pkrs,
        _ => return false,
    };
    let rights = keys >> (((leaf >> 59) & 15) * 2);
    paging.long && (rights & 1 != 0 || (rights & 2 != 0 && write && (user || paging.wp)))
}

impl Guest {
    /// Whether supervisor accesses to user pages fault under SMAP. Implicit accesses are told from explicit ones by the
    /// privilege level only; see [`Mmu::fault`] for the rest.
    fn smap_applies(&self) -> bool {
        self.cpl == 3 || self.rflags & flags::AC == 0
    }
}

impl Mmu {
    /// Reads an entry of a guest table. Where there is no memory, all bits are set. The value, and whether there is memory.
    pub(super) fn read_guest(&self, gpa: u64, wide: bool) -> (u64, bool) {
        let value = self
            .slots
            .translate(gpa)
            .and_then(|hpa| if wide { self.ram.read::<u64>(hpa) } else { self.ram.read::<u32>(hpa).map(u64::from) });
        let ones = if wide { u64::MAX } else { u64::from(u32::MAX) };
        (value.unwrap_or(ones), value.is_some())
    }

    /// Sets flags in an entry of a guest table, as the processor does: no matter what shadows the table.
    fn set_guest_flags(&mut self, gpa: u64, wide: bool, value: u64) {
        let Some(slot) = self.slots.find_mut(gpa >> 12) else { return };
        if slot.config.read_only {
            return;
        }
        let hpa = slot.hpa(gpa >> 12) | gpa & 0xfff;
        if slot.mark_dirty(gpa >> 12) {
            self.tolls.add(Operation::DirtyLog, 1);
        }
        if wide {
            self.ram.write(hpa, value);
        } else {
            self.ram.write(hpa, value as u32);
        }
        self.written.push((hpa, if wide { 8 } else { 4 }));
    }

    /// Walks the guest's tables for an access with the error-code bits `want`, and sets accessed and dirty flags.
    ///
    /// Only with paging on.
    pub(super) fn walk_guest(&mut self, guest: &Guest, linear: u64, want: u32) -> Result<Walk, PageFault> {
        let paging = Paging::of(guest);
        let fetch_shown = paging.smep || (paging.pae && paging.nxe);
        let shown = if fetch_shown { want } else { want & !code::FETCH };
        let fault = |bits| PageFault { linear, code: shown | bits };
        let wide = paging.pae;
        let physical_bits = u32::from(self.host.physical_bits);
        let mut walk =
            Walk { steps: [Step::default(); 5], level: 0, gfn: 0, access: ALL, dirty: false, unbacked: false };
        let mut level = paging.levels();
        let mut table = match (wide, paging.long) {
            (false, _) => guest.cr3 & 0xffff_f000,
            (true, true) => guest.cr3 & ADDRESS,
            (true, false) => {
                let pdpte = guest.pdpte[(linear >> 30) as usize & 3];
                if pdpte & P == 0 {
                    return Err(fault(0));
                }
                pdpte & ADDRESS
            }
        };
        let top = level;
        loop {
            let (shift, size) =
                if wide { (12 + 9 * (u32::from(level) - 1), 8) } else { (12 + 10 * (u32::from(level) - 1), 4) };
            let address = table + (linear >> shift & if wide { 0x1ff } else { 0x3ff }) * size;
            self.tolls.add(Operation::GuestWalk, 1);
            let (value, backed) = self.read_guest(address, wide);
            walk.unbacked |= !backed;
            if value & P == 0 {
                return Err(fault(0));
            }
            let page = paging.is_page(value, level);
            if paging.reserved(value, level, page, physical_bits) != 0 {
                return Err(fault(code::PRESENT | code::RESERVED));
            }
            walk.steps[usize::from(level) - 1] = Step { gfn: table >> 12, address, value, access: walk.access };
            walk.access &= paging.entry_access(value);
            let frame = entry_frame(&paging, value, level, page);
            if page {
                walk.level = level;
                walk.gfn = frame | (linear & ((1 << shift) - 1)) >> 12;
                break;
            }
            table = frame << 12;
            level -= 1;
        }
        let leaf = walk.steps[usize::from(walk.level) - 1];
        if let Some(bits) = denied(guest, &paging, walk.access, leaf.value, want) {
            return Err(fault(bits));
        }
        let write = want & code::WRITE != 0;
        for level in (walk.level..=top).rev() {
            let step = &mut walk.steps[usize::from(level) - 1];
            let flags = A | if write && level == walk.level { D } else { 0 };
            if step.value & flags != flags {
                step.value |= flags;
                let step = *step;
                self.set_guest_flags(step.address, wide, step.value);
            }
        }
        walk.dirty = walk.steps[usize::from(walk.level) - 1].value & D != 0;
        Ok(walk)
    }

    /// What an entry of a last-level guest table says, for shadow entries made ahead of the first access: the frame and what
    /// may be done with it. `None`: it maps nothing, or has not been used by the guest yet.
    pub(super) fn used_entry(&self, guest: &Paging, value: u64, above: u8) -> Option<(u64, u8)> {
        let fine = value & (P | A) == P | A && guest.reserved(value, 1, true, u32::from(self.host.physical_bits)) == 0;
        fine.then(|| {
            let access = above & guest.entry_access(value) & if value & D == 0 { !WRITE } else { ALL };
            (entry_frame(guest, value, 1, true), access)
        })
    }
}

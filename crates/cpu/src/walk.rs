//! Page walks: 32-bit, PAE, 4-level and 5-level paging (SDM vol. 3, chapter 4), with EPT under each of them in non-root mode.

use crate::fault::Exec;
use crate::state::Cpu;
use crate::tlb::{Entry, perm};
use crate::vmx::{GuestView, Placed, Purpose};
use x86::control::*;
use x86::flags;
use x86::page::*;

/// What an access wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Data read.
    Read,
    /// Data write.
    Write,
    /// Instruction fetch.
    Fetch,
}

/// On whose behalf an access is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// User-mode access (CPL 3).
    User,
    /// Explicit supervisor access.
    Supervisor,
    /// Implicit supervisor access (descriptor tables, TSS), whatever the CPL: RFLAGS.AC does not lift SMAP.
    Implicit,
}

/// What a successful walk found.
#[derive(Clone, Copy, Debug)]
pub struct Walked {
    /// The translation.
    pub entry: Entry,
    /// Paging-structure entries that were read, those of EPT included.
    pub references: u32,
}

impl Cpu {
    /// The PCID translations are tagged with.
    #[inline]
    pub fn pcid(&self) -> u16 {
        if self.arch.cr4 & CR4_PCIDE != 0 { (self.arch.cr3 & 0xfff) as u16 } else { 0 }
    }

    /// The privilege of the current code's explicit accesses.
    #[inline]
    pub fn privilege(&self) -> Privilege {
        if self.arch.cpl == 3 { Privilege::User } else { Privilege::Supervisor }
    }

    fn fault_code(&self, access: Access, privilege: Privilege, bits: u32) -> u32 {
        let mut code = bits;
        if access == Access::Write {
            code |= code::WRITE;
        }
        if privilege == Privilege::User {
            code |= code::USER;
        }
        let fetch_shown =
            self.arch.cr4 & CR4_SMEP != 0 || (self.arch.cr4 & CR4_PAE != 0 && self.arch.msr.efer & EFER_NXE != 0);
        if access == Access::Fetch && fetch_shown {
            code |= code::FETCH;
        }
        code
    }

    /// Whether a translation allows an access at first sight: by its flags alone, as most do. If not, [`Self::permitted`] knows.
    #[inline]
    pub fn plainly_permitted(&self, entry: &Entry, access: Access, privilege: Privilege) -> bool {
        use perm::*;
        let (mask, wanted) = match access {
            Access::Read => (EPT_NO_READ, 0),
            Access::Write => (EPT_NO_WRITE | WRITE, WRITE),
            Access::Fetch => (EPT_NO_FETCH | NO_EXECUTE, 0),
        };
        // A supervisor's access to a user page depends on more.
        let user = if privilege == Privilege::User { USER } else { 0 };
        entry.perms & (mask | USER) == wanted | user && (access == Access::Fetch || self.key_is_free(entry, privilege))
    }

    /// Whether the protection key of a page surely forbids nothing.
    #[inline]
    fn key_is_free(&self, entry: &Entry, privilege: Privilege) -> bool {
        match privilege {
            Privilege::User => self.arch.cr4 & CR4_PKE == 0 || self.arch.pkru >> (u32::from(entry.key) * 2) & 3 == 0,
            _ => self.arch.cr4 & CR4_PKS == 0,
        }
    }

    /// Whether a translation allows an access; if not, the error-code bits beyond W, U and I. (Where EPT denies, another walk
    /// finds out that it is an EPT violation.)
    pub fn permitted(&self, entry: &Entry, access: Access, privilege: Privilege) -> Result<(), u32> {
        let ept = match access {
            Access::Read => perm::EPT_NO_READ,
            Access::Write => perm::EPT_NO_WRITE,
            Access::Fetch => perm::EPT_NO_FETCH,
        };
        if entry.perms & ept != 0 {
            return Err(code::PRESENT);
        }
        let user_page = entry.perms & perm::USER != 0;
        let writable = entry.perms & perm::WRITE != 0;
        let write_protect = self.arch.cr0 & CR0_WP != 0;
        let key_denied = access != Access::Fetch && self.key_denies(entry, access, privilege);
        // A protection key that denies shows in the code even where something else denies too.
        let denied = Err(code::PRESENT | if key_denied { code::KEY } else { 0 });
        match (access, privilege) {
            (_, Privilege::User) if !user_page => return denied,
            (Access::Fetch, _) if entry.perms & perm::NO_EXECUTE != 0 => return denied,
            (Access::Fetch, Privilege::User) => return Ok(()),
            (Access::Fetch, _) => {
                return if user_page && self.arch.cr4 & CR4_SMEP != 0 { denied } else { Ok(()) };
            }
            (_, Privilege::Supervisor)
                if user_page && self.arch.cr4 & CR4_SMAP != 0 && self.arch.flags & flags::AC == 0 =>
            {
                return denied;
            }
            (_, Privilege::Implicit) if user_page && self.arch.cr4 & CR4_SMAP != 0 => return denied,
            (Access::Write, Privilege::User) if !writable => return denied,
            (Access::Write, _) if !writable && write_protect => return denied,
            _ => {}
        }
        if key_denied { denied } else { Ok(()) }
    }

    /// Whether the protection key of a page forbids a data access.
    fn key_denies(&self, entry: &Entry, access: Access, privilege: Privilege) -> bool {
        let user_page = entry.perms & perm::USER != 0;
        let keys = match user_page {
            true if self.arch.cr4 & CR4_PKE != 0 => self.arch.pkru,
            false if self.arch.cr4 & CR4_PKS != 0 && privilege != Privilege::User => self.arch.msr.pkrs as u32,
            _ => return false,
        };
        let rights = keys >> (u32::from(entry.key) * 2);
        let write_protect = self.arch.cr0 & CR0_WP != 0;
        let write_denied =
            rights & 2 != 0 && access == Access::Write && (privilege == Privilege::User || write_protect);
        self.long_mode() && (rights & 1 != 0 || write_denied)
    }

    /// Where an entry of the tables is that are being walked: through EPT in non-root mode, by the map of its memory where a
    /// guest is emulated. `None`: nowhere.
    fn entry_place(&mut self, address: u64, linear: u64, purpose: Purpose, references: &mut u32) -> Exec<Option<u64>> {
        if self.arch.vmx.ept {
            return self.place(address, linear, purpose, references).map(|placed| Some(placed.address));
        }
        Ok(self.backing(address))
    }

    /// An entry. Outside RAM there is nothing: not present in its low bit would hide the error, all ones does not.
    fn read_table(&self, place: Option<u64>, wide: bool) -> u64 {
        let value = place.and_then(|at| match wide {
            true => self.wiring.ram.read::<u64>(at),
            false => self.wiring.ram.read::<u32>(at).map(u64::from),
        });
        value.unwrap_or(if wide { u64::MAX } else { u64::from(u32::MAX) })
    }

    /// Reads an entry where loads of the PDPTE registers find them.
    pub(crate) fn read_pdpte(&mut self, address: u64) -> Exec<u64> {
        let place = self.entry_place(address, 0, Purpose::Pdpte, &mut 0)?;
        Ok(self.read_table(place, true))
    }

    /// Sets flags in an entry.
    fn write_table(&mut self, address: u64, linear: u64, wide: bool, value: u64) -> Exec {
        let Some(at) = self.entry_place(address, linear, Purpose::TableFlags, &mut 0)? else { return Ok(()) };
        if let Some(emulating) = &mut self.engine.emulation {
            emulating.note_entry(address);
        }
        self.code_written(at, if wide { 8 } else { 4 });
        if wide {
            self.wiring.ram.write(at, value);
        } else {
            self.wiring.ram.write(at, value as u32);
        }
        Ok(())
    }

    /// Puts EPT under a translation to guest-physical addresses.
    fn under_ept(&mut self, mut entry: Entry, linear: u64, access: Access, references: &mut u32) -> Exec<Entry> {
        let address = entry.physical | (linear & ((1u64 << entry.shift) - 1));
        let Placed { address, shift, rights, dirty } =
            self.place(address, linear, Purpose::Data(access), references)?;
        entry.shift = entry.shift.min(shift);
        let page = !((1u64 << entry.shift) - 1);
        entry.linear = linear & page;
        entry.physical = address & page;
        entry.perms |= (!rights as u8 & 7) * perm::EPT_NO_READ;
        if !dirty {
            entry.perms &= !perm::DIRTY;
        }
        Ok(entry)
    }

    /// Walks the paging structures for `linear`, checks the access, and sets accessed and dirty flags.
    ///
    /// With paging off it is the identity, in 4 KiB pages.
    pub fn walk(&mut self, linear: u64, access: Access, privilege: Privilege) -> Exec<Walked> {
        if self.arch.cr0 & CR0_PG == 0 {
            let perms = perm::WRITE | perm::USER | perm::DIRTY;
            if self.arch.vmx.ept {
                let linear = linear & 0xffff_ffff;
                let giga = linear & !((1 << 30) - 1);
                let entry = Entry::new(giga, giga, 30, perms, 0, self.pcid());
                let mut references = 0;
                let entry = self.under_ept(entry, linear, access, &mut references)?;
                return Ok(Walked { entry, references });
            }
            let page = linear & 0xffff_ffff & !0xfff;
            let entry = Entry::new(linear & !0xfff, page, 12, perms, 0, self.pcid());
            return Ok(Walked { entry, references: 0 });
        }
        let long = self.long_mode();
        let wide = self.arch.cr4 & CR4_PAE != 0;
        let nxe = self.arch.msr.efer & EFER_NXE != 0;
        let physical_bits = u32::from(self.wiring.model.physical_bits);
        let mut reserved = if wide { ADDRESS & !((1u64 << physical_bits) - 1) } else { 0 };
        if wide && !nxe {
            reserved |= NX;
        }
        if wide && !long {
            reserved |= 0x7ff0_0000_0000_0000;
        }
        let mut references = 0;
        let mut perms = perm::WRITE | perm::USER;
        // (address of the entry, its value) of each level, for the accessed flags.
        let mut path = [(0u64, 0u64); 5];
        let mut depth = 0;
        let (mut table, mut shift) = if !wide {
            (self.arch.cr3 & 0xffff_f000, 22u8)
        } else if !long {
            let pdpte = self.arch.pdpte[(linear >> 30) as usize & 3];
            if pdpte & P == 0 {
                let code = self.fault_code(access, privilege, 0);
                return Err(self.page_fault(linear, code));
            }
            (pdpte & ADDRESS, 21)
        } else if self.arch.cr4 & CR4_LA57 != 0 {
            (self.arch.cr3 & ADDRESS, 48)
        } else {
            (self.arch.cr3 & ADDRESS, 39)
        };
        let (leaf, shift) = loop {
            let index = (linear >> shift) & if wide { 0x1ff } else { 0x3ff };
            let address = table + index * if wide { 8 } else { 4 };
            let place = self.entry_place(address, linear, Purpose::Table, &mut references)?;
            let value = self.read_table(place, wide);
            references += 1;
            if value & P == 0 {
                let code = self.fault_code(access, privilege, 0);
                return Err(self.page_fault(linear, code));
            }
            let large_allowed = match shift {
                21 | 30 => true,
                22 => self.arch.cr4 & CR4_PSE != 0,
                _ => false,
            };
            let large = value & PS != 0 && large_allowed;
            let mut bad = value & reserved;
            if large {
                bad |= value
                    & match shift {
                        21 => 0x001f_e000,
                        30 => 0x3fff_e000,
                        // PSE-36: bits 20:13 are address bits 39:32; bit 21 is reserved.
                        _ => {
                            let high = 0x1f_e000u64;
                            let usable = physical_bits.saturating_sub(32).min(8);
                            0x0020_0000 | (high & !(((1u64 << usable) - 1) << 13))
                        }
                    };
            } else if value & PS != 0 && shift >= 39 {
                bad |= PS;
            }
            if bad != 0 {
                let code = self.fault_code(access, privilege, code::PRESENT | code::RESERVED);
                return Err(self.page_fault(linear, code));
            }
            if value & RW == 0 {
                perms &= !perm::WRITE;
            }
            if value & US == 0 {
                perms &= !perm::USER;
            }
            if wide && nxe && value & NX != 0 {
                perms |= perm::NO_EXECUTE;
            }
            path[depth] = (address, value);
            depth += 1;
            if large || shift == 12 {
                break (value, shift);
            }
            table = value & if wide { ADDRESS } else { 0xffff_f000 };
            shift -= if wide { 9 } else { 10 };
        };
        let page_mask = (1u64 << shift) - 1;
        let physical = page_address(leaf, wide, shift);
        if leaf & G != 0 && self.arch.cr4 & CR4_PGE != 0 {
            perms |= perm::GLOBAL;
        }
        let key = if long { (leaf >> 59) as u8 & 15 } else { 0 };
        if access == Access::Write || leaf & D != 0 {
            perms |= perm::DIRTY;
        }
        let entry = Entry::new(linear & !page_mask, physical, shift, perms, key, self.pcid());
        if let Err(bits) = self.permitted(&entry, access, privilege) {
            let code = self.fault_code(access, privilege, bits);
            return Err(self.page_fault(linear, code));
        }
        for (i, &(address, value)) in path[..depth].iter().enumerate() {
            let dirty = if i + 1 == depth && access == Access::Write { D } else { 0 };
            let wanted = value | A | dirty;
            if wanted != value {
                self.write_table(address, linear, wide, wanted)?;
            }
        }
        let entry = match self.arch.vmx.ept {
            true => self.under_ept(entry, linear, access, &mut references)?,
            false => entry,
        };
        Ok(Walked { entry, references })
    }

    /// Guest-physical address of a linear one for a look from outside: whatever the permissions, and without a trace in the
    /// TLB, the tables or the ledger. `None`: not mapped.
    ///
    /// The registers are those that the guest of a hypervisor sees, where that says so ([`NonRoot::visible`]).
    ///
    /// [`NonRoot::visible`]: crate::vmx::NonRoot::visible
    pub fn look_up(&self, linear: u64) -> Option<u64> {
        self.look_up_in(&self.visible(), linear)
    }

    /// Like [`Self::look_up`], with these registers.
    pub fn look_up_in(&self, view: &GuestView, linear: u64) -> Option<u64> {
        self.look_up_tables(view, linear, self.arch.vmx.ept)
    }

    /// Like [`Self::look_up`], with another value of CR3 (which PAE paging outside long mode doesn't read), where guest-physical addresses are those of the board's memory: also what a hypervisor has not mapped
    /// for its guest yet.
    pub fn look_up_on_board(&self, cr3: u64, linear: u64) -> Option<u64> {
        self.look_up_tables(&GuestView { cr3, ..self.visible() }, linear, false)
    }

    /// The registers that say how linear addresses are translated, as the guest of a hypervisor sees them where there is one.
    pub fn visible(&self) -> GuestView {
        self.arch.vmx.visible.unwrap_or_else(|| GuestView::of(self))
    }

    /// Like [`Self::look_up_on_board`], with the processor's own CR3; `seen` is told of each entry on the way: how many bits of an address it
    /// leaves open, where it is, and its value.
    pub fn look_up_path(&self, linear: u64, seen: &mut dyn FnMut(u8, u64, u64)) -> Option<u64> {
        self.look_up_seeing(&self.visible(), linear, false, seen)
    }

    fn look_up_tables(&self, view: &GuestView, linear: u64, ept: bool) -> Option<u64> {
        self.look_up_seeing(view, linear, ept, |_, _, _| {})
    }

    fn look_up_seeing(
        &self,
        view: &GuestView,
        linear: u64,
        ept: bool,
        mut seen: impl FnMut(u8, u64, u64),
    ) -> Option<u64> {
        if view.cr0 & CR0_PG == 0 {
            return Some(linear & 0xffff_ffff);
        }
        let long = view.efer & EFER_LMA != 0;
        let wide = view.cr4 & CR4_PAE != 0;
        let (mut table, mut shift) = match (wide, long) {
            (false, _) => (view.cr3 & 0xffff_f000, 22u8),
            (true, false) => {
                let pdpte = view.pdpte[(linear >> 30) as usize & 3];
                (pdpte & P != 0).then_some((pdpte & ADDRESS, 21))?
            }
            (true, true) => (view.cr3 & ADDRESS, if view.cr4 & CR4_LA57 != 0 { 48 } else { 39 }),
        };
        loop {
            let index = (linear >> shift) & if wide { 0x1ff } else { 0x3ff };
            let address = table + index * if wide { 8 } else { 4 };
            let place = if ept { self.look_up_physical(address)? } else { address };
            let value = self.read_table(Some(place), wide);
            seen(shift, address, value);
            if value & P == 0 {
                return None;
            }
            let large = value & PS != 0 && (matches!(shift, 21 | 30) || (shift == 22 && view.cr4 & CR4_PSE != 0));
            if large || shift == 12 {
                let mask = (1u64 << shift) - 1;
                let page = page_address(value, wide, shift);
                return Some(page | (linear & mask));
            }
            table = value & if wide { ADDRESS } else { 0xffff_f000 };
            shift -= if wide { 9 } else { 10 };
        }
    }
}

/// Address of the page that a leaf entry maps. A 4 MiB one has address bits 39:32 in bits 20:13 (PSE-36).
fn page_address(leaf: u64, wide: bool, shift: u8) -> u64 {
    match (wide, shift) {
        (false, 22) => (leaf & 0xffc0_0000) | ((leaf >> 13) & 0xff) << 32,
        (false, _) => leaf & 0xffff_f000,
        _ => leaf & ADDRESS & !((1u64 << shift) - 1),
    }
}

//! Access to guest memory through segmentation and paging.
//!
//! The fast path is [`Front`](crate::front::Front), direct-mapped arrays of host pointers. It only contains pages that
//! are in the modelled first-level data TLB, that the current mode may access, that are RAM, and (for writes) that have
//! no line marked as decoded or monitored. A hit therefore needs no further check and charges nothing.

use crate::access::{Access, Privilege};
use crate::arch::attention;
use crate::capability::Capability;
use crate::fault::{Cause, Exec, Fault};
use crate::flags::Int;
use crate::front::{Accessed, Left, Mapped, Mode, Tables};
use crate::lines::Exposed;
use crate::op::{Op, SEG_FLAT};
use crate::ram::{GROUP, lines};
use crate::state::Cpu;
use crate::tlb::{Entry, perm};
use crate::vmx::DeviceAccess;
use ledger::{Family, Kind, Ticks};
use x86::control::*;
use x86::page::PAGE;
use x86::{flags, rights, seg, vector};

/// Bits of an address within its page.
pub(crate) const OFFSET: u64 = PAGE - 1;

/// Target of an access on the slow path.
enum Target {
    Ram(*mut u8),
    /// Read-only memory: writes are ignored.
    Rom(*mut u8),
    Device(u64),
}

/// An access to a page of RAM.
struct Resolved {
    /// Linear address.
    linear: u64,
    /// Guest-physical address.
    address: u64,
    /// Host address of the page.
    page: u64,
    /// True if the page has marked lines.
    marked: bool,
    /// The page in the TLB.
    mapped: Mapped,
    /// True if the page was written, and not only read.
    written: bool,
    /// True if the page may be written.
    writable: bool,
}

impl Cpu {
    /// Handles a change of the accesses that the current mode permits (CPL, CR0.WP, CR0.AM, CR4, EFER, PKRU, RFLAGS.AC,
    /// DR7).
    pub fn access_changed(&mut self) {
        let alignment_checked = self.arch.cr0 & CR0_AM != 0 && self.arch.flags & flags::AC != 0 && self.arch.cpl == 3;
        let mode = if alignment_checked || self.data_breakpoints() || self.engine.emulation.is_some() {
            Mode::Slow
        } else if self.arch.cpl == 3 {
            Mode::User
        } else {
            self.supervisor_mode(Privilege::Supervisor)
        };
        self.engine.front.set_mode(mode);
    }

    /// Returns the mode of accesses with a supervisor privilege.
    #[inline]
    fn supervisor_mode(&self, privilege: Privilege) -> Mode {
        // RFLAGS.AC has no effect on implicit accesses.
        let overrides = self.arch.flags & flags::AC != 0 && privilege != Privilege::Implicit;
        if self.arch.cr4 & CR4_SMAP == 0 || overrides { Mode::Supervisor } else { Mode::SupervisorOnly }
    }

    /// Returns the mode whose table serves accesses with a privilege, independently of the current mode: the
    /// supervisor's descriptor tables and stacks are accessed on behalf of user code too.
    #[inline]
    pub(crate) fn front_mode(&self, privilege: Privilege) -> Mode {
        match (self.engine.front.mode(), privilege) {
            (Mode::User, Privilege::User) => Mode::User,
            (Mode::Slow, _) | (_, Privilege::User) => Mode::Slow,
            _ => self.supervisor_mode(privilege),
        }
    }

    /// Handles a change of paging (CR0, CR3, CR4, EFER, PKRU, PDPTEs): all entries of the fast path are dropped.
    pub fn mapping_changed(&mut self) {
        if let Some(emulating) = &mut self.engine.emulation {
            emulating.note_mapping();
            return;
        }
        self.engine.front.forget();
        self.enter_space();
        self.access_changed();
    }

    /// Handles a load of CR3 (or INVPCID of one PCID): the fast path's entries of `flushed` are dropped, except for global pages.
    pub(crate) fn space_changed(&mut self, flushed: Option<u16>) {
        if let Some(emulating) = &mut self.engine.emulation {
            emulating.note_mapping();
            return;
        }
        if let Some(pcid) = flushed {
            let context = self.micro.tlb.context();
            self.engine.front.forget_private(|space| context.owns(space, pcid));
        }
        self.enter_space();
    }

    fn enter_space(&mut self) {
        let space = self.micro.tlb.context().key(self.pcid());
        self.engine.front.enter(space, self.wiring.ram.epoch());
        self.engine.fetch.leave();
    }

    /// Makes the page of `linear` the one being executed; [`Fetch::physical`](crate::front::Fetch::physical) becomes
    /// its address.
    #[inline]
    pub(crate) fn enter_page(&mut self, linear: u64) -> Exec {
        let Some(physical) = self.engine.front.code_page(linear, self.arch.cpl == 3) else {
            return self.enter_new_page(linear);
        };
        self.engine.fetch.physical = physical;
        self.engine.fetch.page = linear & !OFFSET;
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn enter_new_page(&mut self, linear: u64) -> Exec {
        if self.engine.long64 && !self.canonical(linear) {
            return Err(self.gp(0));
        }
        let privilege = self.privilege();
        // The complete address: a fault reports the address of the instruction, not that of the page.
        let (address, entry) = self.translate(linear, Access::Fetch, privilege)?;
        if self.is_apic_access_page(address) {
            return Err(self.fetch_from_apic_page(address));
        }
        // A smaller page inside a large one takes precedence.
        let mapped = mapped(&entry);
        let whole = entry.shift >= 21 && !self.micro.tlb.has_small_code(linear, 21);
        self.engine.front.fill_code(linear, address & !OFFSET, self.arch.cpl == 3, mapped, whole);
        self.engine.fetch.physical = address & !OFFSET;
        self.engine.fetch.page = linear & !OFFSET;
        Ok(())
    }

    fn data_breakpoints(&self) -> bool {
        // An enabled breakpoint (L or G) whose R/W field is not 0 (instruction execution).
        (0..4).any(|i| self.arch.dr[7] >> (2 * i) & 3 != 0 && self.arch.dr[7] >> (16 + 4 * i) & 3 != 0)
    }

    /// Returns true if a linear address is canonical for the current paging depth.
    #[inline]
    pub fn canonical(&self, linear: u64) -> bool {
        let unused = if self.arch.cr4 & CR4_LA57 != 0 { 7 } else { 16 };
        ((linear as i64) << unused >> unused) as u64 == linear
    }

    /// Returns true if a register for a base address (a base in an MSR, GDTR, IDTR, LDTR or TR) accepts the address: it
    /// must be canonical for the processor's widest linear addresses, independently of the current paging depth.
    pub fn canonical_base(&self, linear: u64) -> bool {
        let unused = if self.wiring.capabilities.has(Capability::La57) { 7 } else { 16 };
        ((linear as i64) << unused >> unused) as u64 == linear
    }

    #[cold]
    fn segment_fault(&mut self, segment: u8) -> Fault {
        let vector = if segment == seg::SS || segment == SEG_FLAT + 1 { vector::SS } else { vector::GP };
        self.raise_code(vector, 0)
    }

    /// Returns the linear address of `size` bytes at `offset` in a segment, after type and limit checks. In 64-bit mode
    /// there is neither check, and the canonical check is made at the access.
    #[inline]
    pub fn linear(&mut self, segment: u8, offset: u64, size: u64, write: bool) -> Exec<u64> {
        let s = &self.arch.seg[usize::from(segment & 7)];
        if self.engine.long64 {
            return Ok(if segment == seg::FS || segment == seg::GS { s.base.wrapping_add(offset) } else { offset });
        }
        const PLAIN: u32 = rights::UNUSABLE | rights::CODE | rights::DC | rights::RW;
        let last = offset.wrapping_add(size - 1);
        let linear = s.base.wrapping_add(offset) & 0xffff_ffff;
        if s.rights & PLAIN == rights::RW && last <= u64::from(s.limit) {
            return Ok(linear);
        }
        self.linear_checked(segment, offset, last, write)
    }

    #[cold]
    fn linear_checked(&mut self, segment: u8, offset: u64, last: u64, write: bool) -> Exec<u64> {
        let s = self.arch.seg[usize::from(segment & 7)];
        let base = s.base;
        let code = s.rights & rights::CODE != 0;
        let allowed = s.usable()
            && match (write, code) {
                (true, true) => false,
                (true, false) => s.rights & rights::RW != 0,
                (false, true) => s.rights & rights::RW != 0,
                (false, false) => true,
            };
        // In real mode CS can be read and written like any segment.
        let allowed = allowed || !self.protected() || self.v8086();
        let in_limit = if !code && s.rights & rights::DC != 0 {
            let top = if s.rights & rights::DB != 0 { 0xffff_ffff } else { 0xffff };
            offset > u64::from(s.limit) && last <= top && last >= offset
        } else {
            last <= u64::from(s.limit)
        };
        if allowed && in_limit { Ok(base.wrapping_add(offset) & 0xffff_ffff) } else { Err(self.segment_fault(segment)) }
    }

    /// Translates a linear address for an access within one page, through the TLB, and charges misses.
    #[inline]
    pub fn translate(&mut self, linear: u64, access: Access, privilege: Privilege) -> Exec<(u64, Entry)> {
        if self.engine.emulation.is_some() {
            return self.translate_in_software(linear, access, privilege);
        }
        let pcid = self.pcid();
        let found = self.micro.tlb.first(linear, access == Access::Fetch, pcid).copied();
        match found {
            Some(entry) if self.allows(&entry, access, privilege) => Ok((physical(&entry, linear), entry)),
            _ => self.translate_slow(linear, access, privilege, found.is_some()),
        }
    }

    /// Translates an address after a miss in the first level, or (if `found`) after a hit that does not permit the
    /// access.
    #[cold]
    #[inline(never)]
    fn translate_slow(&mut self, linear: u64, access: Access, privilege: Privilege, found: bool) -> Exec<(u64, Entry)> {
        let code = access == Access::Fetch;
        let pcid = self.pcid();
        if !found && let Some(entry) = self.micro.tlb.second(linear, pcid).copied() {
            self.promote(entry, linear, access);
            if self.allows(&entry, access, privilege) {
                return Ok((physical(&entry, linear), entry));
            }
        }
        // A permission failure causes a page walk, as in hardware: the tables may have been relaxed since.
        let walked = self.walk(linear, access, privilege)?;
        self.charge_walk(linear, physical(&walked.entry, linear), access, walked.references);
        let again = Left { linear: walked.entry.linear, shift: walked.entry.shift, key: None, tables: Tables::ALL };
        let entry = self.micro.tlb.kept(walked.entry, linear);
        let inserted = self.micro.tlb.insert(entry, code);
        // A page without an entry in the TLB has none on this side of the fast path; on the other side it may have one,
        // with its old translation.
        let changed = inserted.changed || entry.shift != walked.entry.shift;
        let (as_data, as_code) = if code { (changed, found) } else { (found, changed) };
        if as_data {
            self.engine.front.drop_range(again);
        }
        if as_code {
            self.drop_code(again);
        }
        self.displaced(inserted.displaced, code);
        Ok((physical(&entry, linear), entry))
    }

    /// Charges for a hit in the second level of the TLB, and copies the entry to the first.
    fn promote(&mut self, entry: Entry, linear: u64, access: Access) {
        let code = access == Access::Fetch;
        self.charge_second_level(linear, physical(&entry, linear), access);
        let displaced = self.micro.tlb.promote(entry, code);
        self.displaced(displaced, code);
    }

    /// Returns true if a cached translation is sufficient for an access: it permits the access, and the dirty flag need
    /// not be set.
    #[inline]
    fn allows(&self, entry: &Entry, access: Access, privilege: Privilege) -> bool {
        let clean_write = access.writes() && entry.perms & perm::DIRTY == 0;
        !clean_write
            && (self.plainly_permitted(entry, access, privilege) || self.permitted(entry, access, privilege).is_ok())
    }

    fn drop_code(&mut self, left: Left) {
        if self.engine.front.drop_fetch(left) {
            // The page may be the one being executed.
            self.engine.fetch.leave();
        }
    }

    fn displaced(&mut self, displaced: Option<Entry>, code: bool) {
        let Some(old) = displaced else { return };
        let left = Left { linear: old.linear, shift: old.shift, key: old.key(), tables: Tables::ALL };
        if code {
            self.drop_code(left);
        } else {
            self.engine.front.drop_range(left);
        }
    }

    /// Checks the linear address of an access with a segment.
    pub(crate) fn check_canonical(&mut self, linear: u64, segment: u8) -> Exec {
        if self.engine.long64 && !self.canonical(linear) { Err(self.segment_fault(segment)) } else { Ok(()) }
    }

    /// Returns the guest-physical address of a memory operand that is a hint: without a translation the hint is ignored. Under EPT, where
    /// a walk may exit, so is a hint whose translation the TLB does not have.
    pub(crate) fn translate_hint(&mut self, op: &Op) -> Option<u64> {
        if self.engine.emulation.is_some() {
            return None;
        }
        let privilege = self.privilege();
        let linear = self.operand_linear(op, 1, false);
        let translated = linear.and_then(|linear| {
            self.check_canonical(linear, op.seg)?;
            match self.arch.vmx.ept && !self.has_translation(linear, privilege) {
                true => Err(Fault),
                false => self.translate(linear, Access::Read, privilege),
            }
        });
        match translated {
            Ok((physical, _)) => Some(physical),
            Err(_) => {
                self.engine.fault = Cause::None;
                None
            }
        }
    }

    /// Returns true if the TLB has a translation by which data can be read.
    fn has_translation(&mut self, linear: u64, privilege: Privilege) -> bool {
        let pcid = self.pcid();
        let first = self.micro.tlb.first(linear, false, pcid).copied();
        let entry = first.or_else(|| self.micro.tlb.second(linear, pcid).copied());
        entry.is_some_and(|entry| self.allows(&entry, Access::Read, privilege))
    }

    /// Slow path of an access within a page: checks, translates, and fills the fast path if possible.
    fn resolve(&mut self, linear: u64, size: u64, access: Access, privilege: Privilege, segment: u8) -> Exec<Target> {
        self.check_canonical(linear, segment)?;
        let write = access.writes();
        let (address, entry) = self.translate(linear, access, privilege)?;
        let explicit = privilege != Privilege::Implicit;
        if explicit && self.engine.front.mode() == Mode::Slow {
            self.data_breakpoint(linear, size, write);
        }
        self.note_watched(linear, size, write);
        if self.is_apic_access_page(address) {
            return Ok(Target::Device(address));
        }
        let Some(backing) = self.backing(address) else { return Ok(Target::Device(address)) };
        let Some(page) = self.wiring.ram.visible_page(backing) else { return Ok(Target::Device(address)) };
        let (page, read_only, code) = (page.host, page.read_only, page.marked());
        if let Some(emulating) = &mut self.engine.emulation {
            emulating.note_data(address, size, write);
        }
        let address = backing;
        self.reach_lines(address, linear, size, write);
        // SAFETY: the offset stays inside the page.
        let host = unsafe { page.add((address & OFFSET) as usize) };
        if write {
            if read_only {
                return Ok(Target::Rom(host));
            }
            if code != 0 {
                if code & lines(address & OFFSET, size) != 0 {
                    if !self.engine.code_write_allowed {
                        self.engine.fault = Cause::CodeWrite;
                        return Err(Fault);
                    }
                    self.code_written(address, size);
                }
                return Ok(Target::Ram(host));
            }
        }
        let mode = self.front_mode(privilege);
        if mode != Mode::Slow && !access.is_shadow() && !self.is_watched(linear) {
            // The dirty flag or protection key of a readable page may forbid writes.
            let writable = write || (!read_only && self.allows(&entry, Access::Write, privilege));
            let (marked, mapped) = (code != 0, mapped(&entry));
            if self.in_one_line(linear, size) {
                let page = page as u64;
                self.expose(mode, Resolved { linear, address, page, marked, mapped, written: write, writable });
            }
        }
        Ok(Target::Ram(host))
    }

    /// Adds the page of an access to the fast path, and its neighbours if it is part of a large page.
    fn expose(&mut self, mode: Mode, access: Resolved) {
        let Resolved { linear, address, page: host, marked, mapped, written, writable } = access;
        let own = 1 << (linear / PAGE % GROUP as u64);
        if self.has_lines() {
            let writable = writable && !marked;
            let page = Accessed {
                page: linear & !OFFSET,
                host,
                written,
                readable: own,
                writable: if writable { own } else { 0 },
                mapped,
            };
            self.engine.front.fill_page(mode, page, address & !OFFSET);
            let (physical, host) = (address, host + (address & OFFSET));
            return self.expose_line(mode, &Exposed { physical, linear, host, writable, mapped });
        }
        let (readable, unmarked) = match mapped.large {
            true => self.wiring.ram.around(address),
            false => (own, if marked { 0 } else { own }),
        };
        let writable = if writable { unmarked } else { 0 };
        let page = linear & !OFFSET;
        self.engine.front.fill(mode, Accessed { page, host, written, readable, writable, mapped });
    }

    /// Adds the page of an access that missed the fast path, if the TLB has the page and no more than a charge for its
    /// second level is due, of less than `room`. Otherwise it returns false and changes nothing.
    /// `charge` charges for a miss of a line in a page that the fast path knows.
    pub(crate) fn refill(
        &mut self,
        linear: u64,
        size: u64,
        write: bool,
        room: Ticks,
        charge: impl FnOnce(&mut Self, Kind, Ticks),
    ) -> bool {
        if self.engine.streams {
            return false;
        }
        let mode = self.engine.front.mode();
        if size < 16 && self.reach_known_by(mode, linear, size, write, room, charge).is_some() {
            return true;
        }
        let inside = linear & OFFSET <= PAGE - size && (!self.engine.long64 || self.canonical(linear));
        // CMPXCHG16B is the only such access; its handler checks the alignment first.
        let inside = inside && (size < 16 || linear & 15 == 0) && self.in_one_line(linear, size);
        if mode == Mode::Slow || !inside || self.is_watched(linear) || self.engine.emulation.is_some() {
            return false;
        }
        let (privilege, pcid) = (self.privilege(), self.pcid());
        let (entry, first) = match self.micro.tlb.first(linear, false, pcid) {
            Some(entry) => (*entry, true),
            None => match self.micro.tlb.second(linear, pcid) {
                Some(entry) => (*entry, false),
                None => return false,
            },
        };
        let access = if write { Access::Write } else { Access::Read };
        if !self.allows(&entry, access, privilege) {
            return false;
        }
        let address = physical(&entry, linear);
        if self.is_apic_access_page(address) {
            return false;
        }
        let Some(page) = self.wiring.ram.visible_page(address) else { return false };
        let (page, read_only, marked) = (page.host as u64, page.read_only, page.marked() != 0);
        if write && (read_only || marked) {
            return false;
        }
        let mut room = room;
        if !first {
            let price = self.most_of_second_level();
            if price >= room || self.wiring.observer.is_some() {
                return false;
            }
            room -= price;
        }
        if !self.has_room_for(address, write, room) {
            return false;
        }
        if !first {
            self.promote(entry, linear, access);
        }
        self.reach_lines(address, linear, size, write);
        let writable = write || (!read_only && self.allows(&entry, Access::Write, privilege));
        let mapped = mapped(&entry);
        self.expose(mode, Resolved { linear, address, page, marked, mapped, written: write, writable });
        true
    }

    #[cold]
    fn data_breakpoint(&mut self, linear: u64, size: u64, write: bool) {
        self.note_breakpoints(linear, size, |kind| kind == 3 || (kind == 1 && write));
    }

    #[cold]
    #[inline(never)]
    fn read_slow(&mut self, linear: u64, size: u64, privilege: Privilege, segment: u8) -> Exec<u64> {
        // The read of a read-modify-write operation uses the page that was prepared for the write.
        if let Some(host) = self.front_read(linear, size) {
            // SAFETY: `front_read` has returned the address of `size` <= 8 bytes of RAM.
            return Ok(unsafe { peek(host, size) });
        }
        if let Some(host) = self.reach_known(self.front_mode(privilege), linear, size, false, Ticks::MAX) {
            // SAFETY: likewise.
            return Ok(unsafe { peek(host, size) });
        }
        self.check_alignment(linear, size, privilege)?;
        let first = PAGE - (linear & OFFSET);
        if size > first {
            // Both halves are translated before either is read, the first one first.
            self.resolve(linear, first, Access::Read, privilege, segment)?;
            let second = self.wrap(linear.wrapping_add(first));
            let high = self.read_within(second, size - first, privilege, segment)?;
            let low = self.read_within(linear, first, privilege, segment)?;
            self.charge_split(linear, size);
            return Ok(low | high << (8 * first));
        }
        let value = self.read_within(linear, size, privilege, segment)?;
        self.charge_split(linear, size);
        Ok(value)
    }

    fn read_within(&mut self, linear: u64, size: u64, privilege: Privilege, segment: u8) -> Exec<u64> {
        match self.resolve(linear, size, Access::Read, privilege, segment)? {
            Target::Ram(host) | Target::Rom(host) => {
                // SAFETY: `size` <= 8 bytes from `host` are inside one page of RAM.
                Ok(unsafe { peek(host, size) })
            }
            Target::Device(address) if self.is_apic_access_page(address) => self.apic_page_read(address, size),
            Target::Device(address) => Ok(self.device_read(address, size as u8)),
        }
    }

    #[cold]
    #[inline(never)]
    fn write_slow(&mut self, linear: u64, size: u64, value: u64, privilege: Privilege, segment: u8) -> Exec {
        if let Some(host) = self.front_write(linear, size) {
            // SAFETY: `front_write` has returned the address of `size` <= 8 writable bytes of RAM.
            unsafe { poke(host, size, value) };
            return Ok(());
        }
        if let Some(host) = self.reach_known(self.front_mode(privilege), linear, size, true, Ticks::MAX) {
            // SAFETY: likewise.
            unsafe { poke(host, size, value) };
            return Ok(());
        }
        self.check_alignment(linear, size, privilege)?;
        let first = PAGE - (linear & OFFSET);
        if size > first {
            let second = self.wrap(linear.wrapping_add(first));
            self.resolve(linear, first, Access::Write, privilege, segment)?;
            self.resolve(second, size - first, Access::Write, privilege, segment)?;
            self.write_within(linear, first, value, privilege, segment)?;
            self.write_within(second, size - first, value >> (8 * first), privilege, segment)?;
        } else {
            self.write_within(linear, size, value, privilege, segment)?;
        }
        self.charge_split(linear, size);
        Ok(())
    }

    fn write_within(&mut self, linear: u64, size: u64, value: u64, privilege: Privilege, segment: u8) -> Exec {
        match self.resolve(linear, size, Access::Write, privilege, segment)? {
            Target::Ram(host) => {
                // SAFETY: as in `read_within`; the page is writable.
                unsafe { poke(host, size, value) };
            }
            Target::Rom(_) => {}
            Target::Device(address) if self.is_apic_access_page(address) => {
                return self.apic_page_write(address, size, value);
            }
            Target::Device(address) => self.device_write(address, size as u8, value),
        }
        Ok(())
    }

    /// Reads 4 or 8 bytes of a shadow stack, or writes `value` there.
    pub(crate) fn shadow_access(
        &mut self,
        linear: u64,
        size: u8,
        access: Access,
        value: Option<u64>,
        privilege: Privilege,
    ) -> Exec<u64> {
        let size = u64::from(size);
        let first = (PAGE - (linear & OFFSET)).min(size);
        let second = self.wrap(linear.wrapping_add(first));
        if first < size {
            // Both halves are translated before either is accessed.
            self.resolve(linear, first, access, privilege, SEG_FLAT)?;
            self.resolve(second, size - first, access, privilege, SEG_FLAT)?;
        }
        let low = self.shadow_part(linear, first, access, value, privilege)?;
        if first == size {
            return Ok(low);
        }
        let value = value.map(|value| value >> (8 * first));
        Ok(low | self.shadow_part(second, size - first, access, value, privilege)? << (8 * first))
    }

    fn shadow_part(
        &mut self,
        linear: u64,
        size: u64,
        access: Access,
        value: Option<u64>,
        privilege: Privilege,
    ) -> Exec<u64> {
        match (self.resolve(linear, size, access, privilege, SEG_FLAT)?, value) {
            // SAFETY: `size` <= 8 bytes from `host` are inside one page of RAM.
            (Target::Ram(host) | Target::Rom(host), None) => Ok(unsafe { peek(host, size) }),
            (Target::Ram(host), Some(value)) => {
                // SAFETY: likewise; the page is writable.
                unsafe { poke(host, size, value) };
                Ok(0)
            }
            (Target::Rom(_), Some(_)) => Ok(0),
            (Target::Device(address), None) => Ok(self.device_read(address, size as u8)),
            (Target::Device(address), Some(value)) => {
                self.device_write(address, size as u8, value);
                Ok(0)
            }
        }
    }

    fn check_alignment(&mut self, linear: u64, size: u64, privilege: Privilege) -> Exec {
        let checked = self.arch.cr0 & CR0_AM != 0 && self.arch.flags & flags::AC != 0 && privilege == Privilege::User;
        // Vectors and save areas have alignment rules of their own, with #GP.
        if checked && size <= 8 && size.is_power_of_two() && linear & (size - 1) != 0 {
            return Err(self.raise_code(vector::AC, 0));
        }
        Ok(())
    }

    /// Truncates a linear address to the current mode: outside 64-bit mode it has 32 bits.
    #[inline]
    pub(crate) fn wrap(&self, linear: u64) -> u64 {
        if self.engine.long64 { linear } else { linear & 0xffff_ffff }
    }

    fn device_read(&mut self, address: u64, size: u8) -> u64 {
        let who = self.ident();
        let device = self.wiring.bus().device(address);
        self.note_device(DeviceAccess::Memory { address, size, write: false });
        self.charge(Kind::new(Family::MmioRead, device), 1);
        self.attend(attention::BUS);
        // Devices see naturally sized accesses; an odd remainder of a split access is done byte by byte.
        let mut bus = self.wiring.bus();
        if size.is_power_of_two() {
            return bus.read(who, address, size);
        }
        (0..u64::from(size)).fold(0, |v, i| v | (bus.read(who, address + i, 1) & 0xff) << (8 * i))
    }

    fn device_write(&mut self, address: u64, size: u8, value: u64) {
        let who = self.ident();
        let device = self.wiring.bus().device(address);
        self.note_device(DeviceAccess::Memory { address, size, write: true });
        self.charge(Kind::new(Family::MmioWrite, device), 1);
        self.attend(attention::BUS);
        let mut bus = self.wiring.bus();
        if size.is_power_of_two() {
            return bus.write(who, address, size, value);
        }
        for i in 0..u64::from(size) {
            bus.write(who, address + i, 1, value >> (8 * i) & 0xff);
        }
    }

    /// Records that guest-physical bytes are about to change, in case they are decoded or monitored.
    pub fn code_written(&mut self, address: u64, size: u64) {
        let hit = self.wiring.ram.marked(address) & lines(address & OFFSET, size);
        if hit != 0 {
            self.engine.code_writes.push((address & !OFFSET, hit));
            self.attend(attention::CODE);
            if self.wiring.ram.trigger_monitors(address & !OFFSET, hit) {
                // A processor that waits for this write continues now.
                self.attend(attention::BUS);
            }
        }
    }

    /// Handles a page that may have got its first marked line: writes to it must leave the fast path.
    #[inline]
    pub(crate) fn follow_marks(&mut self) {
        let epoch = self.wiring.ram.epoch();
        self.engine.front.follow_marks(epoch);
    }

    /// Reads at a linear address with the current privilege. `segment` only selects between #SS and #GP.
    #[inline(always)]
    pub(crate) fn read_linear<T: Int>(&mut self, linear: u64, segment: u8) -> Exec<T> {
        if let Some(host) = self.engine.front.read(linear, u64::from(T::SIZE)) {
            // SAFETY: a matching slot guarantees that the page is RAM at this host address, and the value is inside it.
            return Ok(unsafe { host.cast::<T>().read_unaligned() });
        }
        let privilege = self.privilege();
        self.read_slow(linear, u64::from(T::SIZE), privilege, segment).map(T::from_u64)
    }

    /// Writes at a linear address with the current privilege.
    #[inline(always)]
    pub(crate) fn write_linear<T: Int>(&mut self, linear: u64, segment: u8, value: T) -> Exec {
        if let Some(host) = self.engine.front.write(linear, u64::from(T::SIZE)) {
            // SAFETY: as in `read_linear`; the page is writable.
            unsafe { host.cast::<T>().write_unaligned(value) };
            return Ok(());
        }
        let privilege = self.privilege();
        self.write_slow(linear, u64::from(T::SIZE), value.to_u64(), privilege, segment)
    }

    /// Reads at an offset in a segment.
    #[inline(always)]
    pub(crate) fn read_seg<T: Int>(&mut self, segment: u8, offset: u64) -> Exec<T> {
        let linear =
            if segment >= SEG_FLAT { offset } else { self.linear(segment, offset, u64::from(T::SIZE), false)? };
        self.read_linear(linear, segment)
    }

    /// Writes at an offset in a segment.
    #[inline(always)]
    pub(crate) fn write_seg<T: Int>(&mut self, segment: u8, offset: u64, value: T) -> Exec {
        let linear = if segment >= SEG_FLAT { offset } else { self.linear(segment, offset, u64::from(T::SIZE), true)? };
        self.write_linear(linear, segment, value)
    }

    /// Reads an instruction's memory operand.
    #[inline(always)]
    pub fn load<T: Int>(&mut self, op: &Op) -> Exec<T> {
        let offset = op.ea(self);
        self.read_seg(op.seg, offset)
    }

    /// Writes an instruction's memory operand.
    #[inline(always)]
    pub fn store<T: Int>(&mut self, op: &Op, value: T) -> Exec {
        let offset = op.ea(self);
        self.write_seg(op.seg, offset, value)
    }

    /// Reads, changes and writes an instruction's memory operand. The page must be writable before `change` is called.
    #[inline(always)]
    pub fn modify<T: Int>(&mut self, op: &Op, change: impl FnOnce(&mut Self, T) -> T) -> Exec {
        let offset = op.ea(self);
        let linear = if op.seg >= SEG_FLAT { offset } else { self.linear(op.seg, offset, u64::from(T::SIZE), true)? };
        if let Some(host) = self.engine.front.write(linear, u64::from(T::SIZE)) {
            let host = host.cast::<T>();
            // SAFETY: as in `write_linear`; `change` cannot unmap host memory.
            unsafe { host.write_unaligned(change(self, host.read_unaligned())) };
            return Ok(());
        }
        let privilege = self.privilege();
        self.prepare_write(linear, u64::from(T::SIZE), privilege, op.seg)?;
        let old = T::from_u64(self.read_slow(linear, u64::from(T::SIZE), privilege, op.seg)?);
        let new = change(self, old);
        self.write_slow(linear, u64::from(T::SIZE), new.to_u64(), privilege, op.seg)
    }

    /// Ensures that a write of up to one page at `linear` will not fault.
    #[cold]
    #[inline(never)]
    pub(crate) fn prepare_write(&mut self, linear: u64, size: u64, privilege: Privilege, segment: u8) -> Exec {
        if self.engine.front.write_in(self.front_mode(privilege), linear, size).is_some()
            || self.reach_known(self.front_mode(privilege), linear, size, true, Ticks::MAX).is_some()
        {
            return Ok(());
        }
        self.check_alignment(linear, size, privilege)?;
        let first = (PAGE - (linear & OFFSET)).min(size);
        self.resolve(linear, first, Access::Write, privilege, segment)?;
        if size > first {
            let second = self.wrap(linear.wrapping_add(first));
            self.resolve(second, size - first, Access::Write, privilege, segment)?;
        }
        Ok(())
    }

    /// Ensures that a read of up to one page at `linear` will not fault.
    #[cold]
    #[inline(never)]
    pub(crate) fn prepare_read(&mut self, linear: u64, size: u64, privilege: Privilege, segment: u8) -> Exec {
        if self.engine.front.read_in(self.front_mode(privilege), linear, size).is_some()
            || self.reach_known(self.front_mode(privilege), linear, size, false, Ticks::MAX).is_some()
        {
            return Ok(());
        }
        let first = (PAGE - (linear & OFFSET)).min(size);
        self.resolve(linear, first, Access::Read, privilege, segment)?;
        if size > first {
            let second = self.wrap(linear.wrapping_add(first));
            self.resolve(second, size - first, Access::Read, privilege, segment)?;
        }
        Ok(())
    }

    /// Returns the linear address of an instruction's memory operand of `size` bytes.
    #[inline]
    pub(crate) fn operand_linear(&mut self, op: &Op, size: u64, write: bool) -> Exec<u64> {
        let offset = op.ea(self);
        if op.seg >= SEG_FLAT { Ok(offset) } else { self.linear(op.seg, offset, size, write) }
    }

    pub(crate) fn read_split(&mut self, linear: u64, size: u64, privilege: Privilege, segment: u8) -> Exec<u64> {
        let first = (PAGE - (linear & OFFSET)).min(size);
        let low = self.read_within(linear, first, privilege, segment)?;
        if first == size {
            return Ok(low);
        }
        let second = self.wrap(linear.wrapping_add(first));
        Ok(low | self.read_within(second, size - first, privilege, segment)? << (8 * first))
    }

    pub(crate) fn write_split(
        &mut self,
        linear: u64,
        size: u64,
        value: u64,
        privilege: Privilege,
        segment: u8,
    ) -> Exec {
        let first = (PAGE - (linear & OFFSET)).min(size);
        self.write_within(linear, first, value, privilege, segment)?;
        if first == size {
            return Ok(());
        }
        let second = self.wrap(linear.wrapping_add(first));
        self.write_within(second, size - first, value >> (8 * first), privilege, segment)
    }

    /// Returns the host address of `len` readable bytes inside one page, if it is on the fast path.
    #[inline]
    pub(crate) fn front_read(&self, linear: u64, len: u64) -> Option<*const u8> {
        self.engine.front.read(linear, len)
    }

    /// Returns the host address of `len` writable bytes inside one page, if it is on the fast path.
    #[inline]
    pub(crate) fn front_write(&self, linear: u64, len: u64) -> Option<*mut u8> {
        self.engine.front.write(linear, len)
    }

    /// Reads up to 8 bytes at a linear address with a given privilege, which may differ from the current one. In long
    /// mode the address may be above 4 GiB even if the current code is not 64-bit.
    pub(crate) fn read_as(&mut self, linear: u64, size: u8, privilege: Privilege, segment: u8) -> Exec<u64> {
        let (size, first) = (u64::from(size), PAGE - (linear & OFFSET));
        if let Some(host) = self.engine.front.read_in(self.front_mode(privilege), linear, size) {
            // SAFETY: `read_in` has returned the address of `size` <= 8 bytes of RAM.
            return Ok(unsafe { peek(host, size) });
        }
        if size <= first {
            return self.read_within(linear, size, privilege, segment);
        }
        let second = self.next_page(linear, first);
        self.resolve(linear, first, Access::Read, privilege, segment)?;
        let high = self.read_within(second, size - first, privilege, segment)?;
        Ok(self.read_within(linear, first, privilege, segment)? | high << (8 * first))
    }

    /// Writes up to 8 bytes with a given privilege, all or nothing.
    pub(crate) fn write_as(&mut self, linear: u64, size: u8, value: u64, privilege: Privilege, segment: u8) -> Exec {
        let (size, first) = (u64::from(size), PAGE - (linear & OFFSET));
        if let Some(host) = self.engine.front.write_in(self.front_mode(privilege), linear, size) {
            // SAFETY: `write_in` has returned the address of `size` <= 8 writable bytes of RAM.
            unsafe { poke(host, size, value) };
            return Ok(());
        }
        if size <= first {
            return self.write_within(linear, size, value, privilege, segment);
        }
        let second = self.next_page(linear, first);
        self.resolve(linear, first, Access::Write, privilege, segment)?;
        self.resolve(second, size - first, Access::Write, privilege, segment)?;
        self.write_within(linear, first, value, privilege, segment)?;
        self.write_within(second, size - first, value >> (8 * first), privilege, segment)
    }

    fn next_page(&self, linear: u64, first: u64) -> u64 {
        let next = linear.wrapping_add(first);
        if self.long_mode() { next } else { next & 0xffff_ffff }
    }

    /// Reads a descriptor, TSS field or similar: an implicit supervisor access at any CPL.
    pub(crate) fn read_system<T: Int>(&mut self, linear: u64) -> Exec<T> {
        if self.long_mode() && !self.canonical(linear) {
            return Err(self.gp(0));
        }
        let linear = if self.long_mode() { linear } else { linear & 0xffff_ffff };
        self.read_as(linear, T::SIZE, Privilege::Implicit, seg::DS).map(T::from_u64)
    }

    /// Writes a descriptor, TSS field or similar: an implicit supervisor access at any CPL.
    pub(crate) fn write_system<T: Int>(&mut self, linear: u64, value: T) -> Exec {
        if self.long_mode() && !self.canonical(linear) {
            return Err(self.gp(0));
        }
        let linear = if self.long_mode() { linear } else { linear & 0xffff_ffff };
        self.write_as(linear, T::SIZE, value.to_u64(), Privilege::Implicit, seg::DS)
    }
}

/// Returns what the fast path notes of a page.
fn mapped(entry: &Entry) -> Mapped {
    Mapped { large: entry.shift > 12, global: entry.perms & perm::GLOBAL != 0 }
}

#[inline]
fn physical(entry: &Entry, linear: u64) -> u64 {
    entry.physical | (linear & ((1u64 << entry.shift) - 1))
}

/// Reads up to 8 bytes; common sizes are inlined.
///
/// # Safety
/// `size` bytes from `host`, at most 8, must be readable RAM.
#[inline(always)]
unsafe fn peek(host: *const u8, size: u64) -> u64 {
    // SAFETY: guaranteed by the caller; `bytes` is not guest memory.
    unsafe {
        match size {
            1 => u64::from(*host),
            2 => u64::from(host.cast::<u16>().read_unaligned()),
            4 => u64::from(host.cast::<u32>().read_unaligned()),
            8 => host.cast::<u64>().read_unaligned(),
            _ => {
                let mut bytes = [0u8; 8];
                std::ptr::copy_nonoverlapping(host, bytes.as_mut_ptr(), size.min(8) as usize);
                u64::from_le_bytes(bytes)
            }
        }
    }
}

/// Writes up to 8 bytes; common sizes are inlined.
///
/// # Safety
/// `size` bytes from `host`, at most 8, must be writable RAM.
#[inline(always)]
unsafe fn poke(host: *mut u8, size: u64, value: u64) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match size {
            1 => *host = value as u8,
            2 => host.cast::<u16>().write_unaligned(value as u16),
            4 => host.cast::<u32>().write_unaligned(value as u32),
            8 => host.cast::<u64>().write_unaligned(value),
            _ => std::ptr::copy_nonoverlapping(value.to_le_bytes().as_ptr(), host, size.min(8) as usize),
        }
    }
}

//! Shadow EPT: the guest (L1) has EPT tables for its nested guest (L2) in its memory. The processor walks tables that
//! combine them with the memory slots.
//!
//! The pages of shadow EPT are those of a shadow MMU, with roles of their own: they are looked up by frame and role,
//! have reverse maps, and their guest tables are either watched for writes or unsynchronized until the guest executes
//! INVEPT.

use super::guest_ept::{EptExit, EptFormat, Level, Violation, same_tables};
use super::guest_walk::{Step, Walk};
use super::mapping::Target;
use super::pool::{EntryRef, Keeping};
use super::role::Role;
use super::shadow::LIMIT;
use super::spte::{EXEC, READ, USER_EXEC, WRITE};
use super::vcpu::VcpuMmu;
use super::{Guest, Mmu, Resolution};
use cpu::paging::{self, Layout, LayoutEpt, Path, ReadEntry, Root, Stop, UpdateEntry};
use ledger::Operation;
use std::convert::Infallible;
use x86::ept;
use x86::page::{OFFSET, PAGE, SHIFT, SHIFT_1G, SHIFT_2M, SHIFT_PML4};
use x86::vmx::qualification::ept as qualification;

impl Violation {
    /// Returns the requested permissions, in the format of an entry.
    pub fn wanted(&self) -> u64 {
        self.qualification & ept::RIGHTS
    }

    /// Returns the exit for the guest, whose EPT grants these permissions.
    fn exit(self, rights: u64) -> EptExit {
        let by_mode = if rights & ept::USER_EXECUTE != 0 { qualification::USER_EXECUTE } else { 0 };
        let given = (rights & ept::RIGHTS) << qualification::RIGHTS_SHIFT | by_mode;
        let kept = !(ept::RIGHTS << qualification::RIGHTS_SHIFT | qualification::USER_EXECUTE);
        let Self { gpa, linear, qualification } = self;
        EptExit::Violation { gpa, linear, qualification: qualification & kept | given }
    }
}

impl EptFormat {
    /// Returns the layout of entries for a guest with this physical address width.
    fn layout(self, physical_bits: u8) -> LayoutEpt {
        let largest = match (self.pages_1g, self.pages_2m) {
            (true, _) => SHIFT_1G,
            (false, true) => SHIFT_2M,
            (false, false) => SHIFT,
        };
        let layout = LayoutEpt::new(!((1u64 << physical_bits) - 1)).largest(largest);
        layout.execute_only(self.execute_only).mode_based(self.mode_based)
    }

    /// Returns the permissions of an entry, or those common to several.
    fn access(self, common: u64) -> u8 {
        let bit = |right, bit| if common & right != 0 { bit } else { 0 };
        let user = if self.mode_based { bit(ept::USER_EXECUTE, USER_EXEC) } else { 0 };
        bit(ept::READ, READ) | bit(ept::WRITE, WRITE) | bit(ept::EXECUTE, EXEC) | user
    }
}

/// Returns the topmost table of an EPT pointer.
fn root(eptp: u64) -> Root {
    Root { table: eptp & ept::ADDRESS, shift: SHIFT_PML4 }
}

/// Contents of an entry in the guest's EPT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// A pointer to the table in this frame, with these permissions.
    Table(u64, u8),
    /// A mapping of the page that begins at this frame, with these permissions.
    Page(u64, u8),
}

impl Mmu {
    /// Decodes an entry of the guest's EPT for a page of `role`. Returns `None` if it is not present or misconfigured,
    /// or lacks a required accessed or dirty flag. The permissions are limited by the role.
    pub(super) fn ept_entry(&self, role: Role, format: EptFormat, value: u64) -> Option<Says> {
        let layout = format.layout(self.host.physical_bits);
        let shift = u32::from(SHIFT as u8) + 9 * u32::from(role.level - 1);
        if !layout.is_present(value) || (format.flags && value & ept::ACCESSED == 0) {
            return None;
        }
        let page = layout.is_page(value, shift);
        if layout.is_reserved(value, shift, page) {
            return None;
        }
        let access = role.access & format.access(value);
        if !page {
            return Some(Says::Table(layout.table(value) >> SHIFT, access));
        }
        let clean = format.flags && value & ept::DIRTY == 0;
        let access = if clean { access & !WRITE } else { access };
        // An entry without permissions maps nothing.
        (access != 0).then(|| Says::Page(layout.page(value, shift) >> SHIFT, access))
    }

    /// Returns true if an entry of shadow EPT grants no more than the guest's EPT.
    pub(super) fn agrees(&self, at: EntryRef, entry: u64, says: Option<Says>) -> bool {
        let page = self.pool.page(at.page);
        match (self.child(at), says) {
            (Some(child), Some(says)) => {
                let below = self.pool.page(child);
                match says {
                    Says::Table(gfn, access) => !below.role.direct && (below.gfn, below.role.access) == (gfn, access),
                    Says::Page(gfn, access) => {
                        below.role.direct && below.gfn == gfn && below.role.access & !access == 0
                    }
                }
            }
            (None, Some(Says::Page(gfn, _))) if self.format.is_mmio(entry) => {
                self.format.mmio(gfn) == Some(entry) && self.slots.find(gfn).is_none()
            }
            (None, Some(Says::Page(gfn, access))) => {
                let frame = page.frame(usize::from(at.index));
                frame == gfn && self.format.access(entry) & !access == 0
            }
            _ => false,
        }
    }

    /// Walks the guest's EPT for an access of its nested guest, and sets accessed and dirty flags.
    pub(super) fn walk_ept(
        &mut self,
        guest: &Guest,
        eptp: u64,
        format: EptFormat,
        violation: Violation,
    ) -> Result<Walk, EptExit> {
        let Violation { gpa, linear, .. } = violation;
        let wanted = violation.wanted();
        if gpa >> ept::ADDRESS_BITS != 0 {
            return Err(violation.exit(0));
        }
        let layout = format.layout(self.host.physical_bits);
        let mut path = Path::default();
        let leaf = match paging::walk(&layout, root(eptp), gpa, &mut EptTables(self), &mut path) {
            Ok(leaf) => leaf,
            Err(Stop::Absent) => return Err(violation.exit(0)),
            Err(Stop::Reserved) => return Err(EptExit::Misconfiguration { gpa }),
            Err(Stop::Unreachable(never)) => match never {},
        };
        let all = path.common() & if format.mode_based { ept::RIGHTS | ept::USER_EXECUTE } else { ept::RIGHTS };
        let mut rights = all & ept::RIGHTS;
        if format.mode_based && wanted & ept::EXECUTE != 0 && self.is_user_page(guest, linear) {
            rights = rights & !ept::EXECUTE | if all & ept::USER_EXECUTE != 0 { ept::EXECUTE } else { 0 };
        }
        if rights & wanted != wanted {
            return Err(violation.exit(all));
        }
        let write = wanted & ept::WRITE != 0;
        if format.flags {
            if write && leaf.entry & ept::DIRTY == 0 {
                self.log_modification(guest, violation)?;
            }
            let Ok(()) = path.mark::<LayoutEpt, _>(&mut EptTables(self), write);
        }
        let offset = gpa & ((1 << leaf.shift) - 1);
        let mut walk = Walk {
            steps: [Step::default(); 5],
            level: paging::level::<LayoutEpt>(leaf.shift),
            gfn: (layout.page(leaf.entry, leaf.shift) | offset) >> SHIFT,
            access: format.access(all),
            dirty: !format.flags || write || leaf.entry & ept::DIRTY != 0,
            unbacked: false,
        };
        let mut above = Role::ept_root(format).access;
        for (entry, level) in path.entries().iter().zip((1..=Role::TDP_LEVELS).rev()) {
            walk.steps[usize::from(level) - 1] = Step { gfn: entry.address >> SHIFT, access: above };
            above &= format.access(entry.value);
        }
        Ok(walk)
    }

    /// Logs a page of the nested guest that is about to be marked dirty, with page-modification logging of the guest.
    fn log_modification(&mut self, guest: &Guest, violation: Violation) -> Result<(), EptExit> {
        let Some(pml) = guest.nested.and_then(|nested| nested.pml) else { return Ok(()) };
        let index = pml.index.wrapping_sub(self.logged);
        if u64::from(index) >= PAGE / 8 {
            let Violation { gpa, linear, qualification } = violation;
            let qualification = qualification & qualification::NMI_UNBLOCKED;
            return Err(EptExit::LogFull { gpa, linear, qualification });
        }
        let at = pml.address + 8 * u64::from(index);
        self.set_guest_flags(at, true, violation.gpa & !OFFSET);
        self.entry_marked(at);
        self.logged += 1;
        Ok(())
    }

    /// Takes the number of pages that have been logged since the last call, by which the guest's PML index has
    /// decreased.
    pub fn take_logged(&mut self) -> u16 {
        std::mem::take(&mut self.logged)
    }

    /// Handles an EPT violation of a nested guest on shadow EPT.
    pub(super) fn ept_fault(&mut self, vcpu: &mut VcpuMmu, guest: &Guest, violation: Violation) -> Resolution {
        let Level::Ept { eptp, format } = vcpu.level else { return LIMIT };
        let gpa = violation.gpa;
        let walk = match self.walk_ept(guest, eptp, format, violation) {
            Ok(walk) => walk,
            Err(exit) => {
                self.nested_violation(vcpu, gpa);
                return Resolution::Reflect(exit);
            }
        };
        let write = violation.wanted() & ept::WRITE != 0;
        if write && self.tracks.writes_seen(walk.gfn) {
            self.clear_writes(vcpu, gpa);
            return Resolution::Emulate { mmio: false };
        }
        let Some(has_slot) = self.has_slot(walk.gfn, write) else { return Resolution::Emulate { mmio: true } };
        if !has_slot && self.format.mmio(walk.gfn).is_none() {
            return Resolution::Emulate { mmio: true };
        }
        if !self.make_room(vcpu) {
            return LIMIT;
        }
        let access = if walk.dirty { walk.access } else { walk.access & !WRITE };
        let target = Target { gfn: walk.gfn, access, write, used: true, may_unsync: true };
        let Some(at) = self.reach(vcpu, gpa, &walk, target) else { return LIMIT };
        if !has_slot {
            self.map_mmio(at, walk.gfn);
            return Resolution::Emulate { mmio: true };
        }
        let mapped = self.map_page(at, target);
        self.prefetch(at);
        mapped.into()
    }

    /// Handles an EPT misconfiguration of a nested guest. The entry marks a frame without a slot. If that no longer
    /// matches the guest's EPT, the entry is dropped, so that the access is repeated as a violation.
    pub(super) fn ept_misconfiguration(&mut self, vcpu: &VcpuMmu, guest: &Guest, gpa: u64) -> Resolution {
        let Some(top) = self.top(vcpu, gpa) else { return Resolution::Fixed };
        let at = self.lowest_below(top, gpa);
        let said = self.look_in_ept(guest, gpa).and_then(|place| self.format.mmio(place >> SHIFT));
        if said == Some(self.pool.entry(at)) {
            return Resolution::Emulate { mmio: true };
        }
        if self.drop_entry(at) {
            self.flush_all();
        }
        Resolution::Fixed
    }

    /// Handles a violation that is reported to the guest, after which the processor has no translation of the address
    /// (SDM vol. 3, 28.4.3.1). Shadow EPT of the same tables must not have one either, because the guest need not
    /// execute INVEPT when it maps the address.
    pub fn nested_violation(&mut self, vcpu: &VcpuMmu, gpa: u64) {
        let Level::Ept { eptp, .. } = vcpu.level else { return };
        let sets = vcpu.ept_sets().filter(|set| same_tables(set.cr3, eptp));
        let roots = sets.filter_map(|set| set.pages[0]);
        let tables: Vec<_> = roots.filter(|page| self.pool.page(*page).keeping == Keeping::Hashed).collect();
        let mut flush = false;
        for page in tables {
            let at = self.lowest_below(page, gpa);
            flush |= self.drop_entry(at);
        }
        if flush {
            self.flush_all();
        }
    }

    /// Translates a guest-physical address of L2 through the guest's EPT, for an access that is described by an exit
    /// qualification. `guest` has the registers of L2.
    pub fn nested_gpa(&mut self, guest: &Guest, gpa: u64, linear: u64, qualification: u64) -> Result<u64, EptExit> {
        let Level::Ept { eptp, format } = guest.level() else { return Ok(gpa) };
        let walk = self.walk_ept(guest, eptp, format, Violation { gpa, linear, qualification })?;
        Ok(walk.gfn << SHIFT | gpa & OFFSET)
    }

    /// Translates a guest-physical address of L2 for inspection, without side effects and regardless of permissions.
    /// Returns `None` if it is not mapped.
    pub(super) fn look_in_ept(&mut self, guest: &Guest, gpa: u64) -> Option<u64> {
        let Level::Ept { eptp, format } = guest.level() else { return Some(gpa) };
        if gpa >> ept::ADDRESS_BITS != 0 {
            return None;
        }
        let layout = format.layout(self.host.physical_bits);
        let leaf = paging::walk(&layout, root(eptp), gpa, &mut EptTables(self), &mut ()).ok()?;
        Some(layout.page(leaf.entry, leaf.shift) | gpa & ((1 << leaf.shift) - 1))
    }
}

/// The guest's EPT tables as walked by the hypervisor, which sets flags.
struct EptTables<'a>(&'a mut Mmu);

impl ReadEntry for EptTables<'_> {
    type Stop = Infallible;

    fn read(&mut self, address: u64, wide: bool) -> Result<u64, Infallible> {
        self.0.tolls.add(Operation::GuestWalk, 1);
        Ok(self.0.read_guest(address, wide).0)
    }
}

impl UpdateEntry for EptTables<'_> {
    fn update(&mut self, address: u64, wide: bool, value: u64) -> Result<(), Infallible> {
        self.0.set_guest_flags(address, wide, value);
        Ok(())
    }
}

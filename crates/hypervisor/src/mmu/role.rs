//! Roles: the meaning of a shadow page in addition to its guest frame, and the guest's paging mode.

use super::guest::Guest;
use super::guest_ept::EptFormat;
use super::spte::{ALL, USER_EXEC};
use serde::{Deserialize, Serialize};
use x86::control::*;

/// Role of a shadow page. Two pages for the same frame with the same role are the same page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Role {
    /// Level of the table: 1 maps 4 KiB pages.
    pub level: u8,
    /// True if it maps consecutive frames independently of a guest table.
    pub direct: bool,
    /// Combined permissions of the entries above it.
    pub access: u8,
    /// True if it shadows a part of a table with 4-byte entries.
    pub four_byte: bool,
    /// Index of that part.
    pub quadrant: u8,
    /// True if 4 MiB pages are enabled (CR4.PSE), if that matters.
    pub pse: bool,
    /// True if the guest is in long mode, in which other bits are reserved than in PAE paging.
    pub long: bool,
    /// EFER.NXE; if true, bit 63 is not reserved.
    pub nxe: bool,
    /// CR0.WP.
    pub cr0_wp: bool,
    /// CR4.SMEP without CR0.WP: pages to which the supervisor has got write access must not be executable.
    pub smep_andnot_wp: bool,
    /// CR4.SMAP without CR0.WP.
    pub smap_andnot_wp: bool,
    /// True for a nested guest, whose pages differ from those of the guest.
    pub guest_mode: bool,
    /// Format of the guest's EPT, if the page shadows a table of it, or maps a piece of a large page in such a table.
    pub ept: Option<EptFormat>,
}

/// The guest's paging mode, as far as it affects translation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paging {
    /// CR0.PG.
    pub enabled: bool,
    /// CR4.PAE.
    pub pae: bool,
    /// EFER.LMA.
    pub long: bool,
    /// CR4.LA57.
    pub la57: bool,
    /// CR4.PSE.
    pub pse: bool,
    /// EFER.NXE.
    pub nxe: bool,
    /// CR0.WP.
    pub wp: bool,
    /// CR4.SMEP.
    pub smep: bool,
    /// CR4.SMAP.
    pub smap: bool,
    /// CR4.PKE.
    pub pke: bool,
    /// True for a nested guest.
    pub guest_mode: bool,
}

/// Bits of CR0 that affect roles.
pub const CR0_ROLE: u64 = CR0_PG | CR0_WP;
/// Bits of CR4 that affect roles.
pub const CR4_ROLE: u64 = CR4_PSE | CR4_PAE | CR4_LA57 | CR4_SMEP | CR4_SMAP | CR4_PKE;

impl Paging {
    /// Derives the paging mode from the guest's registers.
    pub fn of(guest: &Guest) -> Self {
        let guest_mode = guest.nested.is_some();
        if guest.cr0 & CR0_PG == 0 {
            return Self { guest_mode, ..Self::default() };
        }
        Self {
            enabled: true,
            pae: guest.cr4 & CR4_PAE != 0,
            long: guest.efer & EFER_LMA != 0,
            la57: guest.cr4 & CR4_LA57 != 0,
            pse: guest.cr4 & CR4_PSE != 0,
            nxe: guest.efer & EFER_NXE != 0,
            wp: guest.cr0 & CR0_WP != 0,
            smep: guest.cr4 & CR4_SMEP != 0,
            smap: guest.cr4 & CR4_SMAP != 0,
            pke: guest.cr4 & CR4_PKE != 0,
            guest_mode,
        }
    }

    /// Returns the number of levels of the guest's tables, without the four PDPTEs of PAE paging; 0 with paging
    /// disabled.
    pub fn levels(&self) -> u8 {
        match (self.enabled, self.long) {
            (false, _) => 0,
            (true, true) => 4 + u8::from(self.la57),
            (true, false) => 2,
        }
    }

    /// Returns the level of the topmost shadow pages: those of 32-bit and PAE guests are below four PDPTEs.
    pub fn shadow_root_level(&self) -> u8 {
        self.levels().max(2)
    }

    /// Returns the role of the topmost shadow pages.
    pub fn shadow_role(&self) -> Role {
        let level = self.shadow_root_level();
        if !self.enabled {
            return Role { level, direct: true, access: ALL, guest_mode: self.guest_mode, ..Role::default() };
        }
        let four_byte = !self.pae;
        Role {
            level,
            direct: false,
            access: ALL,
            four_byte,
            quadrant: 0,
            pse: four_byte && self.pse,
            long: self.long,
            nxe: self.pae && self.nxe,
            cr0_wp: self.wp,
            smep_andnot_wp: self.smep && !self.wp,
            smap_andnot_wp: self.smap && !self.wp,
            guest_mode: self.guest_mode,
            ept: None,
        }
    }
}

impl Role {
    /// Number of levels of two-dimensional paging.
    pub const TDP_LEVELS: u8 = 4;

    /// Returns the role of the root of two-dimensional paging, whose mappings do not depend on the guest; KVM before
    /// 5.19 nevertheless included the guest's CR0.WP.
    pub fn tdp_root(cr0_wp: bool, guest_mode: bool) -> Self {
        Self { level: Self::TDP_LEVELS, direct: true, access: ALL, nxe: true, cr0_wp, guest_mode, ..Self::default() }
    }

    /// Returns the role of the page that shadows the topmost table of the guest's EPT.
    pub fn ept_root(format: EptFormat) -> Self {
        let access = ALL | if format.mode_based { USER_EXEC } else { 0 };
        Self { level: Self::TDP_LEVELS, access, guest_mode: true, ept: Some(format), ..Self::default() }
    }

    /// Returns the role of a page to which entry `index` of a page of this role points.
    pub fn child(self, index: usize, direct: bool, access: u8) -> Self {
        let four_byte = self.four_byte && !direct;
        let quadrant = if four_byte { (index & 1) as u8 } else { 0 };
        Self { level: self.level - 1, direct, access, four_byte, quadrant, ..self }
    }

    /// Returns the guest's paging mode, as far as a page of this role depends on it.
    pub fn paging(self) -> Paging {
        Paging {
            enabled: true,
            pae: !self.four_byte,
            long: self.long,
            pse: self.pse,
            nxe: self.nxe,
            wp: self.cr0_wp,
            ..Paging::default()
        }
    }

    /// Returns the offset in the guest table that corresponds to shadow entry `index`.
    pub fn guest_offset(self, index: usize) -> u64 {
        let number = usize::from(self.quadrant) * 512 + index;
        match (self.four_byte, self.level) {
            (false, _) => index as u64 * 8,
            (true, 1) => number as u64 * 4,
            // A 4 MiB entry corresponds to two shadow entries.
            (true, _) => (number / 2) as u64 * 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mmu::Nested;

    const PAGED: Guest = Guest {
        cr0: CR0_PE | CR0_PG,
        cr3: 0,
        cr4: 0,
        efer: 0,
        pdpte: [0; 4],
        rflags: 2,
        cpl: 0,
        pkru: 0,
        pkrs: 0,
        nested: None,
    };

    fn role(change: impl Fn(&mut Guest)) -> Role {
        let mut guest = PAGED;
        change(&mut guest);
        Paging::of(&guest).shadow_role()
    }

    /// Registers, and what the role of the topmost pages has because of them. What does not matter in a paging mode
    /// must not be in the role, since it would divide pages that are the same.
    #[test]
    fn roles_have_what_the_paging_mode_depends_on() {
        let legacy = Role { level: 2, access: ALL, four_byte: true, ..Role::default() };
        let pae = Role { four_byte: false, ..legacy };
        let long = Role { level: 4, long: true, ..pae };
        let direct = Role { level: 2, access: ALL, direct: true, ..Role::default() };
        let set_long = |guest: &mut Guest| {
            guest.cr4 |= CR4_PAE;
            guest.efer |= EFER_LME | EFER_LMA;
        };
        assert_eq!(role(|guest| guest.cr0 = CR0_PE), direct);
        let everything = |guest: &mut Guest| *guest = Guest { cr0: CR0_WP, cr4: !0, efer: !0, ..*guest };
        assert_eq!(role(everything), direct, "without paging nothing matters");
        assert_eq!(role(|guest| guest.nested = Some(Nested::default())), Role { guest_mode: true, ..legacy });
        let unpaged = |guest: &mut Guest| (guest.cr0, guest.nested) = (0, Some(Nested::default()));
        assert_eq!(role(unpaged), Role { guest_mode: true, ..direct });
        for (bits, expected) in [
            (0, legacy),
            (CR4_PSE, Role { pse: true, ..legacy }),
            (CR4_PAE, pae),
            (CR4_PAE | CR4_PSE, pae),
            (CR4_SMEP, Role { smep_andnot_wp: true, ..legacy }),
            (CR4_SMAP, Role { smap_andnot_wp: true, ..legacy }),
            (CR4_PGE | CR4_FSGSBASE | CR4_PCIDE | CR4_PKE, legacy),
        ] {
            assert_eq!(role(|guest| guest.cr4 = bits), expected, "{bits:#x}");
            let (cr0_wp, smep_andnot_wp, smap_andnot_wp) = (true, false, false);
            let protected = Role { cr0_wp, smep_andnot_wp, smap_andnot_wp, ..expected };
            assert_eq!(role(|guest| (guest.cr0, guest.cr4) = (guest.cr0 | CR0_WP, bits)), protected, "{bits:#x}");
        }
        assert_eq!(role(|guest| guest.efer = EFER_NXE), legacy, "entries of 4 bytes have no bit 63");
        assert_eq!(role(|guest| (guest.cr4, guest.efer) = (CR4_PAE, EFER_NXE)), Role { nxe: true, ..pae });
        assert_eq!(role(set_long), long);
        let five = |guest: &mut Guest| {
            set_long(guest);
            guest.cr4 |= CR4_LA57;
        };
        assert_eq!(role(five), Role { level: 5, ..long });
        assert_eq!(role(|guest| guest.cr4 = CR4_PAE | CR4_LA57), pae);
    }

    #[test]
    fn roots_of_two_dimensional_paging_depend_on_little() {
        let tdp = Role { level: 4, direct: true, access: ALL, nxe: true, ..Role::default() };
        assert_eq!(Role::tdp_root(false, false), tdp);
        assert_eq!(Role::tdp_root(true, false), Role { cr0_wp: true, ..tdp });
        assert_eq!(Role::tdp_root(false, true), Role { guest_mode: true, ..tdp });
        let format = EptFormat { execute_only: true, ..EptFormat::default() };
        let shadow = Role { level: 4, access: ALL, guest_mode: true, ept: Some(format), ..Role::default() };
        assert_eq!(Role::ept_root(format), shadow);
        let by_mode = EptFormat { mode_based: true, ..format };
        assert_eq!(Role::ept_root(by_mode), Role { access: ALL | USER_EXEC, ept: Some(by_mode), ..shadow });
    }

    /// 1024 entries of 4 bytes are two shadow pages at the last level, and four at the one above.
    #[test]
    fn quadrants_divide_tables_of_4_byte_entries() {
        let directory = |quadrant| Role { level: 2, access: ALL, four_byte: true, quadrant, ..Role::default() };
        for (quadrant, index, entry) in
            [(0, 0, 0), (0, 1, 0), (0, 511, 255), (1, 0, 256), (3, 510, 1023), (3, 511, 1023)]
        {
            assert_eq!(directory(quadrant).guest_offset(index), entry * 4, "{quadrant} {index}");
        }
        for (quadrant, index, entry) in [(0, 0, 0), (0, 1, 1), (0, 511, 511), (1, 0, 512), (1, 511, 1023)] {
            assert_eq!(Role { level: 1, ..directory(quadrant) }.guest_offset(index), entry * 4);
        }
        assert_eq!(Role { four_byte: false, ..directory(0) }.guest_offset(511), 511 * 8);
        // The two shadow entries of one directory entry point to the two halves of the guest's page table.
        let halves = [6, 7].map(|index| directory(3).child(index, false, ALL));
        assert_eq!(halves, [0, 1].map(|quadrant| Role { level: 1, ..directory(quadrant) }));
        // A large page has no table of the guest, and a wide entry no halves.
        let piece = directory(3).child(7, true, 0);
        assert_eq!(piece, Role { level: 1, direct: true, access: 0, four_byte: false, ..directory(0) });
        let wide = Role { four_byte: false, level: 4, ..directory(0) };
        assert_eq!(wide.child(511, false, ALL), Role { level: 3, ..wide });
    }

    #[test]
    fn the_mode_of_a_role_is_the_one_it_came_from() {
        for bits in 0..32 {
            let bit = |number: u32, register: u64| if bits >> number & 1 != 0 { register } else { 0 };
            let guest = Guest {
                cr0: CR0_PG | bit(0, CR0_WP),
                cr4: bit(1, CR4_PAE) | bit(2, CR4_PSE),
                efer: if bits >> 1 & 1 != 0 { bit(3, EFER_LMA) | bit(4, EFER_NXE) } else { 0 },
                ..PAGED
            };
            let paging = Paging::of(&guest);
            let expected = Paging { pse: paging.pse && !paging.pae, ..paging };
            assert_eq!(paging.shadow_role().paging(), expected);
        }
    }
}

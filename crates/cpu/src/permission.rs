//! Access permissions of a mapped page (SDM vol. 3, 4.6), and the error code of a page fault (4.7).
//!
//! An access is a set of error-code bits in [`code`]: W, U, I and SS.

use x86::control::*;
use x86::page::code;

/// Combined permissions of the entries on the path to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRights {
    /// True if every entry allows writes.
    pub writable: bool,
    /// True if every entry allows user-mode accesses.
    pub user: bool,
    /// True if no entry forbids instruction fetches.
    pub executable: bool,
    /// True for a shadow stack: only the last entry forbids writes, and it is dirty.
    pub shadow: bool,
    /// Protection key.
    pub key: u8,
}

/// Other state that determines permissions. Each register is used only if the access depends on it.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// CR0.
    pub cr0: u64,
    /// CR4.
    pub cr4: u64,
    /// IA32_EFER.
    pub efer: u64,
    /// Protection keys of user pages.
    pub pkru: u32,
    /// Protection keys of supervisor pages.
    pub pkrs: u32,
    /// True if RFLAGS.AC overrides SMAP.
    pub lifted: bool,
}

impl Rules {
    /// Returns `None` if an access is permitted, otherwise the error-code bits in addition to W, U and I.
    #[inline(always)]
    pub fn denial(&self, page: PageRights, access: u32) -> Option<u32> {
        let user = access & code::USER != 0;
        let write = access & code::WRITE != 0;
        let fetch = access & code::FETCH != 0;
        let key_denied = !fetch && self.key_denies(page, write, user);
        if access & code::SHADOW_STACK != 0 {
            // A shadow stack belongs either to users or to supervisors.
            let denied = !page.shadow || page.user != user;
            return (denied || key_denied).then_some(code::PRESENT | if key_denied { code::KEY } else { 0 });
        }
        let denied = match (user, fetch) {
            (true, _) if !page.user => true,
            (_, true) if !page.executable => true,
            (true, true) => false,
            (false, true) => page.user && self.cr4 & CR4_SMEP != 0,
            (false, false) if page.user && self.cr4 & CR4_SMAP != 0 && !self.lifted => true,
            _ => write && !page.writable && (user || self.cr0 & CR0_WP != 0),
        };
        // A denying protection key appears in the error code even if there is another reason.
        (denied || key_denied).then_some(code::PRESENT | if key_denied { code::KEY } else { 0 })
    }

    /// Returns true if the protection key of a page forbids a data access.
    #[inline(always)]
    fn key_denies(&self, page: PageRights, write: bool, user: bool) -> bool {
        let keys = match page.user {
            true if self.cr4 & CR4_PKE != 0 => self.pkru,
            false if self.cr4 & CR4_PKS != 0 && !user => self.pkrs,
            _ => return false,
        };
        let rights = keys >> (u32::from(page.key) * 2);
        let write_denied = rights & KEY_WRITE != 0 && write && (user || self.cr0 & CR0_WP != 0);
        self.efer & EFER_LMA != 0 && (rights & KEY_ACCESS != 0 || write_denied)
    }

    /// Returns the error code of a page fault: the access, with the bits in addition to W, U and I.
    pub fn error_code(&self, access: u32, bits: u32) -> u32 {
        let executable = self.cr4 & CR4_PAE != 0 && self.efer & EFER_NXE != 0;
        let shown = if self.cr4 & CR4_SMEP != 0 || executable { access } else { access & !code::FETCH };
        shown | bits
    }
}

/// Rights of a protection key: no data accesses.
const KEY_ACCESS: u32 = 1;
/// Rights of a protection key: no writes.
const KEY_WRITE: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: PageRights = PageRights { writable: true, user: true, executable: true, shadow: false, key: 0 };

    fn rules(cr0: u64, cr4: u64) -> Rules {
        Rules { cr0, cr4, efer: EFER_LMA | EFER_NXE, pkru: 0b10_01 << 2, pkrs: 0b10_01 << 4, lifted: false }
    }

    #[test]
    fn rights_are_those_of_the_manual() {
        let supervisor = PageRights { user: false, ..PAGE };
        let read_only = PageRights { writable: false, ..PAGE };
        let data = PageRights { executable: false, ..PAGE };
        let key = |key| PageRights { key, ..PAGE };
        let system_key = |key| PageRights { key, ..supervisor };
        let (write, user, fetch) = (code::WRITE, code::USER, code::FETCH);
        let (denied, by_key) = (Some(code::PRESENT), Some(code::PRESENT | code::KEY));
        for (cr0, cr4, page, access, expected) in [
            (0, 0, supervisor, user, denied),
            (0, 0, supervisor, write, None),
            (0, 0, read_only, write, None),
            (CR0_WP, 0, read_only, write, denied),
            (0, 0, read_only, user | write, denied),
            (0, 0, data, fetch, denied),
            (0, 0, data, user | fetch, denied),
            (0, 0, data, user, None),
            (0, CR4_SMEP, PAGE, fetch, denied),
            (0, CR4_SMEP, PAGE, user | fetch, None),
            (0, CR4_SMEP, supervisor, fetch, None),
            (0, CR4_SMAP, PAGE, 0, denied),
            (0, CR4_SMAP, PAGE, user, None),
            (0, CR4_SMAP, PAGE, fetch, None),
            (0, CR4_PKE, key(1), user, by_key),
            (0, CR4_PKE, key(1), user | fetch, None),
            (0, CR4_PKE, key(2), user, None),
            (0, CR4_PKE, key(2), user | write, by_key),
            (0, CR4_PKE, key(2), write, None),
            (CR0_WP, CR4_PKE, key(2), write, by_key),
            (0, CR4_PKE, system_key(1), 0, None),
            (0, CR4_PKS, system_key(2), 0, by_key),
            (0, CR4_PKS, system_key(3), write, None),
            (CR0_WP, CR4_PKS, system_key(3), write, by_key),
            (0, CR4_PKS, system_key(2), user, denied),
            (0, CR4_PKE | CR4_SMAP, key(1), 0, by_key),
        ] {
            assert_eq!(rules(cr0, cr4).denial(page, access), expected, "{cr0:#x} {cr4:#x} {page:?} {access:#x}");
        }
        let stack = PageRights { writable: false, shadow: true, ..PAGE };
        let system_stack = PageRights { user: false, ..stack };
        let shadow = code::SHADOW_STACK;
        for (page, access, expected) in [
            (stack, user | shadow, None),
            (stack, user | shadow | write, None),
            (stack, shadow, denied),
            (system_stack, shadow | write, None),
            (system_stack, user | shadow, denied),
            (PAGE, user | shadow, denied),
            (read_only, user | shadow | write, denied),
            (stack, user | write, denied),
            (stack, user, None),
            (PageRights { key: 1, ..stack }, user | shadow, by_key),
            (PageRights { key: 2, ..stack }, user | shadow | write, by_key),
        ] {
            assert_eq!(rules(CR0_WP, CR4_PKE).denial(page, access), expected, "{page:?} {access:#x}");
        }
        let lifted = Rules { lifted: true, ..rules(0, CR4_SMAP) };
        assert_eq!(lifted.denial(PAGE, 0), None);
        let legacy = Rules { efer: 0, pkru: !0, ..rules(0, CR4_PKE) };
        assert_eq!(legacy.denial(PAGE, user), None, "keys are of long mode");
    }

    #[test]
    fn fetches_show_where_they_can_be_forbidden() {
        for (cr4, efer, shown) in [(0, EFER_NXE, 0), (CR4_PAE, 0, 0), (CR4_PAE, EFER_NXE, 16), (CR4_SMEP, 0, 16)] {
            let rules = Rules { efer, ..rules(0, cr4) };
            assert_eq!(rules.error_code(code::FETCH | code::USER, code::PRESENT), shown | 5);
        }
    }
}

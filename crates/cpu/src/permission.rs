//! What may be done with a page that is mapped (SDM vol. 3, 4.6), and the error code of a page fault (4.7).
//!
//! An access is a set of bits of the error code, as [`code`] has them: W, U and I.

use x86::control::*;
use x86::page::code;

/// What the entries on the way to a page allow together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRights {
    /// Every entry allows writes.
    pub writable: bool,
    /// Every entry allows accesses in user mode.
    pub user: bool,
    /// No entry forbids instruction fetches.
    pub executable: bool,
    /// The protection key.
    pub key: u8,
}

/// What else decides whether an access is allowed.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    write_protect: bool,
    smep: bool,
    smap: bool,
    user_keys: u32,
    supervisor_keys: u32,
    shown: u32,
}

impl Rules {
    /// Those of control registers and EFER, PKRU and PKRS. With `lifted`, RFLAGS.AC allows what SMAP would not.
    #[inline(always)]
    pub fn new(cr0: u64, cr4: u64, efer: u64, pkru: u32, pkrs: u32, lifted: bool) -> Self {
        let keys = |enabled: u64, keys| if cr4 & enabled != 0 && efer & EFER_LMA != 0 { keys } else { 0 };
        let fetch_shown = cr4 & CR4_SMEP != 0 || (cr4 & CR4_PAE != 0 && efer & EFER_NXE != 0);
        Self {
            write_protect: cr0 & CR0_WP != 0,
            smep: cr4 & CR4_SMEP != 0,
            smap: cr4 & CR4_SMAP != 0 && !lifted,
            user_keys: keys(CR4_PKE, pkru),
            supervisor_keys: keys(CR4_PKS, pkrs),
            shown: !if fetch_shown { 0 } else { code::FETCH },
        }
    }

    /// Whether an access is denied; if so, the bits of the error code beyond W, U and I.
    #[inline(always)]
    pub fn denial(&self, page: PageRights, access: u32) -> Option<u32> {
        let user = access & code::USER != 0;
        let write = access & code::WRITE != 0;
        let fetch = access & code::FETCH != 0;
        let key_denied = !fetch && self.key_denies(page, write, user);
        let denied = match (user, fetch) {
            (true, _) if !page.user => true,
            (_, true) if !page.executable => true,
            (true, true) => false,
            (false, true) => page.user && self.smep,
            (false, false) if page.user && self.smap => true,
            _ => write && !page.writable && (user || self.write_protect),
        };
        // A protection key that denies shows in the code even where something else denies too.
        (denied || key_denied).then_some(code::PRESENT | if key_denied { code::KEY } else { 0 })
    }

    /// Whether the protection key of a page forbids a data access.
    #[inline(always)]
    fn key_denies(&self, page: PageRights, write: bool, user: bool) -> bool {
        let keys = match (page.user, user) {
            (true, _) => self.user_keys,
            (false, false) => self.supervisor_keys,
            (false, true) => return false,
        };
        let rights = keys >> (u32::from(page.key) * 2);
        rights & KEY_ACCESS != 0 || rights & KEY_WRITE != 0 && write && (user || self.write_protect)
    }

    /// The error code of a page fault of an access, with the bits beyond W, U and I.
    pub fn error_code(&self, access: u32, bits: u32) -> u32 {
        access & self.shown | bits
    }
}

/// The rights of a protection key: no data accesses.
const KEY_ACCESS: u32 = 1;
/// The rights of a protection key: no writes.
const KEY_WRITE: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: PageRights = PageRights { writable: true, user: true, executable: true, key: 0 };

    fn rules(cr0: u64, cr4: u64) -> Rules {
        Rules::new(cr0, cr4, EFER_LMA | EFER_NXE, 0b10_01 << 2, 0b10_01 << 4, false)
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
        let lifted = Rules::new(0, CR4_SMAP, 0, 0, 0, true);
        assert_eq!(lifted.denial(PAGE, 0), None);
        assert_eq!(Rules::new(0, CR4_PKE, 0, !0, 0, false).denial(PAGE, user), None, "keys are of long mode");
    }

    #[test]
    fn fetches_show_where_they_can_be_forbidden() {
        for (cr4, efer, shown) in [(0, EFER_NXE, 0), (CR4_PAE, 0, 0), (CR4_PAE, EFER_NXE, 16), (CR4_SMEP, 0, 16)] {
            let rules = Rules::new(0, cr4, efer, 0, 0, false);
            assert_eq!(rules.error_code(code::FETCH | code::USER, code::PRESENT), shown | 5);
        }
    }
}

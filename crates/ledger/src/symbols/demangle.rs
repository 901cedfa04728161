//! Names of functions of C++ and Rust as their sources have them.

use cpp_demangle::{DemangleOptions, Symbol};
use std::borrow::Cow;
use std::fmt::{self, Write};

/// Maximum length in bytes of a name, mangled or not. A short mangled name can stand for one that fills the memory.
const LONGEST: usize = 4096;

/// Returns the name of a function without its parameters, as `perf report` shows it. Any other name stays as it is, and
/// so does a name that would be longer than 4096 bytes.
pub fn demangle(name: &str) -> Cow<'_, str> {
    let plain = |name: &str| -> Option<String> {
        let mut out = Limited(String::new());
        if let Ok(rust) = rustc_demangle::try_demangle(name) {
            // Without the hash at its end.
            write!(out, "{rust:#}").ok()?;
        } else if name.starts_with("_Z") {
            let options = DemangleOptions::new().no_params().no_return_type();
            Symbol::new(name).ok()?.structured_demangle(&mut out, &options).ok()?;
        } else {
            return None;
        }
        Some(out.0).filter(|name| !name.is_empty())
    };
    match name.len() <= LONGEST {
        true => plain(name).map_or(Cow::Borrowed(name), Cow::Owned),
        false => Cow::Borrowed(name),
    }
}

/// A name that fails to grow beyond its limit.
struct Limited(String);

impl Write for Limited {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > LONGEST {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_those_of_the_source() {
        for (mangled, name) in [
            ("main", "main"),
            ("_Zero", "_Zero"),
            ("_ZNSt6vectorIiSaIiEE9push_backERKi", "std::vector<int, std::allocator<int> >::push_back"),
            ("_ZN4cell3runEv", "cell::run"),
            ("_ZN3cpu3run3run17h3f0e5711b750aac3E", "cpu::run::run"),
            ("_RNvCs1234_7mycrate3foo", "mycrate::foo"),
        ] {
            assert_eq!(demangle(mangled), name);
        }
    }

    /// Each type is a function of two of the one before.
    #[test]
    fn a_name_that_explodes_stays_mangled() {
        let doubled = |pairs: usize| {
            let mut name = String::from("_Z1fI1XFvS_S_E");
            for number in 0..pairs {
                let digit = char::from_digit(number as u32 + 1, 36).expect("one digit").to_ascii_uppercase();
                name += &format!("FvS{digit}_S{digit}_E");
            }
            name + "Evv"
        };
        assert!(demangle(&doubled(2)).len() > 30);
        let bomb = doubled(30);
        assert!(demangle(&bomb) == bomb || demangle(&bomb).len() <= LONGEST);
        let long = format!("_ZN{}{}Ev", LONGEST, "a".repeat(LONGEST));
        assert_eq!(demangle(&long), long);
    }

    proptest! {
        #[test]
        fn any_name_can_be_asked_for(name in "(_Z|_R|_ZN|_ZNSt|)[A-Za-z0-9_$.]{0,200}") {
            prop_assert!(demangle(&name).len() <= LONGEST);
        }
    }
}

//! Constants from the manuals, each defined once, under the manuals' names.
//!
//! This crate contains names of bits and numbers, without behavior; the crates above it implement that. Each module
//! states the part of the manuals from which it is. SDM is the Intel 64 and IA-32 Architectures Software Developer's
//! Manual, APM the AMD64 Architecture Programmer's Manual. Chapters of volume 3 have the numbers of the editions in
//! which the virtual-machine control data structures are chapter 24; later editions have inserted chapters before it.

#![no_std]
#![forbid(unsafe_code)]

/// Defines constants with readable names, and the table of both, in ascending order.
macro_rules! named {
    ($kind:ty; $($(#[$note:meta])* $constant:ident = $number:literal, $name:literal;)*) => {
        $($(#[$note])* #[doc = concat!("`", $name, "`.")] pub const $constant: $kind = $number;)*

        /// Numbers and names, in ascending order.
        pub const NAMES: &[($kind, &str)] = &[$(($number, $name)),*];

        const _: () = {
            let mut at = 1;
            while at < NAMES.len() {
                assert!(NAMES[at - 1].0 < NAMES[at].0, "the order is not ascending");
                at += 1;
            }
        };

        /// Returns the name of a number.
        pub fn name(number: $kind) -> Option<&'static str> {
            NAMES.binary_search_by_key(&number, |entry| entry.0).ok().map(|at| NAMES[at].1)
        }

        /// Returns the number with a name.
        pub fn number(name: &str) -> Option<$kind> {
            NAMES.iter().find(|entry| entry.1 == name).map(|entry| entry.0)
        }
    };
}

pub mod cet;
pub mod control;
pub mod debug;
pub mod descriptor;
pub mod ept;
pub mod flags;
pub mod msr;
pub mod page;
pub mod reg;
pub mod rights;
pub mod seg;
pub mod vector;
pub mod vmx;

#[cfg(test)]
mod tests {
    #[test]
    fn tables_of_names_are_sorted_for_the_search() {
        assert!(crate::msr::NAMES.is_sorted_by(|a, b| a.0 < b.0));
        assert!(crate::vector::NAMES.is_sorted_by(|a, b| a.0 < b.0));
        assert!(crate::vmx::reason::NAMES.is_sorted_by(|a, b| a.0 < b.0));
        assert!(crate::vmx::vmcs::NAMES.is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn names_are_unique_and_found_again() {
        fn check<T: Copy + PartialEq + core::fmt::Debug>(names: &[(T, &str)], number: fn(&str) -> Option<T>) {
            for (value, name) in names {
                assert_eq!(number(name), Some(*value), "{name}");
            }
        }
        check(crate::msr::NAMES, crate::msr::number);
        check(crate::vector::NAMES, crate::vector::number);
        check(crate::vmx::reason::NAMES, crate::vmx::reason::number);
        check(crate::vmx::vmcs::NAMES, crate::vmx::vmcs::number);
    }
}

//! Definition of a virtual machine's switches: each is defined once, in [`config`](crate::config), and the command
//! line, the laboratory and ledgers take its name, values, help and default from there.

use std::fmt::Display;
use std::str::FromStr;

/// Permitted values of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// One of these words; the first field is their placeholder in help texts.
    Word(&'static str, &'static [&'static str]),
    /// `on` or `off`.
    OnOff,
    /// A number.
    Number,
}

/// Values of [`Takes::OnOff`].
pub const ON_OFF: &[&str] = &["on", "off"];

/// Type of a field of [`VmConfig`](crate::VmConfig).
pub trait Setting: Sized {
    /// Type of the value that a user gives.
    type Given: Copy + Into<Self>;
    /// Parses a user's value.
    fn parse(text: &str) -> Option<Self::Given>;
    /// Formats a user's value.
    fn word(given: Self::Given) -> String;
    /// Formats the setting.
    fn show(&self) -> String;
}

impl Setting for bool {
    type Given = bool;

    fn parse(text: &str) -> Option<bool> {
        [true, false].into_iter().find(|on| on.show() == text)
    }

    fn word(given: bool) -> String {
        given.show()
    }

    fn show(&self) -> String {
        ON_OFF[usize::from(!self)].to_owned()
    }
}

/// An optional limit.
impl Setting for Option<u32> {
    type Given = u32;

    fn parse(text: &str) -> Option<u32> {
        text.parse().ok()
    }

    fn word(given: u32) -> String {
        given.to_string()
    }

    fn show(&self) -> String {
        self.map_or("default".to_owned(), Self::word)
    }
}

/// An enum whose variants have names.
pub trait Word: Copy + Display + FromStr {}

impl<T: Word> Setting for T {
    type Given = Self;

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn word(given: Self) -> String {
        given.to_string()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// Defines the switches: `VmConfig`, which has a value for each, and `Switches`, which has those given by a user.
macro_rules! switches {
    ($($(#[doc = $doc:literal])+ $field:ident: $type:ty = $default:expr, $name:literal, $takes:expr, $help:literal;)+) => {
        /// All switches of a virtual machine.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct VmConfig {
            $($(#[doc = $doc])+ pub $field: $type,)+
        }

        impl Default for VmConfig {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }

        /// Switches given by a user; missing ones follow from the others and from the processor.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Switches {
            $(#[doc = concat!("`--", $name, "`.")] pub $field: Option<<$type as Setting>::Given>,)+
        }

        impl Switches {
            /// All switches, in the order of their display.
            pub const ALL: &[Switch] = &[$(Switch {
                name: $name,
                takes: $takes,
                help: $help,
                set: |switches, text| {
                    switches.$field = Some(<$type as Setting>::parse(text)?);
                    Some(())
                },
                given: |switches| switches.$field.map(<$type as Setting>::word),
                inherit: |switches, defaults| switches.$field = switches.$field.or(defaults.$field),
                value: |config| Setting::show(&config.$field),
            },)+];

            /// Returns a configuration with these values, and those of `defaults` for switches that are not set.
            fn over(&self, defaults: VmConfig) -> VmConfig {
                VmConfig { $($field: self.$field.map_or(defaults.$field, Into::into),)+ }
            }
        }
    };
}
pub(crate) use switches;

//! How switches of a virtual machine are defined: each once, in [`config`](crate::config), from where the command line, the laboratory
//! and ledgers take its name, its values, its help and its default.

use std::fmt::Display;
use std::str::FromStr;

/// What a switch can be set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// One of these words; the first field is what help calls them all.
    Word(&'static str, &'static [&'static str]),
    /// `on` or `off`.
    OnOff,
    /// A number.
    Number,
}

/// The words that [`Takes::OnOff`] stands for.
pub const ON_OFF: &[&str] = &["on", "off"];

/// What a field of [`VmConfig`](crate::VmConfig) may be.
pub trait Setting: Sized {
    /// What a user gives for it.
    type Given: Copy + Into<Self>;
    /// Reads what a user gives.
    fn parse(text: &str) -> Option<Self::Given>;
    /// What a user gives, in words.
    fn word(given: Self::Given) -> String;
    /// What it is set to, in words.
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

/// A limit, or none.
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

/// Defines the switches: `VmConfig`, which has a value for each, and `Switches`, which has those that a user gave.
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

        /// The switches that a user has given; what is missing follows from the others and from the processor.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Switches {
            $(#[doc = concat!("`--", $name, "`.")] pub $field: Option<<$type as Setting>::Given>,)+
        }

        impl Switches {
            /// Every switch, in the order in which they are shown.
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

            /// A configuration with these, and with what `defaults` has where nothing is set.
            fn over(&self, defaults: VmConfig) -> VmConfig {
                VmConfig { $($field: self.$field.map_or(defaults.$field, Into::into),)+ }
            }
        }
    };
}
pub(crate) use switches;

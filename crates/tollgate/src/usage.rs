//! Exit statuses, and wrong command lines that the parser of options accepts: options that exclude each other whatever the files and the host are, and
//! options that select by name what a file does not have. Errors of numbers, in plain words.

use std::fmt::{self, Display, Formatter};

/// Exit status when a command failed.
pub const FAILED: u8 = 126;

/// Messages of the standard library about texts that are no numbers, each with plain words for the same.
const NUMBERS: [(&str, &str); 5] = [
    ("invalid digit found in string", "it is not a whole number"),
    ("cannot parse integer from empty string", "it is empty, and a whole number is needed"),
    ("number too large to fit in target type", "the number is too large"),
    ("number too small to fit in target type", "the number is too small"),
    ("invalid float literal", "it is not a number"),
];

/// Returns an error in plain words, if it is one of the standard library's about a number.
pub fn plain(text: &str) -> Option<String> {
    let (theirs, ours) = NUMBERS.iter().find(|(theirs, _)| text.contains(theirs))?;
    Some(text.replace(theirs, ours))
}

/// A wrong command line, such as options that exclude each other, or the name of a region that the ledger does not have. The program ends with [`WrongArguments::STATUS`].
#[derive(Debug)]
pub struct WrongArguments(String);

impl WrongArguments {
    /// Exit status, the same as that of the parser.
    pub const STATUS: u8 = 2;

    /// Creates an error with a message that names the options.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl Display for WrongArguments {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongArguments {}

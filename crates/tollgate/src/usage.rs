//! Command lines that are wrong whatever the files and the host are, and that the parser of options accepts.

use crate::net::{self, Member};
use anyhow::{Context, Result};
use network::options::Net;
use std::fmt::{self, Display, Formatter};

/// A wrong command line, such as options that exclude each other. The program ends with [`WrongArguments::STATUS`].
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

/// Refuses `--net` options of a run that exclude each other.
pub fn networks(machines: &[Member]) -> Result<()> {
    for (name, options) in machines {
        let checked = combined(options);
        match name {
            Some(name) => checked.with_context(|| (*name).to_owned())?,
            None => checked?,
        }
    }
    net::apart(machines).map_err(|error| WrongArguments::new(error.to_string()).into())
}

/// Refuses `--net` options of a machine that exclude each other.
fn combined(options: &[Net]) -> Result<()> {
    let count = |wanted: fn(&Net) -> bool| options.iter().filter(|net| wanted(net)).count();
    let (nics, captures) = (count(|net| matches!(net, Net::Nic(_))), count(|net| matches!(net, Net::Capture(_))));
    let wrong = |text| Err(WrongArguments::new(text).into());
    if options.len() > 1 && options.contains(&Net::None) {
        return wrong("--net none excludes other --net options");
    }
    match (captures, nics) {
        (2.., _) => wrong("--net pcap: a run has only one capture"),
        (1, 0) => wrong("--net pcap captures the frames of NICs: add one, for example with --net user"),
        _ => Ok(()),
    }
}

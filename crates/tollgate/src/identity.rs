//! Identification of a run's inputs in its ledger by hashes and lengths. The same run with files in other places or under other names therefore
//! gives the same ledger.

use crate::table::hexadecimal;
use anyhow::{Context, Result};
use ledger::profile::Clock;
use machine::Config;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Beginning of the keys of facts about the kernel of a controlled run, in a ledger.
pub const STATE: &str = "state: ";
/// Key of the release of the kernel of a controlled run, in a ledger.
pub const RELEASE: &str = "state: release";

/// Number of bytes hashed at a time.
const PIECE: usize = 1 << 20;

/// Returns a key and a value for each image, disk and other input file of the run. A disk is hashed completely, before the run changes it.
pub fn facts<'a>(
    config: &Config,
    disks: impl Iterator<Item = &'a Path>,
    files: impl Iterator<Item = (String, &'a [u8])>,
) -> Result<Vec<(String, String)>> {
    let mut facts = vec![("kernel".to_owned(), of(&mut config.kernel.as_slice())?)];
    if config.profile.clock != Clock::default() {
        facts.push(("model".to_owned(), config.profile.clock.name().to_owned()));
    }
    let options: Vec<String> = config.profile.options.words().collect();
    if !options.is_empty() {
        facts.push(("processor options".to_owned(), options.join(",")));
    }
    for (number, module) in config.modules.iter().enumerate() {
        let name = if number == 0 { "initrd".to_owned() } else { format!("initrd {number}") };
        if !module.arguments().is_empty() {
            facts.push((format!("{name} arguments"), module.arguments().to_owned()));
        }
        facts.push((name, of(&mut module.bytes.as_slice())?));
    }
    for (number, path) in disks.enumerate() {
        let failed = || format!("the disk {} can't be read for its hash, which the ledger has", path.display());
        let hash = File::open(path).map_err(anyhow::Error::from).and_then(|mut file| of(&mut file));
        facts.push((format!("disk {number}"), hash.with_context(failed)?));
    }
    for (name, mut bytes) in files {
        facts.push((name, of(&mut bytes)?));
    }
    Ok(facts)
}

/// Describes a stream by its hash and length.
pub fn of(from: &mut dyn Read) -> Result<String> {
    let (hash, len) = digest(from)?;
    Ok(format!("sha256 {hash} {len} bytes"))
}

/// Returns the hash of a stream, in hexadecimal digits, and its length.
pub fn digest(from: &mut dyn Read) -> Result<(String, u64)> {
    let mut hasher = Sha256::new();
    let mut piece = vec![0; PIECE];
    let mut len = 0;
    loop {
        let read = from.read(&mut piece)?;
        if read == 0 {
            break;
        }
        hasher.update(&piece[..read]);
        len += read as u64;
    }
    Ok((hexadecimal(&hasher.finalize()), len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_sha256sum() {
        let abc = "sha256 ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad 3 bytes";
        assert_eq!(of(&mut &b"abc"[..]).unwrap(), abc);
        let long = vec![b'a'; 1_000_000];
        let million = "sha256 cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0 1000000 bytes";
        assert_eq!(of(&mut long.as_slice()).unwrap(), million);
    }
}

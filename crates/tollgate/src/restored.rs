//! `--restore FILE` without the options of the saved run: the snapshot contains those that describe its machine.
//!
//! A snapshot may come from anybody. Of its options, only those that describe a machine count, and none that reaches the host's networks or writes a
//! file. Files that it names are regular ones, and are read only if their contents have the hash that the snapshot has of them.

use crate::identity;
use crate::input;
use crate::usage::WrongArguments;
use anyhow::{Context, Result, anyhow, bail};
use clap::ArgMatches;
use clap::parser::ValueSource;
use hypervisor::config::Switches;
use ledger::Profile;
use machine::loader::{self, join_modules, split_modules, takes_modules};
use machine::snapshot::{self, Made};
use network::options::Net;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Options that describe a machine, besides the switches of the hypervisor.
const OPTIONS: [&str; 12] =
    ["kernel", "initrd", "append", "workload", "memory", "cpus", "cpu", "migrate", "model", "disk", "net", "platform"];

/// Returns the options that describe a machine.
fn options() -> impl Iterator<Item = &'static str> {
    OPTIONS.into_iter().chain(Switches::ALL.iter().map(|switch| switch.name))
}

/// Returns the given options of `run` that describe its machine, as words.
pub fn line(matches: &ArgMatches) -> Vec<String> {
    let mut words = Vec::new();
    for option in options() {
        let Some(id) = given(matches, option) else { continue };
        // A name that is not text must be given again.
        let values = matches.get_raw(&id).into_iter().flatten().filter_map(|value| value.to_str());
        words.extend(values.map(|value| format!("--{option}={value}")));
    }
    words
}

/// Returns the identifier of an option if the command line has it.
fn given(matches: &ArgMatches, option: &str) -> Option<String> {
    let known = |id: &String| matches.try_contains_id(id).is_ok();
    let id = [option.to_owned(), option.replace('-', "_")].into_iter().find(known)?;
    (matches.value_source(&id) == Some(ValueSource::CommandLine)).then_some(id)
}

/// Returns the words with absolute names of files, for a snapshot. `kernel` is the kernel's image.
pub fn absolute(words: &[String], kernel: &[u8]) -> Vec<String> {
    let path = |name: &str| std::path::absolute(name).ok().and_then(|path| path.into_os_string().into_string().ok());
    let module = |text: &String| {
        let (name, arguments) = text.split_once(' ').map_or((&text[..], None), |(name, rest)| (name, Some(rest)));
        let name = path(name)?;
        Some(arguments.map_or(name.clone(), |arguments| format!("{name} {arguments}")))
    };
    let value = |option: &str, value: &str| match option {
        "initrd" if takes_modules(kernel) => {
            let modules: Option<Vec<String>> =
                split_modules(value).iter().map(|text| module(&text.trim_start_matches(' ').to_owned())).collect();
            Some(join_modules(modules?.iter().map(String::as_str)))
        }
        "kernel" | "initrd" | "disk" => path(value),
        _ => Some(value.to_owned()),
    };
    let word = |word: &String| {
        let (option, text) = word.strip_prefix("--")?.split_once('=')?;
        Some(format!("--{option}={}", value(option, text)?))
    };
    words.iter().filter_map(word).collect()
}

/// Returns the options that the snapshot of `--restore` adds to those of the command line.
pub fn words(matches: &ArgMatches) -> Result<Vec<OsString>> {
    let Some(path) = matches.get_one::<PathBuf>("restore") else {
        if given(matches, "migrate").is_some() {
            let text = "--migrate goes with --restore: it moves the guest of a snapshot to another processor";
            bail!(WrongArguments::new(text));
        }
        return Ok(Vec::new());
    };
    let failed = || format!("can't restore the snapshot {}", path.display());
    let bytes = input::read_regular(path, crate::moments::LARGEST, "snapshot")?;
    let made = snapshot::made(&bytes).with_context(failed)?;
    added(&made, &|option| given(matches, option).is_some()).with_context(failed)
}

fn added(made: &Made, given: &dyn Fn(&str) -> bool) -> Result<Vec<OsString>> {
    let mut words = Vec::new();
    let mut disks = 0;
    // The kernel decides if an initial RAM disk is one file or several.
    let named = made.command.iter().find_map(|word| word.strip_prefix("--kernel="));
    let kernel =
        named.filter(|_| !given("kernel")).map(|path| file(made, "kernel", path)).transpose()?.unwrap_or_default();
    for word in &made.command {
        let parts = word.strip_prefix("--").and_then(|word| word.split_once('='));
        let (option, value) = parts.ok_or_else(|| anyhow!("its option {word:?} is malformed"))?;
        let Some(option) = options().find(|known| *known == option) else {
            bail!("its option --{} describes no machine", option.escape_debug());
        };
        if given(option) {
            continue;
        }
        match option {
            "initrd" if given("kernel") => bail!("--kernel is given, and --initrd is not: both or none must be"),
            "initrd" if takes_modules(&kernel) => {
                for (number, module) in split_modules(value).iter().enumerate() {
                    let fact = if number == 0 { "initrd".to_owned() } else { format!("initrd {number}") };
                    check(made, &fact, option, module.split(' ').next().unwrap_or_default())?;
                }
            }
            "initrd" => check(made, "initrd", option, value)?,
            "disk" => {
                let Some(path) = value.strip_suffix(",ro") else {
                    bail!("its machine may write to the disk {}: give the disk again, by --disk", value.escape_debug());
                };
                check(made, &format!("disk {disks}"), option, path)?;
                disks += 1;
            }
            "net" => allow_net(value)?,
            "cpu" | "migrate"
                if !Profile::names()
                    .chain(Profile::aliases().map(|alias| alias.0))
                    .any(|name| name == Profile::name_in(value)) =>
            {
                bail!("its profile is the file {}: give it again, by --{option}", value.escape_debug());
            }
            _ => {}
        }
        words.push(word.into());
    }
    Ok(words)
}

/// Refuses devices that reach the host's networks or files.
fn allow_net(value: &str) -> Result<()> {
    let harmless = match value.parse::<Net>().map_err(|error| anyhow!("--net {}: {error}", value.escape_debug()))? {
        Net::Nic(nic) => !nic.reaches_host() && nic.replay.is_none(),
        Net::Capture(_) => false,
        Net::None => true,
    };
    if !harmless {
        bail!("its machine has --net {}, which reaches this host: give it again, by --net", value.escape_debug());
    }
    Ok(())
}

/// Checks that a file is a regular one with the contents that the snapshot has a hash of.
fn check(made: &Made, fact: &str, option: &str, path: &str) -> Result<()> {
    let shown = path.escape_debug();
    let again = || format!("its file {shown} can't be used: give the right one, by --{option}");
    let expected = made.facts.iter().find(|(key, _)| key == fact).map(|(_, hash)| hash);
    let expected = expected.ok_or_else(|| anyhow!("it has no hash of it")).with_context(again)?;
    // A pipe or a device would block, or do something else, when it is opened.
    if !std::fs::metadata(path).with_context(again)?.is_file() {
        return Err(anyhow!("it is not a regular file")).with_context(again);
    }
    let open = || File::options().read(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32).open(path);
    let mut file = open().with_context(again)?;
    if !file.metadata().with_context(again)?.is_file() {
        return Err(anyhow!("it is not a regular file")).with_context(again);
    }
    if identity::of(&mut file).with_context(again)? != *expected {
        return Err(anyhow!("its contents differ from those of the saved run")).with_context(again);
    }
    Ok(())
}

/// Checks the kernel, and returns its contents.
fn file(made: &Made, fact: &str, path: &str) -> Result<Vec<u8>> {
    check(made, fact, "kernel", path)?;
    Ok(loader::read_file(Path::new(path))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(words: &[&str], facts: &[(&str, &str)]) -> Made {
        let facts = facts.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Made { command: words.iter().map(|word| (*word).to_owned()).collect(), facts: facts.collect() }
    }

    fn refused(words: &[&str], given: &[&str]) -> Option<String> {
        added(&made(words, &[]), &|option| given.contains(&option)).err().map(|error| format!("{error:#}"))
    }

    #[test]
    fn a_snapshot_reaches_nothing_of_the_host() {
        for (word, message) in [
            ("--ledger=/tmp/x", "its option --ledger describes no machine"),
            ("--save-at=1", "describes no machine"),
            ("--record=/tmp/x", "describes no machine"),
            ("--restore=/tmp/x", "describes no machine"),
            ("--sandbox=off", "describes no machine"),
            ("--gdb=1234", "describes no machine"),
            ("--symbols=/etc/passwd", "describes no machine"),
            ("--share=/", "describes no machine"),
            ("-m=1", "is malformed"),
            ("--call-sites", "is malformed"),
            ("/etc/passwd", "is malformed"),
            ("--disk=/dev/sda", "may write to the disk /dev/sda"),
            ("--disk=/tmp/x", "may write to the disk"),
            ("--disk=/tmp/x,ro,", "may write to the disk"),
            ("--disk=/dev/null,ro", "it has no hash of it"),
            ("--net=user", "reaches this host"),
            ("--net=user,forward=tcp:1:2", "reaches this host"),
            ("--net=tap:t0", "reaches this host"),
            ("--net=pcap:/tmp/x", "reaches this host"),
            ("--net=generator:replay=/etc/passwd,rate=recorded", "reaches this host"),
            ("--cpu=/etc/passwd", "its profile is the file /etc/passwd"),
            ("--migrate=/etc/passwd", "its profile is the file /etc/passwd: give it again, by --migrate"),
            ("--kernel=/etc/passwd", "it has no hash of it"),
        ] {
            let found = refused(&[word], &[]).unwrap_or_else(|| panic!("{word}"));
            assert!(found.contains(message), "{word}: {found}");
        }
        // The user's own options count in place of the snapshot's.
        for (word, option) in
            [("--disk=/dev/sda", "disk"), ("--net=user", "net"), ("--cpu=/x", "cpu"), ("--kernel=/x", "kernel")]
        {
            assert_eq!(refused(&[word], &[option]), None);
        }
        assert_eq!(
            refused(&["--append=x --ledger=y", "--net=bridge", "--net=generator", "--memory=64M", "--cpu=skx"], &[]),
            None
        );
    }

    #[test]
    fn a_file_of_a_snapshot_is_a_regular_one_with_its_contents() {
        let directory = std::env::temp_dir().join(format!("tollgate-restored-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let place = directory.join("kernel");
        let name = place.display().to_string();
        std::fs::write(&place, "abc").unwrap();
        let hash = identity::of(&mut &b"abc"[..]).unwrap();
        let word = format!("--kernel={name}");
        let made = made(&[&word], &[("kernel", &hash)]);
        let found = || added(&made, &|_| false).map_err(|error| format!("{error:#}"));
        assert_eq!(found(), Ok(vec![word.clone().into()]));
        std::fs::write(&place, "abd").unwrap();
        assert!(found().unwrap_err().ends_with("its contents differ from those of the saved run"));
        std::fs::remove_file(&place).unwrap();
        assert!(found().unwrap_err().contains("No such file"));
        nix::unistd::mkfifo(&place, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(found().unwrap_err().ends_with("it is not a regular file"));
        std::fs::remove_dir_all(&directory).unwrap();
    }
}

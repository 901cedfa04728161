//! Checks of an experiment's settings by the parsers of `tollgate run`, which the laboratory's library does not have. A wrong value is
//! refused when the experiment is read, not by cells that fail one after the other.

use crate::net;
use crate::run_cmd;
use crate::usage::WrongArguments;
use clap::{ArgMatches, Args, Command};
use lab::experiment::{Experiment, ExperimentError, Settings};
use machine::memory::{GuestRam, MemoryError};
use machine::{MAX_CPUS, MachineError};
use network::options::Net;
use std::error::Error;

/// Returns the experiment of that name or in that file.
pub fn find(name_or_path: &str) -> Result<Experiment, ExperimentError> {
    let experiment = Experiment::find(name_or_path)?;
    check(&experiment)?;
    Ok(experiment)
}

/// Returns the experiment that a command line names. A name that is none makes the command line wrong.
pub fn named(name_or_path: &str) -> anyhow::Result<Experiment> {
    find(name_or_path).map_err(|error| match error {
        ExperimentError::Unknown { .. } => WrongArguments::new(error.to_string()).into(),
        error => error.into(),
    })
}

/// Checks the settings of an experiment's defaults, columns and rows.
fn check(experiment: &Experiment) -> Result<(), ExperimentError> {
    let file = experiment.file.clone().unwrap_or_else(|| format!("{}.toml (built in)", experiment.name));
    let columns = experiment.columns.iter().map(|line| (format!("column.{}.set", line.id), &line.settings));
    let rows = experiment.rows.iter().map(|row| (format!("row.{}.set", row.line.id), &row.line.settings));
    let defaults = std::iter::once(("defaults".to_owned(), &experiment.defaults));
    for (place, settings) in defaults.chain(columns).chain(rows) {
        wrong(settings).map_err(|(key, reason)| ExperimentError::Value {
            file: file.clone(),
            key: format!("{place}.{key}"),
            reason,
        })?;
    }
    Ok(())
}

/// Returns the first setting with a wrong value as an error: its key and the reason.
fn wrong(settings: &Settings) -> Result<(), (&'static str, String)> {
    let Settings { append, workload, memory, cpus, net, timeout, .. } = settings;
    let at = |key| move |reason| (key, reason);
    if let Some(text) = append {
        single(text).and_then(|()| parsed("append", &[text])).map(drop).map_err(at("append"))?;
    }
    if let Some(text) = workload {
        single(text).and_then(|()| parsed("workload", &[text])).map(drop).map_err(at("workload"))?;
    }
    if let Some(text) = memory {
        parsed("memory", &[text]).and_then(|matches| check_memory(text, &matches)).map_err(at("memory"))?;
    }
    if let Some(cpus) = cpus {
        check_cpus(*cpus).map_err(at("cpus"))?;
    }
    if let Some(text) = net {
        let texts: Vec<&str> = text.split_ascii_whitespace().collect();
        parsed("net", &texts).and_then(|matches| check_net(&matches)).map_err(at("net"))?;
    }
    if let Some(seconds) = timeout {
        parsed("timeout", &[&seconds.to_string()]).map(drop).map_err(at("timeout"))?;
    }
    Ok(())
}

/// Checks a text that becomes one argument of a process.
fn single(text: &str) -> Result<(), String> {
    if text.contains('\0') { Err("has a NUL character".to_owned()) } else { Ok(()) }
}

/// Parses the values of an option of `tollgate run`.
fn parsed(option: &str, values: &[&str]) -> Result<ArgMatches, String> {
    let command = run_cmd::RunArgs::augment_args(Command::new("run"));
    // The kernel is the one option that must be given.
    let line = ["run".to_owned(), "--kernel=-".to_owned()];
    let line = line.into_iter().chain(values.iter().map(|value| format!("--{option}={value}")));
    command.try_get_matches_from(line).map_err(|error| {
        // An option with several values does not say which of them is meant, unless the error does.
        let value = error.get(clap::error::ContextKind::InvalidValue).map(|value| format!("'{value}': "));
        let reason = error.source().map_or_else(|| error.kind().to_string(), ToString::to_string);
        value.unwrap_or_default() + &reason
    })
}

fn check_memory(text: &str, matches: &ArgMatches) -> Result<(), String> {
    let size = matches.get_one::<u64>("memory").copied().unwrap_or_default();
    match GuestRam::new(size) {
        // Another host that runs the cell may have the memory that this one lacks.
        Ok(_) | Err(MemoryError::Map { .. }) => Ok(()),
        Err(error) => Err(format!("'{text}': {error}")),
    }
}

fn check_cpus(cpus: u32) -> Result<(), String> {
    match usize::try_from(cpus) {
        Ok(1..=MAX_CPUS) => Ok(()),
        cpus => Err(MachineError::Cpus(cpus.unwrap_or(usize::MAX)).to_string()),
    }
}

/// Checks network devices against each other, and refuses those with which a cell would not repeat.
fn check_net(matches: &ArgMatches) -> Result<(), String> {
    let mut nets: Vec<Net> = matches.get_many::<Net>("net").into_iter().flatten().cloned().collect();
    for net in &mut nets {
        match net {
            Net::Nic(nic) if nic.reaches_host() => {
                return Err(format!(
                    "'{}': frames of the host's network arrive at other times in each run, so that no cell would repeat",
                    nic.text
                ));
            }
            // A replayed capture is read when the cell runs, like an image.
            Net::Nic(nic) => nic.replay = None,
            Net::Capture(_) => {
                return Err("pcap: all cells would write the same file, and kept cells would not write it".to_owned());
            }
            Net::None => {}
        }
    }
    net::check(&[(None, &nets)]).map_err(|error| error.to_string().trim_start_matches("--net ").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab::experiment;

    /// Returns an experiment's text with a line in its defaults, and settings of its row.
    fn text(defaults: &str, row: &str) -> String {
        format!(
            r#"
title = "Sample"
[defaults]
platform = "bare"
profile = "skx"
guest = "g"
{defaults}
[guest.g]
image = "g.elf"
made-by = "make"
[[column]]
id = "c"
title = "C"
[[row]]
id = "r"
title = "R"
set = {{ {row} }}
metric = {{ region = "work", unit = "us" }}
"#
        )
    }

    /// Returns the error of an experiment without the file's directory, if it is refused.
    fn refused(name: &str, text: &str) -> Option<String> {
        let path = std::env::temp_dir().join(format!("tollgate-settings-{}-{name}.toml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let found = find(&path.display().to_string());
        std::fs::remove_file(&path).unwrap();
        let error = found.err()?.to_string();
        Some(error.strip_prefix(&format!("{}: ", path.display())).expect("the error names its file").to_owned())
    }

    #[test]
    fn the_built_in_experiments_are_accepted() {
        for name in experiment::names() {
            find(name).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    #[test]
    fn values_that_run_takes_are_accepted() {
        let rows = [
            "memory = \"64M\", cpus = 4, net = \"generator:start=request,model=ixgbe sink bridge\", timeout = 60",
            "memory = \"1048576\", net = \"none\", workload = \"-x\", append = \"--x\"",
            "net = \"\"",
            "net = \"generator:replay=nowhere.pcapng,rate=recorded\"",
        ];
        for row in rows {
            assert_eq!(refused("good", &text("", row)), None, "{row}");
        }
    }

    #[test]
    fn values_that_run_refuses_are_refused_when_the_experiment_is_read() {
        let long = format!("workload = \"{}\"", "x".repeat(4097));
        let cases = [
            ("memory = \"5\"", "memory: '5': 5 bytes of guest memory is less than the minimum of 1 MiB"),
            ("memory = \"5Q\"", "memory: '5Q': a size such as 512M or 4G"),
            ("memory = \"\"", "memory: "),
            ("memory = \"2T\"", "memory: '2T': 2199023255552 bytes of guest memory is more than the maximum of 1 TiB"),
            ("memory = \"1048577\"", "memory: '1048577': 1048577 bytes of guest memory is not a multiple of 4096"),
            ("cpus = 100000", "cpus: 100000 processors: between 1 and"),
            ("timeout = 2000000000", "timeout: '2000000000': a number of seconds above 0"),
            ("workload = \"\"", "workload: "),
            (&long, "workload: "),
            ("workload = \"a\\u0000b\"", "workload: has a NUL character"),
            ("append = \"a\\u0000b\"", "append: has a NUL character"),
            (
                "net = \"sink usr\"",
                "net: 'usr': none, user, tap:NAME, bridge, generator, sink or pcap:FILE is expected",
            ),
            ("net = \"-x\"", "net: '-x': none, user"),
            ("net = \"sink:model=e1000\"", "net: 'sink:model=e1000': model: virtio or ixgbe is expected"),
            ("net = \"none sink\"", "net: none excludes other --net options"),
            ("net = \"bridge,mac=02:00:00:00:00:09 bridge,mac=02:00:00:00:00:09\"", "net: bridge: net0 and net1"),
            ("net = \"pcap:f sink\"", "net: pcap: all cells would write the same file"),
            ("net = \"user\"", "net: 'user': frames of the host's network arrive at other times in each run"),
            ("net = \"sink tap:tap0\"", "net: 'tap:tap0': frames of the host's network"),
        ];
        for (set, message) in cases {
            let error = refused("row", &text("", set)).unwrap_or_else(|| panic!("{set} should be refused"));
            assert!(error.starts_with(&format!("row.r.set.{message}")), "{error}");
            assert!(!error.contains('\n'), "{error}");
            let error = refused("defaults", &text(set, "")).unwrap_or_else(|| panic!("{set} should be refused"));
            assert!(error.starts_with(&format!("defaults.{message}")), "{error}");
        }
        let column = text("", "").replace("title = \"C\"", "title = \"C\"\nset = { memory = \"5\" }");
        assert!(refused("column", &column).unwrap().starts_with("column.c.set.memory: '5'"));
    }
}

//! `tollgate run ... --and ...`: a run of several machines whose NICs share bridges.

use crate::contain::Sandbox;
use crate::ending::{Ended, LedgerFile, conclude};
use crate::limits;
use crate::net;
use crate::output::{self, OutputFile};
use crate::run_cmd::{Console, RunArgs, Setup, prepare};
use crate::terminal::Terminal;
use crate::usage::WrongArguments;
use anyhow::{Context, Result, bail};
use contain::Needs;
use ledger::Ticks;
use machine::host::HostFrame;
use machine::{Group, Host, Outcome, Poll};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

/// The separator between the options of two machines.
pub const SEPARATOR: &str = "--and";
/// Largest number of machines in a run.
const MOST: usize = 64;

/// Splits `tollgate run A --and B` into one command line per machine. Any other command line stays whole.
pub fn command_lines(all: impl Iterator<Item = OsString>) -> Vec<Vec<OsString>> {
    let all: Vec<OsString> = all.collect();
    if all.get(1).is_none_or(|command| command != "run") {
        return vec![all];
    }
    let (start, options) = all.split_at(2);
    options.split(|part| part == SEPARATOR).map(|part| [start, part].concat()).collect()
}

/// The machine that has started the current output line.
type Line = Rc<Cell<Option<usize>>>;

/// The host's side of one machine, which prefixes each output line with the machine's name.
struct Beside {
    console: Console,
    number: usize,
    name: String,
    line: Line,
}

impl Host for Beside {
    fn output(&mut self, bytes: &[u8]) {
        let mut out = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.line.get() != Some(self.number) {
                out.extend_from_slice(if self.line.get().is_some() { b"\n" } else { b"" });
                out.extend_from_slice(self.name.as_bytes());
                out.extend_from_slice(b" | ");
            }
            out.extend_from_slice(piece);
            self.line.set((!piece.ends_with(b"\n")).then_some(self.number));
        }
        self.console.put(&out);
    }

    fn poll(&mut self, now: Ticks, wanted: bool) -> Poll {
        self.console.poll(now, wanted)
    }

    fn frames(&mut self, room: &dyn Fn(u8) -> bool) -> Vec<HostFrame> {
        self.console.frames(room)
    }

    fn send(&mut self, frames: Vec<HostFrame>) {
        self.console.send(frames);
    }

    fn attended(&self) -> bool {
        self.console.attended()
    }

    fn idle(&mut self, limit: Duration) {
        self.console.idle(limit);
    }
}

/// Runs the machines.
pub fn run(all: &[RunArgs]) -> Result<ExitCode> {
    if all.len() > MOST {
        let text = format!("{SEPARATOR}: {} machines are more than the {MOST} that a run can have", all.len());
        bail!(WrongArguments::new(text));
    }
    let names: Vec<String> = all.iter().enumerate().map(|(number, args)| args.called(number)).collect();
    if names.iter().collect::<BTreeSet<_>>().len() != names.len() {
        bail!(WrongArguments::new("--name: two machines have the same name"));
    }
    output::distinct(all.iter().flat_map(RunArgs::outputs), all.iter().flat_map(RunArgs::inputs))?;
    let members: Vec<_> = names.iter().zip(all).map(|(name, args)| (Some(name.as_str()), args.nets())).collect();
    net::check(&members)?;
    limits::allow_machines(&all.iter().map(|args| args.planned(false)).collect::<Vec<_>>())?;
    let mut setups = Vec::new();
    for (number, args) in all.iter().enumerate() {
        if let Some(why) = args.needs_to_be_alone() {
            let text =
                format!("{}: {why}: it is for a run with one machine, and this one has {}", names[number], all.len());
            bail!(WrongArguments::new(text));
        }
        setups.push(Setup::new(args, None, Some(number as u8)).with_context(|| names[number].clone())?);
    }
    let mut machines = Vec::new();
    let mut facts = Vec::new();
    for (setup, name) in setups.iter().zip(&names) {
        let config = setup.config(setup.tier()?).with_context(|| name.clone())?;
        facts.push(setup.facts(&config)?);
        let machine = setup.boot(config).with_context(|| name.clone())?;
        setup.nets.capture(&machine)?;
        machines.push(machine);
    }
    let mut files = Vec::new();
    let mut connections = Vec::new();
    for ((setup, args), machine) in setups.iter().zip(all).zip(&mut machines) {
        let file = |path| OutputFile::create_for(args.sandbox, path, "ledger");
        files.push(args.ledger.as_deref().map(file).transpose()?);
        connections.push(setup.connections()?);
        prepare(machine);
    }
    crate::memory::prepare();
    // A single machine without the sandbox turns it off for all of them.
    let open = all.iter().any(|args| args.sandbox == Sandbox::Off);
    let sandbox = if open { Sandbox::Off } else { Sandbox::On };
    sandbox.confine(&Needs::default())?;
    // From here on a signal ends the run, not the program.
    let terminal = Terminal::open(all[0].escape).context("can't use standard input")?;
    let line = Line::default();
    let mut hosts = Vec::new();
    let mut others: Vec<Terminal> = (1..all.len()).map(|_| terminal.without_input()).collect();
    others.insert(0, terminal);
    for (((number, setup), terminal), connections) in setups.iter().enumerate().zip(others).zip(connections) {
        let console = setup.console(terminal, connections);
        hosts.push(Beside { console, number, name: names[number].clone(), line: line.clone() });
    }
    let mut group = Group::new(machines);
    let (ended, outcomes) = {
        let mut hosts: Vec<&mut dyn Host> = hosts.iter_mut().map(|host| host as &mut dyn Host).collect();
        group.run(&mut hosts)
    };
    let mut told: Vec<_> = hosts.iter_mut().map(|host| (host.console.timed_out, host.console.lost.take())).collect();
    drop(hosts);
    let mut status = ExitCode::SUCCESS;
    let mut complete = true;
    let setups = setups.into_iter().zip(files);
    for ((number, machine), (setup, file)) in group.machines().enumerate().zip(setups) {
        complete &= setup.nets.finish(machine);
        let facts = [facts[number].clone(), beside(number, &names, &facts)].concat();
        let ledger = file.map(|file| LedgerFile { file, facts });
        let stopped = number != ended && outcomes[number] == Outcome::Stopped;
        let (timed_out, lost) = std::mem::take(&mut told[number]);
        let ending = Ended {
            outcome: outcomes[number],
            timed_out,
            lost,
            checked: false,
            machine: Some(&names[number]),
            with_others: stopped,
        };
        let own = conclude(setup.json(), machine, ending, setup.symbol_files, ledger)?;
        if number == ended {
            status = own;
        }
    }
    Ok(if complete { status } else { ExitCode::from(126) })
}

/// Returns the inputs of the other machines, which affect the charges of each machine.
fn beside(number: usize, names: &[String], facts: &[Vec<(String, String)>]) -> Vec<(String, String)> {
    let others = names.iter().zip(facts).enumerate().filter(|(other, _)| *other != number);
    let mut all = vec![("machine".to_owned(), format!("{} of {}", number + 1, names.len()))];
    for (other, (_, facts)) in others {
        all.extend(facts.iter().map(|(key, value)| (format!("machine {}: {key}", other + 1), value.clone())));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_each_machine_stand_apart() {
        let lines = |text: &str| {
            let lines = command_lines(text.split(' ').map(OsString::from));
            lines.into_iter().map(|line| line.join(" ".as_ref()).into_string().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(lines("tollgate run --kernel a"), ["tollgate run --kernel a"]);
        assert_eq!(lines("tollgate run a --and b --and c"), ["tollgate run a", "tollgate run b", "tollgate run c"]);
        // Other commands may use this word for something else.
        assert_eq!(lines("tollgate report --and b"), ["tollgate report --and b"]);
    }
}

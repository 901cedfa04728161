//! The end of a run: in words, as an exit status that scripts can trust, and as JSON.

use crate::memory;
use crate::output::{self, OutputFile, say};
use crate::report::unnamed_document;
use crate::streams::Lost;
use crate::table::share;
use anyhow::{Context, Result, anyhow};
use ledger::Ledger;
use ledger::summary::Warning;
use ledger::symbols::{Symbol, Symbols};
use machine::{Cause, Machine, Outcome};
use serde_json::Value;
use std::process::ExitCode;

/// Exit status after a reset for which nobody has asked the guest's kernel.
const RESET: u8 = 122;
/// Exit status when the guest's kernel panicked.
const PANICKED: u8 = 123;
/// Exit status when the host stopped the guest because its time was up, as timeout(1) has it.
const TIMED_OUT: u8 = 124;
/// Exit status of a guest that can't go on: triple fault, or halted for good.
const GUEST_DIED: u8 = 125;
/// Exit status when the user stopped the guest: 128 + SIGINT.
const INTERRUPTED: u8 = 130;
/// Exit status when the reader of the output went away: 128 + SIGPIPE.
const UNREAD: u8 = 141;

/// The state at the end of a run.
pub struct Ended<'a> {
    /// The reason for the end.
    pub outcome: Outcome,
    /// The host stopped it because its time was up.
    pub timed_out: bool,
    /// The reason why not all of the guest's output arrived.
    pub lost: Option<Lost>,
    /// Under --check-translation, without a difference.
    pub checked: bool,
    /// The machine's name, if it is one of several.
    pub machine: Option<&'a str>,
    /// It was stopped because another machine had ended the run.
    pub with_others: bool,
}

/// A ledger to be.
pub struct LedgerFile {
    /// The file that the ledger is written to.
    pub file: OutputFile,
    /// The inputs of the run.
    pub facts: Vec<(String, String)>,
}

impl LedgerFile {
    /// Writes the ledger of a run that is over, and returns it.
    pub fn write(self, machine: &Machine, symbols: &Symbols) -> Result<Ledger> {
        let mut saved = machine.ledger(symbols);
        saved.header.metadata.extend(self.facts);
        let bytes = saved.to_bytes().with_context(|| format!("can't write {}", self.file.path().display()))?;
        self.file.write(&bytes)?;
        Ok(saved)
    }
}

/// The word for programs, the text for people and the exit status of a run that ended without its guest's consent.
pub fn explain(outcome: Outcome, cause: Cause, timed_out: bool) -> (&'static str, String, u8) {
    let ending = Ending::of(outcome, cause, timed_out, None);
    (ending.reason, ending.text, ending.status)
}

/// The reason of a run whose output could not be written.
pub const LOST_OUTPUT: &str = "output";
/// The reason of a run whose guest was asked to reboot.
pub const REBOOT: &str = "reboot";

/// A way to end.
struct Ending {
    /// One word, for programs.
    reason: &'static str,
    /// For people.
    text: String,
    status: u8,
    /// It went wrong, and that is said.
    bad: bool,
}

impl Ending {
    fn new(reason: &'static str, text: &str, status: u8) -> Self {
        Self { reason, text: text.to_owned(), status, bad: true }
    }

    /// The end of a run whose output did not arrive. A reader that goes away has seen what it wanted.
    fn lost(lost: &Lost) -> Self {
        match lost {
            Lost::Failed(..) => Self::new(LOST_OUTPUT, &lost.to_string(), crate::usage::FAILED),
            Lost::NoReader => Self { bad: false, ..Self::new("unread", &lost.to_string(), UNREAD) },
        }
    }

    /// The end of a run with `outcome` because of `cause`. After success, the exit status is the one that the guest has
    /// asked for, if any.
    fn of(outcome: Outcome, cause: Cause, timed_out: bool, asked: Option<u8>) -> Self {
        let well = |reason, text| Self { bad: false, ..Self::new(reason, text, asked.unwrap_or(0)) };
        let stopped = |reason, text: &str, status| match cause {
            Cause::Panic => Self::new(reason, &format!("{text}, after the guest's kernel panicked,"), status),
            Cause::Asked | Cause::Unknown => Self::new(reason, text, status),
        };
        match outcome {
            Outcome::PowerOff => well("power-off", "power off"),
            Outcome::Reset if cause == Cause::Asked => well(REBOOT, "reset, at the request of the guest"),
            Outcome::Reset => Self::new("reset", "reset without a request to the guest's kernel", RESET),
            Outcome::Panic => Self::new("panic", "the guest's kernel panicked", PANICKED),
            Outcome::DebugExit(status) => Self { bad: false, ..Self::new("debug-exit", "debug exit", status) },
            Outcome::TripleFault(cpu) => Self::new("triple-fault", &format!("triple fault on cpu {cpu}"), GUEST_DIED),
            Outcome::UnhandledExit(cpu, reason) => {
                let text = format!("internal error: VM exit {reason:#x} on cpu {cpu} without a hypervisor");
                Self::new("failed", &text, GUEST_DIED)
            }
            Outcome::Failed(cpu) => {
                Self::new("failed", &format!("the hypervisor cannot continue cpu {cpu}"), GUEST_DIED)
            }
            Outcome::Stuck => Self::new("stuck", "all processors are halted, and no event can wake them", GUEST_DIED),
            Outcome::Stopped if timed_out => stopped("time", "time is up", TIMED_OUT),
            Outcome::Stopped => stopped("interrupted", "interrupted", INTERRUPTED),
        }
    }
}

/// Returns a warning of code without names for people.
fn warning_text(Warning { region, unnamed }: &Warning) -> String {
    let of = region.map_or("the run".to_owned(), |region| format!("region {region}"));
    let share = share(unnamed.ticks, unnamed.of);
    format!("warning: {share} of the time of {of} is spent in {}", unnamed.describe_in_sentence())
}

/// Returns a warning of code without names for programs.
fn warning_document(Warning { region, unnamed }: &Warning) -> Value {
    let mut document = unnamed_document(unnamed);
    document["region"] = (*region).into();
    document
}

/// Says how a run ended, on a line of JSON too if that is asked for, and writes its ledger.
pub fn conclude(
    json: bool,
    machine: &Machine,
    ended: Ended<'_>,
    symbol_files: Vec<(String, Vec<Symbol>)>,
    ledger: Option<LedgerFile>,
) -> Result<ExitCode> {
    let Ended { outcome, timed_out, lost, checked, machine: name, with_others } = ended;
    // Nothing is to be explained where all went well.
    let well = matches!(outcome, Outcome::PowerOff | Outcome::DebugExit(_));
    let symbols = if well && ledger.is_none() { Symbols::default() } else { machine.symbols(symbol_files) };
    let (outcome, cause) = machine.verdict(outcome, &symbols);
    let asked = machine.board().status();
    let mut ending = match with_others {
        _ if let Some(lost) = lost.filter(|lost| lost.failed() || outcome == Outcome::Stopped) => Ending::lost(&lost),
        true => Ending { bad: false, ..Ending::new("stopped", "stopped with the machine that ended the run", 0) },
        false => Ending::of(outcome, cause, timed_out, asked),
    };
    let prefix = name.map_or(String::new(), |name| format!("{name}: "));
    if let (Outcome::Failed(_), Some(failure)) = (outcome, &machine.vcpus.failure) {
        ending.text = format!("{}: {failure}", ending.text);
    }
    if let (Outcome::Failed(cpu), Some(why)) = (outcome, machine.on_kvm.as_ref().and_then(|kvm| kvm.failure.as_ref())) {
        ending.text = format!("KVM cannot continue cpu {cpu}: {why}");
    }
    if ending.bad || checked {
        let agree = if checked { "; the tiers agree" } else { "" };
        let time = if machine.on_kvm.is_some() { "the host's" } else { "virtual" };
        say(&format!("tollgate: {prefix}{} after {:.6} s of {time} time{agree}", ending.text, machine.ended_at()));
    }
    // A kernel that panics has said where.
    if ending.bad && outcome != Outcome::Panic {
        for place in machine.places(&symbols) {
            say(&place.to_string());
        }
    }
    let ledger = ledger.map(|ledger| ledger.write(machine, &symbols)).transpose()?;
    let warnings = ledger.as_ref().map(Ledger::warnings).unwrap_or_default();
    for warning in &warnings {
        say(&format!("tollgate: {prefix}{}", warning_text(warning)));
    }
    let lacking = machine.lacking();
    for what in &lacking {
        say(&format!("tollgate: {prefix}{what}"));
    }
    if json {
        let mut report = serde_json::json!({
            "ended": ending.text,
            "reason": ending.reason,
            "status": ending.status,
            "workload_status": asked,
            "virtual_seconds": machine.ended_at(),
            "clocks": machine.vcpus.all.iter().map(|v| v.cpu.micro.clock).collect::<Vec<_>>(),
            "memory": memory::report(machine.taken),
            "lacking": lacking.iter().map(|what| serde_json::json!({
                "mnemonic": what.mnemonic, "extensions": what.extensions, "count": what.count,
            })).collect::<Vec<_>>(),
        });
        if ledger.is_some() {
            report["unnamed"] = warnings.iter().map(warning_document).collect();
        }
        if let Some(name) = name {
            report["machine"] = name.into();
        }
        if let Some(kvm) = &machine.on_kvm {
            report["backend"] = "kvm".into();
            report["kvm"] = serde_json::json!(kvm.statistics);
        }
        let network = crate::net::report(machine);
        if network.as_array().is_some_and(|nics| !nics.is_empty()) {
            report["network"] = network;
        }
        if checked {
            report["tiers_agree"] = true.into();
        }
        output::result(&report.to_string())?;
    }
    machine.check().map_err(|what| anyhow!("the hypervisor's tables are inconsistent: {what}"))?;
    Ok(ExitCode::from(ending.status))
}

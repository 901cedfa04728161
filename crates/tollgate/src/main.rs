//! The `tollgate` command line: parses, calls the libraries, prints.

mod compare;
mod cpu_cmd;
mod ending;
mod identity;
mod input;
mod lab_cmd;
mod memory;
mod output;
mod platform;
mod report;
mod run;
mod size;
mod table;
mod terminal;
mod tier;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// A software x86-64 hypervisor and performance laboratory.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::RunArgs),
    Report(report::ReportArgs),
    Compare(compare::CompareArgs),
    Cpu(cpu_cmd::CpuArgs),
    Lab(lab_cmd::LabArgs),
}

/// Exit status when a command failed.
const FAILED: u8 = 126;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Report(args) => report::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Compare(args) => compare::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Cpu(args) => cpu_cmd::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Lab(args) => lab_cmd::run(&args),
    };
    result.unwrap_or_else(|error| {
        output::say(&format!("tollgate: error: {error:#}"));
        ExitCode::from(FAILED)
    })
}

//! The `tollgate` command line: parses, calls the libraries, prints.

mod run;
mod size;
mod terminal;

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
}

/// Exit status when a command failed.
const FAILED: u8 = 126;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("tollgate: error: {error:#}");
        ExitCode::from(FAILED)
    })
}

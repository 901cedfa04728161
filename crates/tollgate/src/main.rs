//! The `tollgate` command line: parses, calls the libraries, prints.

#![forbid(unsafe_code)]
// These macros panic when the stream can't be written: `table::emit` and `output::say` report that or ignore it.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod backend;
mod compare;
mod config;
mod config_cmd;
mod config_kernel_cmd;
mod contain;
mod cpu_cmd;
mod destination;
mod diff_cmd;
mod ending;
mod entries;
mod exec_cmd;
mod exec_runs;
mod export_cmd;
mod forms;
mod functions;
mod gdb;
mod generate;
mod identity;
mod import_cmd;
mod input;
mod keep;
mod lab_cmd;
mod limits;
mod live;
mod memory;
mod model;
mod moments;
mod net;
mod output;
mod places;
mod platform;
mod recording;
mod report;
mod report_csv;
mod restored;
mod run_cmd;
mod series_cmd;
mod sites;
mod size;
mod stack_args;
mod stacks;
mod stat_cmd;
mod stop;
mod streams;
mod table;
mod terminal;
mod tier;
mod together;
mod top_down;
mod usage;
mod validate_cmd;

use clap::{Arg, Command as Parsed, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use std::io::{ErrorKind, IsTerminal};
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
    Run(Box<run_cmd::RunArgs>),
    Exec(Box<exec_cmd::ExecArgs>),
    Diff(Box<diff_cmd::DiffArgs>),
    Series(Box<series_cmd::SeriesArgs>),
    Stat(Box<stat_cmd::StatArgs>),
    Report(report::ReportArgs),
    Export(export_cmd::ExportArgs),
    Compare(compare::CompareArgs),
    Import(import_cmd::ImportArgs),
    Cpu(cpu_cmd::CpuArgs),
    Validate(validate_cmd::ValidateArgs),
    Lab(lab_cmd::LabArgs),
    Config(config_cmd::ConfigArgs),
    ConfigKernel(config_kernel_cmd::ConfigKernelArgs),
    Generate(generate::GenerateArgs),
    #[command(hide = true)]
    Keep(keep::KeepArgs),
}

/// The name of the command that runs machines.
const RUN: &str = "run";
/// The name of the command that runs a command in a guest.
const EXEC: &str = "exec";

/// Value names of numeric options. A value of theirs that begins with a minus sign is an invalid number, not an option.
const NUMBERS: [&str; 5] = ["N", "SIZE", "SECONDS", "PERCENT", "DAYS"];

/// Lets a command's numeric options accept negative numbers, so that they are rejected as numbers.
fn with_negative_numbers(command: Parsed) -> Parsed {
    let numeric = |arg: &Arg| {
        let called = arg.get_value_names().unwrap_or_default();
        !arg.is_positional() && called.iter().any(|name| NUMBERS.contains(&name.as_str()))
    };
    command
        .mut_args(|arg| if numeric(&arg) { arg.allow_hyphen_values(true) } else { arg })
        .mut_subcommands(with_negative_numbers)
}

/// Returns the parser of command lines.
fn program() -> Parsed {
    with_negative_numbers(Cli::command()).mut_subcommand(EXEC, exec_cmd::with_join)
}

/// Returns a command line with the options that the snapshot of `run --restore` adds.
fn completed(mut line: Vec<OsString>) -> anyhow::Result<Vec<OsString>> {
    if line.get(1).is_none_or(|command| command != RUN) {
        return Ok(line);
    }
    let lenient = |run: Parsed| run.mut_arg("kernel", |kernel| kernel.required(false));
    let command = program().mut_subcommand(RUN, lenient);
    // An error is reported later, by the parser that knows what is required.
    let Ok(matches) = command.try_get_matches_from(&line) else { return Ok(line) };
    let words = matches.subcommand_matches(RUN).map(restored::words).transpose()?;
    line.splice(2..2, words.into_iter().flatten());
    Ok(line)
}

/// Prints the help or an error of the command line, and ends the program.
fn show(answer: &clap::Error) -> ! {
    let rendered = answer.render();
    let text = if std::io::stderr().is_terminal() { rendered.ansi().to_string() } else { rendered.to_string() };
    if let Some(text) = usage::plain(&text) {
        output::say(text.trim_end());
        std::process::exit(answer.exit_code());
    }
    let lost = answer.print().err().filter(|error| error.kind() != ErrorKind::BrokenPipe && !answer.use_stderr());
    let status = lost.map_or(answer.exit_code(), |error| {
        output::say(&format!("tollgate: error: standard output can't be written: {error}"));
        usage::FAILED.into()
    });
    std::process::exit(status)
}

fn main() -> ExitCode {
    contain::remember_inherited();
    match limits::prepare() {
        Ok(()) => command(),
        Err(error) => failed(&error),
    }
}

/// Reports an error, and returns its exit status.
fn failed(error: &anyhow::Error) -> ExitCode {
    output::say(&format!("tollgate: error: {}", output::described(error)));
    limits::explain(error);
    let wrong = error.downcast_ref::<usage::WrongArguments>().is_some();
    ExitCode::from(if wrong { usage::WrongArguments::STATUS } else { usage::FAILED })
}

/// Runs the command of the command line. Its stack frame is large, so that it must not be a part of `main`'s.
#[inline(never)]
fn command() -> ExitCode {
    let parse = |line: Vec<OsString>| {
        let line = config::completed(completed(line)?, program())?;
        let matches = program().try_get_matches_from(line).unwrap_or_else(|e| show(&e));
        let mut command = Cli::from_arg_matches(&matches).unwrap_or_else(|e| show(&e)).command;
        if let (Command::Run(args), Some(given)) = (&mut command, matches.subcommand_matches(RUN)) {
            args.line = restored::line(given);
        }
        anyhow::Ok(command)
    };
    let commands = together::command_lines(std::env::args_os()).into_iter().map(parse).collect();
    let mut commands: Vec<Command> = match commands {
        Ok(commands) => commands,
        Err(error) => return failed(&error),
    };
    let command = commands.remove(0);
    let result = match command {
        Command::Run(args) if commands.is_empty() => run_cmd::run(&args),
        Command::Run(args) => {
            let others = commands.into_iter().filter_map(|command| match command {
                Command::Run(args) => Some(*args),
                _ => None,
            });
            together::run(&std::iter::once(*args).chain(others).collect::<Vec<_>>())
        }
        Command::Exec(args) => exec_cmd::run(&args),
        Command::Stat(args) => stat_cmd::run(&args),
        Command::Diff(args) => diff_cmd::run(&args, Cli::command()),
        Command::Series(args) => series_cmd::run(&args),
        Command::Report(args) => report::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Export(args) => export_cmd::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Import(args) => import_cmd::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Compare(args) => compare::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Cpu(args) => cpu_cmd::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Validate(args) => validate_cmd::run(&args),
        Command::Lab(args) => lab_cmd::run(&args),
        Command::Config(args) => config_cmd::run(&args, Cli::command()).map(|()| ExitCode::SUCCESS),
        Command::ConfigKernel(args) => config_kernel_cmd::run(&args),
        Command::Keep(args) => keep::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Generate(args) => generate::run(&args, program()).map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the help of a command, without the options that it shares with `exec`.
    fn help(name: &str) -> String {
        let mut program = Cli::command();
        program.build();
        let shared = exec_runs::options();
        let is_shared = |arg: &Arg| shared.iter().any(|other| other.get_id() == arg.get_id());
        let command = program.find_subcommand(name).unwrap().clone();
        let mut command = command.mut_args(|arg| if is_shared(&arg) { arg.hide(true) } else { arg });
        command.render_long_help().to_string()
    }

    #[test]
    fn the_help_of_commands_reads_well() {
        insta::assert_snapshot!("help_series", help("series"));
        insta::assert_snapshot!("help_config", help("config"));
        insta::assert_snapshot!("help_import", help("import"));
        insta::assert_snapshot!("help_config_kernel", help("config-kernel"));
    }
}

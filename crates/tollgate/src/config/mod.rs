//! Defaults of the user: options that a command line does not have, from the configuration file.

pub mod file;

use crate::usage::WrongArguments;
use anyhow::{Result, anyhow};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use file::{COMMANDS, Setting, Settings};
use ledger::profile::{Profile, ProfileError};
use std::ffi::OsString;
use std::sync::OnceLock;

/// The option that shows what was measured: nothing is.
const LOAD: &str = "load";
/// The kernels of a diff, which stand without an option.
const KERNELS: &str = "kernels";

/// The command line with the defaults of the user, once it is known.
static LINE: OnceLock<Vec<OsString>> = OnceLock::new();

/// Returns the command line of this process, with the defaults of the user.
pub fn line() -> Vec<OsString> {
    LINE.get().cloned().unwrap_or_else(|| std::env::args_os().collect())
}

/// Returns the option of a command with a name.
pub fn option<'a>(command: &'a Command, key: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| arg.get_long() == Some(key))
}

/// Returns the values that a command has from the file: those of its section replace those of all commands.
pub fn of_command<'a>(settings: &'a Settings, command: &str) -> Vec<&'a Setting> {
    let own = |key: &str| settings.all.iter().any(|other| other.key == key && other.section == Some(command));
    let is_for = |setting: &&Setting| match setting.section {
        Some(section) => section == command,
        None => {
            let (_, commands) = file::KEYS.iter().find(|(key, _)| *key == setting.key).expect("it is one of the keys");
            commands.contains(&command) && !own(setting.key)
        }
    };
    settings.all.iter().filter(is_for).collect()
}

/// Returns true if two options exclude each other.
fn exclude(command: &Command, a: &Arg, b: &Arg) -> bool {
    let names = |a: &Arg, b: &Arg| command.get_arg_conflicts_with(a).iter().any(|other| other.get_id() == b.get_id());
    names(a, b) || names(b, a)
}

/// Checks the values for a command as the parser of command lines does, and that they can stand together.
fn check(settings: &Settings, command: &Command) -> Result<()> {
    let place = |setting: &Setting| {
        let path = settings.path.as_deref().map(|path| path.display().to_string()).unwrap_or_default();
        format!("{path}:{}", setting.line)
    };
    let all = of_command(settings, command.get_name());
    for (number, setting) in all.iter().enumerate() {
        let Some(arg) = option(command, setting.key) else { continue };
        let parser = Command::new("file").no_binary_name(true).arg(
            Arg::new("value").required(true).value_parser(arg.get_value_parser().clone()).allow_hyphen_values(true),
        );
        if let Err(error) = parser.try_get_matches_from([&setting.value]) {
            let text = error.to_string();
            let why =
                text.lines().next().unwrap_or_default().trim_start_matches("error: ").replace("'<value>'", setting.key);
            let why = crate::usage::plain(&why).unwrap_or(why);
            return Err(anyhow!("{}: {why}", place(setting)));
        }
        // A profile in a file is read where it is used.
        if let ("cpu", Err(why @ (ProfileError::Unknown { .. } | ProfileError::Choice { .. }))) =
            (setting.key, Profile::find(&setting.value))
        {
            return Err(anyhow!("{}: {why}", place(setting)));
        }
        let other = all[..number]
            .iter()
            .find(|other| option(command, other.key).is_some_and(|other| exclude(command, arg, other)));
        if let Some(other) = other {
            let (key, name) = (setting.key, command.get_name());
            return Err(anyhow!("{}: `tollgate {name}` takes {} or {key}, not both", place(setting), other.key));
        }
    }
    Ok(())
}

/// Checks the file for all commands.
pub fn checked(settings: Settings, program: &Command) -> Result<Settings> {
    for name in COMMANDS {
        if let Some(command) = program.find_subcommand(name) {
            check(&settings, command)?;
        }
    }
    Ok(settings)
}

/// Returns true if a command line has an option, or one that excludes it.
fn has(command: &Command, given: &ArgMatches, arg: &Arg) -> bool {
    let is_given = |other: &Arg| given.value_source(other.get_id().as_str()) == Some(ValueSource::CommandLine);
    let excluded = |other: &Arg| other.get_id() == arg.get_id() || exclude(command, arg, other);
    let names_kernels = command.get_arguments().any(|other| other.get_id() == KERNELS && is_given(other));
    command.get_arguments().any(|other| is_given(other) && excluded(other))
        || (arg.get_long() == Some("kernel") && names_kernels)
}

/// Returns the words that a command line gets from the file.
fn words(settings: &Settings, command: &Command, given: &ArgMatches) -> Vec<OsString> {
    let shows = command
        .get_arguments()
        .any(|arg| arg.get_id() == LOAD && given.value_source(LOAD) == Some(ValueSource::CommandLine));
    let word = |setting: &&Setting| {
        let arg = option(command, setting.key)?;
        // A saved result is shown as it was measured.
        let measures = shows && setting.key != "margin";
        (!measures && !has(command, given, arg)).then(|| format!("--{}={}", setting.key, setting.value).into())
    };
    of_command(settings, command.get_name()).iter().filter_map(word).collect()
}

/// Returns a command line with the defaults of the user. `program` is the parser, which reports mistakes in the line itself later.
pub fn completed(mut line: Vec<OsString>, mut program: Command) -> Result<Vec<OsString>> {
    let name = line.get(1).and_then(|word| word.to_str()).filter(|name| COMMANDS.contains(name)).map(str::to_owned);
    let Some(name) = name else { return Ok(line) };
    program.build();
    let Ok(matches) = program.clone().try_get_matches_from(&line) else { return Ok(line) };
    let settings = file::load().and_then(|settings| checked(settings, &program));
    let settings = settings.map_err(|error| WrongArguments::new(format!("{error:#}")))?;
    let (Some(command), Some(given)) = (program.find_subcommand(&name), matches.subcommand_matches(&name)) else {
        return Ok(line);
    };
    let words = words(&settings, command, given);
    line.splice(2..2, words);
    // The first command line is the only one of these commands.
    let _ = LINE.set(line.clone());
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ArgAction;
    use std::path::Path;

    fn program() -> Command {
        let arg = |name: &'static str| Arg::new(name).long(name);
        let diff = Command::new("diff")
            .arg(Arg::new("kernels").num_args(0..=2))
            .args(["cpu", "kernel"].map(arg))
            .arg(arg("cpus").value_parser(clap::value_parser!(usize)))
            .arg(arg("layouts").value_parser(clap::value_parser!(u16).range(1..)))
            .arg(arg("time-limit").conflicts_with("layouts"))
            .args(["load", "margin"].map(arg));
        let exec =
            Command::new("exec").args(["cpu", "kernel", "cpus"].map(arg)).arg(arg("root").action(ArgAction::SetTrue));
        let mut program = Command::new("tollgate").subcommands([diff, exec]);
        program.build();
        program
    }

    fn settings(text: &str) -> Settings {
        let path = Path::new("c.toml");
        Settings { path: Some(path.into()), exists: true, all: file::parse(path, text).unwrap() }
    }

    /// Returns the words that a command line gets.
    fn added(text: &str, line: &str) -> String {
        let program = program();
        let matches = program.clone().try_get_matches_from(line.split(' ')).unwrap();
        let (name, given) = matches.subcommand().unwrap();
        let words = words(&settings(text), program.find_subcommand(name).unwrap(), given);
        words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn options_of_the_line_replace_those_of_the_file() {
        let file = "cpu = \"zen3\"\nkernel = \"cloud\"\n[diff]\ncpu = \"icx\"\nlayouts = 12\n";
        assert_eq!(added(file, "tollgate exec"), "--cpu=zen3 --kernel=cloud");
        assert_eq!(added(file, "tollgate exec --cpu skx --root"), "--kernel=cloud");
        assert_eq!(added(file, "tollgate diff"), "--kernel=cloud --cpu=icx --layouts=12");
        // What excludes an option replaces it, too.
        assert_eq!(added(file, "tollgate diff --time-limit 3 --kernel x"), "--cpu=icx");
        assert_eq!(added(file, "tollgate diff a b"), "--cpu=icx --layouts=12");
        // What was measured is shown as it was.
        assert_eq!(added(&format!("{file}margin = 2\n"), "tollgate diff --load x"), "--margin=2");
        assert_eq!(added("", "tollgate diff"), "");
    }

    #[test]
    fn wrong_values_are_named_with_their_line() {
        let wrong = |text: &str| checked(settings(text), &program()).unwrap_err().to_string();
        let error = wrong("cpu = \"skx\"\ncpus = \"two\"\n");
        assert_eq!(error, "c.toml:2: invalid value 'two' for cpus: it is not a whole number");
        assert_eq!(
            wrong("[diff]\nlayouts = 3\ntime-limit = 4\n"),
            "c.toml:3: `tollgate diff` takes layouts or time-limit, not both"
        );
        let error = wrong("[exec]\ncpu = \"zen9\"\n");
        assert!(error.starts_with("c.toml:2: there is no processor profile 'zen9'"), "{error}");
        assert!(checked(settings("cpu = \"my.toml\"\n"), &program()).is_ok(), "it is read where it is used");
        assert!(checked(settings("[diff]\nlayouts = 3\n[exec]\ncpus = 4\n"), &program()).is_ok());
    }
}

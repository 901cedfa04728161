//! `tollgate config`: the defaults of options, and where each comes from.

use crate::config::file::{self, COMMANDS, KEYS, Settings, VARIABLE};
use crate::config::{checked, of_command, option};
use crate::table::{Align::Left, emit, table};
use crate::usage::WrongArguments;
use anyhow::Result;
use clap::{Args, Command};
use serde_json::json;

/// Shows the defaults of options, and where each comes from.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate config
  mkdir -p ~/.config/tollgate && echo 'cpu = \"zen3\"' >> ~/.config/tollgate/config.toml
  TOLLGATE_CONFIG= tollgate diff cloud backports -- ./benchmark
  TOLLGATE_CONFIG=ci.toml tollgate config --json

The file is $XDG_CONFIG_HOME/tollgate/config.toml, or ~/.config/tollgate/config.toml. Its keys are the names of options; those in a section such as [diff] are for one command. TOLLGATE_CONFIG names another file; if it is empty, there is none. Options on a command line replace those of the file. `tollgate run` and `tollgate lab` do not read the file.

Exit status: 0, or 2 if the file has a mistake.")]
pub struct ConfigArgs {
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// A default.
struct Row {
    key: &'static str,
    value: Option<String>,
    /// The line of the file; None for the program's own default.
    line: Option<usize>,
    commands: Vec<&'static str>,
}

/// Returns the program's own default of an option, as its help says it.
fn own(command: &Command, key: &str) -> Option<String> {
    let arg = option(command, key)?;
    let values = arg.get_default_values();
    if let Some(value) = values.first() {
        return Some(value.to_string_lossy().into_owned());
    }
    let help = arg.get_help()?.to_string();
    let (_, rest) = help.split_once("[default: ")?;
    Some(rest.split(']').next()?.to_owned())
}

/// Returns the defaults of all options. Commands with the same default share a row.
fn rows(settings: &Settings, program: &Command) -> Vec<Row> {
    let mut all: Vec<Row> = Vec::new();
    for (key, commands) in KEYS {
        for name in COMMANDS.into_iter().filter(|name| commands.contains(name)) {
            let set = of_command(settings, name).into_iter().find(|setting| setting.key == key);
            let (value, line) = match set {
                Some(setting) => (Some(setting.value.clone()), Some(setting.line)),
                None => (program.find_subcommand(name).and_then(|command| own(command, key)), None),
            };
            match all.iter_mut().find(|row| row.key == key && row.value == value && row.line == line) {
                Some(row) => row.commands.push(name),
                None => all.push(Row { key, value, line, commands: vec![name] }),
            }
        }
    }
    all
}

/// Runs the command. `program` is the parser of the whole command line.
pub fn run(args: &ConfigArgs, mut program: Command) -> Result<()> {
    program.build();
    let settings = file::load().and_then(|settings| checked(settings, &program));
    let settings = settings.map_err(|error| WrongArguments::new(format!("{error:#}")))?;
    let rows = rows(&settings, &program);
    let path = settings.path.as_ref().map(|path| path.display().to_string());
    if args.json {
        let row = |row: &Row| {
            let from = if row.line.is_some() { "file" } else { "program" };
            json!({ "key": row.key, "value": row.value, "from": from, "line": row.line, "commands": row.commands })
        };
        let all: Vec<_> = rows.iter().map(row).collect();
        let document = json!({ "file": path, "exists": settings.exists, "defaults": all });
        return emit(&format!("{document:#}\n"));
    }
    let place = match (&path, settings.exists) {
        (None, _) => format!("There is no configuration file: {VARIABLE} is empty, or HOME is not set."),
        (Some(path), true) => format!("The configuration file is {path}."),
        (Some(path), false) => format!("There is no configuration file {path}."),
    };
    let cells = |row: &Row| {
        let from = row.line.map_or_else(|| "the program".to_owned(), |line| format!("line {line} of the file"));
        vec![row.key.to_owned(), row.value.clone().unwrap_or_else(|| "–".to_owned()), from, row.commands.join(" ")]
    };
    let mut out = format!("{place}\n\n");
    let cells: Vec<Vec<String>> = rows.iter().map(cells).collect();
    table(&mut out, &[("key", Left), ("default", Left), ("from", Left), ("commands", Left)], &cells);
    emit(&out)
}

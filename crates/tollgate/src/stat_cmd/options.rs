//! The options of `tollgate exec` that `stat` passes on.

use crate::exec_runs;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use std::ffi::OsString;

/// Heading of the options in the help.
const HEADING: &str = "Options of tollgate exec";

/// The options, as passed to `tollgate exec`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// The words.
    pub words: Vec<OsString>,
}

impl Args for Passed {
    fn augment_args(command: Command) -> Command {
        let titled = |arg: clap::Arg| if arg.get_help_heading().is_none() { arg.help_heading(HEADING) } else { arg };
        command.args(exec_runs::options().into_iter().map(titled))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Passed {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut passed = Self::default();
        passed.update_from_arg_matches(matches)?;
        Ok(passed)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let options = exec_runs::options();
        self.words.extend(options.iter().flat_map(|option| exec_runs::given(option, matches)));
        Ok(())
    }
}

impl Passed {
    /// Returns the value of an option, if it is given.
    pub fn value(&self, name: &str) -> Option<&str> {
        exec_runs::value(self.words.iter(), name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Passed, clap::Error> {
        let command = Passed::augment_args(Command::new("stat"));
        Passed::from_arg_matches(&command.try_get_matches_from(line.split(' '))?)
    }

    #[test]
    fn options_of_exec_are_passed_on_with_their_values() {
        let passed = parse("stat --kernel cloud --env X=1 --env Y=2 --oops-ok --append=-x").unwrap();
        let mut words = passed.words.clone();
        words.sort();
        assert_eq!(words, ["--append=-x", "--env=X=1", "--env=Y=2", "--kernel=cloud", "--oops-ok"]);
        assert_eq!((passed.value("kernel"), passed.value("cpu")), (Some("cloud"), None));
        assert_eq!(parse("stat").unwrap(), Passed::default());
    }

    #[test]
    fn what_a_measurement_defines_itself_is_a_wrong_use() {
        for line in ["stat --ledger x", "stat --seed 3", "stat --cpu a --cpu b", "stat --memory x"] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}

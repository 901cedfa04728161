//! The two sides of a diff. An option of `tollgate exec` applies to both; given twice, the first applies to A and the second to B.

use crate::exec_runs::{self, options};
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use std::ffi::OsString;

/// Heading of the other options in the help.
const HEADING: &str = "Options of tollgate exec, for both; given twice, the first is A's and the second B's";

/// Options of each side, as passed to `tollgate exec`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sides {
    /// Options of both sides.
    pub common: Vec<OsString>,
    /// Options of A alone, and of B alone.
    pub own: [Vec<OsString>; 2],
}

/// Returns true if giving an option twice sets one value per side. Flags, and options that may be repeated anyway, are not such.
pub fn is_single(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Set)
}

impl Args for Sides {
    fn augment_args(command: Command) -> Command {
        let twice = |arg: Arg| {
            let arg = if is_single(&arg) { arg.action(ArgAction::Append) } else { arg };
            if arg.get_help_heading().is_none() { arg.help_heading(HEADING) } else { arg }
        };
        command.args(options().into_iter().map(twice))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Sides {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut sides = Self::default();
        sides.update_from_arg_matches(matches)?;
        Ok(sides)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for arg in options() {
            let words = exec_runs::given(&arg, matches);
            match (is_single(&arg), words.len()) {
                (true, 2) => self.own.iter_mut().zip(words).for_each(|(own, word)| own.push(word)),
                (true, 3..) => {
                    let name = arg.get_long().unwrap_or_default();
                    let text = format!("--{name} is given more than twice: the first is A's, and the second B's\n");
                    return Err(clap::Error::raw(ErrorKind::TooManyValues, text));
                }
                _ => self.common.extend(words),
            }
        }
        Ok(())
    }
}

impl Sides {
    /// Returns the value of an option for a side, if it is given.
    pub fn value(&self, side: usize, name: &str) -> Option<&str> {
        exec_runs::value(self.own[side].iter().chain(&self.common), name)
    }

    /// Returns the value of the option of the kernel for a side, if it is given.
    pub fn kernel(&self, side: usize) -> Option<&str> {
        self.value(side, "kernel")
    }

    /// Returns the options of one side alone, except for its kernel.
    pub fn differing(&self, side: usize) -> Vec<String> {
        let words = self.own[side].iter().map(|word| word.to_string_lossy().into_owned());
        words
            .filter(|word| !word.starts_with("--kernel="))
            .map(|word| word.trim_start_matches('-').to_owned())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Sides, clap::Error> {
        let command = Sides::augment_args(Command::new("diff"));
        Sides::from_arg_matches(&command.try_get_matches_from(line.split(' '))?)
    }

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn an_option_given_twice_is_for_one_side_each() {
        let sides = parse("diff --kernel cloud --cpu skx --cpu icx --env X=1 --env Y=2 --oops-ok --mmu tdp --mmu shadow --platform hvm").unwrap();
        let mut common = sides.common.clone();
        common.sort();
        assert_eq!(common, words(&["--env=X=1", "--env=Y=2", "--kernel=cloud", "--oops-ok", "--platform=hvm"]));
        assert_eq!(sides.own, [words(&["--cpu=skx", "--mmu=tdp"]), words(&["--cpu=icx", "--mmu=shadow"])]);
        assert_eq!(sides.differing(1), ["cpu=icx", "mmu=shadow"]);
        assert_eq!(sides.kernel(0), Some("cloud"));
        assert_eq!(
            (sides.value(0, "cpu"), sides.value(1, "cpu"), sides.value(0, "cpus")),
            (Some("skx"), Some("icx"), None)
        );
        let sides = parse("diff --kernel a --kernel b").unwrap();
        assert_eq!((sides.kernel(0), sides.kernel(1)), (Some("a"), Some("b")));
        assert_eq!(parse("diff").unwrap(), Sides::default());
    }

    #[test]
    fn values_may_begin_with_a_minus() {
        let sides = parse("diff --append=-x --append=--y=z").unwrap();
        assert_eq!(sides.own, [words(&["--append=-x"]), words(&["--append=--y=z"])]);
    }

    #[test]
    fn what_cannot_be_is_a_wrong_use() {
        for line in ["diff --cpu a --cpu b --cpu c", "diff --mmu none", "diff --ledger x", "diff --memory x"] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}

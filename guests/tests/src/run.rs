//! A command to run: program, arguments, input.

use crate::root;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

/// The kernel arguments of all Linux guests.
pub const CONSOLE: &str = "console=ttyS0,115200 quiet panic=-1";

/// What a command reads from its standard input.
#[derive(Clone, Default)]
pub enum Input {
    #[default]
    Nothing,
    /// These bytes through a pipe, which then stays open for that time.
    Typed(&'static [u8], Duration),
}

#[derive(Clone)]
pub struct Run {
    pub program: OsString,
    pub arguments: Vec<OsString>,
    pub input: Input,
}

impl Run {
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self { program: program.as_ref().to_owned(), arguments: Vec::new(), input: Input::Nothing }
    }

    /// Adds one argument.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// Adds an option with its value.
    pub fn with(self, option: &str, value: impl AsRef<OsStr>) -> Self {
        self.arg(option).arg(value)
    }

    /// Adds arguments that are separated by spaces.
    pub fn words(self, words: &str) -> Self {
        words.split_whitespace().fold(self, Self::arg)
    }

    /// Adds the arguments of another command.
    pub fn and(mut self, other: &Self) -> Self {
        self.arguments.extend(other.arguments.iter().cloned());
        self
    }

    pub fn typed(mut self, bytes: &'static [u8], open: Duration) -> Self {
        self.input = Input::Typed(bytes, open);
        self
    }

    /// Adds the command line of a Linux guest.
    pub fn append(self, words: &str) -> Self {
        self.with("--append", format!("{CONSOLE} {words}"))
    }

    /// Returns the arguments with which the command is executed. Where a test names no model of time, it is the fast one: what a guest does
    /// hardly depends on the model, and tests of the other one name it.
    pub fn executed(&self) -> Vec<OsString> {
        let mut arguments = self.arguments.clone();
        let own = arguments.split(|argument| argument == "--").next().unwrap_or_default();
        let is = |word: &str| own.iter().any(|argument| argument == word);
        let runs =
            own.first().is_some_and(|command| ["run", "exec", "stat", "diff"].iter().any(|name| command == name));
        let named = ["--model", "--backend", "--load", "--help"].into_iter().any(is) || is("--clock") && is("host");
        if self.program == program() && runs && !named {
            arguments.splice(1..1, ["--model".into(), "flat".into()]);
        }
        arguments
    }

    /// Returns the command as one would type it in a shell.
    pub fn shown(&self) -> String {
        let quote = |word: &OsString| {
            let word = word.to_string_lossy();
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
            match !word.is_empty() && word.chars().all(plain) {
                true => word.into_owned(),
                false => format!("'{}'", word.replace('\'', r"'\''")),
            }
        };
        std::iter::once(&self.program).chain(&self.arguments).map(quote).collect::<Vec<_>>().join(" ")
    }
}

/// Returns the path of the tested program.
pub fn program() -> PathBuf {
    std::env::var_os("TOLLGATE").map_or_else(|| root().join("target/release/tollgate"), PathBuf::from)
}

/// `tollgate` with the words of a command.
pub fn tollgate(words: &str) -> Run {
    Run::new(program()).words(words)
}

/// `tollgate run` with a bare-metal guest.
pub fn bare(guest: &str, append: &str) -> Run {
    let file = root().join("target/guests").join(guest);
    let run = tollgate("run").with("--kernel", file);
    if append.is_empty() { run } else { run.with("--append", append) }
}

/// `tollgate run` with the multitasking kernel for that target.
pub fn kernel(target: &str, append: &str) -> Run {
    bare(&format!("kernel-{target}.elf"), append).words("--memory 64M")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_a_shell_takes_it() {
        let run = Run::new("a/b").words("--cpu  skx").with("--append", "it's x").arg("");
        assert_eq!(run.shown(), r"a/b --cpu skx --append 'it'\''s x' ''");
    }
}

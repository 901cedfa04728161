//! Tables and numbers in the laboratory's style, ledgers from files, and output that tolerates a closed pipe.

use crate::streams::Stream;
use anyhow::{Context, Result, anyhow};
pub use lab::format::*;
use std::borrow::Cow;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// Reads a ledger from a file.
pub fn read_ledger(path: &Path) -> Result<ledger::Ledger> {
    /// Larger than any compressed ledger.
    const LARGEST: u64 = 256 << 20;
    let bytes = crate::input::read(path, LARGEST)?;
    // The error is a predicate of the file.
    ledger::Ledger::read(&bytes).map_err(|error| anyhow!("{} {error}", path.display()))
}

/// Prints to standard output. A closed pipe is not an error.
pub fn emit(text: &str) -> Result<()> {
    emit_parts(|print| print(text))
}

/// Replaces control characters, which may come from a guest's names and would control the user's terminal.
pub fn shown(text: &str) -> Cow<'_, str> {
    let controls = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    match text.contains(controls) {
        true => text.replace(controls, "?").into(),
        false => text.into(),
    }
}

/// The function that prints a part of the output.
pub type Print<'a> = &'a mut dyn FnMut(&str) -> Result<()>;

/// Prints output in parts to standard output. A closed pipe ends the output and is not an error.
pub fn emit_parts(parts: impl FnOnce(Print) -> Result<()>) -> Result<()> {
    const FAILED: &str = "standard output can't be written";
    let mut out = std::io::BufWriter::new(Stream::Output);
    let done = parts(&mut |part| out.write_all(shown(part).as_bytes()).context(FAILED));
    let done = done.and_then(|()| out.flush().context(FAILED));
    let closed = |error: &std::io::Error| error.kind() == ErrorKind::BrokenPipe;
    match done {
        Err(error) if error.downcast_ref().is_some_and(closed) => {
            // The rest of the buffer has no reader.
            let _ = out.into_parts();
            Ok(())
        }
        done => done,
    }
}

/// Rows of a table of a report, unless the user asks for another number.
pub const ROWS: usize = 25;

/// Returns the number of rows to show.
pub fn limit(top: usize) -> usize {
    if top == 0 { usize::MAX } else { top }
}

/// Writes the title of a table.
pub fn title(out: &mut String, title: &str, shown: usize, there_are: usize) {
    let more = if shown < there_are { format!(" ({shown} of {there_are})") } else { String::new() };
    out.push_str(&format!("\n{title}{more}\n\n"));
}

/// Shortens a name. Rust and C++ functions may have hundreds of characters; the beginning and the end say most.
pub fn shortened(name: &str) -> String {
    const MOST: usize = 44;
    let count = name.chars().count();
    if count <= MOST {
        return name.to_owned();
    }
    let (front, end) = (name.chars().take(MOST / 2 - 1), name.chars().skip(count - (MOST / 2 - 1)));
    front.chain("..".chars()).chain(end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_control_the_terminal() {
        assert_eq!(shown("e\x1b]0;title\x07vil\n\tnext\u{9b}2J"), "e?]0;title?vil\n\tnext?2J");
        assert!(matches!(shown("an ordinary line\n"), Cow::Borrowed(_)));
    }
}

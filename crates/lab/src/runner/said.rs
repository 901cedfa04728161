//! What a guest has printed that explains its end: the lines that name a cause, and the last lines. The last lines of a kernel that panics are its registers and its stack, so
//! they are not enough.

use crate::format::cut;
use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Number of last lines that are shown.
const LAST: usize = 12;
/// Number of lines on the end of a kernel that are shown; the first of them say why.
const ENDS: usize = 3;
/// Number of other complaints that are shown; the last of them are the nearest to the end.
const COMPLAINTS: usize = 4;
/// Longest part of a line that is shown, in characters.
const WIDTH: usize = 1000;
/// Stands for lines that are not shown.
const GAP: &str = "[…]";

/// Parts of the lines that a Linux prints when it ends.
const OF_ENDS: [&str; 8] = [
    "Kernel panic",
    "Oops",
    "kernel BUG at",
    "BUG: ",
    "Unable to mount root",
    "general protection fault",
    "double fault",
    "Attempted to kill init",
];
/// Parts of the lines in which programs complain.
const OF_COMPLAINTS: [&str; 7] = [
    "not found",
    "No such file or directory",
    "Segmentation fault",
    "segfault at",
    "Out of memory",
    "No space left on device",
    "Permission denied",
];

/// A line and its position.
type Line = (usize, String);

fn push(lines: &mut VecDeque<Line>, line: &Line, most: usize) {
    lines.push_back(line.clone());
    if lines.len() > most {
        lines.pop_front();
    }
}

/// Returns a line without what a terminal would act on. A line that is too long ends with an ellipsis.
fn printable(line: &str) -> String {
    cut(&line.replace(char::is_control, ""), WIDTH)
}

/// Returns the lines of an output that explain its end, in their order, with a mark where lines are left out.
pub fn said(output: &Path, limit: u64) -> Vec<String> {
    let mut bytes = Vec::new();
    // What cannot be read is not shown; the reason of a failure is known without it.
    let _ = File::open(output).and_then(|file| file.take(limit).read_to_end(&mut bytes));
    let (mut ends, mut complaints, mut last) = (Vec::new(), VecDeque::new(), VecDeque::new());
    let text = String::from_utf8_lossy(&bytes);
    for line in text.lines().map(printable).filter(|line| !line.is_empty()).enumerate() {
        let has = |parts: &[&str]| parts.iter().any(|part| line.1.contains(part));
        if has(&OF_ENDS) {
            if ends.len() < ENDS {
                ends.push(line.clone());
            }
        } else if has(&OF_COMPLAINTS) {
            push(&mut complaints, &line, COMPLAINTS);
        }
        push(&mut last, &line, LAST);
    }
    let mut lines: Vec<Line> = ends.into_iter().chain(complaints).chain(last).collect();
    lines.sort();
    lines.dedup();
    let mut shown = Vec::new();
    let mut next = None;
    for (at, line) in lines {
        if next.is_some_and(|next| next != at) {
            shown.push(GAP.to_owned());
        }
        next = Some(at + 1);
        shown.push(line);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, text: &str) -> Vec<String> {
        let path = std::env::temp_dir().join(format!("tollgate-said-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let lines = said(&path, 1 << 20);
        std::fs::remove_file(&path).unwrap();
        lines
    }

    #[test]
    fn the_end_is_shown_without_what_a_terminal_would_obey() {
        let long: String = (0..3000).map(|line| format!("line {line}\r\n\n\x1b[2J")).collect();
        let lines = of("end", &long);
        assert_eq!((lines.len(), lines[0].as_str(), lines[11].as_str()), (12, "[2Jline 2989", "[2J"));
        assert!(said(Path::new("/nowhere/output"), 1).is_empty());
    }

    #[test]
    fn a_panic_and_its_cause_are_shown_however_much_follows() {
        let trace: String = (0..40).map(|line| format!("[    1.2]  function_{line}+0x1/0x2\r\n")).collect();
        let text = format!(
            "boot\nmore\n/init: line 7: workload: not found\nnoise\n[    1.1] Kernel panic - not syncing: \
             Attempted to kill init!\n{trace}"
        );
        let lines = of("panic", &text);
        assert_eq!(lines[0], "/init: line 7: workload: not found");
        assert_eq!(lines[1], GAP);
        assert_eq!(lines[2], "[    1.1] Kernel panic - not syncing: Attempted to kill init!");
        assert_eq!((lines[3].as_str(), lines.len()), (GAP, 4 + LAST));
        assert_eq!(lines.last().unwrap(), "[    1.2]  function_39+0x1/0x2");
    }

    #[test]
    fn only_some_complaints_of_many_are_shown_and_a_long_line_is_cut() {
        let text: String = (0..100).map(|line| format!("{line}: not found {}\n", "x".repeat(1000))).collect();
        let lines = of("many", &(text.clone() + &"Oops\n".repeat(100)));
        assert_eq!(lines[0].chars().count(), WIDTH);
        assert!(lines[3].starts_with("99: not found") && lines[4] == "Oops", "{lines:?}");
        assert!(lines.len() <= LAST + ENDS + COMPLAINTS + 2, "{lines:?}");
    }
}

//! The figures of llvm-mca, if it is installed.

use iced_x86::{Formatter, GasFormatter, Instruction};
use std::fmt::Write as _;
use std::io::{Error as IoError, Write as _};
use std::process::{Command, Output, Stdio};

/// Repetitions that llvm-mca simulates.
const ITERATIONS: u32 = 100;

/// Reason why there are no figures of llvm-mca.
#[derive(Debug, thiserror::Error)]
pub enum McaError {
    /// The program does not start.
    #[error("{0} cannot be started: {1}")]
    Start(String, IoError),
    /// The program failed.
    #[error("{0} failed: {1}")]
    Failed(String, String),
}

/// Returns the cycles of a repetition of each block by llvm-mca for a processor of LLVM's, or `native`. A block with an
/// instruction that llvm-mca does not know has no figure.
pub fn cycles(program: &str, processor: &str, blocks: &[&[Instruction]]) -> Result<Vec<Option<f64>>, McaError> {
    let mut known = vec![true; blocks.len()];
    // Each attempt leaves out the blocks that the one before could not read.
    for _ in 0..20 {
        let mut input = String::new();
        let mut lines = Vec::new();
        for (n, block) in blocks.iter().enumerate().filter(|(n, _)| known[*n]) {
            let _ = write!(input, "# LLVM-MCA-BEGIN b{n}\n{}# LLVM-MCA-END b{n}\n", text(block));
            lines.extend(std::iter::repeat_n(n, block.len() + 2));
        }
        let output = run(program, processor, input)?;
        if output.status.success() {
            return Ok(parse(&String::from_utf8_lossy(&output.stdout), blocks));
        }
        let messages = String::from_utf8_lossy(&output.stderr);
        let unknown: Vec<usize> = messages.lines().filter_map(unread_line).collect();
        if unknown.is_empty() {
            let first = messages.lines().next().unwrap_or("no message");
            return Err(McaError::Failed(program.to_string(), first.to_string()));
        }
        for block in unknown.into_iter().filter_map(|line| lines.get(line.checked_sub(1)?)) {
            known[*block] = false;
        }
    }
    Err(McaError::Failed(program.to_string(), "it does not know too many of the instructions".to_string()))
}

/// Returns the number of the line of a message such as `<stdin>:12:1: error: ...`.
fn unread_line(message: &str) -> Option<usize> {
    let (place, _) = message.split_once(" error:")?;
    place.strip_prefix("<stdin>:")?.split(':').next()?.parse().ok()
}

fn run(program: &str, processor: &str, input: String) -> Result<Output, McaError> {
    let start = |error| McaError::Start(program.to_string(), error);
    let mut child = Command::new(program)
        .args([
            &format!("-mcpu={processor}"),
            &format!("-iterations={ITERATIONS}"),
            "-mtriple=x86_64-unknown-linux-gnu",
        ])
        .args(["-instruction-info=0", "-resource-pressure=0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(start)?;
    let mut stdin = child.stdin.take();
    let writer = std::thread::spawn(move || stdin.as_mut().map(|stdin| stdin.write_all(input.as_bytes())));
    let output = child.wait_with_output().map_err(start)?;
    // A program that ended early has not read everything, and its messages say why.
    let _ = writer.join();
    Ok(output)
}

/// Returns the block for the assembler.
fn text(block: &[Instruction]) -> String {
    let mut formatter = GasFormatter::new();
    let mut text = String::new();
    for instruction in block {
        let mut line = String::new();
        formatter.format(instruction, &mut line);
        let _ = writeln!(text, "{line}");
    }
    text
}

/// Reads the figures of a report. A region in which an instruction was skipped has no figure.
fn parse(report: &str, blocks: &[&[Instruction]]) -> Vec<Option<f64>> {
    let mut figures = vec![None; blocks.len()];
    let mut region = None;
    let mut complete = false;
    for line in report.lines() {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        if line.starts_with('[') && line.contains("Code Region") {
            region = line.rsplit_once(" - b").and_then(|(_, number)| number.trim().parse::<usize>().ok());
        } else if name == "Instructions" {
            let count = region.and_then(|n| blocks.get(n)).map(|block| block.len() as u64 * u64::from(ITERATIONS));
            complete = value.trim().parse().ok() == count;
        } else if name == "Total Cycles"
            && let Some(figure) = region.and_then(|n| figures.get_mut(n))
            && let Ok(cycles) = value.trim().parse::<f64>()
            && complete
        {
            *figure = Some(cycles / f64::from(ITERATIONS));
        }
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    #[test]
    fn a_report_is_read_by_region() {
        let decode = |bytes: &[u8]| Decoder::new(64, bytes, DecoderOptions::NONE).into_iter().collect::<Vec<_>>();
        let (one, two) = (decode(&[0x48, 0x01, 0xd8]), decode(&[0x90, 0x90]));
        let report = "\n[0] Code Region - b0\n\nIterations:        100\nInstructions:      100\nTotal Cycles:      103\n\
            \n[1] Code Region - b1\n\nIterations:        100\nInstructions:      100\nTotal Cycles:      50\n";
        assert_eq!(parse(report, &[&one, &two]), [Some(1.03), None]);
        assert_eq!(unread_line("<stdin>:12:1: error: invalid instruction mnemonic 'aesdec'"), Some(12));
        assert_eq!(unread_line("warning: found a call"), None);
        assert_eq!(text(&one), "add %rbx,%rax\n");
    }
}

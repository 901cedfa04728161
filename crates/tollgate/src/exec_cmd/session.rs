//! The host's side of a command: its streams, the terminal, and the guest's report of its end.

use super::control::{CONTROL, ERRORS, Ended, Hearing, INPUT, OUTPUT, Records, Said};
use super::join::Joins;
use super::parameters;
use crate::net::Connections;
use crate::output::say;
use crate::streams::{Lost, Stream};
use crate::terminal::Terminal;
use ledger::Ticks;
use machine::host::{HostFrame, Piece};
use machine::{Host, Poll};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Number of bytes kept of the kernel's messages.
const TAIL: usize = 16 << 10;
/// Largest number of input bytes passed on at a time.
const PIECE: usize = 64 << 10;
/// Largest number of facts about a kernel, and length of their names in bytes.
const MOST_FACTS: usize = 256;
const LONGEST_NAME: usize = 100;
/// Virtual seconds that a guest may continue after its kernel has reported a fault. By then the command has been killed, or never ends.
const GRACE: u64 = 2;
/// Beginnings of messages with which a Linux kernel reports a fault of its own.
const BROKEN: [&str; 6] =
    ["Oops", "BUG: ", "general protection fault", "kernel BUG at", "watchdog: BUG: ", "traps: PANIC: "];

/// Returns true if a console line reports a fault of the kernel. Linux numbers every exception that kills a kernel task: `divide error: 0000 [#1]`.
fn says_broken(line: &str) -> bool {
    // The line begins with the time and, on some kernels, the task.
    let mut message = line;
    while let Some((_, rest)) = message.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        message = rest.trim_start();
    }
    let number = message.split_once(" [#").and_then(|(_, rest)| rest.split_once(']'));
    let numbered = number.is_some_and(|(number, _)| number.parse::<u32>().is_ok());
    line.starts_with('[') && (numbered || BROKEN.iter().any(|start| message.starts_with(start)))
}

/// Times of the command's milestones, by the host's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// The command executed its first instruction.
    pub began: Option<Duration>,
    /// The command wrote its first output.
    pub wrote: Option<Duration>,
    /// The command ended.
    pub ended: Option<Duration>,
}

/// Conditions that end a session.
pub struct Limits {
    /// Limit of the host's time.
    pub deadline: Option<Instant>,
    /// Limit of virtual time.
    pub limit: Option<Ticks>,
    /// Ticks in a second of virtual time.
    pub second: Ticks,
    /// True if the run continues after a fault of the kernel.
    pub oops_ok: bool,
}

/// The host of a machine that runs a command.
pub struct Session {
    terminal: Terminal,
    connections: Connections,
    /// Bit mask of the streams that are connected to the terminal.
    streams: u8,
    limits: Limits,
    start: Instant,
    records: Records,
    hearing: Hearing,
    resized: Arc<AtomicBool>,
    /// True once the guest has asked for its order.
    ready: bool,
    input_ended: bool,
    show_console: bool,
    tail: VecDeque<u8>,
    /// Virtual time at which the run ends after a fault of the guest's kernel.
    patience: Option<Ticks>,
    now: Ticks,
    /// Virtual time at which the command was ready and began to wait.
    prepared: Rc<Cell<Option<Ticks>>>,
    /// Times of the command's milestones.
    pub times: Times,
    /// The end of the command.
    pub ended: Option<Ended>,
    /// Words that the user added to the kernel's command line.
    added: Vec<String>,
    /// Those of them that the kernel does not know.
    pub unknown: Vec<String>,
    /// What the guest said about its kernel, by name.
    pub facts: BTreeMap<String, String>,
    /// Commands that have joined.
    pub joins: Joins,
    /// The reason why the command did not start.
    pub failed: Option<String>,
    /// True once the kernel has reported a fault.
    pub broken: bool,
    /// True once a time limit has expired.
    pub timed_out: bool,
    /// The reason why not all output arrived, other than a reader that went away.
    pub lost: Option<Lost>,
}

impl Session {
    /// Creates a session that begins with an order for the guest.
    pub fn new(terminal: Terminal, connections: Connections, streams: u8, limits: Limits, order: Records) -> Self {
        let resized = Arc::new(AtomicBool::new(false));
        // Without the signal the terminal keeps its initial size.
        let _ = signal_hook::flag::register(signal_hook::consts::SIGWINCH, Arc::clone(&resized));
        Self {
            terminal,
            connections,
            streams,
            limits,
            start: Instant::now(),
            records: order,
            hearing: Hearing::default(),
            resized,
            ready: false,
            input_ended: false,
            show_console: false,
            tail: VecDeque::new(),
            patience: None,
            now: 0,
            prepared: Rc::default(),
            times: Times::default(),
            ended: None,
            added: Vec::new(),
            unknown: Vec::new(),
            facts: BTreeMap::new(),
            joins: Joins::default(),
            failed: None,
            broken: false,
            timed_out: false,
            lost: None,
        }
    }

    /// Measures times from `start` on.
    pub fn since(mut self, start: Instant) -> Self {
        self.start = start;
        self
    }

    /// Shows the kernel's messages if `show` is true.
    pub fn with_console(mut self, show: bool) -> Self {
        self.show_console = show;
        self
    }

    /// Reports words of these, which the user added to the kernel's command line, that the kernel does not know.
    pub fn with_parameters(mut self, words: &str) -> Self {
        self.added = words.split_whitespace().map(str::to_owned).collect();
        self
    }

    /// Lets other commands join.
    pub fn with_joins(mut self, joins: Joins) -> Self {
        self.joins = joins;
        self
    }

    /// Returns the cell for the virtual time at which the command was ready and began to wait.
    pub fn prepared(&self) -> Rc<Cell<Option<Ticks>>> {
        Rc::clone(&self.prepared)
    }

    /// Returns true once process 1 of the guest has asked for its order.
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// Starts the waiting command after `delay` nanoseconds of virtual time.
    pub fn go(&mut self, delay: u64) {
        self.records.add(b'o', delay.to_string());
    }

    /// Returns the kernel's last messages, at most `count` lines, preceded by those that explain its end.
    pub fn last_lines(&self, count: usize) -> Vec<String> {
        let text: Vec<u8> = self.tail.iter().copied().filter(|byte| *byte != b'\r').collect();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let (before, last) = lines.split_at(lines.len().saturating_sub(count));
        // A long call trace may follow the kernel's explanation.
        const CAUSES: [&str; 4] = ["Kernel panic", "Oops", "BUG: ", "Out of memory"];
        let said = before.iter().filter(|line| CAUSES.iter().any(|cause| line.contains(cause)));
        said.chain(last).map(|line| (*line).to_owned()).collect()
    }

    fn heard(&mut self, said: Said) {
        let now = self.start.elapsed();
        match said {
            Said::Ready => self.ready = true,
            Said::Prepared => self.prepared.set(Some(self.now)),
            Said::Began => self.times.began = Some(now),
            Said::Ended(ended) => {
                (self.ended, self.times.ended) = (Some(ended), Some(now));
                self.joins.finish("the guest's first command has ended, and the guest with it");
            }
            Said::Joined(number, kind, text) => self.joins.heard(number, kind, &text, &mut self.records),
            Said::Failed(why) => self.failed = Some(why),
            Said::Unknown(words) if self.unknown.is_empty() => {
                let unknown = |word: &String| self.added.contains(word) && !parameters::is_known(word);
                self.unknown = words.into_iter().filter(unknown).collect();
                parameters::warnings(&self.unknown).iter().for_each(|text| say(&format!("tollgate: {text}")));
            }
            Said::Fact(name, value) if self.facts.len() < MOST_FACTS && name.len() <= LONGEST_NAME => {
                self.facts.entry(name).or_insert(value);
            }
            // A program of the guest writes to the channel.
            Said::Unknown(_) | Said::Fact(..) => {}
        }
    }

    fn write(&mut self, channel: u8, stream: Stream, bytes: &[u8]) {
        self.times.wrote.get_or_insert_with(|| self.start.elapsed());
        match stream.put(bytes) {
            Ok(()) => {}
            // The command gets the signal of a pipe without a reader.
            Err(Lost::NoReader) => self.records.add(b'x', (channel - INPUT).to_string()),
            Err(lost) => drop(self.lost.get_or_insert(lost)),
        }
    }

    /// Returns the user's input for the command.
    fn input(&mut self, room: bool) -> Option<Piece> {
        if self.input_ended || self.times.began.is_none() {
            return None;
        }
        let mut bytes = if room || self.terminal.interactive() { self.terminal.input() } else { Vec::new() };
        // A file arrives in small pieces, and there is room for several.
        while !bytes.is_empty() && bytes.len() < PIECE {
            let more = self.terminal.input();
            if more.is_empty() {
                break;
            }
            bytes.extend(more);
        }
        self.input_ended = room && bytes.is_empty() && self.terminal.ended();
        let piece = Piece { channel: INPUT, bytes, last: self.input_ended };
        (piece.last || !piece.bytes.is_empty()).then_some(piece)
    }

    /// Checks if the line that the kernel has just completed reports a fault.
    fn look_for_end(&mut self) {
        let line: Vec<u8> = self.tail.iter().rev().skip(1).take_while(|byte| **byte != b'\n').copied().collect();
        let line: String = line.into_iter().rev().map(char::from).collect();
        if says_broken(&line) {
            self.broken = true;
            self.patience.get_or_insert(self.now + GRACE * self.limits.second);
        }
    }
}

impl Host for Session {
    fn output(&mut self, bytes: &[u8]) {
        if self.show_console {
            // Without a reader of the kernel's messages, the command runs on.
            if let Err(lost @ Lost::Failed(..)) = Stream::Errors.put(bytes) {
                self.lost.get_or_insert(lost);
            }
        }
        for byte in bytes {
            if self.tail.len() == TAIL {
                self.tail.pop_front();
            }
            self.tail.push_back(*byte);
            if *byte == b'\n' {
                self.look_for_end();
            }
        }
    }

    fn poll(&mut self, now: Ticks, _wanted: bool) -> Poll {
        self.now = now;
        self.timed_out = self.limits.deadline.is_some_and(|at| Instant::now() >= at)
            || self.limits.limit.is_some_and(|limit| now >= limit);
        let hopeless = !self.limits.oops_ok && self.patience.is_some_and(|until| now >= until);
        Poll { stop: self.timed_out || hopeless || self.lost.is_some() || self.terminal.stopped(), ..Poll::default() }
    }

    fn frames(&mut self, room: &dyn Fn(u8) -> bool) -> Vec<HostFrame> {
        self.connections.frames(room)
    }

    fn send(&mut self, frames: Vec<HostFrame>) {
        self.connections.send(&frames);
    }

    fn channel_output(&mut self, channel: u8, bytes: &[u8]) {
        match channel {
            CONTROL => self.hearing.hear(bytes).into_iter().for_each(|said| self.heard(said)),
            OUTPUT => self.write(OUTPUT, Stream::Output, bytes),
            ERRORS => self.write(ERRORS, Stream::Errors, bytes),
            _ => {}
        }
    }

    fn pieces(&mut self, room: &dyn Fn(u8) -> bool) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if self.streams != 0 && self.resized.swap(false, Ordering::Relaxed) && self.times.began.is_some() {
            self.records.add(b'w', crate::terminal::size_text());
        }
        if self.times.began.is_some() {
            self.joins.serve(Instant::now(), &mut self.records);
        }
        if self.ready && room(CONTROL) && !self.records.is_empty() {
            pieces.push(Piece { channel: CONTROL, bytes: self.records.take(), last: false });
        }
        pieces.extend(self.input(room(INPUT)));
        pieces
    }

    fn attended(&self) -> bool {
        let runs = self.times.began.is_some() && self.ended.is_none();
        runs && (!self.input_ended && self.terminal.attended() || self.connections.any() || self.joins.may_come())
    }

    fn idle(&mut self, limit: Duration) {
        if self.connections.any() {
            self.connections.wait(limit);
        } else {
            self.terminal.wait(limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_says_in_many_ways_that_it_is_broken() {
        for line in [
            "[    1.234567] BUG: kernel NULL pointer dereference, address: 0000000000000010",
            "[    1.234567] Oops: 0002 [#1] PREEMPT SMP PTI",
            "[    1.234567] divide error: 0000 [#1] PREEMPT SMP PTI",
            "[    1.234567][  T123] invalid opcode: 0000 [#12] SMP",
            "[   28.000000] watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [cat:99]",
            "[    1.234567] traps: PANIC: double fault, error_code: 0x0",
        ] {
            assert!(says_broken(line), "{line}");
        }
        for line in [
            "",
            "BUG: a program says so",
            "divide error: 0000 [#1]",
            "[    1.234567] WARNING: CPU: 0 PID: 1 at mm/slub.c:1",
            "[    1.234567] a list [#x] of [1] things",
            "[unclosed",
        ] {
            assert!(!says_broken(line), "{line}");
        }
    }
}

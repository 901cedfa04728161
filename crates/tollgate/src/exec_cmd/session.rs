//! The host's side of a command: its streams, the terminal, and what the guest says of its end.

use super::control::{CONTROL, ERRORS, Ended, Hearing, INPUT, OUTPUT, Records, Said};
use crate::net::Connections;
use crate::terminal::Terminal;
use ledger::Ticks;
use machine::host::{HostFrame, Piece};
use machine::{Host, Poll};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes of the kernel's last messages that are kept.
const TAIL: usize = 16 << 10;
/// Bytes of input that are passed on at a time, if there are so many.
const PIECE: usize = 64 << 10;
/// How long a guest may go on after its kernel has said that it is broken, in seconds of virtual time: by then the command has been killed, or never ends.
const GRACE: u64 = 2;
/// How a Linux kernel begins a message that says it is broken.
const BROKEN: [&str; 4] = ["Oops", "BUG: ", "general protection fault", "kernel BUG at"];

/// When what happened, by the host's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// The command executed its first instruction.
    pub began: Option<Duration>,
    /// It wrote for the first time.
    pub wrote: Option<Duration>,
    /// It ended.
    pub ended: Option<Duration>,
}

/// What a session ends by.
pub struct Limits {
    /// The host's time.
    pub deadline: Option<Instant>,
    /// Virtual time.
    pub limit: Option<Ticks>,
    /// Ticks in a second of virtual time.
    pub second: Ticks,
    /// A kernel that says it is broken goes on.
    pub oops_ok: bool,
}

/// The host of a machine that runs a command.
pub struct Session {
    terminal: Terminal,
    connections: Connections,
    /// Which of the streams are the terminal.
    streams: u8,
    limits: Limits,
    start: Instant,
    records: Records,
    hearing: Hearing,
    resized: Arc<AtomicBool>,
    /// The guest has asked what to do.
    ready: bool,
    input_ended: bool,
    show_console: bool,
    tail: VecDeque<u8>,
    /// The virtual time after which a guest whose kernel is broken is not waited for.
    patience: Option<Ticks>,
    now: Ticks,
    /// The virtual time at which the command was ready to begin, and waited.
    prepared: Rc<Cell<Option<Ticks>>>,
    /// When what happened.
    pub times: Times,
    /// How the command ended.
    pub ended: Option<Ended>,
    /// Why there was none.
    pub failed: Option<String>,
    /// The kernel has said that it is broken.
    pub broken: bool,
    /// The time is over.
    pub timed_out: bool,
}

impl Session {
    /// A session that begins with `order` for the guest.
    pub fn new(terminal: Terminal, connections: Connections, streams: u8, limits: Limits, order: Records) -> Self {
        let resized = Arc::new(AtomicBool::new(false));
        // Without the signal the terminal keeps its first size.
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
            failed: None,
            broken: false,
            timed_out: false,
        }
    }

    /// Counts times from then on.
    pub fn since(mut self, start: Instant) -> Self {
        self.start = start;
        self
    }

    /// Shows the kernel's messages.
    pub fn with_console(mut self, show: bool) -> Self {
        self.show_console = show;
        self
    }

    /// Where the virtual time will be found at which the command was ready to begin, and waited.
    pub fn prepared(&self) -> Rc<Cell<Option<Ticks>>> {
        Rc::clone(&self.prepared)
    }

    /// Has a command begin that waits, in so many nanoseconds of virtual time.
    pub fn go(&mut self, delay: u64) {
        self.records.add(b'o', delay.to_string());
    }

    /// The kernel's last messages, so many lines at most, after those that say why it has ended.
    pub fn last_lines(&self, count: usize) -> Vec<String> {
        let text: Vec<u8> = self.tail.iter().copied().filter(|byte| *byte != b'\r').collect();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let (before, last) = lines.split_at(lines.len().saturating_sub(count));
        // What the kernel says of its end may have a long call trace behind it.
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
            Said::Ended(ended) => (self.ended, self.times.ended) = (Some(ended), Some(now)),
            Said::Failed(why) => self.failed = Some(why),
        }
    }

    fn write(&mut self, stream: u8, to: &mut dyn Write, bytes: &[u8]) {
        self.times.wrote.get_or_insert_with(|| self.start.elapsed());
        if to.write_all(bytes).and_then(|()| to.flush()).is_err() {
            // The command is told as a program is whose pipe nobody reads.
            self.records.add(b'x', (stream - INPUT).to_string());
        }
    }

    /// What the user has for the command.
    fn input(&mut self, room: bool) -> Option<Piece> {
        if self.input_ended || self.times.began.is_none() {
            return None;
        }
        let mut bytes = if room || self.terminal.interactive() { self.terminal.input() } else { Vec::new() };
        // A file comes in small pieces, and there is room for more than one.
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

    /// Whether a line that the kernel has just ended says that it is broken.
    fn look_for_end(&mut self) {
        let line: Vec<u8> = self.tail.iter().rev().skip(1).take_while(|byte| **byte != b'\n').copied().collect();
        let line: String = line.into_iter().rev().map(char::from).collect();
        let message = line.rsplit("] ").next().unwrap_or(&line);
        if line.starts_with('[') && BROKEN.iter().any(|start| message.starts_with(start)) {
            self.broken = true;
            self.patience.get_or_insert(self.now + GRACE * self.limits.second);
        }
    }
}

impl Host for Session {
    fn output(&mut self, bytes: &[u8]) {
        if self.show_console {
            // The console is an extra: whether somebody reads it does not matter.
            let _ = std::io::stderr().write_all(bytes);
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
        Poll { stop: self.timed_out || hopeless || self.terminal.stopped(), ..Poll::default() }
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
            OUTPUT => self.write(OUTPUT, &mut std::io::stdout().lock(), bytes),
            ERRORS => self.write(ERRORS, &mut std::io::stderr().lock(), bytes),
            _ => {}
        }
    }

    fn pieces(&mut self, room: &dyn Fn(u8) -> bool) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if self.streams != 0 && self.resized.swap(false, Ordering::Relaxed) && self.times.began.is_some() {
            self.records.add(b'w', crate::terminal::size_text());
        }
        if self.ready && room(CONTROL) && !self.records.is_empty() {
            pieces.push(Piece { channel: CONTROL, bytes: self.records.take(), last: false });
        }
        pieces.extend(self.input(room(INPUT)));
        pieces
    }

    fn attended(&self) -> bool {
        let runs = self.times.began.is_some() && self.ended.is_none();
        runs && (!self.input_ended && self.terminal.attended() || self.connections.any())
    }

    fn idle(&mut self, limit: Duration) {
        if self.connections.any() {
            self.connections.wait(limit);
        } else {
            self.terminal.wait(limit);
        }
    }
}

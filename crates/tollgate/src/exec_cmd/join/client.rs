//! The side of the user: `tollgate exec --join` starts a command in a guest that runs, and connects it with this process's streams.

use super::place::{self, Guest, State};
use super::wire::{PIECE, Received, VERSION, WINDOW, kind, number, record};
use crate::exec_cmd::files::{self, User};
use crate::exec_cmd::{ExecArgs, LOST};
use crate::output::say;
use crate::streams::{Lost, Stream};
use crate::terminal::{Keys, RawMode, size_text};
use crate::usage::{FAILED, WrongArguments};
use anyhow::{Context, Result, bail};
use contain::Needs;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest wait, in milliseconds: a signal that comes directly before a wait is noticed after it.
const GLANCE: u8 = 100;
/// Longest wait for the start of the command. A guest that boots answers when its own command has begun.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time after which a guest whose process is stopped is not waited for.
const PATIENCE_WITH_STOPPED: Duration = Duration::from_secs(2);
/// Exit status after an interruption by the user: 128 + SIGINT.
const INTERRUPTED: u8 = 130;
/// Longest command line in a list of guests, in characters.
const SHOWN: usize = 100;

/// Returns the guest with a number, or the only one.
fn find(id: &str) -> Result<Guest> {
    let wanted = match id {
        "" => None,
        id => match id.parse::<u32>() {
            Ok(id) => Some(id),
            Err(_) => bail!(WrongArguments::new(format!("--join {id}: a guest's number is expected"))),
        },
    };
    let directory = place::directory();
    let mut guests = place::guests(&directory)?;
    match wanted {
        Some(id) => match guests.into_iter().find(|guest| guest.id == id) {
            Some(guest) => Ok(guest),
            None => bail!("no guest {id} that can be joined runs: its `tollgate exec` needs --joinable, or a terminal"),
        },
        None if guests.len() > 1 => {
            let lines = guests.iter().map(|guest| {
                let command: String = guest.command().chars().filter(|c| !c.is_control()).take(SHOWN).collect();
                format!("\n  {:>7}  {command}", guest.id)
            });
            let text = format!("--join needs the number of one of these guests:{}", lines.collect::<String>());
            bail!(WrongArguments::new(text))
        }
        None => match guests.pop() {
            Some(guest) => Ok(guest),
            None => bail!("no guest that can be joined runs: its `tollgate exec` needs --joinable, or a terminal"),
        },
    }
}

/// Returns the order of the command, encoded.
fn order(args: &ExecArgs) -> Result<Vec<u8>> {
    let mut out = record(kind::VERSION, VERSION.as_bytes());
    let mut add = |kind: u8, text: &[u8]| out.extend(record(kind, text));
    for word in &args.command {
        add(kind::ARGUMENT, word.as_bytes());
    }
    let mut variables = Vec::new();
    if args.terminal() {
        variables.extend(std::env::var_os("TERM").map(|value| ("TERM".into(), value)));
    }
    files::add_options(&mut variables, &args.keep_env, &args.env);
    for (name, value) in variables {
        add(kind::VARIABLE, &[name.as_bytes(), b"=", value.as_bytes()].concat());
    }
    if let Some(directory) = &args.cwd {
        add(kind::DIRECTORY, directory.as_os_str().as_bytes());
    }
    if let Some(user) = &args.user {
        add(kind::USER, User::find(Some(user))?.text().as_bytes());
    }
    if args.terminal() {
        add(kind::TERMINALS, args.streams().to_string().as_bytes());
        add(kind::SIZE, size_text().as_bytes());
    }
    add(kind::GO, b"");
    Ok(out)
}

/// Signals of this process.
struct Signals {
    interrupt: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    resized: Arc<AtomicBool>,
}

impl Signals {
    fn register() -> io::Result<Self> {
        let (interrupt, stop, resized) = <(Arc<AtomicBool>, Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        for (signal, flag) in [(SIGINT, &interrupt), (SIGTERM, &stop), (SIGHUP, &stop), (SIGWINCH, &resized)] {
            signal_hook::flag::register(signal, Arc::clone(flag))?;
        }
        Ok(Self { interrupt, stop, resized })
    }
}

/// The end of the join.
enum End {
    /// The command's exit status.
    Status(u8),
    /// A message, and the exit status.
    Failed(String, u8),
}

/// Returns the reason not to wait any longer for the start of the command.
fn why_not_wait(waited: Duration, is_stopped: impl FnOnce() -> bool) -> Option<String> {
    if waited >= PATIENCE_WITH_STOPPED && is_stopped() {
        return Some(
            "the command was not started, because the guest's process is stopped (SIGCONT continues it)".to_owned(),
        );
    }
    (waited >= PATIENCE).then(|| {
        let seconds = PATIENCE.as_secs();
        format!("the command was not started within {seconds} seconds: the guest has not begun its own command yet, or does not answer")
    })
}

/// A join.
struct Client {
    stream: UnixStream,
    /// Time of the connection.
    since: Instant,
    /// The state of the process that runs the guest, if it is known.
    state: Option<State>,
    received: Received,
    /// Bytes for the socket.
    pending: Vec<u8>,
    signals: Signals,
    keys: Keys,
    raw: Option<RawMode>,
    terminals: u8,
    began: bool,
    /// True after a first interruption, which the command got.
    interrupted: bool,
    /// Bytes of input for which the guest has room.
    room: usize,
    input_ended: bool,
}

impl Client {
    fn tell(&mut self, kind: u8, text: &[u8]) {
        self.pending.extend(record(kind, text));
    }

    /// Handles signals. Returns the end of the join, if the user ends it.
    fn look_at_signals(&mut self) -> Option<End> {
        let stopped = || Some(End::Failed("interrupted".to_owned(), INTERRUPTED));
        if self.signals.stop.load(Ordering::Relaxed) || self.keys.quit() {
            return stopped();
        }
        if self.signals.interrupt.swap(false, Ordering::Relaxed) {
            // The command gets the first one, as from a terminal of its own.
            if !self.began || std::mem::replace(&mut self.interrupted, true) {
                return stopped();
            }
            self.tell(kind::SIGNAL, SIGINT.to_string().as_bytes());
        }
        if self.signals.resized.swap(false, Ordering::Relaxed) && self.began && self.terminals != 0 {
            self.tell(kind::SIZE, size_text().as_bytes());
        }
        None
    }

    fn wants_input(&self) -> bool {
        self.began && !self.input_ended && self.room > 0 && self.pending.len() < WINDOW
    }

    /// Waits until something can be done; returns true for the socket and for standard input if there is something to read.
    fn wait(&self) -> (bool, bool) {
        let mut events = PollFlags::POLLIN;
        events.set(PollFlags::POLLOUT, !self.pending.is_empty());
        let mut files = vec![PollFd::new(self.stream.as_fd(), events)];
        if self.wants_input() {
            files.push(PollFd::new(rustix::stdio::stdin(), PollFlags::POLLIN));
        }
        // A signal ends the wait.
        if poll(&mut files, PollTimeout::from(GLANCE)).is_err() {
            return (false, false);
        }
        let readable = |file: &PollFd| {
            let wanted = PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
            file.revents().is_some_and(|events| events.intersects(wanted))
        };
        (readable(&files[0]), files.get(1).is_some_and(readable))
    }

    fn read_input(&mut self) {
        let mut buffer = vec![0; PIECE.min(self.room)];
        let read = match rustix::io::read(rustix::stdio::stdin(), &mut buffer) {
            Ok(read) => read,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return,
            Err(_) => 0,
        };
        if read == 0 {
            self.input_ended = true;
            self.tell(kind::INPUT_ENDS, b"");
            return;
        }
        let mut bytes = Vec::with_capacity(read);
        match &self.raw {
            Some(_) => self.keys.pass(&buffer[..read], &mut bytes),
            None => bytes.extend_from_slice(&buffer[..read]),
        }
        if !bytes.is_empty() {
            self.room -= bytes.len();
            self.tell(kind::INPUT, &bytes);
        }
    }

    /// Passes on output of the command.
    fn put(&mut self, stream: Stream, bytes: &[u8]) -> Option<End> {
        match stream.put(bytes) {
            Ok(()) => {}
            Err(Lost::NoReader) => {
                let number = if stream == Stream::Output { b"1" } else { b"2" };
                self.tell(kind::NO_READER, number);
            }
            Err(lost) => return Some(End::Failed(lost.to_string(), FAILED)),
        }
        self.tell(kind::PASSED_ON, bytes.len().to_string().as_bytes());
        None
    }

    fn heard(&mut self, kind: u8, text: &[u8]) -> Option<End> {
        let said = || String::from_utf8_lossy(text).chars().filter(|c| !c.is_control()).collect::<String>();
        match kind {
            kind::BEGAN if !self.began => {
                self.began = true;
                self.raw = RawMode::enter(self.terminals == 0b111);
                None
            }
            kind::OUTPUT => self.put(Stream::Output, text),
            kind::ERRORS => self.put(Stream::Errors, text),
            kind::PASSED_ON => {
                self.room = self.room.saturating_add(number(text).unwrap_or_default()).min(WINDOW);
                None
            }
            kind::ENDED => Some(End::Status(number(text).unwrap_or(FAILED))),
            kind::FAILED => Some(End::Failed(said(), FAILED)),
            kind::LOST => Some(End::Failed(said(), LOST)),
            _ => None,
        }
    }

    fn hear(&mut self) -> Option<End> {
        let lost = || Some(End::Failed("the guest has ended".to_owned(), LOST));
        let mut buffer = [0; PIECE];
        match self.stream.read(&mut buffer) {
            Ok(0) => return lost(),
            Ok(read) => self.received.add(&buffer[..read]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return None,
            Err(_) => return lost(),
        }
        loop {
            match self.received.next() {
                Ok(None) => return None,
                Ok(Some((kind, text))) => {
                    if let Some(end) = self.heard(kind, &text) {
                        return Some(end);
                    }
                }
                Err(wrong) => return Some(End::Failed(wrong.to_string(), FAILED)),
            }
        }
    }

    fn flush(&mut self) {
        // After an error, what the other side has said before it went away is read first.
        if let Ok(written) = self.stream.write(&self.pending) {
            self.pending.drain(..written);
        }
    }

    fn run(&mut self) -> End {
        loop {
            if let Some(end) = self.look_at_signals() {
                return end;
            }
            if !self.pending.is_empty() {
                self.flush();
            }
            let (heard, typed) = self.wait();
            if typed {
                self.read_input();
            }
            if let Some(end) = heard.then(|| self.hear()).flatten() {
                return end;
            }
            if !self.began {
                let is_stopped = || self.state.as_ref().is_some_and(State::is_stopped);
                if let Some(why) = why_not_wait(self.since.elapsed(), is_stopped) {
                    return End::Failed(why, FAILED);
                }
            }
        }
    }
}

/// Runs the command in the guest with a number, or in the only one.
pub fn run(args: &ExecArgs, id: &str) -> Result<ExitCode> {
    let order = order(args)?;
    let Guest { id, stream } = find(id)?;
    let Some(stream) = stream else {
        bail!("guest {id} takes no more connections now: many wait already, and its process may be stopped")
    };
    let (since, state) = (Instant::now(), State::of(id));
    let signals = Signals::register().context("can't handle signals")?;
    args.sandbox.confine(&Needs::default())?;
    let mut client = Client {
        stream,
        since,
        state,
        received: Received::default(),
        pending: order,
        signals,
        keys: Keys::new(args.escape),
        raw: None,
        terminals: args.streams(),
        began: false,
        interrupted: false,
        room: WINDOW,
        input_ended: false,
    };
    let end = client.run();
    drop(client);
    Ok(ExitCode::from(match end {
        End::Status(status) => status,
        End::Failed(text, status) => {
            say(&format!("tollgate: guest {id}: {text}"));
            status
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_does_not_answer_is_not_waited_for_without_limit() {
        assert_eq!(why_not_wait(PATIENCE - Duration::from_secs(1), || false), None);
        assert!(why_not_wait(PATIENCE, || false).unwrap().starts_with("the command was not started within 60 seconds"));
        assert_eq!(why_not_wait(Duration::ZERO, || true), None, "it may go on at once");
        assert!(why_not_wait(PATIENCE_WITH_STOPPED, || true).unwrap().contains("is stopped"));
        assert!(!State::of(std::process::id()).unwrap().is_stopped());
    }
}

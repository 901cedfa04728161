//! The user's end of the guest's serial line: raw mode on a terminal, plain bytes in a pipe.

use crate::streams::Stream;
use nix::sys::termios::{LocalFlags, OutputFlags, SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs::File;
use std::io::{IsTerminal, Read};
use std::os::fd::AsFd;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::time::Duration;

/// Mask that turns a letter into its control character.
const CONTROL_MASK: u8 = 0x1f;
/// Number of input pieces that are read ahead.
const READ_AHEAD: usize = 4;
/// Size of a piece in bytes.
const PIECE: usize = 4096;

/// The prefix for Tollgate's own keys: a letter with Ctrl, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Escape(Option<u8>);

impl Escape {
    /// Ctrl-A, as with `qemu -nographic`.
    pub const DEFAULT: &str = "ctrl-a";

    fn byte(self) -> Option<u8> {
        self.0.map(|letter| letter & CONTROL_MASK)
    }

    /// Returns the letter for messages.
    fn letter(self) -> char {
        self.0.map_or('A', |letter| letter.to_ascii_uppercase().into())
    }
}

impl FromStr for Escape {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let lower = text.to_ascii_lowercase();
        let letter = lower.strip_prefix("ctrl-").or_else(|| lower.strip_prefix('^'));
        match letter.map(str::as_bytes) {
            Some([letter @ b'a'..=b'z']) => Ok(Self(Some(*letter))),
            _ if lower == "none" => Ok(Self(None)),
            _ => Err("a letter with Ctrl, as in ctrl-a or ^a, or none"),
        }
    }
}

/// The user's terminal: input, output and requests to stop.
pub struct Terminal {
    input: Input,
    stop: Arc<AtomicBool>,
    keys: Keys,
    raw: Option<RawMode>,
}

/// The keys of a terminal, among which are Tollgate's own.
pub struct Keys {
    escape: Escape,
    escaped: bool,
    quit: bool,
}

impl Keys {
    /// Creates the keys of a terminal with a prefix for Tollgate's own.
    pub fn new(escape: Escape) -> Self {
        Self { escape, escaped: false, quit: false }
    }

    /// Returns true once the user has ended the run with a key.
    pub fn quit(&self) -> bool {
        self.quit
    }

    /// Passes on the keys that are the guest's.
    pub fn pass(&mut self, typed: &[u8], out: &mut Vec<u8>) {
        typed.iter().for_each(|byte| self.key(*byte, out));
    }

    fn key(&mut self, byte: u8, out: &mut Vec<u8>) {
        let Some(escape) = self.escape.byte() else {
            out.push(byte);
            return;
        };
        let letter = self.escape.letter();
        match (std::mem::take(&mut self.escaped), byte) {
            (false, _) if byte == escape => self.escaped = true,
            (false, _) => out.push(byte),
            (true, b'x') => self.quit = true,
            (true, b'h' | b'?') => {
                let shown = letter.to_ascii_lowercase();
                let help = format!(
                    "\r\nCtrl-{letter} x  ends Tollgate\r\nCtrl-{letter} {shown}  sends Ctrl-{letter} to the guest\r\nCtrl-{letter} h  this help\r\n"
                );
                // The terminal may be gone, and the help with it.
                let _ = Stream::Errors.put(help.as_bytes());
            }
            (true, _) if byte == escape || byte.to_ascii_uppercase() == letter as u8 => out.push(escape),
            (true, _) => {}
        }
    }
}

/// The source of standard input.
enum Input {
    /// A file. It is read when the guest wants input, so that the run is repeatable.
    File(File),
    /// A thread that waits for input, with the next piece that it has sent.
    Stream(Receiver<Vec<u8>>, Option<Vec<u8>>),
    /// The end of the input.
    Ended,
}

impl Input {
    /// Takes over standard input.
    fn open() -> std::io::Result<Self> {
        let stdin = std::io::stdin();
        // A closed standard input has no data.
        let Ok(handle) = stdin.as_fd().try_clone_to_owned() else { return Ok(Self::Ended) };
        let file = File::from(handle);
        if file.metadata()?.is_file() {
            return Ok(Self::File(file));
        }
        let (sender, input) = sync_channel(READ_AHEAD);
        // The thread ends with the process: a blocked read of standard input can't be cancelled.
        let thread = std::thread::Builder::new().spawn(move || {
            let mut buffer = [0; PIECE];
            while let Ok(n @ 1..) = std::io::stdin().read(&mut buffer) {
                if sender.send(buffer[..n].to_vec()).is_err() {
                    break;
                }
            }
        });
        thread?;
        Ok(Self::Stream(input, None))
    }

    /// Returns the next piece, if there is one now.
    fn next(&mut self) -> Option<Vec<u8>> {
        let piece = match self {
            Self::File(file) => {
                let mut buffer = vec![0; PIECE];
                let read = file.read(&mut buffer).unwrap_or(0);
                buffer.truncate(read);
                Some(buffer).filter(|buffer| !buffer.is_empty()).ok_or(TryRecvError::Disconnected)
            }
            Self::Stream(input, ahead) => ahead.take().map_or_else(|| input.try_recv(), Ok),
            Self::Ended => return None,
        };
        if piece == Err(TryRecvError::Disconnected) {
            *self = Self::Ended;
        }
        piece.ok()
    }

    /// Waits for the next piece, at most `limit`.
    fn wait(&mut self, limit: Duration) {
        match self {
            Self::Stream(input, ahead @ None) => match input.recv_timeout(limit) {
                Ok(piece) => *ahead = Some(piece),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => *self = Self::Ended,
            },
            Self::Stream(_, Some(_)) | Self::File(_) => {}
            Self::Ended => std::thread::sleep(limit),
        }
    }
}

/// A terminal in raw mode. Dropping it restores the old mode.
pub struct RawMode {
    old: Termios,
}

impl RawMode {
    /// Enters raw mode, if standard input is a terminal. If `whole` is true, output is not processed either, for guest programs that have a terminal of
    /// their own.
    pub fn enter(whole: bool) -> Option<Self> {
        let stdin = std::io::stdin();
        if !stdin.is_terminal() {
            return None;
        }
        let old = tcgetattr(&stdin).ok()?;
        let mut raw = old.clone();
        cfmakeraw(&mut raw);
        // Output processing stays on (a newline returns the carriage), and Ctrl-C goes to the guest.
        if !whole {
            raw.output_flags |= OutputFlags::OPOST;
        }
        raw.local_flags &= !LocalFlags::ISIG;
        tcsetattr(&stdin, SetArg::TCSANOW, &raw).ok()?;
        Some(Self { old })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // A failure can't be reported.
        let _ = tcsetattr(std::io::stdin(), SetArg::TCSANOW, &self.old);
    }
}

impl Terminal {
    /// Takes over standard input, and SIGINT, SIGTERM and SIGHUP.
    pub fn open(escape: Escape) -> std::io::Result<Self> {
        Self::with_output(escape, false)
    }

    /// Takes over standard input and signals for a guest with the terminals in `streams`. If all streams are terminals, the guest processes line ends.
    pub fn open_for(escape: Escape, streams: u8) -> std::io::Result<Self> {
        Self::with_output(escape, streams == 0b111)
    }

    fn with_output(escape: Escape, whole: bool) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&stop))?;
        }
        Ok(Self { input: Input::open()?, stop, keys: Keys::new(escape), raw: RawMode::enter(whole) })
    }

    /// Returns a second terminal without input. A signal stops both.
    pub fn without_input(&self) -> Self {
        Self { input: Input::Ended, stop: Arc::clone(&self.stop), keys: Keys::new(self.keys.escape), raw: None }
    }

    /// Returns true if the user ends the run: Ctrl-A x, or a signal.
    pub fn stopped(&self) -> bool {
        self.keys.quit || self.stop.load(Ordering::Relaxed)
    }

    /// Returns true if standard input is a terminal, as opposed to a pipe or a file.
    pub fn interactive(&self) -> bool {
        self.raw.is_some()
    }

    /// Returns true if there will be no more input.
    pub fn ended(&self) -> bool {
        matches!(self.input, Input::Ended)
    }

    /// Returns true if input may still come, at a time that the sender chooses.
    pub fn attended(&self) -> bool {
        matches!(self.input, Input::Stream(..))
    }

    /// Returns the user's input for the guest since the last call, or a piece of an input file.
    pub fn input(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(piece) = self.input.next() {
            if self.raw.is_some() {
                self.keys.pass(&piece, &mut bytes);
            } else {
                bytes.extend(piece);
            }
            if matches!(self.input, Input::File(_)) {
                break;
            }
        }
        bytes
    }

    /// Waits for input or a signal, at most `limit`.
    pub fn wait(&mut self, limit: Duration) {
        self.input.wait(limit);
    }
}

/// Returns rows and columns of the terminal for the guest; those of a VT100 if they are unknown.
pub fn size_text() -> String {
    let size = [rustix::stdio::stdout(), rustix::stdio::stdin(), rustix::stdio::stderr()];
    let size = size.into_iter().find_map(|file| rustix::termios::tcgetwinsize(file).ok());
    let (rows, columns) = size.map_or((24, 80), |size| (size.ws_row, size.ws_col));
    format!("{rows} {columns}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_escape_key_is_a_letter_with_ctrl_or_none() {
        let parsed = |text: &str| text.parse::<Escape>().map(Escape::byte);
        assert_eq!(parsed(Escape::DEFAULT), Ok(Some(1)));
        assert_eq!(parsed("^B"), Ok(Some(2)));
        assert_eq!(parsed("Ctrl-z"), Ok(Some(26)));
        assert_eq!(parsed("none"), Ok(None));
        for wrong in ["", "a", "ctrl-", "^", "^1", "ctrl-ab", "^]"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}

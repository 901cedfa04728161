//! The user's end of the guest's serial line: raw mode on a terminal, plain bytes in a pipe.

use nix::sys::termios::{LocalFlags, OutputFlags, SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{IsTerminal, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};

/// Ctrl-A: what follows is for Tollgate, as with `qemu -nographic`.
const ESCAPE: u8 = 1;
/// Pieces of input that are read ahead.
const READ_AHEAD: usize = 4;

/// Input, output and requests to stop.
pub struct Terminal {
    input: Receiver<Vec<u8>>,
    stop: Arc<AtomicBool>,
    escaped: bool,
    quit: bool,
    raw: Option<RawMode>,
}

/// A terminal in raw mode; dropping it restores the old one.
struct RawMode {
    old: Termios,
}

impl RawMode {
    fn enter() -> Option<Self> {
        let stdin = std::io::stdin();
        if !stdin.is_terminal() {
            return None;
        }
        let old = tcgetattr(&stdin).ok()?;
        let mut raw = old.clone();
        cfmakeraw(&mut raw);
        // Output is still processed (a newline returns the carriage), and Ctrl-C is the guest's.
        raw.output_flags |= OutputFlags::OPOST;
        raw.local_flags &= !LocalFlags::ISIG;
        tcsetattr(&stdin, SetArg::TCSANOW, &raw).ok()?;
        Some(Self { old })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // There is nobody left to tell if this fails.
        let _ = tcsetattr(std::io::stdin(), SetArg::TCSANOW, &self.old);
    }
}

impl Terminal {
    /// Takes over standard input, and SIGINT, SIGTERM and SIGHUP.
    pub fn open() -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&stop))?;
        }
        let (sender, input) = sync_channel(READ_AHEAD);
        // The thread ends with the process: a blocked read of standard input can't be called off.
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = std::io::stdin().read(&mut buffer) {
                if sender.send(buffer[..n].to_vec()).is_err() {
                    break;
                }
            }
        });
        Ok(Self { input, stop, escaped: false, quit: false, raw: RawMode::enter() })
    }

    /// Whether the user wants out: Ctrl-A x, or a signal.
    pub fn stopped(&self) -> bool {
        self.quit || self.stop.load(Ordering::Relaxed)
    }

    /// Whether a user sits there, as opposed to a pipe or a file.
    pub fn attended(&self) -> bool {
        self.raw.is_some()
    }

    /// What the user typed for the guest since the last call.
    pub fn input(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Ok(chunk) = self.input.try_recv() {
            if self.raw.is_none() {
                bytes.extend(chunk);
                continue;
            }
            for byte in chunk {
                self.key(byte, &mut bytes);
            }
        }
        bytes
    }

    fn key(&mut self, byte: u8, out: &mut Vec<u8>) {
        match (std::mem::take(&mut self.escaped), byte) {
            (false, ESCAPE) => self.escaped = true,
            (false, _) => out.push(byte),
            (true, ESCAPE | b'a') => out.push(ESCAPE),
            (true, b'x') => self.quit = true,
            (true, b'h' | b'?') => {
                eprint!(
                    "\r\nCtrl-A x  ends Tollgate\r\nCtrl-A a  sends Ctrl-A to the guest\r\nCtrl-A h  this help\r\n"
                );
            }
            (true, _) => {}
        }
    }

    /// Waits up to `limit` for input or a signal.
    pub fn wait(&self, limit: std::time::Duration) {
        std::thread::sleep(limit.min(std::time::Duration::from_millis(5)));
    }
}

/// Writes what the guest printed; `false` once nobody listens any more.
pub fn print(bytes: &[u8]) -> bool {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).is_ok()
}

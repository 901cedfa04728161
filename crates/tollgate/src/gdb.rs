//! `tollgate run --gdb`: the sockets to which debuggers connect.

use crate::contain::Sandbox;
use crate::keep::Keeper;
use crate::output::say;
use anyhow::{Context, Result};
use machine::debugger::{Listener, Wire};
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Interval between checks for a connection.
const INTERVAL: Duration = Duration::from_millis(10);
/// A debugger that accepts no data for this long is considered gone.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes received at a time.
const PIECE: usize = 4096;

/// The address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP port of this host; 0 for any free one.
    Port(u16),
    /// A UNIX socket.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("unix: needs the path of a socket".into()),
            Some(path) => Ok(Address::Unix(path.into())),
            None => match text.parse() {
                Ok(port) => Ok(Address::Port(port)),
                Err(_) => Err("a port number, such as 1234, or unix:PATH".into()),
            },
        }
    }
}

/// Listens at an address.
pub enum Sockets {
    /// On the loopback interface.
    Tcp(TcpListener),
    /// At a path, which is removed afterwards: by another process, if there is one.
    Unix(UnixListener, PathBuf, Option<Keeper>),
}

impl Sockets {
    /// Starts to listen.
    pub fn listen(address: &Address, sandbox: Sandbox) -> Result<Self> {
        let sockets = match address {
            Address::Port(port) => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, *port));
                let listener = listener.with_context(|| format!("--gdb: can't listen on port {port}"))?;
                listener.set_nonblocking(true)?;
                Self::Tcp(listener)
            }
            Address::Unix(path) => {
                let listener = UnixListener::bind(path);
                let listener = listener.with_context(|| format!("--gdb: can't listen at {}", path.display()))?;
                listener.set_nonblocking(true)?;
                let keeper = (sandbox == Sandbox::On).then(|| Keeper::remover(path)).transpose()?;
                Self::Unix(listener, path.clone(), keeper)
            }
        };
        Ok(sockets)
    }

    fn accept_now(&self) -> io::Result<Box<dyn Wire>> {
        let stream = match self {
            Self::Tcp(listener) => {
                let stream = listener.accept()?.0;
                // Packets are short, and each has an answer.
                stream.set_nodelay(true)?;
                Stream::Tcp(stream)
            }
            Self::Unix(listener, ..) => Stream::Unix(listener.accept()?.0),
        };
        stream.prepare()?;
        Ok(Box::new(stream))
    }
}

/// The argument for gdb's `target remote`.
impl fmt::Display for Sockets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(listener) => match listener.local_addr() {
                Ok(address) => write!(f, "{address}"),
                Err(_) => write!(f, "an unknown port"),
            },
            Self::Unix(_, path, _) => write!(f, "{}", path.display()),
        }
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        if let Self::Unix(_, path, None) = self {
            // A failure can't be reported.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Listener for Sockets {
    fn note(&mut self, text: &str) {
        say(&format!("tollgate: {text}"));
    }

    fn accept(&mut self, wait: Duration) -> io::Result<Option<Box<dyn Wire>>> {
        let mut left = wait;
        loop {
            match self.accept_now() {
                Ok(wire) => return Ok(Some(wire)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The peer has closed the connection.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if left.is_zero() {
                return Ok(None);
            }
            let now = left.min(INTERVAL);
            std::thread::sleep(now);
            left -= now;
        }
    }
}

/// A connection.
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn prepare(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(false).and(stream.set_write_timeout(Some(PATIENCE))),
            Self::Unix(stream) => stream.set_nonblocking(false).and(stream.set_write_timeout(Some(PATIENCE))),
        }
    }

    fn set_wait(&self, wait: Duration) -> io::Result<()> {
        let waits = !wait.is_zero();
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(!waits).and(stream.set_read_timeout(waits.then_some(wait))),
            Self::Unix(stream) => stream.set_nonblocking(!waits).and(stream.set_read_timeout(waits.then_some(wait))),
        }
    }
}

impl Wire for Stream {
    fn receive(&mut self, wait: Duration, into: &mut VecDeque<u8>) -> io::Result<bool> {
        self.set_wait(wait)?;
        let mut buffer = [0; PIECE];
        let read = match self {
            Self::Tcp(stream) => stream.read(&mut buffer),
            Self::Unix(stream) => stream.read(&mut buffer),
        };
        match read {
            Ok(0) => Ok(false),
            Ok(n) => {
                into.extend(&buffer[..n]);
                Ok(true)
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(true),
                _ => Err(error),
            },
        }
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.prepare()?;
        match self {
            Self::Tcp(stream) => stream.write_all(bytes),
            Self::Unix(stream) => stream.write_all(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_ports_or_sockets() {
        assert_eq!("1234".parse(), Ok(Address::Port(1234)));
        assert_eq!("unix:/tmp/s".parse(), Ok(Address::Unix("/tmp/s".into())));
        for wrong in ["", "unix:", "70000", "tcp:1", "0.0.0.0:1", "::1", "localhost:1", "*:1"] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn others_than_the_local_host_do_not_connect() {
        let sockets = Sockets::listen(&Address::Port(0), Sandbox::Off).unwrap();
        let Sockets::Tcp(listener) = &sockets else { panic!("it is a port") };
        let address = listener.local_addr().unwrap();
        assert!(address.ip().is_loopback(), "{address}");
    }
}

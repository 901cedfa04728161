//! Standard output and standard error: complete writes, and the reasons of failed ones.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fmt::{self, Display, Formatter};
use std::io::{self, ErrorKind, Write};
use std::os::fd::BorrowedFd;

/// One of the program's streams for output. A stream that was closed when the program started is `/dev/null`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Output,
    /// Standard error.
    Errors,
}

/// The reason why output did not arrive.
#[derive(Debug)]
pub enum Lost {
    /// The reader of a pipe or a socket has closed its end.
    NoReader,
    /// The stream can't be written: a full disk, a limit, a device's error.
    Failed(Stream, io::Error),
}

impl Stream {
    /// Writes all bytes.
    pub fn put(mut self, bytes: &[u8]) -> Result<(), Lost> {
        self.write_all(bytes).map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe => Lost::NoReader,
            _ => Lost::Failed(self, error),
        })
    }

    fn descriptor(self) -> BorrowedFd<'static> {
        match self {
            Self::Output => rustix::stdio::stdout(),
            Self::Errors => rustix::stdio::stderr(),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match rustix::io::write(self.descriptor(), bytes) {
                // The program that started this one may have made the stream non-blocking. A full pipe is no error then.
                Err(rustix::io::Errno::AGAIN) => {
                    let room = poll(&mut [PollFd::new(self.descriptor(), PollFlags::POLLOUT)], PollTimeout::NONE);
                    room.map_err(io::Error::from)?;
                }
                written => return written.map_err(io::Error::from),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lost {
    /// Returns true if the output failed for another reason than a reader who wants no more of it.
    pub fn failed(&self) -> bool {
        matches!(self, Self::Failed(..))
    }
}

impl Display for Stream {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Output => "standard output",
            Self::Errors => "standard error",
        })
    }
}

impl Display for Lost {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoReader => f.write_str("the reader of standard output has gone away"),
            Self::Failed(stream, error) => write!(f, "{stream} can't be written: {error}"),
        }
    }
}

impl std::error::Error for Lost {}

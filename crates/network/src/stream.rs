//! Frames on a stream socket, in the format of QEMU, passt and others: four bytes of big-endian length, and the frame.

use crate::frame::LONGEST;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use thiserror::Error;

/// Size of the length in bytes.
const LENGTH: usize = 4;

/// Error: the other end does not use this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a frame of {0} bytes was announced; the maximum is {LONGEST}")]
pub struct TooLong(pub u32);

/// Splits a stream into frames.
#[derive(Clone, Debug, Default)]
pub struct Frames {
    buffer: Vec<u8>,
    /// Number of bytes at the start that have been consumed.
    taken: usize,
}

impl Frames {
    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..std::mem::take(&mut self.taken));
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next complete frame.
    pub fn next_frame(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        let rest = &self.buffer[self.taken..];
        let Some((length, rest)) = rest.split_first_chunk::<LENGTH>() else { return Ok(None) };
        let length = u32::from_be_bytes(*length);
        if length as usize > LONGEST {
            return Err(TooLong(length));
        }
        let Some(frame) = rest.get(..length as usize) else { return Ok(None) };
        self.taken += LENGTH + frame.len();
        Ok(Some(frame.to_vec()))
    }
}

/// Number of bytes read at a time.
const PIECE: usize = 64 << 10;
/// Limit of bytes that wait for the other end; further frames are lost, as on any network.
const MOST_WAITING: usize = 4 << 20;

/// State of a link after a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Further data may arrive.
    Open,
    /// The other end has closed the link, or it is broken.
    Closed,
    /// The other end does not use this protocol, and nothing more is read.
    Nonsense(TooLong),
}

/// A stream with frames in both directions, whose reads and writes do not block.
#[derive(Debug)]
pub struct Link<S> {
    stream: S,
    frames: Frames,
    outgoing: VecDeque<u8>,
}

impl<S: Read + Write> Link<S> {
    /// Creates a link over a stream.
    pub fn new(stream: S) -> Self {
        Self { stream, frames: Frames::default(), outgoing: VecDeque::new() }
    }

    /// Returns the stream.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Reads and returns the received frames, `most` at most.
    pub fn receive(&mut self, most: usize) -> (Vec<Vec<u8>>, Condition) {
        let mut all = Vec::new();
        let mut piece = [0; PIECE];
        loop {
            while all.len() < most {
                match self.frames.next_frame() {
                    Ok(Some(frame)) => all.push(frame),
                    Ok(None) => break,
                    Err(error) => return (all, Condition::Nonsense(error)),
                }
            }
            if all.len() >= most {
                return (all, Condition::Open);
            }
            match self.stream.read(&mut piece) {
                Ok(0) => return (all, Condition::Closed),
                Ok(len) => self.frames.push(&piece[..len]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return (all, Condition::Open),
                Err(_) => return (all, Condition::Closed),
            }
        }
    }

    /// Queues a frame for [`Self::flush`], unless too many bytes wait already.
    pub fn send(&mut self, frame: &[u8]) {
        if self.outgoing.len() < MOST_WAITING {
            self.outgoing.extend(with_length(frame));
        }
    }

    /// Sends as many bytes as the other end accepts now.
    pub fn flush(&mut self) {
        while let (front @ [_, ..], _) = self.outgoing.as_slices() {
            match self.stream.write(front) {
                Ok(len @ 1..) => drop(self.outgoing.drain(..len)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The stream is full, or closed, which the next read reports.
                _ => break,
            }
        }
    }
}

/// Returns a frame with its length before it.
pub fn with_length(frame: &[u8]) -> Vec<u8> {
    let mut bytes = (frame.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(frame);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_in_pieces_gives_the_same_frames() {
        let sent: Vec<Vec<u8>> = (0..5).map(|n| vec![n; usize::from(n) * 100]).collect();
        let stream: Vec<u8> = sent.iter().flat_map(|frame| with_length(frame)).collect();
        for piece in [1, 3, 104, stream.len()] {
            let (mut frames, mut got) = (Frames::default(), Vec::new());
            for part in stream.chunks(piece) {
                frames.push(part);
                while let Some(frame) = frames.next_frame().unwrap() {
                    got.push(frame);
                }
            }
            assert_eq!(got, sent, "{piece}");
        }
        let mut frames = Frames::default();
        frames.push(&[0xff; 8]);
        assert_eq!(frames.next_frame(), Err(TooLong(u32::MAX)));
        // The longest frame, and one byte more.
        for (len, expected) in [(LONGEST, Ok(Some(vec![5; LONGEST]))), (LONGEST + 1, Err(TooLong(LONGEST as u32 + 1)))]
        {
            let mut frames = Frames::default();
            frames.push(&with_length(&vec![5; len]));
            assert_eq!(frames.next_frame(), expected);
        }
    }

    /// One end of a pair of pipes.
    #[derive(Default)]
    struct Pipe {
        incoming: VecDeque<u8>,
        closed: bool,
        sent: Vec<u8>,
        /// Number of bytes that it still accepts.
        room: usize,
        /// Errors of the next calls.
        errors: VecDeque<ErrorKind>,
    }

    impl Read for Pipe {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            if let Some(error) = self.errors.pop_front() {
                return Err(error.into());
            }
            match (self.incoming.is_empty(), self.closed) {
                (true, false) => Err(ErrorKind::WouldBlock.into()),
                _ => self.incoming.read(buffer),
            }
        }
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if let Some(error) = self.errors.pop_front() {
                return Err(error.into());
            }
            let len = bytes.len().min(self.room);
            self.room -= len;
            self.sent.extend(&bytes[..len]);
            if len == 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(len) }
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_link_takes_what_is_there_and_says_how_it_is() {
        let frame = |n: u8| vec![n; 60];
        let mut link = Link::new(Pipe::default());
        assert_eq!(link.receive(9), (vec![], Condition::Open));
        link.stream.incoming = (1..=3).flat_map(|n| with_length(&frame(n))).collect();
        assert_eq!(link.receive(2), (vec![frame(1), frame(2)], Condition::Open));
        link.stream.closed = true;
        assert_eq!(link.receive(2), (vec![frame(3)], Condition::Closed));
        link.stream.incoming = [with_length(&frame(4)), vec![0xff; 8]].concat().into();
        let nonsense = Condition::Nonsense(TooLong(u32::MAX));
        assert_eq!(link.receive(9), (vec![frame(4)], nonsense));
        assert_eq!(link.receive(9), (vec![], nonsense));
    }

    #[test]
    fn an_interrupted_call_is_repeated_and_a_broken_link_is_closed() {
        let mut link = Link::new(Pipe { room: 1000, ..Pipe::default() });
        link.stream.incoming = with_length(&[1; 60]).into();
        link.stream.errors = [ErrorKind::Interrupted, ErrorKind::Interrupted].into();
        assert_eq!(link.receive(9), (vec![vec![1; 60]], Condition::Open));
        link.stream.errors = [ErrorKind::ConnectionReset].into();
        assert_eq!(link.receive(9), (vec![], Condition::Closed));
        link.send(&[2; 60]);
        link.stream.errors = [ErrorKind::Interrupted, ErrorKind::BrokenPipe].into();
        link.flush();
        assert_eq!((link.stream.sent.len(), link.stream.errors.len()), (0, 0));
        link.stream.errors = [ErrorKind::Interrupted].into();
        link.flush();
        assert_eq!(link.stream.sent, with_length(&[2; 60]));
    }

    #[test]
    fn frames_wait_for_the_other_end_up_to_a_limit() {
        let mut link = Link::new(Pipe { room: 70, ..Pipe::default() });
        link.send(&[1; 60]);
        link.send(&[2; 60]);
        link.flush();
        assert_eq!(link.stream.sent.len(), 70);
        link.stream.room = 1000;
        link.flush();
        assert_eq!(link.stream.sent, [with_length(&[1; 60]), with_length(&[2; 60])].concat());
        link.stream.room = 0;
        (0..200).for_each(|_| link.send(&[0; LONGEST]));
        assert!((MOST_WAITING..MOST_WAITING + LONGEST + LENGTH).contains(&link.outgoing.len()));
        // What fills it exactly is taken.
        let mut link = Link::new(Pipe::default());
        (0..=MOST_WAITING / 64).for_each(|_| link.send(&[0; 60]));
        assert_eq!(link.outgoing.len(), MOST_WAITING);
    }
}

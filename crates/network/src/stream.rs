//! Frames on a stream socket, in the format of QEMU, passt and others: four bytes of big-endian length, and the frame.

use crate::frame::LONGEST;
use thiserror::Error;

/// Size of the length in bytes.
const LENGTH: usize = 4;

/// Error: the other end does not use this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a frame of {0} bytes was announced, where there are at most {LONGEST}")]
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
    }
}

//! Buffers of a request in guest memory.

use super::Broken;
use crate::memory::GuestMap;
use std::collections::VecDeque;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};

/// The device-readable or the device-writable buffers of a request. All of them are inside guest memory.
pub struct Buffers<'a> {
    memory: &'a GuestMap,
    /// Address and length of the unused parts.
    parts: VecDeque<(u64, usize)>,
}

impl<'a> Buffers<'a> {
    /// Creates buffers from addresses and lengths. Returns `None` if they are not in memory.
    pub(super) fn new(memory: &'a GuestMap, parts: VecDeque<(u64, usize)>) -> Option<Self> {
        let inside = |&(address, len): &(u64, usize)| memory.check_range(GuestAddress(address), len);
        let total = parts.iter().try_fold(0usize, |sum, (_, len)| sum.checked_add(*len));
        (total.is_some() && parts.iter().all(inside)).then_some(Self { memory, parts })
    }

    /// Returns the number of unused bytes.
    pub fn available_bytes(&self) -> usize {
        self.parts.iter().map(|(_, len)| len).sum()
    }

    /// Keeps the first `at` bytes, and returns the rest.
    pub fn split_at(&mut self, at: usize) -> Result<Self, Broken> {
        let mut before = VecDeque::new();
        let mut left = at;
        while let Some((address, len)) = self.parts.pop_front() {
            if left < len {
                self.parts.push_front((address + left as u64, len - left));
                if left > 0 {
                    before.push_back((address, left));
                }
                left = 0;
                break;
            }
            left -= len;
            before.push_back((address, len));
        }
        let after = std::mem::replace(&mut self.parts, before);
        if left == 0 { Ok(Self { memory: self.memory, parts: after }) } else { Err(Broken) }
    }

    /// Uses up to `len` bytes, piece by piece: calls `each` with the address of a piece and its byte range.
    fn consume(
        &mut self,
        len: usize,
        mut each: impl FnMut(&GuestMap, GuestAddress, std::ops::Range<usize>) -> bool,
    ) -> usize {
        let mut done = 0;
        while let Some((address, room)) = self.parts.pop_front() {
            let piece = room.min(len - done);
            if !each(self.memory, GuestAddress(address), done..done + piece) {
                self.parts.push_front((address, room));
                break;
            }
            done += piece;
            if piece < room {
                self.parts.push_front((address + piece as u64, room - piece));
                break;
            }
        }
        done
    }

    /// Reads up to `buffer.len()` bytes.
    pub fn read(&mut self, buffer: &mut [u8]) -> usize {
        self.consume(buffer.len(), |memory, at, range| memory.read_slice(&mut buffer[range], at).is_ok())
    }

    /// Writes up to `bytes.len()` bytes.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        self.consume(bytes.len(), |memory, at, range| memory.write_slice(&bytes[range], at).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::GuestRam;

    #[test]
    fn buffers_are_split_and_used_across_their_parts() {
        let ram = GuestRam::new(1 << 20).unwrap();
        let text = b"abcdefg";
        assert!(ram.write(100, &text[..3]) && ram.write(200, &text[3..]));
        let parts = || VecDeque::from([(100, 3), (200, 4)]);
        let all = || Buffers::new(ram.map(), parts()).unwrap();
        for at in 0..=7 {
            let mut first = all();
            let mut second = first.split_at(at).unwrap();
            assert_eq!((first.available_bytes(), second.available_bytes()), (at, 7 - at));
            let mut buffer = [0; 9];
            assert_eq!(first.read(&mut buffer), at);
            assert_eq!((&buffer[..at], first.available_bytes()), (&text[..at], 0));
            // The rest in pieces of two bytes.
            let mut rest: Vec<u8> = Vec::new();
            while second.available_bytes() > 0 {
                let left = second.available_bytes();
                let count = second.read(&mut buffer[..2]);
                assert_eq!(count, left.min(2));
                assert_eq!(second.available_bytes(), left - count);
                rest.extend(&buffer[..count]);
            }
            assert_eq!(rest, text[at..]);
        }
        assert!(all().split_at(8).is_err());
        let mut writer = all();
        assert_eq!((writer.write(b"12345"), writer.write(b"678"), writer.write(b"9")), (5, 2, 0));
        let mut bytes = [0; 7];
        assert!(ram.read(100, &mut bytes[..3]) && ram.read(200, &mut bytes[3..]));
        assert_eq!(bytes, *b"1234567");
    }

    #[test]
    fn buffers_outside_of_memory_are_none() {
        let ram = GuestRam::new(1 << 20).unwrap();
        for (parts, good) in [
            (vec![(0, 1 << 20)], true),
            (vec![(1, 1 << 20)], false),
            (vec![(0, 1), (1 << 20, 1)], false),
            (vec![(u64::MAX, 2)], false),
            // Their sum does not overflow.
            (vec![(0, usize::MAX), (0, usize::MAX)], false),
        ] {
            assert_eq!(Buffers::new(ram.map(), parts.clone().into()).is_some(), good, "{parts:?}");
        }
    }
}

//! The buffers of a request, in guest memory.

use super::Broken;
use crate::memory::GuestMap;
use std::collections::VecDeque;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};

/// Those that the device reads, or those that it writes. All of them lie in memory.
pub struct Buffers<'a> {
    memory: &'a GuestMap,
    /// Address and length of what has not been used yet.
    parts: VecDeque<(u64, usize)>,
}

impl<'a> Buffers<'a> {
    /// Buffers by address and length. `None`: they are not in memory.
    pub(super) fn new(memory: &'a GuestMap, parts: VecDeque<(u64, usize)>) -> Option<Self> {
        let inside = |&(address, len): &(u64, usize)| memory.check_range(GuestAddress(address), len);
        let total = parts.iter().try_fold(0usize, |sum, (_, len)| sum.checked_add(*len));
        (total.is_some() && parts.iter().all(inside)).then_some(Self { memory, parts })
    }

    /// Bytes that are left.
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

    /// Uses up to `len` bytes, piece by piece: what `each` does with an address and the range of bytes that are there.
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

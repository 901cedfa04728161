//! Copy on write: a guest's writes to a disk stay in memory, and the disk remains unchanged.

use super::disk::Backing;
use crate::state::{StateError, require};
use serde_bytes::ByteBuf;
use std::collections::BTreeMap;
use std::io;

/// Unit of copying in bytes.
const BLOCK: u64 = 4096;

/// Written blocks of a disk. They use memory for every block that the guest has written, and never more than the size
/// of the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overlay {
    blocks: BTreeMap<u64, Vec<u8>>,
}

/// Returns the length of a block; the last one of a disk may be shorter.
fn block_len(number: u64, disk: u64) -> u64 {
    disk.saturating_sub(number.saturating_mul(BLOCK)).min(BLOCK)
}

impl Overlay {
    /// Reads all of `buffer`, which must lie inside the disk.
    pub fn read(&self, disk: &dyn Backing, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        disk.read(offset, buffer)?;
        let end = offset + buffer.len() as u64;
        for (number, block) in self.blocks.range(offset / BLOCK..end.div_ceil(BLOCK)) {
            let start = number * BLOCK;
            let (from, to) = (start.max(offset), (start + block.len() as u64).min(end));
            if from < to {
                buffer[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&block[(from - start) as usize..(to - start) as usize]);
            }
        }
        Ok(())
    }

    /// Writes all of `bytes`, which must lie inside the disk.
    pub fn write(&mut self, disk: &dyn Backing, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut at = 0;
        while at < bytes.len() {
            let (number, within) = ((offset + at as u64) / BLOCK, ((offset + at as u64) % BLOCK) as usize);
            let block = match self.blocks.entry(number) {
                std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::btree_map::Entry::Vacant(entry) => {
                    let mut block = vec![0; block_len(number, disk.len()) as usize];
                    disk.read(number * BLOCK, &mut block)?;
                    entry.insert(block)
                }
            };
            let count = (bytes.len() - at).min(block.len() - within);
            block[within..within + count].copy_from_slice(&bytes[at..at + count]);
            at += count;
        }
        Ok(())
    }

    /// Returns the blocks with their numbers, to be saved.
    pub fn blocks(&self) -> Vec<(u64, ByteBuf)> {
        self.blocks.iter().map(|(number, block)| (*number, ByteBuf::from(block.as_slice()))).collect()
    }

    /// Restores an overlay from saved blocks, over a disk of `len` bytes.
    pub fn of_blocks(blocks: Vec<(u64, ByteBuf)>, len: u64) -> Result<Self, StateError> {
        let ascending = blocks.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let lengths =
            blocks.iter().all(|(number, block)| !block.is_empty() && block.len() as u64 == block_len(*number, len));
        require(ascending && lengths, "blocks of a disk")?;
        Ok(Self { blocks: blocks.into_iter().map(|(number, block)| (number, block.into_vec())).collect() })
    }
}

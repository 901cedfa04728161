//! A choice among the blocks of programs.

use crate::block::Block;
use crate::random::Random;
use std::path::PathBuf;

/// Programs of a usual installation.
const USUAL: [&str; 5] =
    ["/usr/bin/python3", "/bin/bash", "/usr/bin/perl", "/usr/bin/gzip", "/lib/x86_64-linux-gnu/libc.so.6"];

/// Returns those of the usual programs that exist here.
pub fn usual_programs() -> Vec<PathBuf> {
    USUAL.iter().map(PathBuf::from).filter(|path| path.exists()).collect()
}

/// Draws different blocks.
pub fn draw(seed: u64, mut blocks: Vec<Block>, count: usize) -> Vec<Block> {
    let mut random = Random::new(seed);
    let count = count.min(blocks.len());
    for n in 0..count {
        let other = n + random.below((blocks.len() - n) as u64) as usize;
        blocks.swap(n, other);
    }
    blocks.truncate(count);
    blocks
}

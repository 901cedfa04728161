//! Measured blocks, in memory and in a file, so that a model can be held against them again without measuring.

use crate::block::Block;
use crate::failure::Failure;
use crate::family::Family;
use crate::host::Processor;
use crate::layout::CODE;
use iced_x86::{BlockEncoder, BlockEncoderOptions, Decoder, DecoderOptions, Instruction, InstructionBlock};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// Version of the file.
const FORMAT: u32 = 1;

/// Blocks that were measured on one processor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Corpus {
    format: u32,
    /// The processor.
    pub processor: Processor,
    /// Seed by which the blocks were chosen.
    pub seed: u64,
    /// The blocks.
    pub blocks: Vec<Measured>,
    /// Blocks without a figure, by reason.
    pub failures: BTreeMap<String, u64>,
}

/// A measured block.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Origin of the block: `random`, or the name of a program.
    pub source: String,
    /// Bytes in hexadecimal, at the address of a measurement.
    pub code: String,
    /// Cycles of one repetition.
    pub cycles: f64,
    /// Least and greatest figure of parts of the samples.
    pub interval: [f64; 2],
}

/// Reason why a corpus cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    /// The file cannot be read or written.
    #[error("{0}: {1}")]
    File(String, std::io::Error),
    /// The file is not a corpus.
    #[error("{0} has no measured blocks: {1}")]
    Content(String, serde_json::Error),
    /// The file is of another version.
    #[error("{0} is of version {1}; this program reads version {FORMAT}: measure again with --save")]
    Version(String, u32),
    /// A block in the file cannot be decoded.
    #[error("the block '{0}' of the file cannot be decoded")]
    Block(String),
}

impl Corpus {
    /// Returns a corpus without blocks.
    pub fn new(processor: Processor, seed: u64) -> Self {
        Self { format: FORMAT, processor, seed, blocks: Vec::new(), failures: BTreeMap::new() }
    }

    /// Reads a file.
    pub fn load(path: &Path) -> Result<Self, CorpusError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| CorpusError::File(name.clone(), error))?;
        let corpus: Self = serde_json::from_str(&text).map_err(|error| CorpusError::Content(name.clone(), error))?;
        if corpus.format != FORMAT {
            return Err(CorpusError::Version(name, corpus.format));
        }
        for block in &corpus.blocks {
            block.block()?;
        }
        Ok(corpus)
    }

    /// Writes a file.
    pub fn save(&self, path: &Path) -> Result<(), CorpusError> {
        let name = path.display().to_string();
        let text = serde_json::to_string(self).map_err(|error| CorpusError::Content(name.clone(), error))?;
        std::fs::write(path, text).map_err(|error| CorpusError::File(name, error))
    }

    /// Counts a block that has no figure.
    pub fn failed(&mut self, failure: &Failure) {
        *self.failures.entry(failure.name().to_string()).or_default() += 1;
    }
}

impl Measured {
    /// Returns the block.
    pub fn block(&self) -> Result<Block, CorpusError> {
        let wrong = || CorpusError::Block(self.code.clone());
        let digits = self.code.as_bytes().chunks(2);
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes = digits.map(byte).collect::<Option<Vec<u8>>>().ok_or_else(wrong)?;
        let decoder = Decoder::with_ip(64, &bytes, CODE, DecoderOptions::NONE);
        Block::new(&decoder.into_iter().collect::<Vec<_>>()).map_err(|_| wrong())
    }

    /// Returns the family of the block.
    pub fn family(&self) -> Result<Family, CorpusError> {
        Ok(Family::of(self.block()?.instructions()))
    }
}

/// Returns the block's bytes at the address of a measurement, in hexadecimal.
pub fn hexadecimal(instructions: &[Instruction]) -> Result<String, Failure> {
    let block = InstructionBlock::new(instructions, CODE);
    let encoded = BlockEncoder::encode(64, block, BlockEncoderOptions::NONE);
    let bytes = encoded.map_err(|error| Failure::Encoding(error.to_string()))?.code_buffer;
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_corpus_is_read_as_it_was_written() {
        let block = Block::decode(&[0x48, 0x8b, 0x05, 0x10, 0x30, 0, 0, 0x48, 0x01, 0xd8]).unwrap();
        let code = hexadecimal(block.instructions()).unwrap();
        let mut corpus = Corpus::new(Processor::default(), 7);
        corpus.blocks.push(Measured { source: "random".into(), code, cycles: 1.5, interval: [1.4, 1.6] });
        corpus.failed(&Failure::Arithmetic);
        let directory = std::env::temp_dir().join(format!("silicon-corpus-{}", std::process::id()));
        corpus.save(&directory).unwrap();
        let read = Corpus::load(&directory).unwrap();
        std::fs::write(&directory, "{}").unwrap();
        assert!(matches!(Corpus::load(&directory), Err(CorpusError::Content(..))));
        std::fs::remove_file(&directory).unwrap();
        assert_eq!((read.seed, read.blocks.len(), read.failures["arithmetic"]), (7, 1, 1));
        let read = read.blocks[0].block().unwrap();
        assert_eq!(read.instructions()[0].ip_rel_memory_address(), block.instructions()[0].ip_rel_memory_address());
        assert_eq!(read.instructions(), block.instructions());
        assert_eq!(read.instructions()[1].ip(), 0);
    }

    #[test]
    fn a_wrong_block_is_refused() {
        for code in ["4", "zz", "0f05", ""] {
            let block = Measured { source: String::new(), code: code.into(), cycles: 1.0, interval: [1.0, 1.0] };
            assert!(block.block().is_err(), "{code}");
        }
    }
}

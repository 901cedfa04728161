//! Blocks of compiled programs: the code of an ELF file, split at branches.

use crate::block::Block;
use crate::corpus::hexadecimal;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind};
use object::{Object, ObjectSection};
use std::collections::BTreeMap;
use std::path::Path;

/// Instructions that a block has at least and at most.
pub const LENGTH: std::ops::RangeInclusive<usize> = 2..=64;

/// Reason why a file has no blocks.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The file cannot be read.
    #[error("{0}: {1}")]
    File(String, std::io::Error),
    /// The file is not an ELF file of 64-bit code.
    #[error("{0} is not a program of x86-64: {1}")]
    Format(String, String),
}

/// Returns the blocks of a program, each once, in the order of their bytes.
pub fn blocks(path: &Path) -> Result<Vec<Block>, ProgramError> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|error| ProgramError::File(name.clone(), error))?;
    blocks_of(&bytes).map_err(|error| ProgramError::Format(name, error))
}

fn blocks_of(bytes: &[u8]) -> Result<Vec<Block>, String> {
    let file = object::File::parse(bytes).map_err(|error| error.to_string())?;
    if file.architecture() != object::Architecture::X86_64 {
        return Err(format!("the architecture is {:?}", file.architecture()));
    }
    let text = file.section_by_name(".text").ok_or("there is no section .text")?;
    let code = text.data().map_err(|error| error.to_string())?;
    let mut found = BTreeMap::new();
    for line in lines(code, text.address()) {
        if let Ok(block) = Block::new(&line)
            && let Ok(key) = hexadecimal(block.instructions())
        {
            found.entry(key).or_insert(block);
        }
    }
    Ok(found.into_values().collect())
}

/// Returns the straight lines of code of a suitable length, without the branches at their ends.
fn lines(code: &[u8], address: u64) -> Vec<Vec<Instruction>> {
    let decode = || Decoder::with_ip(64, code, address, DecoderOptions::NONE).into_iter();
    let near = |i: &Instruction| i.op_count() == 1 && i.op_kind(0) == OpKind::NearBranch64;
    let mut starts: Vec<u64> = decode().filter(near).map(|i| i.near_branch_target()).collect();
    starts.sort_unstable();
    let (mut lines, mut line) = (Vec::new(), Vec::new());
    for i in decode() {
        if starts.binary_search(&i.ip()).is_ok() {
            lines.push(std::mem::take(&mut line));
        }
        // Padding between functions is no code of a program.
        if i.flow_control() == FlowControl::Next && !i.is_invalid() && !(line.is_empty() && is_padding(&i)) {
            line.push(i);
        } else {
            lines.push(std::mem::take(&mut line));
        }
    }
    lines.push(line);
    lines.retain(|line| LENGTH.contains(&line.len()));
    lines
}

fn is_padding(i: &Instruction) -> bool {
    matches!(i.mnemonic(), iced_x86::Mnemonic::Nop | iced_x86::Mnemonic::Endbr64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_split_at_branches_and_at_their_targets() {
        // 0: nop; 1: add, add; 7: add, add; d: jne 7; f: add (alone); 12: ret; 13: sub, sub
        let add = [0x48, 0x01, 0xd8];
        let sub = [0x48, 0x29, 0xd8];
        let code = [&[0x90][..], &add, &add, &add, &add, &[0x75, 0xf8], &add, &[0xc3], &sub, &sub].concat();
        let lines = lines(&code, 0x1000);
        let found: Vec<_> = lines.iter().map(|line| (line[0].ip(), line.len())).collect();
        assert_eq!(found, [(0x1001, 2), (0x1007, 2), (0x1013, 2)]);
    }

    #[test]
    fn this_program_has_blocks() {
        let blocks = blocks(&std::env::current_exe().unwrap()).unwrap();
        assert!(blocks.len() > 1000);
        assert!(blocks_of(b"no program").is_err());
    }
}

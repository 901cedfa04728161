//! A sample of blocks to measure: random ones, and blocks of programs.

use super::random::Blocks;
use crate::forms::Form;
use silicon::Block;
use silicon::program::{self, ProgramError};
use silicon::sample::draw;
use std::path::{Path, PathBuf};

/// Chooses random blocks, and blocks of programs in equal shares, by the seed. Each has the name of its source.
pub fn choose(
    seed: u64,
    forms: &[Form],
    random: usize,
    programs: &[PathBuf],
    of_programs: usize,
) -> Result<Vec<(String, Block)>, ProgramError> {
    let mut source = Blocks::new(seed, forms);
    let mut chosen: Vec<_> = (0..random).map(|_| ("random".to_string(), source.next_block())).collect();
    for (n, path) in programs.iter().enumerate() {
        let share = of_programs * (n + 1) / programs.len() - of_programs * n / programs.len();
        let blocks = program::blocks(path)?;
        chosen.extend(draw(seed, blocks, share).into_iter().map(|block| (name(path), block)));
    }
    Ok(chosen)
}

fn name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_depends_on_the_seed() {
        let (forms, _) = crate::forms::forms(64);
        let program = std::env::current_exe().unwrap();
        let sample = |seed| {
            let chosen = choose(seed, &forms, 20, std::slice::from_ref(&program), 30).unwrap();
            let key = |(source, block): &(String, Block)| {
                (source.clone(), silicon::corpus::hexadecimal(block.instructions()).unwrap())
            };
            chosen.iter().map(key).collect::<Vec<_>>()
        };
        let first = sample(1);
        assert_eq!(first.len(), 50);
        assert_eq!(first, sample(1));
        assert_ne!(first, sample(2));
        assert!(choose(1, &forms, 0, &["/nowhere".into()], 1).is_err());
    }
}

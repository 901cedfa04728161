//! The bytes of a large file, read by two threads.

use super::pages::populate;
use super::together::both;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

/// Unit in which a file is read, in bytes.
const PIECE: usize = 1 << 20;

/// Reads a file, which has at most `most` bytes.
pub fn read(file: &File, most: u64) -> io::Result<Vec<u8>> {
    let len = file.metadata()?.len();
    if len > most {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut bytes = vec![0; usize::try_from(len).map_err(io::Error::other)?];
    let pieces = Mutex::new(bytes.chunks_mut(PIECE).enumerate());
    let next = || pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || -> io::Result<()> {
        while let Some((number, piece)) = next() {
            populate(piece.as_mut_ptr(), piece.len());
            file.read_exact_at(piece, (number * PIECE) as u64)?;
        }
        Ok(())
    };
    let (one, other) = both(work, work);
    one.and(other).map(|()| bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_limit() {
        let path = std::env::temp_dir().join(format!("tollgate-bytes-{}", std::process::id()));
        let long = (0..PIECE * 3 + 5).map(|at| (at / 1000) as u8).collect();
        for contents in [b"".to_vec(), b"some bytes".to_vec(), vec![7; PIECE], long] {
            std::fs::write(&path, &contents).unwrap();
            let file = File::open(&path).unwrap();
            assert!(read(&file, contents.len() as u64).unwrap() == contents);
            if let Some(less) = (contents.len() as u64).checked_sub(1) {
                assert!(read(&file, less).is_err());
            }
        }
        std::fs::remove_file(&path).unwrap();
    }
}

//! Errors of packing files.

use std::io;
use std::path::PathBuf;

/// The reason why a file can't be added.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The host's file can't be read.
    #[error("{path}: {cause}")]
    Host {
        /// The file.
        path: PathBuf,
        /// The reason.
        cause: io::Error,
    },
    /// A path that must be a directory is already something else.
    #[error("{0} is packed already, and is not a directory")]
    NoDirectory(PathBuf),
    /// Symbolic links form a loop.
    #[error("{0} has too many symbolic links on its path")]
    Links(PathBuf),
}

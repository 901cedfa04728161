//! Tools of this crate's tests.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that is removed at the end of the test.
pub struct Directory(pub PathBuf);

impl Directory {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("guestfs-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path.canonicalize().unwrap())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

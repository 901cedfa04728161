//! Tools of this crate's tests.

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
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

/// Returns true if `action` opens a file in more than name.
pub fn opens(path: &Path, action: impl FnOnce()) -> bool {
    let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&watch, path, WatchFlags::OPEN).unwrap();
    action();
    let mut buffer = [MaybeUninit::uninit(); 512];
    let event = inotify::Reader::new(&watch, &mut buffer).next().map(drop);
    assert!(matches!(event, Ok(()) | Err(Errno::AGAIN)), "{event:?}");
    event.is_ok()
}

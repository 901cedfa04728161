//! The cache of kernels that all users of a machine share. A user takes from it only what nobody could have changed but root, the user, and whoever owns the
//! cache's directory, and only if the files still have the checksums that were recorded when they were fetched.

use super::image;
use super::kernel::Kernel;
use crate::{identity, places};
use anyhow::{Context, Result, bail};
use guestfs::kernel_modules::Modules;
use rustix::process::geteuid;
use std::collections::BTreeMap;
use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Bits of a mode that let the group or others write.
const OTHERS_WRITE: u32 = 0o022;
/// Bits of a mode with which all users can read a file; those with which they can enter a directory.
const ALL_READ: u32 = 0o444;
const ALL_ENTER: u32 = 0o555;
/// The bit of a directory in which only owners remove their files.
const STICKY: u32 = 0o1000;
/// Largest depth of nested directories.
const DEEPEST: usize = 24;
/// Between a checksum and a path, as `sha256sum` writes them.
const BETWEEN: &str = "  ";

/// The shared cache.
#[derive(Debug)]
pub struct Shared {
    /// The directory for packages. The paths of checksums begin in it.
    pub packages: PathBuf,
    /// Users whose files are taken.
    owners: Vec<u32>,
}

impl Shared {
    /// Returns the shared cache, if there is one. An error says why it can't be relied on.
    pub fn find() -> Result<Option<Self>> {
        places::shared_cache().map(|directory| Self::of(&directory)).transpose()
    }

    fn of(directory: &Path) -> Result<Self> {
        let failed = || directory.display().to_string();
        let top = directory.canonicalize().with_context(failed)?;
        let owner = std::fs::metadata(&top).with_context(failed)?.uid();
        let own = [0, geteuid().as_raw()];
        let shared = Self { packages: top.join("packages"), owners: vec![own[0], own[1], owner] };
        shared.check(&top)?;
        let mut below = owner;
        for above in top.ancestors().skip(1) {
            let found = std::fs::metadata(above).with_context(|| above.display().to_string())?;
            // In /tmp anybody may have made the directory, but nobody changes one of root's.
            let is_safe = found.mode() & STICKY != 0 && own.contains(&below);
            if !is_safe {
                shared.judge(above, &found)?;
            }
            below = found.uid();
        }
        Ok(shared)
    }

    /// Refuses a file that others may have changed.
    fn judge(&self, path: &Path, found: &Metadata) -> Result<()> {
        let shown = path.display();
        if !self.owners.contains(&found.uid()) {
            bail!("{shown} belongs to another user (number {})", found.uid());
        }
        if !found.is_symlink() && found.mode() & OTHERS_WRITE != 0 {
            bail!("others can write to {shown} (mode {:o})", found.mode() & 0o7777);
        }
        Ok(())
    }

    fn check(&self, path: &Path) -> Result<()> {
        let found = std::fs::symlink_metadata(path).with_context(|| path.display().to_string())?;
        self.judge(path, &found)
    }

    /// Returns the directories that have a kernel: that of its image, and that of its modules.
    fn directories(kernel: &Kernel) -> Vec<PathBuf> {
        let image = kernel.image.parent().map(Path::to_path_buf);
        image.into_iter().chain(kernel.modules.clone()).collect()
    }

    /// Returns the files of a kernel, and refuses it if others may have changed any of them.
    pub fn guard(&self, kernel: &Kernel) -> Result<Vec<PathBuf>> {
        let mut all = Vec::new();
        for directory in Self::directories(kernel) {
            for above in directory.ancestors().take_while(|above| above.starts_with(&self.packages)) {
                self.check(above)?;
            }
            files(&directory, 0, &mut |path, found| self.judge(path, found), &mut all)?;
        }
        Ok(all)
    }

    /// Refuses a kernel that others may have changed, or whose files are not those that were recorded in the file `sums`. Of its modules those are read that runs load.
    pub fn verify(&self, kernel: &Kernel, sums: &Path) -> Result<()> {
        let text = match std::fs::read_to_string(sums) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                bail!("{} has no checksums, for it is not complete", kernel.image.display())
            }
            text => text.with_context(|| sums.display().to_string())?,
        };
        self.check(sums)?;
        let known: BTreeMap<&Path, &str> = text
            .lines()
            .filter_map(|line| line.split_once(BETWEEN))
            .map(|(sum, path)| (Path::new(path), sum))
            .collect();
        let directories = Self::directories(kernel);
        let read = |path: &&PathBuf| directories.iter().any(|directory| path.parent() == Some(directory));
        for path in self.guard(kernel)?.iter().filter(read).filter(|path| *path != sums) {
            self.compare(path, &known)?;
        }
        // Their contents say which further ones are loaded.
        if let Some(directory) = &kernel.modules {
            let modules = Modules::of_directory(directory)?;
            for path in modules.files(&image::loaded())? {
                self.compare(&path, &known)?;
            }
        }
        Ok(())
    }

    fn compare(&self, path: &Path, known: &BTreeMap<&Path, &str>) -> Result<()> {
        let name = path.strip_prefix(&self.packages).unwrap_or(path);
        match known.get(name) {
            None => bail!("{} has no checksum", path.display()),
            Some(sum) if *sum != sum_of(path)? => bail!("{} is damaged: its checksum is another one", path.display()),
            Some(_) => Ok(()),
        }
    }

    /// Lets all users read a kernel, and records the checksums of its files in the file `sums`, in the form of `sha256sum`.
    pub fn record(&self, kernel: &Kernel, sums: &Path) -> Result<()> {
        let mut text = String::new();
        for directory in Self::directories(kernel) {
            for above in directory.ancestors().take_while(|above| above.starts_with(&self.packages)) {
                open(above)?;
            }
            let mut all = Vec::new();
            files(&directory, 0, &mut |path, _| open(path), &mut all)?;
            all.sort();
            for path in all.iter().filter(|path| *path != sums) {
                let name = path.strip_prefix(&self.packages).unwrap_or(path);
                text += &format!("{}{BETWEEN}{}\n", sum_of(path)?, name.display());
            }
        }
        let partial = sums.with_extension(format!("partial-{}", std::process::id()));
        std::fs::write(&partial, text)
            .and_then(|()| std::fs::rename(&partial, sums))
            .context(sums.display().to_string())?;
        open(sums)
    }
}

fn sum_of(path: &Path) -> Result<String> {
    let failed = || path.display().to_string();
    let mut file = File::open(path).with_context(failed)?;
    Ok(identity::digest(&mut file).with_context(failed)?.0)
}

/// Lets all users read a file or enter a directory, and nobody but its owner write to it.
fn open(path: &Path) -> Result<()> {
    let failed = || path.display().to_string();
    let found = std::fs::symlink_metadata(path).with_context(failed)?;
    let wanted = if found.is_dir() { ALL_ENTER } else { ALL_READ };
    let mode = (found.mode() & 0o777 | wanted) & !OTHERS_WRITE;
    if found.is_symlink() || found.mode() & 0o777 == mode {
        return Ok(());
    }
    std::fs::set_permissions(path, Permissions::from_mode(mode)).with_context(failed)
}

/// Visits what is in a directory and below it, each directory before its contents, and adds the files to `all`. An error of `visit` ends the walk.
fn files(
    directory: &Path,
    depth: usize,
    visit: &mut dyn FnMut(&Path, &Metadata) -> Result<()>,
    all: &mut Vec<PathBuf>,
) -> Result<()> {
    let failed = || directory.display().to_string();
    for entry in std::fs::read_dir(directory).with_context(failed)? {
        let path = entry.with_context(failed)?.path();
        let found = std::fs::symlink_metadata(&path).with_context(|| path.display().to_string())?;
        visit(&path, &found)?;
        match () {
            () if found.is_dir() && depth < DEEPEST => files(&path, depth + 1, visit, all)?,
            () if found.is_file() => all.push(path),
            () => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_others_can_not_change_and_what_was_recorded_is_taken() {
        let top = std::env::temp_dir().join(format!("tollgate-shared-{}", std::process::id()));
        let (place, modules) = (top.join("packages/kernel-x"), top.join("packages/unpacked/x_1/lib/modules/1"));
        std::fs::create_dir_all(&place).unwrap();
        std::fs::create_dir_all(modules.join("kernel/fs")).unwrap();
        let image = place.join("vmlinuz");
        let builtin = modules.join("modules.builtin");
        for (path, text) in [(&image, "an image"), (&builtin, "kernel/fs/fuse.ko\n")] {
            std::fs::write(path, text).unwrap();
        }
        let chmod = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        for path in [&top, &top.join("packages"), &place, &image] {
            chmod(path, if path.is_dir() { 0o755 } else { 0o600 });
        }
        let top = top.canonicalize().unwrap();
        let shared = Shared::of(&top).unwrap();
        let kernel = Kernel {
            image: top.join("packages/kernel-x/vmlinuz"),
            modules: Some(top.join("packages/unpacked/x_1/lib/modules/1")),
            others: Vec::new(),
        };
        let sums = top.join("packages/kernel-x/sha256");
        let refused = || format!("{:#}", shared.verify(&kernel, &sums).unwrap_err());
        assert!(refused().ends_with("vmlinuz has no checksums, for it is not complete"), "{}", refused());
        shared.record(&kernel, &sums).unwrap();
        shared.verify(&kernel, &sums).unwrap();
        assert_eq!(std::fs::metadata(&image).unwrap().mode() & 0o777, 0o644, "all users can read it");
        let text = std::fs::read_to_string(&sums).unwrap();
        assert!(text.lines().any(|line| line.ends_with("  kernel-x/vmlinuz")), "{text}");
        for path in [&place, &image, &modules.join("kernel"), &builtin, &sums] {
            let mode = std::fs::metadata(path).unwrap().mode();
            chmod(path, mode | 0o002);
            assert!(refused().starts_with("others can write to "), "{}", refused());
            chmod(path, mode);
        }
        for (path, text) in [(&image, "an image"), (&builtin, "kernel/fs/fuse.ko\n")] {
            std::fs::write(path, "another").unwrap();
            assert!(refused().ends_with("is damaged: its checksum is another one"), "{}", refused());
            std::fs::write(path, text).unwrap();
        }
        std::fs::write(modules.join("modules.order"), "").unwrap();
        assert!(refused().ends_with("modules.order has no checksum"), "{}", refused());
        chmod(&top, 0o777);
        assert!(Shared::of(&top).unwrap_err().to_string().starts_with("others can write to "));
        chmod(&top, 0o755);
        std::fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn a_file_of_another_user_is_not_taken() {
        let found = std::fs::metadata("/").unwrap();
        let shared = |owners| Shared { packages: PathBuf::new(), owners };
        assert!(shared(vec![found.uid()]).judge(Path::new("/"), &found).is_ok());
        let error = shared(vec![found.uid() + 1]).judge(Path::new("/"), &found).unwrap_err().to_string();
        assert_eq!(error, format!("/ belongs to another user (number {})", found.uid()));
    }
}

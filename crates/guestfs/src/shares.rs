//! The shared directories of a run, and the files behind names of the host.
//!
//! A guest may change what is in a writable shared directory, and may have changed it in an earlier run. A symbolic link there is the guest's word, and
//! must not make the host read another file. The rule: a name is followed as on the host until it enters a shared directory. From there on only
//! links that stay in the directory are followed, relative to descriptors, so that no concurrent change leads out either.

use crate::pack_error::PackError;
use rustix::fs::{self, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Largest number of symbolic links on the way of one name, as in Linux.
pub(crate) const MOST_LINKS: usize = 40;
/// Flags of every open of a file that is only read.
const READING: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NOCTTY).union(OFlags::NONBLOCK);
/// Flags of a descriptor that only names a file.
const NAMING: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A symbolic link in a shared directory that leads out of it, or a file in a shared directory that names a file elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// The link or file.
    pub from: PathBuf,
    /// The file elsewhere.
    pub to: PathBuf,
    /// True for a link.
    pub link: bool,
}

/// A shared directory.
#[derive(Debug)]
struct Shared {
    path: PathBuf,
    root: OwnedFd,
    /// Device and inode number.
    identity: (u64, u64),
}

/// The shared directories of a run.
#[derive(Debug, Default)]
pub struct Shares(Vec<Shared>);

/// The end of a name's way outside of shared directories.
#[derive(Debug)]
pub(crate) enum Way {
    /// The file's real path.
    Outside(PathBuf),
    /// The name enters the shared directory with this number. The rest of the name, in reverse order, is looked up there.
    Inside(usize, Vec<Vec<u8>>),
}

/// A step on the way of a name: a directory, a link with its target, or a regular file, under their real paths.
#[derive(Debug)]
pub(crate) enum Step<'a> {
    Directory(&'a Path, &'a Metadata),
    Link(&'a Path, &'a [u8]),
    File(&'a Path),
}

/// The end of a name's way in a shared directory.
#[derive(Debug)]
pub enum Inside {
    /// A regular file, with its real path.
    File(File, PathBuf),
    /// A directory or a special file, with its real path.
    Other(PathBuf),
    /// A link that leads out.
    Leaving(Leaving),
}

/// The names of a path, without the root. Parent directories are resolved textually: `a/../b` is `b`.
pub(crate) fn names(path: &Path) -> Vec<&[u8]> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name.as_bytes()),
            Component::ParentDir => drop(names.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    names
}

/// Puts the names of a link's target before the rest of a name, which is in reverse order.
pub(crate) fn prepend(rest: &mut Vec<Vec<u8>>, target: &[u8]) {
    let parts = target.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    rest.extend(parts.rev().map(<[u8]>::to_vec));
}

/// Returns the length of a name, in reverse order, behind the `..` by which its text leads out of the directory in which it begins. None if it leads to
/// nothing outside.
fn leads_out(rest: &[Vec<u8>]) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, name) in rest.iter().enumerate().rev() {
        match (name.as_slice(), depth) {
            (b"..", 0) => return Some(at),
            (b"..", _) => depth -= 1,
            _ => depth += 1,
        }
    }
    None
}

/// Opens a regular file for reading by its real path: no link on the way is followed.
pub(crate) fn open_real(path: &Path) -> io::Result<File> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = match fs::openat2(CWD, path, NAMING, Mode::empty(), resolve) {
        // Kernels before 5.6 have no openat2, and some containers refuse it.
        Err(Errno::NOSYS | Errno::PERM) => fs::openat(CWD, path, NAMING, Mode::empty()),
        result => result,
    };
    reopen(&file?)
}

/// Opens a regular file for reading by its name, as the host follows it.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    reopen(&fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens a regular file for reading by its path from a directory: no link and no `..` leads out of the directory.
pub(crate) fn open_beneath(directory: &Path, path: &Path) -> io::Result<File> {
    let root = fs::openat(CWD, directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let file = match fs::openat2(&root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve) {
        Err(Errno::NOSYS | Errno::PERM) if path.components().all(|name| matches!(name, Component::Normal(_))) => {
            fs::openat(&root, path, NAMING, Mode::empty())
        }
        result => result,
    };
    reopen(&file?)
}

impl Shares {
    /// Opens shared directories, which are given by their real paths.
    pub fn open<'a>(paths: impl Iterator<Item = &'a Path>) -> io::Result<Self> {
        let open = |path: &Path| {
            let root = fs::openat(CWD, path, NAMING | OFlags::DIRECTORY, Mode::empty())?;
            let stat = fs::fstat(&root)?;
            Ok(Shared { path: path.to_path_buf(), root, identity: (stat.st_dev, stat.st_ino) })
        };
        Ok(Self(paths.map(open).collect::<io::Result<_>>()?))
    }

    /// Returns the number of the shared directory that a directory is.
    pub(crate) fn number(&self, path: &Path, metadata: &Metadata) -> Option<usize> {
        let identity = (metadata.dev(), metadata.ino());
        self.0.iter().position(|share| share.identity == identity || share.path == path)
    }

    /// Follows a name up to its end or into a shared directory, and reports each step.
    pub(crate) fn walk(
        &self,
        path: &Path,
        step: &mut dyn FnMut(Step) -> Result<(), PackError>,
    ) -> Result<Way, PackError> {
        let mut rest = Vec::new();
        prepend(&mut rest, path.as_os_str().as_bytes());
        let (mut real, mut links) = (PathBuf::from("/"), 0);
        let metadata_of = |path: &Path| {
            std::fs::symlink_metadata(path).map_err(|cause| PackError::Host { path: path.to_path_buf(), cause })
        };
        loop {
            if let Some(number) = self.number(&real, &metadata_of(&real)?) {
                let Some(above) = leads_out(&rest) else { return Ok(Way::Inside(number, rest)) };
                rest.truncate(above);
                real.pop();
                continue;
            }
            let Some(name) = rest.pop() else { break };
            if name == b".." {
                real.pop();
                continue;
            }
            let here = real.join(OsStr::from_bytes(&name));
            let metadata = metadata_of(&here)?;
            if metadata.is_symlink() {
                links += 1;
                if links > MOST_LINKS {
                    return Err(PackError::Links(path.to_path_buf()));
                }
                let target =
                    std::fs::read_link(&here).map_err(|cause| PackError::Host { path: here.clone(), cause })?;
                let target = target.as_os_str().as_bytes();
                step(Step::Link(&here, target))?;
                if target.starts_with(b"/") {
                    real = PathBuf::from("/");
                }
                prepend(&mut rest, target);
                continue;
            }
            if metadata.is_dir() {
                step(Step::Directory(&here, &metadata))?;
            } else if !rest.is_empty() {
                return Err(PackError::Host { path: here, cause: Errno::NOTDIR.into() });
            } else if metadata.is_file() {
                step(Step::File(&here))?;
            }
            real = here;
        }
        Ok(Way::Outside(real))
    }

    /// Follows the rest of a name in a shared directory.
    pub(crate) fn follow(&self, number: usize, mut rest: Vec<Vec<u8>>) -> io::Result<Inside> {
        let share = &self.0[number];
        // The directories from the root to the current one, with their real paths.
        let mut way: Vec<(OwnedFd, PathBuf)> = vec![(share.root.try_clone()?, share.path.clone())];
        let (mut links, mut last) = (0, None);
        while let Some(name) = rest.pop() {
            let (directory, path) = &way[way.len() - 1];
            if name == b".." {
                if way.len() == 1 {
                    let to = share.path.join("..");
                    return Ok(Inside::Leaving(last.unwrap_or(Leaving { from: share.path.clone(), to, link: true })));
                }
                way.pop();
                continue;
            }
            let here = path.join(OsStr::from_bytes(&name));
            let file = fs::openat(directory, name.as_slice(), NAMING, Mode::empty())?;
            match FileType::from_raw_mode(fs::fstat(&file)?.st_mode) {
                FileType::Directory => way.push((file, here)),
                FileType::Symlink => {
                    links += 1;
                    if links > MOST_LINKS {
                        return Err(Errno::LOOP.into());
                    }
                    let target = fs::readlinkat(&file, "", Vec::new())?.into_bytes();
                    let to = path.join(OsStr::from_bytes(&target));
                    // The file that the whole name means.
                    let end = rest.iter().rev().fold(to.clone(), |to, name| to.join(OsStr::from_bytes(name)));
                    let leaving = Leaving { from: here, to: end, link: true };
                    if target.starts_with(b"/") {
                        let Ok(below) = to.strip_prefix(&share.path) else { return Ok(Inside::Leaving(leaving)) };
                        way.truncate(1);
                        prepend(&mut rest, below.as_os_str().as_bytes());
                    } else {
                        prepend(&mut rest, &target);
                    }
                    last = Some(leaving);
                }
                // A name goes on below a directory only.
                _ if !rest.is_empty() => return Err(Errno::NOTDIR.into()),
                FileType::RegularFile => return Ok(Inside::File(reopen(&file)?, here)),
                _ => return Ok(Inside::Other(here)),
            }
        }
        let (_, path) = &way[way.len() - 1];
        Ok(Inside::Other(path.clone()))
    }

    /// Returns the link that leads a name out of a shared directory, if there is one.
    pub fn leaving(&self, path: &Path) -> Result<Option<Leaving>, PackError> {
        match self.walk(path, &mut |_| Ok(()))? {
            Way::Outside(_) => Ok(None),
            Way::Inside(number, rest) => match self.follow(number, rest) {
                Ok(Inside::Leaving(leaving)) => Ok(Some(leaving)),
                Ok(Inside::File(..) | Inside::Other(_)) => Ok(None),
                Err(cause) => Err(PackError::Host { path: path.to_path_buf(), cause }),
            },
        }
    }

    /// Returns true if a real path is at or below a shared directory.
    pub(crate) fn contains(&self, path: &Path) -> bool {
        self.0.iter().any(|share| path.starts_with(&share.path))
    }
}

/// Opens a regular file for reading through its descriptor, without another lookup. Other files are not opened: to open a device or a pipe has effects.
fn reopen(file: &OwnedFd) -> io::Result<File> {
    use std::os::fd::AsRawFd;
    if FileType::from_raw_mode(fs::fstat(file)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(fs::openat(CWD, path, READING, Mode::empty())?.into())
}

/// Returns the device and inode number of an open file.
pub(crate) fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Directory;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    fn inside(shares: &Shares, path: &Path) -> io::Result<Inside> {
        match shares.walk(path, &mut |_| Ok(())).unwrap() {
            Way::Inside(number, rest) => shares.follow(number, rest),
            Way::Outside(path) => panic!("{} is outside", path.display()),
        }
    }

    #[track_caller]
    fn text(shares: &Shares, path: &Path) -> (String, PathBuf) {
        match inside(shares, path) {
            Ok(Inside::File(mut file, path)) => {
                let mut text = String::new();
                file.read_to_string(&mut text).unwrap();
                (text, path)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn links_are_followed_inside_a_shared_directory_and_end_at_its_border() {
        let directory = Directory::new();
        let (share, outside) = (directory.0.join("share"), directory.0.join("outside"));
        std::fs::create_dir_all(share.join("d/e")).unwrap();
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(share.join("d/f"), "inside").unwrap();
        std::fs::write(outside.join("secret"), "secret").unwrap();
        let shares = Shares::open([&*share].into_iter()).unwrap();
        for (name, target) in [
            ("near", "d/f"),
            ("d/e/up", "../f"),
            ("d/e/around", "../../d/./f"),
            ("twice", "near"),
            ("absolute", share.join("d/f").to_str().unwrap()),
            ("d/whole", ".."),
        ] {
            symlink(target, share.join(name)).unwrap();
            if name != "d/whole" {
                assert_eq!(text(&shares, &share.join(name)), ("inside".to_owned(), share.join("d/f")), "{name}");
            }
        }
        assert_eq!(text(&shares, &share.join("d/whole/d/f")).0, "inside");
        assert!(matches!(inside(&shares, &share.join("d/whole")), Ok(Inside::Other(path)) if path == share));
        // From outside a link leads in.
        symlink(share.join("near"), outside.join("in")).unwrap();
        assert_eq!(text(&shares, &outside.join("in")).0, "inside");
        let secret = outside.join("secret");
        for (name, target) in [
            ("a", secret.to_str().unwrap()),
            ("b", "../outside/secret"),
            ("d/c", "../../outside/secret"),
            ("g", "d/e/../../../share/d/f"),
        ] {
            symlink(target, share.join(name)).unwrap();
            let from = share.join(name);
            let Ok(Inside::Leaving(leaving)) = inside(&shares, &from) else { panic!("{name}") };
            assert_eq!(leaving, Leaving { to: from.parent().unwrap().join(target), from, link: true });
        }
        assert_eq!(shares.leaving(&share.join("a")).unwrap().unwrap().to, secret);
        assert_eq!(shares.leaving(&share.join("near")).unwrap(), None);
        assert_eq!(shares.leaving(&share.join("d")).unwrap(), None);
        assert_eq!(shares.leaving(&secret).unwrap(), None);
        assert!(shares.leaving(&share.join("absent")).is_err());
        // A link out of a directory on the way.
        symlink("../outside", share.join("away")).unwrap();
        let Ok(Inside::Leaving(leaving)) = inside(&shares, &share.join("away/secret")) else { panic!("it leads out") };
        assert_eq!((leaving.from, leaving.to), (share.join("away"), share.join("../outside/secret")));
        symlink("circle", share.join("circle")).unwrap();
        assert_eq!(inside(&shares, &share.join("circle")).unwrap_err().raw_os_error(), Some(40));
        assert_eq!(inside(&shares, &share.join("near/x")).unwrap_err().raw_os_error(), Some(20));
    }

    #[test]
    fn forty_links_are_followed() {
        let directory = Directory::new();
        std::fs::write(directory.0.join("0"), "end").unwrap();
        for number in 1..=MOST_LINKS + 1 {
            symlink((number - 1).to_string(), directory.0.join(number.to_string())).unwrap();
        }
        let path = |number: usize| directory.0.join(number.to_string());
        let shares = Shares::open([&*directory.0].into_iter()).unwrap();
        assert_eq!(text(&shares, &path(MOST_LINKS)).0, "end");
        assert!(inside(&shares, &path(MOST_LINKS + 1)).is_err());
        let none = Shares::default();
        assert!(none.walk(&path(MOST_LINKS), &mut |_| Ok(())).is_ok());
        assert!(matches!(none.walk(&path(MOST_LINKS + 1), &mut |_| Ok(())), Err(PackError::Links(_))));
    }

    #[test]
    fn a_shared_directory_is_known_by_its_path_and_by_its_number() {
        let directory = Directory::new();
        let share = directory.0.join("share");
        std::fs::create_dir(&share).unwrap();
        let shares = Shares::open([&*share].into_iter()).unwrap();
        assert!(shares.contains(&share) && shares.contains(&share.join("x")) && !shares.contains(&directory.0));
        // Under another name it is the same directory; another directory under its name takes its place.
        let moved = directory.0.join("moved");
        std::fs::rename(&share, &moved).unwrap();
        assert!(matches!(shares.walk(&moved, &mut |_| Ok(())), Ok(Way::Inside(0, _))));
        std::fs::create_dir(&share).unwrap();
        assert!(matches!(shares.walk(&share, &mut |_| Ok(())), Ok(Way::Inside(0, _))));
        assert!(matches!(shares.walk(&directory.0, &mut |_| Ok(())), Ok(Way::Outside(path)) if path == directory.0));
    }

    #[test]
    fn only_directories_are_shared_and_only_files_are_opened_in_them() {
        use crate::testing::opens;
        let directory = Directory::new();
        let at = |name: &str| directory.0.join(name);
        std::fs::write(at("file"), "text").unwrap();
        std::fs::create_dir(at("below")).unwrap();
        fs::mknodat(CWD, at("below/pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        symlink("../file", at("below/up")).unwrap();
        symlink("pipe", at("below/near")).unwrap();
        assert!(Shares::open([&*at("file")].into_iter()).is_err());
        assert!(Shares::open([&*at("below")].into_iter()).is_ok());
        assert_eq!(open_beneath(&directory.0, Path::new("file")).unwrap().metadata().unwrap().len(), 4);
        assert_eq!(open_beneath(&directory.0, Path::new("below/up")).unwrap().metadata().unwrap().len(), 4);
        // To open a pipe would wait for ever.
        let names = ["pipe", "near", "up", "../file", "none", "."];
        let refused = || names.iter().all(|name| open_beneath(&at("below"), Path::new(name)).is_err());
        assert!(!opens(&at("below/pipe"), || assert!(refused())));
        assert!(open_beneath(&at("file"), Path::new("x")).is_err());
        assert!(open_regular(&at("below/pipe")).is_err() && open_regular(&at("below/up")).is_ok());
    }

    #[test]
    fn a_real_path_is_opened_without_links() {
        let directory = Directory::new();
        std::fs::create_dir(directory.0.join("d")).unwrap();
        std::fs::write(directory.0.join("d/f"), "text").unwrap();
        assert!(open_real(&directory.0.join("d/f")).is_ok());
        symlink("d", directory.0.join("l")).unwrap();
        symlink("f", directory.0.join("d/l")).unwrap();
        for refused in ["l/f", "d/l", "d", "absent"] {
            assert!(open_real(&directory.0.join(refused)).is_err(), "{refused}");
        }
    }
}

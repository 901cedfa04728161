//! Dependencies of a program: the interpreter of a script, and the program interpreter and shared libraries of an ELF file, found in the same way as
//! ld.so(8) finds them.
//!
//! A file in a shared directory may be a guest's. Programs and libraries that it names are packed only from the directories of PATH, of LD_LIBRARY_PATH
//! and of the system's ld.so, none of which the file chooses.

use crate::pack_error::PackError;
use crate::packed::{Added, Packed};
use crate::shares::{Inside, Leaving, open_real, open_regular};
use object::LittleEndian as LE;
use object::elf::{DT_NEEDED, DT_RPATH, DT_RUNPATH, FileHeader64, PT_INTERP};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Largest ELF file that is parsed, in bytes.
const LARGEST: u64 = 1 << 30;
/// The file with the library directories.
const CONFIGURATION: &str = "/etc/ld.so.conf";
/// The index of libraries. The guest's ld.so uses it as the host's does.
const CACHE: &str = "/etc/ld.so.cache";
/// Largest depth of nested configuration files.
const DEEPEST: usize = 8;
/// Directories that are always searched.
const DEFAULT: [&str; 6] =
    ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"];
/// Longest first line of a script, in bytes.
const LONGEST_LINE: usize = 256;
/// Directories of a system's programs, besides those of PATH.
const PROGRAMS: [&str; 6] = ["/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin"];

/// The program interpreter and the libraries that an ELF file names.
#[derive(Debug, Default, PartialEq, Eq)]
struct Needs {
    interpreter: Option<PathBuf>,
    libraries: Vec<Vec<u8>>,
    /// Directories searched before those of LD_LIBRARY_PATH.
    rpath: Vec<u8>,
    /// Directories searched after those of LD_LIBRARY_PATH.
    runpath: Vec<u8>,
}

impl Needs {
    /// Parses a file. Returns `None` if it is not a loadable 64-bit ELF file.
    fn of(bytes: &[u8]) -> Option<Self> {
        let header = FileHeader64::<LE>::parse(bytes).ok()?;
        let endian = header.endian().ok()?;
        let segments = header.program_headers(endian, bytes).ok()?;
        let mut needs = Self::default();
        for segment in segments {
            if segment.p_type(endian) == PT_INTERP {
                let data = segment.data(endian, bytes).ok()?;
                let path = data.split(|byte| *byte == 0).next().unwrap_or_default();
                needs.interpreter = Some(PathBuf::from(OsStr::from_bytes(path)));
            }
        }
        let sections = header.sections(endian, bytes).ok()?;
        if let Ok(Some((dynamic, link))) = sections.dynamic(endian, bytes) {
            let strings = sections.strings(endian, bytes, link).ok()?;
            for entry in dynamic {
                let text = || entry.string(endian, strings).map(<[u8]>::to_vec).unwrap_or_default();
                match entry.tag(endian) {
                    DT_NEEDED => needs.libraries.push(text()),
                    DT_RPATH => needs.rpath = text(),
                    DT_RUNPATH => needs.runpath = text(),
                    _ => {}
                }
            }
        }
        Some(needs)
    }
}

/// Returns true if a file needs others by the absolute name of a directory, or by a name that leads upwards from its own place. Of an ELF file only the
/// names of its program interpreter, its libraries and their directories count; debugging information names the directory in which it was compiled.
pub fn needs_place(bytes: &[u8], directory: &Path) -> bool {
    let directory = directory.as_os_str().as_bytes();
    let within = |text: &[u8]| text.windows(directory.len()).any(|window| window == directory);
    match Needs::of(bytes) {
        Some(Needs { interpreter, libraries, rpath, runpath }) => {
            let upwards = |list: &[u8]| list.windows(3).any(|window| window == b"/..");
            interpreter.is_some_and(|path| within(path.as_os_str().as_bytes()))
                || libraries.iter().any(|name| within(name))
                || [rpath, runpath].iter().any(|list| within(list) || upwards(list))
        }
        None => within(bytes),
    }
}

/// Returns the interpreter in the first line of a script, and the program that `env` starts there.
fn script(bytes: &[u8]) -> Option<(PathBuf, Option<Vec<u8>>)> {
    let line = bytes.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = &line[..line.len().min(LONGEST_LINE)];
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let interpreter = PathBuf::from(OsStr::from_bytes(words.next()?));
    let is_env = interpreter.file_name() == Some(OsStr::new("env"));
    let program = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='));
    Some((interpreter, program.filter(|_| is_env).map(<[u8]>::to_vec)))
}

/// Returns the interpreter of a script, or the program interpreter of an ELF file. A file that can't be read has none.
pub fn interpreter(program: &Path) -> Option<PathBuf> {
    let mut start = [0; LONGEST_LINE];
    let mut file = File::open(program).ok()?;
    let read = file.read(&mut start).ok()?;
    if let Some((interpreter, _)) = script(&start[..read]) {
        return Some(interpreter);
    }
    let mut bytes = start[..read].to_vec();
    if bytes.starts_with(b"\x7fELF") {
        file.take(LARGEST).read_to_end(&mut bytes).ok()?;
    }
    Needs::of(&bytes)?.interpreter
}

/// Splits a list of directories at colons. `$ORIGIN` stands for the file's directory.
fn directories(list: &[u8], origin: &Path) -> Vec<PathBuf> {
    let each = |part: &[u8]| {
        let text = String::from_utf8_lossy(part);
        let origin = origin.to_string_lossy();
        PathBuf::from(text.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin))
    };
    list.split(|byte| *byte == b':').filter(|part| !part.is_empty()).map(each).collect()
}

/// Appends the directories that a configuration file of ld.so lists.
fn configured(path: &Path, depth: usize, into: &mut Vec<PathBuf>) {
    let Ok(text) = std::fs::read_to_string(path) else { return };
    for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
        match line.strip_prefix("include ") {
            Some(pattern) if depth < DEEPEST => {
                included(pattern.trim()).iter().for_each(|file| configured(file, depth + 1, into));
            }
            Some(_) => {}
            None if line.starts_with('/') => into.push(PathBuf::from(line)),
            None => {}
        }
    }
}

/// Returns the files of an include: a single file, or those in a directory that match the pattern's suffix after `*`.
fn included(pattern: &str) -> Vec<PathBuf> {
    let Some((before, after)) = pattern.split_once('*') else { return vec![PathBuf::from(pattern)] };
    let (directory, start) = before.rsplit_once('/').unwrap_or((".", before));
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let fits = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(start) && name.ends_with(after)
    };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(fits).collect();
    files.sort();
    files
}

/// Adds programs with their dependencies.
#[derive(Debug)]
pub struct Closure {
    /// LD_LIBRARY_PATH.
    library_path: Vec<u8>,
    /// PATH.
    path: Vec<u8>,
    configured: Vec<PathBuf>,
    seen: BTreeSet<PathBuf>,
    /// Libraries that were not found, each with the file that needs it.
    pub missing: Vec<(String, PathBuf)>,
    leaving: Vec<Leaving>,
}

/// A file whose dependencies are added.
struct Dependent<'a> {
    file: File,
    /// Its real path.
    path: &'a Path,
    /// The path under which it was requested.
    name: &'a Path,
    /// True for a file in a shared directory.
    shared: bool,
}

impl Closure {
    /// Creates a finder for the program's values of PATH and LD_LIBRARY_PATH.
    pub fn new(path: &[u8], library_path: &[u8]) -> Self {
        let mut all = Vec::new();
        configured(Path::new(CONFIGURATION), 0, &mut all);
        Self {
            library_path: library_path.to_vec(),
            path: path.to_vec(),
            configured: all,
            seen: BTreeSet::new(),
            missing: Vec::new(),
            leaving: Vec::new(),
        }
    }

    /// Finds a program of the host through PATH. A name with a slash is a path relative to `directory`.
    pub fn find(&self, name: &[u8], directory: &Path) -> Option<PathBuf> {
        let name = OsStr::from_bytes(name);
        if name.as_bytes().contains(&b'/') {
            return Some(directory.join(name)).filter(|path| path.is_file());
        }
        let mut all = directories(&self.path, Path::new("/")).into_iter();
        all.find_map(|place| Some(directory.join(place).join(name)).filter(|path| is_executable(path)))
    }

    /// Adds a program, a library or any other file or directory, with its dependencies. Of a file in a shared directory only the dependencies are added.
    pub fn add(&mut self, tree: &mut Packed, path: &Path) -> Result<(), PackError> {
        let mut rest = vec![path.to_path_buf()];
        while let Some(name) = rest.pop() {
            if !self.seen.insert(name.clone()) {
                continue;
            }
            match tree.add(&name)? {
                Added::Files(mut added) => {
                    added.sort();
                    for path in &added {
                        let file = open_real(path).map_err(|cause| PackError::Host { path: path.clone(), cause })?;
                        self.needs_of(Dependent { file, path, name: &name, shared: false }, tree, &mut rest)?;
                    }
                }
                Added::Shared(Inside::File(file, path)) => {
                    self.needs_of(Dependent { file, path: &path, name: &name, shared: true }, tree, &mut rest)?;
                }
                Added::Shared(Inside::Leaving(leaving)) => self.leave(leaving),
                Added::Shared(Inside::Other(_)) => {}
            }
        }
        Ok(())
    }

    fn leave(&mut self, leaving: Leaving) {
        if !self.leaving.contains(&leaving) {
            self.leaving.push(leaving);
        }
    }

    /// Returns the links and files of shared directories that name files elsewhere that were not packed.
    pub fn leaving<'a>(&'a self, tree: &'a Packed) -> impl Iterator<Item = &'a Leaving> {
        self.leaving.iter().filter(|leaving| leaving.to.exists() && !tree.has(&leaving.to))
    }

    /// Adds the dependencies of one file.
    fn needs_of(&mut self, of: Dependent, tree: &mut Packed, rest: &mut Vec<PathBuf>) -> Result<(), PackError> {
        let Dependent { mut file, path, name, shared } = of;
        let failed = |cause| PackError::Host { path: path.to_path_buf(), cause };
        let mut start = [0; LONGEST_LINE];
        let read = file.read(&mut start).map_err(failed)?;
        let start = &start[..read];
        if let Some((interpreter, program)) = script(start) {
            let program = program.and_then(|program| self.find(&program, Path::new("/")));
            let places = if shared { Some(self.places_of_programs()) } else { None };
            let named = Some(interpreter).filter(|path| path.is_absolute() && path.is_file());
            rest.extend(named.filter(|named| self.may_name(tree, path, named, places.as_deref())));
            rest.extend(program.filter(|path| path.is_file()));
            return Ok(());
        }
        if !start.starts_with(b"\x7fELF") {
            return Ok(());
        }
        let mut bytes = start.to_vec();
        file.take(LARGEST).read_to_end(&mut bytes).map_err(failed)?;
        let Some(needs) = Needs::of(&bytes) else { return Ok(()) };
        if needs.interpreter.is_some() && Path::new(CACHE).is_file() {
            tree.add(Path::new(CACHE))?;
        }
        let places = if shared { Some(self.places_of_libraries()) } else { None };
        // A library that was requested through a link may have its dependencies beside the link.
        let origin = [path, name].map(|path| path.parent().unwrap_or(Path::new("/")).to_path_buf());
        for library in &needs.libraries {
            let found = self.libraries(library, &needs, &origin);
            if found.is_empty() {
                self.missing.push((String::from_utf8_lossy(library).into_owned(), path.to_path_buf()));
            }
            rest.extend(found.into_iter().find(|found| self.may_name(tree, path, found, places.as_deref())));
        }
        let interpreter = needs.interpreter.filter(|path| path.is_absolute() && path.is_file());
        rest.extend(interpreter.filter(|named| self.may_name(tree, path, named, places.as_deref())));
        Ok(())
    }

    /// Returns true if a file may name a dependency: if that is in one of the directories `places`, or in a shared directory. None: it may name any file.
    fn may_name(&mut self, tree: &Packed, from: &Path, named: &Path, places: Option<&[PathBuf]>) -> bool {
        let Some(places) = places else { return true };
        let parent = named.parent().and_then(|parent| parent.canonicalize().ok());
        if parent.is_some_and(|parent| places.contains(&parent) || tree.shares().contains(&parent)) {
            return true;
        }
        self.leave(Leaving { from: from.to_path_buf(), to: named.to_path_buf(), link: false });
        false
    }

    /// Returns the directories of programs.
    fn places_of_programs(&self) -> Vec<PathBuf> {
        real(directories(&self.path, Path::new("/")).into_iter().chain(PROGRAMS.map(PathBuf::from)))
    }

    /// Returns the directories of libraries.
    fn places_of_libraries(&self) -> Vec<PathBuf> {
        let own = directories(&self.library_path, Path::new("/")).into_iter();
        real(own.chain(self.configured.iter().cloned()).chain(DEFAULT.map(PathBuf::from)))
    }

    /// Returns the files that a library's name may mean, in the order of ld.so's search.
    fn libraries(&self, name: &[u8], needs: &Needs, origin: &[PathBuf]) -> Vec<PathBuf> {
        let name = OsStr::from_bytes(name);
        if name.as_bytes().contains(&b'/') {
            return Some(PathBuf::from(name)).into_iter().filter(|path| path.is_absolute() && path.is_file()).collect();
        }
        let of = |list: &[u8]| origin.iter().flat_map(|origin| directories(list, origin)).collect::<Vec<_>>();
        let rpath = if needs.runpath.is_empty() { of(&needs.rpath) } else { Vec::new() };
        let own = directories(&self.library_path, Path::new("/"));
        let (runpath, default) = (of(&needs.runpath), DEFAULT.map(PathBuf::from));
        let all = rpath.iter().chain(&own).chain(&runpath).chain(&self.configured).chain(&default);
        all.map(|directory| directory.join(name)).filter(|path| is_library(path)).collect()
    }
}

/// Returns the real paths of directories that exist.
fn real(directories: impl Iterator<Item = PathBuf>) -> Vec<PathBuf> {
    directories.filter(|path| path.is_absolute()).filter_map(|path| path.canonicalize().ok()).collect()
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// Returns true for a 64-bit ELF file. Other directories contain libraries of other processors under the same names.
fn is_library(path: &Path) -> bool {
    let mut start = [0; 5];
    open_regular(path).is_ok_and(|mut file| file.read_exact(&mut start).is_ok() && &start == b"\x7fELF\x02")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Directory, opens};
    use object::elf::DynamicTag;

    #[test]
    fn the_first_line_of_a_script_names_programs() {
        let named = |line: &str| {
            script(line.as_bytes()).map(|(interpreter, program)| {
                (interpreter.display().to_string(), program.map(|p| String::from_utf8(p).unwrap()))
            })
        };
        let some =
            |interpreter: &str, program: Option<&str>| Some((interpreter.to_owned(), program.map(str::to_owned)));
        assert_eq!(named("#!/bin/sh\necho"), some("/bin/sh", None));
        assert_eq!(named("#! /usr/bin/perl -w\n"), some("/usr/bin/perl", None));
        assert_eq!(named("#!/usr/bin/env python3\n"), some("/usr/bin/env", Some("python3")));
        assert_eq!(named("#!/usr/bin/env -S A=b node --x\n"), some("/usr/bin/env", Some("node")));
        assert_eq!(named("echo"), None);
        assert_eq!(named("#!\n"), None);
    }

    #[test]
    fn origin_is_the_directory_of_the_file() {
        let list = directories(b"$ORIGIN/../lib::/opt/lib:${ORIGIN}", Path::new("/usr/bin"));
        assert_eq!(list, ["/usr/bin/../lib", "/opt/lib", "/usr/bin"].map(PathBuf::from));
    }

    #[test]
    fn programs_and_libraries_are_found_by_what_they_are() {
        use rustix::fs::{self, CWD, FileType, Mode};
        use std::os::unix::fs::PermissionsExt;
        let directory = Directory::new();
        let at = |name: &str| directory.0.join(name);
        for (name, contents, mode) in [
            ("program", "#!", 0o755),
            ("text", "#!", 0o644),
            ("lib64", "\x7fELF\x02", 0o644),
            ("lib32", "\x7fELF\x01", 0o644),
        ] {
            std::fs::write(at(name), contents).unwrap();
            std::fs::set_permissions(at(name), std::fs::Permissions::from_mode(mode)).unwrap();
        }
        std::fs::create_dir(at("directory")).unwrap();
        fs::mknodat(CWD, at("pipe"), FileType::Fifo, Mode::from_raw_mode(0o777), 0).unwrap();
        let all = ["program", "text", "lib64", "lib32", "directory", "pipe", "none"];
        assert_eq!(all.map(|name| is_executable(&at(name))), [true, false, false, false, false, false, false]);
        // To open a pipe would wait for ever.
        assert!(!opens(&at("pipe"), || {
            assert_eq!(all.map(|name| is_library(&at(name))), [false, false, true, false, false, false, false]);
        }));
        let path = format!("/nowhere:{}", directory.0.display());
        let closure = Closure::new(path.as_bytes(), b"");
        let find = |name: &str| closure.find(name.as_bytes(), &directory.0);
        assert_eq!(find("program"), Some(at("program")));
        assert_eq!((find("text"), find("directory"), find("./directory")), (None, None, None));
        // With a slash it is the caller's affair whether the file can be executed.
        assert_eq!(find("./text"), Some(directory.0.join("./text")));
    }

    #[test]
    fn lists_of_directories_include_others() {
        let directory = Directory::new();
        let at = |name: &str| directory.0.join(name);
        std::fs::create_dir(at("conf.d")).unwrap();
        let include = |name: &str| format!("include {}\n", at(name).display());
        let first = format!("/one # a comment\n# /none\nrelative\n{}{}", include("conf.d/*.conf"), include("second"));
        std::fs::write(at("first"), first).unwrap();
        std::fs::write(at("conf.d/b.conf"), "/three\n").unwrap();
        std::fs::write(at("conf.d/a.conf"), " /two \n").unwrap();
        std::fs::write(at("conf.d/c.other"), "/none\n").unwrap();
        std::fs::write(at("second"), format!("/four\n{}", include("second"))).unwrap();
        let mut found = Vec::new();
        configured(&at("first"), 0, &mut found);
        // A file that includes itself does so up to the limit.
        let expected = ["/one", "/two", "/three"].into_iter().chain(std::iter::repeat_n("/four", DEEPEST));
        assert_eq!(found, expected.map(PathBuf::from).collect::<Vec<_>>());
    }

    #[test]
    fn a_text_needs_the_place_that_it_names() {
        let here = Path::new("/home/user");
        assert!(needs_place(b"cd /home/user/project", here));
        assert!(!needs_place(b"cd /home/use", here) && !needs_place(b"", here));
        // Of a program only the names of other files count, and this one needs no file of its own directory.
        let this = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(Needs::of(&this).is_some_and(|needs| needs.interpreter.is_some()));
        assert!(needs_place(&this, Path::new("/lib64")) && !needs_place(&this, Path::new("a_text_needs_the_place")));
    }

    #[test]
    fn this_program_has_its_libraries_and_its_interpreter() {
        let this = std::env::current_exe().unwrap();
        let mut tree = Packed::new();
        let mut closure = Closure::new(b"/usr/bin:/bin", b"");
        closure.add(&mut tree, &this).unwrap();
        assert_eq!(closure.missing, []);
        let names: Vec<String> =
            tree.walk().iter().map(|walked| String::from_utf8_lossy(&walked.path).into_owned()).collect();
        for part in ["libc.so", "ld-linux-x86-64.so.2"] {
            assert!(names.iter().any(|name| name.contains(part)), "{part}");
        }
    }

    /// An ELF file that needs this interpreter, a library, and directories to be searched for it.
    fn program(interpreter: &str, library: &str, runpath: &str) -> Vec<u8> {
        searching(interpreter, library, (DT_RUNPATH, runpath))
    }

    /// An ELF file with a list of directories of this kind. Without an interpreter it is a library.
    fn searching(interpreter: &str, library: &str, (kind, list): (DynamicTag, &str)) -> Vec<u8> {
        let strings = format!("\0{library}\0{list}\0");
        let (headers, phdrs, shdrs) = (64, 56, 64);
        let start = headers + phdrs;
        let dynamic: Vec<u64> = vec![1, 1, kind.0 as u64, library.len() as u64 + 2, 5, 0, 0, 0];
        let dynamic_at = start + interpreter.len() + 1;
        let strings_at = dynamic_at + dynamic.len() * 8;
        let sections_at = strings_at + strings.len();
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(16, 0);
        bytes.extend([3u16, 62].into_iter().flat_map(u16::to_le_bytes));
        bytes.extend(1u32.to_le_bytes());
        bytes.extend([0u64, headers as u64, sections_at as u64].into_iter().flat_map(u64::to_le_bytes));
        bytes.extend(0u32.to_le_bytes());
        bytes.extend([64u16, phdrs as u16, 1, shdrs as u16, 3, 2].into_iter().flat_map(u16::to_le_bytes));
        let len = interpreter.len() as u64 + 1;
        let segment = if interpreter.is_empty() { 0 } else { 3 };
        bytes.extend([segment, 4u32].into_iter().flat_map(u32::to_le_bytes));
        bytes.extend([start as u64, start as u64, start as u64, len, len, 1].into_iter().flat_map(u64::to_le_bytes));
        bytes.extend(interpreter.as_bytes());
        bytes.push(0);
        bytes.extend(dynamic.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(strings.as_bytes());
        let section = |kind: u32, link: u32, at: usize, len: usize, entry: u64| {
            let mut section: Vec<u8> = [0u32, kind].into_iter().flat_map(u32::to_le_bytes).collect();
            section.extend([0u64, 0, at as u64, len as u64].into_iter().flat_map(u64::to_le_bytes));
            section.extend([link, 0].into_iter().flat_map(u32::to_le_bytes));
            section.extend([1u64, entry].into_iter().flat_map(u64::to_le_bytes));
            section
        };
        bytes.extend(vec![0; shdrs]);
        bytes.extend(section(6, 2, dynamic_at, dynamic.len() * 8, 16));
        bytes.extend(section(3, 0, strings_at, strings.len(), 0));
        bytes
    }

    #[test]
    fn a_file_in_a_shared_directory_names_no_file_elsewhere() {
        use crate::shares::Shares;
        use std::os::unix::fs::{PermissionsExt, symlink};
        use std::sync::Arc;
        let directory = Directory::new();
        let (share, private) = (directory.0.join("share"), directory.0.join("private"));
        std::fs::create_dir(&share).unwrap();
        std::fs::create_dir(&private).unwrap();
        let make = |path: &Path, bytes: &[u8]| {
            std::fs::write(path, bytes).unwrap();
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        let elf = program("/no/interpreter", "libnone.so", "");
        assert_eq!(Needs::of(&elf).unwrap().libraries, [b"libnone.so"]);
        for name in ["secret", "libsecret.so", "interpreter"] {
            make(&private.join(name), &elf);
        }
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let shares = Arc::new(Shares::open([&*share].into_iter()).unwrap());
        let pack = |name: &str, path: &str, library_path: &str| {
            let mut tree = Packed::beside(Arc::clone(&shares));
            let mut closure = Closure::new(path.as_bytes(), library_path.as_bytes());
            closure.add(&mut tree, &share.join(name)).unwrap();
            let left: Vec<PathBuf> = closure.leaving(&tree).map(|leaving| leaving.to.clone()).collect();
            let files: Vec<_> = tree.host_files().into_iter().filter(|path| path != Path::new(CACHE)).collect();
            assert!(!files.iter().any(|path| path.starts_with(&share)), "{name}: {files:?}");
            (files, left)
        };
        let (secret, library) = (private.join("secret"), private.join("libsecret.so"));
        let interpreter = private.join("interpreter");
        symlink(&private, share.join("link")).unwrap();
        // A script's interpreter.
        make(&share.join("script"), format!("#!{}\n", text(&secret)).as_bytes());
        assert_eq!(pack("script", "/usr/bin", ""), (vec![], vec![secret.clone()]));
        assert_eq!(pack("script", &text(&private), ""), (vec![secret.clone()], vec![]));
        make(&share.join("around"), format!("#!{}\n", text(&share.join("link/secret"))).as_bytes());
        assert_eq!(pack("around", "/usr/bin", "").0, [] as [PathBuf; 0]);
        make(&share.join("up"), format!("#!{}/../private/secret\n", text(&share)).as_bytes());
        assert_eq!(pack("up", "/usr/bin", "").0, [] as [PathBuf; 0]);
        make(&share.join("shell"), b"#!/bin/sh\n");
        assert!(pack("shell", "", "").0.iter().any(|path| is_executable(path)));
        // The interpreter and the libraries of a program.
        make(&share.join("program"), &program(&text(&interpreter), "libsecret.so", &text(&private)));
        let (files, left) = pack("program", "/usr/bin", "");
        assert!(!files.iter().any(|path| path.starts_with(&private)), "{files:?}");
        assert_eq!(left, [library.clone(), interpreter.clone()]);
        let (files, left) = pack("program", "/usr/bin", &text(&private));
        assert!(files.contains(&library) && files.contains(&interpreter) && left.is_empty(), "{files:?} {left:?}");
        make(&share.join("whole"), &program("/no/interpreter", &text(&library), ""));
        assert_eq!(pack("whole", "", "").1, std::slice::from_ref(&library));
        // A library beside the program is not packed, but what it needs is.
        make(&share.join("origin"), &program("/no/interpreter", "liborigin.so", "$ORIGIN"));
        make(&share.join("liborigin.so"), &program("/no/interpreter", "libc.so.6", ""));
        let (files, left) = pack("origin", "", "");
        assert!(files.iter().any(|path| text(path).contains("libc.so.6")) && left.is_empty(), "{files:?} {left:?}");
        // A library of that name elsewhere is named by a link.
        std::fs::remove_file(share.join("liborigin.so")).unwrap();
        symlink(&library, share.join("liborigin.so")).unwrap();
        assert_eq!(pack("origin", "", ""), (vec![], vec![library]));
    }

    #[test]
    fn a_program_needs_the_place_of_each_file_that_it_names() {
        let here = Path::new("/home/user");
        let needs = |program: Vec<u8>| needs_place(&program, here);
        assert!(!needs(program("/lib/ld.so", "libc.so.6", "/opt/lib:$ORIGIN/lib")));
        assert!(needs(program("/home/user/ld.so", "libc.so.6", "")));
        assert!(needs(program("/lib/ld.so", "/home/user/lib.so", "")));
        for kind in [DT_RUNPATH, DT_RPATH] {
            for (list, expected) in
                [("/home/user/lib", true), ("$ORIGIN/../lib", true), ("/opt/../lib", true), ("/lib", false)]
            {
                assert_eq!(needs(searching("/lib/ld.so", "libc.so.6", (kind, list))), expected, "{kind:?} {list}");
            }
        }
    }

    #[test]
    fn libraries_are_searched_for_as_ld_so_does() {
        let directory = Directory::new();
        let at = |name: &str| directory.0.join(name);
        for place in ["own", "path"] {
            std::fs::create_dir(at(place)).unwrap();
            std::fs::write(at(place).join("libx.so"), searching("", "libc.so.6", (DT_RUNPATH, ""))).unwrap();
        }
        // The list of the program comes before LD_LIBRARY_PATH if it is a DT_RPATH, and after it if it is a DT_RUNPATH.
        for (kind, library_path, expected) in
            [(DT_RPATH, at("path"), "own"), (DT_RUNPATH, at("path"), "path"), (DT_RUNPATH, at("none"), "own")]
        {
            std::fs::write(at("program"), searching("", "libx.so", (kind, "$ORIGIN/own"))).unwrap();
            let (mut tree, mut closure) = (Packed::new(), Closure::new(b"", library_path.as_os_str().as_bytes()));
            closure.add(&mut tree, &at("program")).unwrap();
            let has = ["own", "path"].map(|place| tree.has(&at(place).join("libx.so")));
            assert_eq!((has, &closure.missing), (["own", "path"].map(|place| place == expected), &vec![]), "{kind:?}");
            assert!(tree.host_files().iter().any(|path| path.to_string_lossy().contains("libc.so.6")));
        }
    }

    #[test]
    fn what_a_file_names_and_is_not_there_is_left_to_the_guest() {
        let directory = Directory::new();
        let at = |name: &str| directory.0.join(name);
        let add = |bytes: &[u8]| {
            std::fs::write(at("file"), bytes).unwrap();
            let (mut tree, mut closure) = (Packed::new(), Closure::new(b"/usr/bin:/bin", b""));
            closure.add(&mut tree, &at("file")).unwrap();
            let missing: Vec<String> = closure.missing.iter().map(|(name, _)| name.clone()).collect();
            (tree.host_files(), missing)
        };
        let (file, none) = (vec![at("file")], at("none").to_str().unwrap().to_owned());
        let relative = PathBuf::from("Cargo.toml");
        assert!(relative.is_file(), "tests run in the directory of the crate");
        // A name that is no absolute path depends on the directory in which the guest starts the program.
        for interpreter in [&none, "Cargo.toml"] {
            assert_eq!(add(format!("#!{interpreter}\n").as_bytes()), (file.clone(), vec![]), "{interpreter}");
        }
        assert_eq!(add(b"#!/usr/bin/env no-such-program\n").1, [] as [String; 0]);
        for library in [&none, "./Cargo.toml"] {
            let expected = (file.clone(), vec![library.to_owned()]);
            assert_eq!(add(&searching("", library, (DT_RUNPATH, ""))), expected, "{library}");
        }
        // The index of libraries is for ld.so, which a program names and a library does not.
        let cache = |interpreter: &str| add(&program(interpreter, &none, "")).0.contains(&PathBuf::from(CACHE));
        assert_eq!([cache(""), cache(&none)], [false, Path::new(CACHE).is_file()]);
        let with = |interpreter: &str| add(&program(interpreter, &none, "")).0.len() - usize::from(cache(interpreter));
        assert_eq!([with(&none), with("Cargo.toml")], [1, 1]);
    }

    #[test]
    fn what_a_shared_file_names_is_reported_unless_it_is_packed_or_absent() {
        use crate::shares::Shares;
        let directory = Directory::new();
        let (share, private) = (directory.0.join("share"), directory.0.join("private"));
        std::fs::create_dir(&share).unwrap();
        std::fs::write(&private, "#!\n").unwrap();
        std::fs::write(share.join("script"), format!("#!{}\n", private.display())).unwrap();
        let mut tree = Packed::beside(std::sync::Arc::new(Shares::open([&*share].into_iter()).unwrap()));
        let mut closure = Closure::new(b"/usr/bin", b"");
        for _ in 0..2 {
            closure.add(&mut tree, &share.join("script")).unwrap();
        }
        let left =
            |closure: &Closure, tree: &Packed| closure.leaving(tree).map(|left| left.to.clone()).collect::<Vec<_>>();
        assert_eq!(left(&closure, &tree), std::slice::from_ref(&private));
        let mut with = tree.clone();
        closure.add(&mut with, &private).unwrap();
        assert_eq!(left(&closure, &with), [] as [PathBuf; 0]);
        std::fs::remove_file(&private).unwrap();
        assert_eq!(left(&closure, &tree), [] as [PathBuf; 0]);
    }

    #[test]
    fn damaged_files_need_nothing() {
        let this = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for len in [4, 16, 63, 64, 200, 1000] {
            Needs::of(&this[..len]);
        }
        assert_eq!(Needs::of(b"\x7fELF"), None);
    }
}

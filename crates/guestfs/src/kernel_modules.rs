//! Modules of a Linux kernel, read from its module directory: their names, dependencies and contents.

use crate::shares::{open_beneath, open_regular};
use flate2::read::GzDecoder;
use lzma_rust2::XzReader;
use object::{Object, ObjectSection};
use ruzstd::decoding::StreamingDecoder;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Largest unpacked module, in bytes.
const LARGEST: u64 = 256 << 20;
/// Largest depth of nested module directories.
const DEEPEST: usize = 16;

/// The reason why modules can't be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// The directory or a file can't be read.
    #[error("{path}: {cause}")]
    Read {
        /// The path.
        path: PathBuf,
        /// The reason.
        cause: io::Error,
    },
    /// The kernel has no module with this name, neither as a file nor built in.
    #[error("{0}.ko is needed and not found in {1}")]
    Missing(String, String),
    /// The file is not a module.
    #[error("{0} is not a kernel module")]
    Other(PathBuf),
}

/// The file of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// At this path, which was found in the directory.
    Found(PathBuf),
    /// At this path from the build tree, which a list in the tree names. The list must not name a file elsewhere.
    Listed(PathBuf),
}

/// The modules of a kernel.
#[derive(Debug)]
pub struct Modules {
    directory: PathBuf,
    files: BTreeMap<String, Place>,
    builtin: BTreeSet<String>,
    /// Further directories of the same kernel's modules, for what is not in this one.
    others: Vec<Modules>,
}

/// Returns the kernel's name of a module file: the kernel has an underscore where the file name may have a hyphen.
fn name_of(file: &str) -> Option<String> {
    let (name, rest) = file.split_once(".ko")?;
    matches!(rest, "" | ".xz" | ".gz" | ".zst").then(|| name.replace('-', "_"))
}

fn collect(directory: &Path, depth: usize, files: &mut BTreeMap<String, Place>) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() && depth < DEEPEST {
            collect(&entry.path(), depth + 1, files)?;
        } else if let Some(name) = name_of(&entry.file_name().to_string_lossy()) {
            files.entry(name).or_insert_with(|| Place::Found(entry.path()));
        }
    }
    Ok(())
}

/// Returns the name and the file of a module in `modules.order` of a build tree. Older kernels prefix the path with `kernel/`, newer ones list the object.
fn listed(line: &str) -> Option<(String, Place)> {
    let path = line.trim().strip_prefix("kernel/").unwrap_or(line.trim());
    let path = path.strip_suffix(".o").map_or(path.to_owned(), |start| format!("{start}.ko"));
    Some((name_of(path.rsplit('/').next()?)?, Place::Listed(path.into())))
}

impl Modules {
    /// Reads the modules of a directory such as `/lib/modules/6.1.0-56-cloud-amd64`, or of a build tree.
    pub fn of_directory(directory: &Path) -> Result<Self, ModuleError> {
        let failed = |cause| ModuleError::Read { path: directory.to_path_buf(), cause };
        let mut files = BTreeMap::new();
        // Installed modules are in `kernel`; modules from other sources are not needed here.
        let installed = directory.join("kernel");
        // A build tree, also one of `make O=`, has a directory `kernel` of another kind.
        let is_tree = directory.join("arch").is_dir();
        let is_installed = installed.is_dir() && !is_tree;
        let order = directory.join("modules.order");
        match std::fs::read_to_string(&order) {
            // A build tree is large, but has a list of its modules.
            Ok(list) if is_tree => files.extend(list.lines().filter_map(listed)),
            _ => collect(if is_installed { &installed } else { directory }, 0, &mut files).map_err(failed)?,
        }
        let list = std::fs::read_to_string(directory.join("modules.builtin")).unwrap_or_default();
        let builtin = list.lines().filter_map(|line| name_of(line.rsplit('/').next()?)).collect();
        Ok(Self { directory: directory.to_path_buf(), files, builtin, others: Vec::new() })
    }

    /// Returns a kernel without modules.
    pub fn none() -> Self {
        Self { directory: PathBuf::new(), files: BTreeMap::new(), builtin: BTreeSet::new(), others: Vec::new() }
    }

    /// Returns the modules with those of a further directory. Some distributions divide the modules of a kernel into several packages.
    pub fn and(mut self, other: Self) -> Self {
        self.others.push(other);
        self
    }

    /// Returns all directories.
    fn all(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.others)
    }

    /// Returns true if nothing is known of any module: directories without lists and files.
    pub fn is_empty(&self) -> bool {
        self.all().all(|modules| modules.files.is_empty() && modules.builtin.is_empty())
    }

    /// Returns true if the module exists or is built in.
    pub fn has(&self, name: &str) -> bool {
        self.all().any(|modules| modules.files.contains_key(name) || modules.builtin.contains(name))
    }

    /// Returns modules with all their dependencies, in loading order: names and contents. Built-in modules are left out.
    pub fn load(&self, names: &[&str]) -> Result<Vec<(String, Vec<u8>)>, ModuleError> {
        let (mut loaded, mut seen) = (Vec::new(), BTreeSet::new());
        for name in names {
            self.load_one(name, &mut seen, &mut loaded)?;
        }
        Ok(loaded)
    }

    /// Returns the files that `load` reads for these names, as far as the kernel has them.
    pub fn files(&self, names: &[&str]) -> Result<Vec<PathBuf>, ModuleError> {
        let known: Vec<&str> = names.iter().copied().filter(|name| self.has(name)).collect();
        let path = |name: &String| match self.place(name)? {
            (_, Place::Found(path)) => Some(path.clone()),
            (directory, Place::Listed(path)) => Some(directory.join(path)),
        };
        Ok(self.load(&known)?.iter().filter_map(|(name, _)| path(name)).collect())
    }

    /// Returns the directory and the file of a module.
    fn place(&self, name: &str) -> Option<(&Path, &Place)> {
        self.all().find_map(|modules| Some((&*modules.directory, modules.files.get(name)?)))
    }

    fn load_one(
        &self,
        name: &str,
        seen: &mut BTreeSet<String>,
        loaded: &mut Vec<(String, Vec<u8>)>,
    ) -> Result<(), ModuleError> {
        if !seen.insert(name.to_owned()) {
            return Ok(());
        }
        let Some(place) = self.place(name) else {
            if self.has(name) {
                return Ok(());
            }
            let looked: Vec<String> = self.all().map(|modules| modules.directory.display().to_string()).collect();
            return Err(ModuleError::Missing(name.to_owned(), looked.join(" or ")));
        };
        let (path, file) = match place {
            (_, Place::Found(path)) => (path.clone(), open_regular(path)),
            (directory, Place::Listed(path)) => (directory.join(path), open_beneath(directory, path)),
        };
        let bytes = file.and_then(|file| read(file, &path));
        let bytes = bytes.map_err(|cause| ModuleError::Read { path: path.clone(), cause })?;
        let dependencies = dependencies(&bytes).ok_or(ModuleError::Other(path))?;
        for dependency in &dependencies {
            self.load_one(dependency, seen, loaded)?;
        }
        loaded.push((name.to_owned(), bytes));
        Ok(())
    }
}

/// Reads a file, and unpacks it if its name says that it is packed.
fn read(file: std::fs::File, path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut unpacker: Box<dyn Read> = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => Box::new(XzReader::new(file, true)),
        Some("gz") => Box::new(GzDecoder::new(file)),
        Some("zst") => Box::new(StreamingDecoder::new(file).map_err(io::Error::other)?),
        _ => Box::new(file),
    };
    unpacker.by_ref().take(LARGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the modules that a module depends on (`depends=` in `.modinfo`).
fn dependencies(module: &[u8]) -> Option<Vec<String>> {
    let file = object::File::parse(module).ok()?;
    let information = file.section_by_name(".modinfo")?.data().ok()?;
    let lists = information.split(|byte| *byte == 0).filter_map(|field| field.strip_prefix(b"depends="));
    let names = lists.flat_map(|list| list.split(|byte| *byte == b',')).filter(|name| !name.is_empty());
    Some(names.map(|name| String::from_utf8_lossy(name).replace('-', "_")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Directory;
    use std::os::unix::fs::symlink;

    #[test]
    fn names_are_the_kernels() {
        for (file, name) in [
            ("virtio_net.ko", Some("virtio_net")),
            ("crc32c-intel.ko.xz", Some("crc32c_intel")),
            ("fuse.ko.zst", Some("fuse")),
            ("modules.dep", None),
            ("x.ko.bak", None),
        ] {
            assert_eq!(name_of(file).as_deref(), name, "{file}");
        }
    }

    #[test]
    fn a_tree_lists_its_modules() {
        let fuse = Some(("fuse".to_owned(), Place::Listed("fs/fuse/fuse.ko".into())));
        for line in ["kernel/fs/fuse/fuse.ko", "fs/fuse/fuse.ko", "fs/fuse/fuse.o", " fs/fuse/fuse.ko "] {
            assert_eq!(listed(line), fuse, "{line}");
        }
        assert_eq!(listed(""), None);
    }

    #[test]
    fn a_list_names_no_file_outside_of_its_tree() {
        let directory = Directory::new();
        let tree = directory.0.join("tree");
        std::fs::create_dir_all(tree.join("fs")).unwrap();
        std::fs::create_dir(tree.join("arch")).unwrap();
        let outside = directory.0.join("outside.ko");
        for file in [&outside, &tree.join("fs/inside.ko")] {
            std::fs::write(file, "no module").unwrap();
        }
        symlink(&outside, tree.join("fs/absolute.ko")).unwrap();
        symlink("../../outside.ko", tree.join("fs/relative.ko")).unwrap();
        symlink("inside.ko", tree.join("fs/linked.ko")).unwrap();
        let lines = ["fs/inside.ko", "fs/linked.ko", "fs/absolute.ko", "fs/relative.ko", "../outside.ko"];
        let first = |line: &str| {
            std::fs::write(tree.join("modules.order"), line).unwrap();
            let modules = Modules::of_directory(&tree).unwrap();
            let name = modules.files.keys().next().unwrap().clone();
            modules.load(&[&name]).unwrap_err()
        };
        for line in lines.iter().copied().chain([outside.to_str().unwrap()]) {
            let read = matches!(first(line), ModuleError::Other(_));
            assert_eq!(read, ["fs/inside.ko", "fs/linked.ko"].contains(&line), "{line}");
        }
    }

    #[test]
    fn a_build_directory_beside_its_sources_is_no_module_directory() {
        let tree = std::env::temp_dir().join(format!("kernel-modules-{}", std::process::id()));
        for directory in ["kernel", "fs/fuse"] {
            std::fs::create_dir_all(tree.join(directory)).unwrap();
        }
        assert!(Modules::of_directory(&tree).unwrap().is_empty());
        std::fs::write(tree.join("modules.builtin"), "kernel/fs/overlayfs/overlay.ko\n").unwrap();
        std::fs::write(tree.join("modules.order"), "fs/fuse/virtiofs.ko\n").unwrap();
        std::fs::write(tree.join("kernel/configs.ko"), "").unwrap();
        let names = |modules: &Modules| ["virtiofs", "configs", "overlay"].map(|name| modules.has(name));
        assert_eq!(names(&Modules::of_directory(&tree).unwrap()), [false, true, true]);
        std::fs::create_dir(tree.join("arch")).unwrap();
        assert_eq!(names(&Modules::of_directory(&tree).unwrap()), [true, false, true]);
        std::fs::remove_dir_all(&tree).unwrap();
    }

    #[test]
    fn the_modules_of_one_kernel_may_be_in_several_packages() {
        let directory = Directory::new();
        let (core, drivers) = (directory.0.join("core"), directory.0.join("drivers"));
        std::fs::create_dir_all(&core).unwrap();
        std::fs::create_dir_all(drivers.join("kernel/fs")).unwrap();
        // The package of the image has the lists, and no modules.
        std::fs::write(core.join("modules.order"), "kernel/fs/overlay.ko\n").unwrap();
        std::fs::write(core.join("modules.builtin"), "kernel/fs/fuse/fuse.ko\n").unwrap();
        std::fs::write(drivers.join("kernel/fs/overlay.ko"), module(b"depends=fuse\0")).unwrap();
        let of = |path: &Path| Modules::of_directory(path).unwrap();
        let names = |modules: &Modules| ["fuse", "overlay"].map(|name| modules.has(name));
        assert_eq!(names(&of(&core)), [true, false]);
        assert_eq!(names(&of(&drivers)), [false, true]);
        assert!(of(&drivers).load(&["overlay"]).is_err());
        let both = of(&drivers).and(of(&core));
        assert_eq!((names(&both), both.is_empty()), ([true, true], false));
        assert_eq!(both.load(&["overlay"]).unwrap().len(), 1);
        assert_eq!(both.files(&["overlay", "none"]).unwrap(), [drivers.join("kernel/fs/overlay.ko")]);
        let error = both.load(&["none"]).unwrap_err().to_string();
        let expected = format!("none.ko is needed and not found in {} or {}", drivers.display(), core.display());
        assert_eq!(error, expected);
    }

    #[test]
    fn what_is_no_module_depends_on_nothing() {
        assert_eq!(dependencies(b""), None);
        assert_eq!(dependencies(b"\x7fELF\x02\x01\x01"), None);
        let this = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(dependencies(&this), None);
    }

    /// An ELF file with a section `.modinfo`.
    fn module(information: &[u8]) -> Vec<u8> {
        const NAMES: &[u8] = b"\0.modinfo\0.shstrtab\0";
        let (start, names) = (64, 64 + information.len());
        let sections = (names + NAMES.len()).next_multiple_of(8);
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(16, 0);
        // A relocatable file for x86-64.
        for half in [1u16, 62] {
            file.extend(half.to_le_bytes());
        }
        file.extend(1u32.to_le_bytes());
        for word in [0u64, 0, sections as u64] {
            file.extend(word.to_le_bytes());
        }
        file.extend([0; 4]);
        for half in [64u16, 0, 0, 64, 3, 2] {
            file.extend(half.to_le_bytes());
        }
        file.extend(information);
        file.extend(NAMES);
        file.resize(sections, 0);
        for (name, kind, offset, size) in
            [(0u32, 0u32, 0, 0), (1, 1, start, information.len()), (10, 3, names, NAMES.len())]
        {
            file.extend([name.to_le_bytes(), kind.to_le_bytes()].concat());
            for word in [0, 0, offset as u64, size as u64, 0, 1, 0] {
                file.extend(word.to_le_bytes());
            }
            // `sh_link` and `sh_info` share a word.
        }
        file
    }

    #[test]
    fn modules_are_loaded_after_those_that_they_need() {
        let directory = Directory::new();
        let deep = directory.0.join("kernel/fs/a-b");
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::write(directory.0.join("modules.builtin"), "kernel/lib/crc-base.ko\n").unwrap();
        let files = [
            ("top.ko", &b"license=GPL\0depends=a-b,crc-base\0name=top\0"[..]),
            ("a-b/a-b.ko", b"depends=low\0"),
            ("low.ko", b"depends=\0"),
        ];
        for (name, information) in files {
            std::fs::write(directory.0.join("kernel/fs").join(name), module(information)).unwrap();
        }
        let modules = Modules::of_directory(&directory.0).unwrap();
        assert!(!modules.is_empty() && Modules::none().is_empty());
        let loaded = modules.load(&["top", "low", "crc_base"]).unwrap();
        let names: Vec<&str> = loaded.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!((names, &loaded[0].1), (vec!["low", "a_b", "top"], &module(files[2].1)));
        assert!(matches!(modules.load(&["none"]), Err(ModuleError::Missing(name, _)) if name == "none"));
        let error = modules.load(&["none"]).unwrap_err().to_string();
        assert_eq!(error, format!("none.ko is needed and not found in {}", directory.0.display()));
        // A kernel without a single module file, but with modules that are built in.
        std::fs::remove_dir_all(directory.0.join("kernel")).unwrap();
        let modules = Modules::of_directory(&directory.0).unwrap();
        assert!(!modules.is_empty() && modules.has("crc_base") && !modules.has("top"));
    }

    #[test]
    fn directories_of_modules_end_somewhere() {
        let directory = Directory::new();
        let mut path = directory.0.join("kernel");
        for depth in 0..=DEEPEST + 1 {
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join(format!("m{depth}.ko")), "").unwrap();
            path = path.join("d");
        }
        let modules = Modules::of_directory(&directory.0).unwrap();
        assert!(modules.has(&format!("m{DEEPEST}")) && !modules.has(&format!("m{}", DEEPEST + 1)));
    }

    #[test]
    fn packed_modules_are_unpacked() {
        const XZ: &[u8] = &[
            253, 55, 122, 88, 90, 0, 0, 4, 230, 214, 180, 70, 2, 0, 33, 1, 22, 0, 0, 0, 116, 47, 229, 163, 1, 0, 3,
            116, 101, 120, 116, 0, 85, 205, 232, 51, 255, 74, 12, 23, 0, 1, 28, 4, 111, 44, 156, 193, 31, 182, 243,
            125, 1, 0, 0, 0, 0, 4, 89, 90,
        ];
        const ZSTD: &[u8] = &[40, 181, 47, 253, 4, 88, 33, 0, 0, 116, 101, 120, 116, 82, 175, 204, 136];
        const GZIP: &[u8] = &[31, 139, 8, 0, 0, 0, 0, 0, 0, 3, 43, 73, 173, 40, 1, 0, 199, 167, 139, 59, 4, 0, 0, 0];
        let directory = Directory::new();
        for (name, bytes) in [("m.ko", &b"text"[..]), ("m.ko.xz", XZ), ("m.ko.zst", ZSTD), ("m.ko.gz", GZIP)] {
            let path = directory.0.join(name);
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(read(std::fs::File::open(&path).unwrap(), &path).unwrap(), b"text", "{name}");
        }
    }
}

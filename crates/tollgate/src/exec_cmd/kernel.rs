//! The kernel of a run: an image with its modules.

use super::nearest::Near;
use super::needs;
use super::package;
use super::release;
use super::shared::Shared;
use crate::output::say;
use crate::places;
use anyhow::{Context, Result, bail};
use guestfs::kernel_modules::Modules;
use rustix::fs::Access;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Once;

/// Names of kernels that are fetched from the distribution.
const FETCHED: [&str; 3] = ["cloud", "backports", "amd64"];
/// Suites that are known by their whole names.
const SUITES: [&str; 5] = ["experimental", "sid", "stable", "testing", "unstable"];
/// Ends of the names of suites.
const SUITE_ENDS: [&str; 2] = ["-backports", "-backports-sloppy"];
/// Directories that may contain a kernel's own directory of modules.
const MODULE_ROOTS: [&str; 2] = ["/lib/modules", "/usr/lib/modules"];
/// Path of the image in a build tree.
const BUILT: &str = "arch/x86/boot/bzImage";
/// Bytes of an image that contain its header and its release.
const START: u64 = 1 << 16;
/// The scripts that fetch a distribution's kernel, for a program that is installed without them.
const SCRIPTS: [(&str, &str); 2] = [
    ("kernel", include_str!("../../../../guests/linux/kernel")),
    ("common.sh", include_str!("../../../../guests/linux/common.sh")),
];

/// Names of the files and directories that the scripts write in the directory for packages.
const WRITTEN: [&str; 4] = [".lock", "apt", "debs", "unpacked"];

/// A kernel.
#[derive(Debug)]
pub struct Kernel {
    /// Path of the image.
    pub image: PathBuf,
    /// Module directory or build tree. None: the kernel is assumed to have all drivers built in.
    pub modules: Option<PathBuf>,
    /// Further directories with modules of the kernel.
    pub others: Vec<PathBuf>,
}

impl Kernel {
    /// Finds the kernel of a name: the distribution's, a release, a package, an image, or a directory. Without a name, the host's own if it is readable.
    /// `modules` are the places of its modules, if the user names any.
    pub fn find(name: Option<&str>, modules: Option<&str>) -> Result<Self> {
        let kernel = match name {
            None => match Self::of_host() {
                Some(kernel) => Ok(kernel),
                None => Self::fetched(FETCHED[0]),
            },
            Some(name) if FETCHED.contains(&name) => Self::fetched(name),
            Some(name) if !Path::new(name).exists() => match fetchable(name) {
                Some(fetched) => Self::fetched(&fetched),
                None if release::is_release(name) => Self::of_release(name),
                None => Self::of_path(Path::new(name)),
            },
            Some(path) => Self::of_path(Path::new(path)),
        }?;
        let named = places(modules);
        if named.is_empty() {
            return Ok(kernel);
        }
        let mut places = named.iter().map(|place| kernel.modules_in(Path::new(place))).collect::<Result<Vec<_>>>()?;
        // A package of an image may have the lists of what is built in, and others the modules.
        let release = kernel.release();
        let is_packaged = |directory: &PathBuf| {
            release.as_ref().is_some_and(|release| directory.ends_with(release))
                && !MODULE_ROOTS.iter().any(|root| directory.starts_with(root))
                && !places.contains(directory)
        };
        let own = kernel.modules.clone().filter(is_packaged);
        places.extend(own);
        let first = places.remove(0);
        Ok(Self { modules: Some(first), others: places, ..kernel })
    }

    /// Returns the modules of a directory or a package: those of the kernel's release if there are several.
    fn modules_in(&self, place: &Path) -> Result<PathBuf> {
        let failed = || format!("--modules {}", place.display());
        let place = place.canonicalize().with_context(failed)?;
        let directory = match package::kind(&place) {
            Some(kind) => package::unpacked(&place, kind).with_context(failed)?,
            None if place.is_dir() => place,
            None => bail!("{}: it is neither a directory nor a package", failed()),
        };
        let entries = |root: &str| std::fs::read_dir(directory.join(&root[1..])).into_iter().flatten().flatten();
        let all = || MODULE_ROOTS.iter().flat_map(|root| entries(root)).map(|entry| entry.path());
        let releases: Vec<PathBuf> = all().filter(|path| path.is_dir()).collect();
        let release = release_of(&self.image)?;
        let own = release.as_ref().and_then(|release| releases.iter().find(|path| path.ends_with(release)));
        let modules = match (own, &releases[..]) {
            (Some(own), _) => own.clone(),
            (None, []) => directory,
            (None, others) => {
                let names: Vec<_> = others.iter().filter_map(|path| path.file_name()?.to_str()).collect();
                let release = release.unwrap_or_else(|| "an unknown release (the image does not name it)".to_owned());
                bail!("{}: it has the modules of {}, and the kernel is {release}", failed(), names.join(", "))
            }
        };
        if Modules::of_directory(&modules).with_context(failed)?.is_empty() {
            bail!("{}: it contains neither modules nor a directory lib/modules/RELEASE", failed())
        }
        Ok(modules)
    }

    /// Returns the words for the kernel that is found without a name: the image of this machine's own, or the name of the distribution's. They contain
    /// no directory of the user's.
    pub fn unnamed() -> String {
        Self::of_host().map_or_else(|| FETCHED[0].to_owned(), |kernel| kernel.image.display().to_string())
    }

    /// Returns this machine's own kernel, if its image is readable.
    pub(super) fn of_host() -> Option<Self> {
        let release = silicon::release::of_host()?;
        let image = PathBuf::from(format!("/boot/vmlinuz-{release}"));
        std::fs::File::open(&image).ok()?;
        let modules = modules_of(&release);
        Some(Self { image, modules, others: Vec::new() })
    }

    fn of_path(path: &Path) -> Result<Self> {
        if path.is_dir() {
            let image = path.join(BUILT);
            if image.is_file() {
                let kernel = Self { image, modules: Some(path.to_path_buf()), others: Vec::new() };
                kernel.remark(path);
                return Ok(kernel);
            }
            return Self::of_package(path);
        }
        let failed = || format!("--kernel {}", path.display());
        let missing = path.to_str().filter(|text| !text.contains('/') && matches!(path.try_exists(), Ok(false)));
        if let Some(name) = missing {
            let names = "cloud, backports, amd64, a suite as in trixie-backports, a release as in 6.12.95";
            let which = meant(path).map_or_else(|| format!(" ({names})"), |meant| format!(": is {meant} meant?"));
            bail!("--kernel {name}: it is neither a file nor a kernel's name{which}");
        }
        let image = path.canonicalize().with_context(failed)?;
        if let Some(kind) = package::kind(&image) {
            let directory = package::unpacked(&image, kind).with_context(failed)?;
            return Self::of_package(&directory).with_context(failed);
        }
        let built = image.ancestors().nth(4).filter(|tree| tree.join(BUILT) == image).map(Path::to_path_buf);
        let release = release_of(&image).with_context(failed)?;
        let beside = || modules_beside(&image, release.as_deref()?);
        let modules = built.or_else(beside).or_else(|| modules_of(release.as_deref()?));
        Ok(Self { image, modules, others: Vec::new() })
    }

    /// Says what the configuration of a tree lacks of what nothing runs without.
    fn remark(&self, tree: &Path) {
        let lacking = self.configuration().map(|text| needs::lacking(&text, true)).unwrap_or_default();
        if !lacking.is_empty() {
            let options: Vec<String> = lacking.iter().map(|option| format!("CONFIG_{option}")).collect();
            let tree = tree.display();
            say(&format!(
                "tollgate: the configuration of {tree} lacks {}, which tollgate exec may need: `tollgate config-kernel {tree}` adds them",
                options.join(", ")
            ));
        }
    }

    /// Returns the kernel of an unpacked package, which has the directories of a root file system.
    fn of_package(root: &Path) -> Result<Self> {
        let shown = root.display();
        let mut images = packaged_images(root);
        let image = match images.len() {
            1 => images.remove(0),
            0 if root.join("Kconfig").is_file() || root.join(".config").is_file() => {
                bail!("--kernel {shown}: the directory has no {BUILT}: is the kernel built?")
            }
            0 => bail!(
                "--kernel {shown}: the directory has neither {BUILT}, as a build tree has it, nor boot/vmlinuz-RELEASE or \
                 lib/modules/RELEASE/vmlinuz, as a package has it"
            ),
            _ => {
                let names: Vec<String> = images.iter().map(|image| image.display().to_string()).collect();
                bail!("--kernel {shown}: the directory has several kernels; name one of them: {}", names.join(", "))
            }
        };
        let beside = image.parent().filter(|directory| !directory.ends_with("boot")).map(Path::to_path_buf);
        let release = release_of(&image)?;
        let own = release.as_ref().and_then(|release| {
            let mut all = MODULE_ROOTS.iter().map(|modules| root.join(&modules[1..]).join(release));
            all.find(|directory| directory.is_dir())
        });
        Ok(Self { image, modules: own.or(beside).or_else(|| modules_of(&release?)), others: Vec::new() })
    }

    /// Returns a kernel of the distribution's packages, which are downloaded once.
    pub(super) fn fetched(name: &str) -> Result<Self> {
        if let Some(kernel) = Cache::all().iter().find_map(|cache| cache.kernel(name)) {
            return Ok(kernel);
        }
        let cache = Cache::filled()?;
        cache.fetch(name)?;
        cache.kernel(name).with_context(|| {
            format!("--kernel {name}: the packages were fetched, and {} has no kernel", cache.packages.display())
        })
    }

    /// Returns the kernel of a release: that of the package that apt knows, or one that was fetched under another name.
    fn of_release(release: &str) -> Result<Self> {
        let fetched = || {
            let package = release::package(release)?;
            if let Some(kernel) = Cache::of_all_users().and_then(|cache| cache.kernel_of_package(&package)) {
                return Ok(kernel);
            }
            let cache = Cache::filled_by_releases()?;
            let directory = release::fetched(release, &package, &cache.packages)?;
            let kernel = Self::of_package(&directory)?;
            cache.record(&kernel, &sums_of_package(&directory))?;
            Ok(kernel)
        };
        fetched().or_else(|error| Cache::all().iter().find_map(|cache| cache.kernel_of(release)).ok_or(error))
    }

    /// Returns the kernel's release, if its image names it.
    pub fn release(&self) -> Option<String> {
        release_of(&self.image).ok()?
    }

    /// Returns the options of the kernel's configuration, if its file is where builds and distributions leave it.
    pub fn configuration(&self) -> Option<String> {
        let tree = self.image.ancestors().nth(4).map(|tree| tree.join(".config"));
        let beside = self.image.parent().map(|directory| directory.join("config"));
        let name = self.image.file_name()?.to_string_lossy().into_owned();
        let installed =
            name.strip_prefix("vmlinuz-").map(|release| self.image.with_file_name(format!("config-{release}")));
        let found = tree.into_iter().chain(beside).chain(installed).find(|path| path.is_file())?;
        std::fs::read_to_string(found).ok()
    }

    /// Reads the modules, if there is a module directory. A tree of which only the image is left is one without.
    pub fn load_modules(&self) -> Result<Option<Modules>> {
        let Some(directory) = &self.modules else { return Ok(None) };
        let first = Modules::of_directory(directory)?;
        let join = |all: Modules, other: &PathBuf| -> Result<Modules> { Ok(all.and(Modules::of_directory(other)?)) };
        let all = self.others.iter().try_fold(first, join)?;
        Ok(Some(all).filter(|modules| !modules.is_empty()))
    }
}

impl Kernel {
    /// Says where modules of the kernel were looked for in vain.
    pub fn without_modules(&self) -> String {
        let release = self.release().unwrap_or_else(|| "RELEASE".to_owned());
        let usual = MODULE_ROOTS.map(|root| Path::new(root).join(&release).join("kernel"));
        let looked: Vec<&Path> = match &self.modules {
            Some(directory) => vec![directory],
            None => usual.iter().map(PathBuf::as_path).collect(),
        };
        let looked: Vec<String> = looked.iter().map(|place| place.display().to_string()).collect();
        format!(
            "no modules of the kernel {} ({release}) were found: there are none in {}; --modules DIR names their directory, and a kernel with its drivers built in needs none",
            self.image.display(),
            looked.join(" or ")
        )
    }
}

/// Returns the places in the value of `--modules`, which commas separate; a comma may also be part of the name of what exists.
pub(super) fn places(modules: Option<&str>) -> Vec<&str> {
    match modules {
        None => Vec::new(),
        Some(one) if Path::new(one).exists() => vec![one],
        Some(several) => several.split(',').collect(),
    }
}

/// Returns the name by which the scripts fetch a kernel of another flavour, or of another suite of the distribution: that of a suite alone is its cloud
/// kernel.
fn fetchable(name: &str) -> Option<String> {
    let plain = |text: &str| {
        !text.is_empty() && text.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-')
    };
    match name.split_once('@') {
        Some((flavour @ ("cloud" | "amd64"), suite)) if plain(suite) => Some(format!("{flavour}@{suite}")),
        _ if name == "backports-amd64" => Some(name.to_owned()),
        _ if SUITES.contains(&name) => Some(format!("cloud@{name}")),
        None if plain(name) && SUITE_ENDS.iter().any(|end| name.ends_with(end)) => Some(format!("cloud@{name}")),
        _ => None,
    }
}

/// Returns the name of a distribution's kernel that a path without directories resembles.
fn meant(path: &Path) -> Option<&'static str> {
    /// Letters in which a name may differ.
    const MOST: usize = 2;
    let text = path.to_str().filter(|text| !text.contains('/'))?.to_lowercase();
    let distance = |name: &&str| strsim::damerau_levenshtein(&text, name);
    FETCHED.into_iter().min_by_key(distance).filter(|name| distance(name) <= MOST)
}

/// Returns the modules that an unpacked package has for one of its images, `boot/vmlinuz-RELEASE` or `lib/modules/RELEASE/vmlinuz`.
fn modules_beside(image: &Path, release: &str) -> Option<PathBuf> {
    let directory = image.parent()?;
    if directory.ends_with(Path::new("lib/modules").join(release)) {
        return Some(directory.to_path_buf());
    }
    let root = directory.parent().filter(|_| directory.ends_with("boot"))?;
    let mut all = MODULE_ROOTS.iter().map(|modules| root.join(&modules[1..]).join(release));
    all.find(|directory| directory.join("kernel").is_dir())
}

/// Returns the module directory of a release.
fn modules_of(release: &str) -> Option<PathBuf> {
    let mut all = MODULE_ROOTS.iter().map(|root| Path::new(root).join(release));
    all.find(|directory| directory.join("kernel").is_dir())
}

/// Returns the images in the directories of an unpacked package, in the order of their names: those of `/boot`, or else those beside modules.
fn packaged_images(root: &Path) -> Vec<PathBuf> {
    let entries = |directory: PathBuf| std::fs::read_dir(directory).into_iter().flatten().flatten();
    let is_image = |path: &PathBuf| {
        path.file_name().is_some_and(|name| {
            let name = name.to_string_lossy();
            name == "vmlinuz" || name.starts_with("vmlinuz-")
        }) && path.is_file()
    };
    let mut images: Vec<PathBuf> = entries(root.join("boot")).map(|entry| entry.path()).filter(is_image).collect();
    if images.is_empty() {
        let roots = MODULE_ROOTS.iter().map(|modules| root.join(&modules[1..]));
        images = roots.flat_map(entries).map(|entry| entry.path().join("vmlinuz")).filter(is_image).collect();
    }
    images.sort();
    images.dedup_by_key(|image| image.canonicalize().ok());
    images
}

/// Returns the release of an image, if its header has one.
fn release_of(image: &Path) -> Result<Option<String>> {
    let failed = || format!("can't read {}", image.display());
    let mut start = Vec::new();
    let file = std::fs::File::open(image).with_context(failed)?;
    file.take(START).read_to_end(&mut start).with_context(failed)?;
    Ok(release(&start))
}

/// Returns the release in the header of a bzImage (the Linux/x86 boot protocol, `kernel_version`).
fn release(image: &[u8]) -> Option<String> {
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let at = usize::from(u16::from_le_bytes([*image.get(0x20e)?, *image.get(0x20f)?])) + 0x200;
    let text = image.get(at..)?.split(|byte| *byte == 0 || *byte == b' ').next()?;
    let text = String::from_utf8(text.to_vec()).ok()?;
    // The release becomes part of a path.
    (!text.is_empty() && !text.contains('/')).then_some(text)
}

/// Returns the cloud kernels of packages that have been fetched.
pub(super) fn present() -> Vec<Near> {
    let of_cache = |cache: &Cache| {
        let entries = std::fs::read_dir(&cache.packages).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| Some(entry.file_name().to_str()?.strip_prefix("kernel-")?.to_owned()));
        let is_cloud = |name: &String| name == "backports" || name == "cloud" || name.starts_with("cloud@");
        let present = |name: String| Some(Near { release: cache.kernel(&name)?.release()?, name });
        names.filter(is_cloud).filter_map(present).collect::<Vec<_>>()
    };
    Cache::all().iter().flat_map(of_cache).collect()
}

/// Returns the file with the checksums of a package that was unpacked into a directory of the shared cache.
fn sums_of_package(directory: &Path) -> PathBuf {
    let mut name = directory.as_os_str().to_owned();
    name.push(".sha256");
    name.into()
}

/// The directory for kernel packages.
struct Cache {
    /// The scripts that fill the directory. None: this program writes them.
    scripts: Option<PathBuf>,
    packages: PathBuf,
    /// The cache of all users.
    shared: Option<Shared>,
}

impl Cache {
    /// Returns the caches in the order in which a kernel is looked for: what a checkout has is what its scripts use, and all users of a machine should have one answer.
    fn all() -> Vec<Self> {
        [Self::of_checkout(), Self::of_all_users(), Self::of_user().ok()].into_iter().flatten().collect()
    }

    /// Returns the cache that a kernel is fetched into. Another user's checkout is read only.
    fn filled() -> Result<Self> {
        let mut others = [Self::of_all_users(), Self::of_checkout()].into_iter().flatten();
        others.find(Self::is_writable).map_or_else(Self::of_user, Ok)
    }

    /// Returns the cache for the packages of releases, of which the scripts of a checkout know nothing.
    fn filled_by_releases() -> Result<Self> {
        Self::of_all_users().filter(Self::is_writable).map_or_else(Self::of_user, Ok)
    }

    /// Returns a checkout's cache if this program lies in a checkout or is started in one.
    fn of_checkout() -> Option<Self> {
        let scripts = places::checkout()?.join("guests/linux");
        Some(Self { packages: scripts.join("cache"), scripts: Some(scripts), shared: None })
    }

    /// Returns the user's cache.
    fn of_user() -> Result<Self> {
        Ok(Self { scripts: None, packages: places::cache()?.join("packages"), shared: None })
    }

    /// Returns the cache of all users, if there is one that can be relied on.
    fn of_all_users() -> Option<Self> {
        static SAID: Once = Once::new();
        match Shared::find() {
            Ok(shared) => {
                shared.map(|shared| Self { scripts: None, packages: shared.packages.clone(), shared: Some(shared) })
            }
            Err(error) => {
                SAID.call_once(|| say(&format!("tollgate: the shared cache is not used: {error:#}")));
                None
            }
        }
    }

    /// Returns true if packages can be added to the cache, or the cache can be made.
    fn is_writable(&self) -> bool {
        let may_write = |path: &Path| rustix::fs::access(path, Access::WRITE_OK).is_ok();
        if !self.packages.exists() {
            return self.packages.parent().is_some_and(may_write);
        }
        let parts = WRITTEN.map(|name| self.packages.join(name));
        may_write(&self.packages) && parts.iter().filter(|path| path.exists()).all(|path| may_write(path))
    }

    /// Returns a kernel that is present with its modules, and in the cache of all users as it was recorded.
    fn kernel(&self, name: &str) -> Option<Kernel> {
        self.verified(self.unverified(name)?, &self.sums(name))
    }

    /// Returns the file with the checksums of a kernel.
    fn sums(&self, name: &str) -> PathBuf {
        self.packages.join(format!("kernel-{name}")).join("sha256")
    }

    fn verified(&self, kernel: Kernel, sums: &Path) -> Option<Kernel> {
        let Some(shared) = &self.shared else { return Some(kernel) };
        if !sums.exists() && self.is_writable() {
            // It will be recorded.
            return None;
        }
        match shared.verify(&kernel, sums) {
            Ok(()) => Some(kernel),
            Err(error) => {
                say(&format!("tollgate: a kernel of the shared cache is not used: {error:#}"));
                None
            }
        }
    }

    /// Records the checksums of a kernel in the cache of all users.
    fn record(&self, kernel: &Kernel, sums: &Path) -> Result<()> {
        self.shared.as_ref().map_or(Ok(()), |shared| shared.record(kernel, sums))
    }

    /// Returns the kernel of a package that has been fetched and unpacked.
    fn kernel_of_package(&self, package: &str) -> Option<Kernel> {
        let file = release::downloaded(&self.packages, package)?;
        let directory = package::place(&self.packages, &file).ok().filter(|directory| directory.is_dir())?;
        self.verified(Kernel::of_package(&directory).ok()?, &sums_of_package(&directory))
    }

    fn unverified(&self, name: &str) -> Option<Kernel> {
        let directory = self.packages.join(format!("kernel-{name}"));
        let word = |file: &str| Some(std::fs::read_to_string(directory.join(file)).ok()?.trim().to_owned());
        let (packages, release) = (word("package")?, word("release")?);
        // The first of several packages has the modules.
        let package = packages.split_whitespace().next()?;
        let unpacked = std::fs::read_dir(self.packages.join("unpacked")).ok()?.flatten().map(|entry| entry.path());
        let begins = |path: &PathBuf| {
            path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&format!("{package}_")))
        };
        let roots = unpacked.filter(begins).flat_map(|tree| MODULE_ROOTS.map(|root| tree.join(&root[1..])));
        let modules = roots.map(|root| root.join(&release)).find(|directory| directory.is_dir())?;
        let image = directory.join("vmlinuz");
        image.is_file().then_some(Kernel { image, modules: Some(modules), others: Vec::new() })
    }

    /// Returns a kernel of a release that was fetched under a name, and is present with its modules. Kernels of trees and files are no such kernels.
    fn kernel_of(&self, release: &str) -> Option<Kernel> {
        let all = std::fs::read_dir(&self.packages).ok()?.flatten().filter_map(|entry| {
            let name = entry.file_name().to_str()?.strip_prefix("kernel-")?.to_owned();
            let own = std::fs::read_to_string(entry.path().join("release")).ok()?;
            let is_fetched = FETCHED.contains(&name.as_str()) || fetchable(&name).is_some();
            is_fetched.then(|| (format!("{}{}", release::PACKAGE, own.trim()), name))
        });
        let all: BTreeMap<String, String> = all.collect();
        let packages: Vec<&str> = all.keys().map(String::as_str).collect();
        self.kernel(&all[release::chosen(release, &packages)?])
    }

    /// Fetches a kernel's packages.
    fn fetch(&self, name: &str) -> Result<()> {
        if let (Some(shared), Some(kernel)) = (&self.shared, self.unverified(name)) {
            if !self.sums(name).exists() && shared.guard(&kernel).is_ok() {
                // An administrator has put it there, or its record was interrupted.
                return self.record(&kernel, &self.sums(name));
            }
            let unpacked = self.packages.join("unpacked");
            let of_package = |path: &&Path| path.parent() == Some(&unpacked);
            let modules = kernel.modules.as_deref().and_then(|modules| modules.ancestors().find(of_package));
            for directory in [kernel.image.parent(), modules].into_iter().flatten() {
                std::fs::remove_dir_all(directory).with_context(|| format!("can't remove {}", directory.display()))?;
            }
        }
        let scripts = match &self.scripts {
            Some(scripts) => scripts.clone(),
            None => {
                let directory = self.packages.with_file_name("scripts");
                std::fs::create_dir_all(&directory)
                    .with_context(|| format!("can't make the directory {}", directory.display()))?;
                for (script, text) in SCRIPTS {
                    let path = directory.join(script);
                    std::fs::write(&path, text).with_context(|| format!("can't write {}", path.display()))?;
                }
                directory
            }
        };
        say(&format!("tollgate: fetching the kernel {name} from this system's package sources"));
        for what in [&[name][..], &[name, "--modules"]] {
            let mut command = Command::new("bash");
            if self.shared.is_some() {
                command.args(["-c", "umask 022 && exec bash \"$0\" \"$@\""]);
            }
            command.arg(scripts.join("kernel")).args(what).env("TOLLGATE_PACKAGES", &self.packages);
            let status =
                command.stdin(Stdio::null()).stdout(Stdio::null()).status().context("bash can't be started")?;
            if !status.success() {
                bail!(
                    "--kernel {name}: the kernel's package can't be fetched (see above); give an image with --kernel FILE, \
                     or run this where apt-get reaches a Debian mirror"
                );
            }
        }
        match self.unverified(name) {
            Some(kernel) => self.record(&kernel, &self.sums(name)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelled_name_is_recognized() {
        let text = |name: &str| meant(Path::new(name));
        assert_eq!(
            ["cluod", "Cloud", "backport", "amd46"].map(text),
            ["cloud", "cloud", "backports", "amd64"].map(Some)
        );
        assert_eq!(["linux", "./cluod", "bzImage", "x"].map(text), [None; 4]);
        let error = format!("{:#}", Kernel::find(Some("cluod"), None).unwrap_err());
        assert_eq!(error, "--kernel cluod: it is neither a file nor a kernel's name: is cloud meant?");
        let error = format!("{:#}", Kernel::find(Some("linux.nowhere"), None).unwrap_err());
        assert!(error.contains("nor a kernel's name (cloud, backports, "), "{error}");
    }

    #[test]
    fn a_kernel_is_found_by_its_release_among_those_that_were_fetched() {
        let packages = std::env::temp_dir().join(format!("tollgate-releases-{}", std::process::id()));
        let kernels = [
            ("cloud", "6.1.0-56-cloud-amd64"),
            ("cloud@bookworm-backports", "6.12.95+deb12-cloud-amd64"),
            ("given-1", "6.13.1-amd64"),
        ];
        for (name, release) in kernels {
            let directory = packages.join(format!("kernel-{name}"));
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::create_dir_all(packages.join(format!("unpacked/{name}_1/lib/modules/{release}"))).unwrap();
            for (file, text) in [("package", name), ("release", release), ("vmlinuz", "")] {
                std::fs::write(directory.join(file), text).unwrap();
            }
        }
        let cache = Cache { scripts: None, packages: packages.clone(), shared: None };
        let found = |release| cache.kernel_of(release).map(|kernel| kernel.image);
        assert_eq!(found("6.12.95"), Some(packages.join("kernel-cloud@bookworm-backports/vmlinuz")));
        assert_eq!(found("6.1.0-56"), Some(packages.join("kernel-cloud/vmlinuz")));
        assert_eq!((found("6.12.9"), found("6.13")), (None, None));
        std::fs::remove_dir_all(&packages).unwrap();
    }

    #[test]
    fn a_kernel_that_is_not_named_has_the_same_words_for_every_user() {
        let words = Kernel::unnamed();
        assert!(words == "cloud" || words.starts_with("/boot/vmlinuz-"), "{words}");
    }

    #[test]
    fn an_unpacked_package_has_its_image_and_its_modules() {
        let root = std::env::temp_dir().join(format!("tollgate-package-{}", std::process::id()));
        let write = |path: &str| {
            std::fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            let mut image = vec![0; 0x400];
            image[0x202..0x206].copy_from_slice(b"HdrS");
            image[0x20e..0x210].copy_from_slice(&0x100u16.to_le_bytes());
            image[0x300..0x307].copy_from_slice(b"6.1.0-9");
            std::fs::write(root.join(path), image).unwrap();
        };
        let find = || Kernel::find(root.to_str(), None);
        std::fs::create_dir_all(&root).unwrap();
        let error = format!("{:#}", find().unwrap_err());
        assert!(
            error.contains("neither arch/x86/boot/bzImage, as a build tree has it, nor boot/vmlinuz-RELEASE"),
            "{error}"
        );
        // As Fedora has it.
        write("lib/modules/6.1.0-9/vmlinuz");
        let kernel = find().unwrap();
        assert_eq!(kernel.modules.as_deref(), Some(&*root.join("lib/modules/6.1.0-9")));
        // As Debian has it: the image in /boot is the same kernel's.
        write("boot/vmlinuz-6.1.0-9");
        let kernel = find().unwrap();
        assert_eq!(kernel.image, root.join("boot/vmlinuz-6.1.0-9"));
        assert_eq!(kernel.modules.as_deref(), Some(&*root.join("lib/modules/6.1.0-9")));
        // One of several images is named, and has the modules of its release.
        let named = |path: &str| Kernel::find(root.join(path).to_str(), None).unwrap().modules;
        assert_eq!(named("boot/vmlinuz-6.1.0-9"), None, "there are no modules in the directory");
        std::fs::create_dir(root.join("lib/modules/6.1.0-9/kernel")).unwrap();
        let modules = root.canonicalize().unwrap().join("lib/modules/6.1.0-9");
        assert_eq!(named("boot/vmlinuz-6.1.0-9").as_ref(), Some(&modules));
        assert_eq!(named("lib/modules/6.1.0-9/vmlinuz"), Some(modules));
        write("boot/vmlinuz-6.1.0-10");
        let error = format!("{:#}", find().unwrap_err());
        assert!(error.contains("several kernels; name one of them: "), "{error}");
        std::fs::remove_dir_all(&root).unwrap();
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(root.join(".config"), "").unwrap();
        assert!(format!("{:#}", find().unwrap_err()).ends_with("is the kernel built?"));
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_cache_that_can_not_be_written_to_is_not_filled() {
        let root = std::env::temp_dir().join(format!("tollgate-cache-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        let is_writable =
            |packages: &Path| Cache { scripts: None, packages: packages.to_owned(), shared: None }.is_writable();
        assert!(is_writable(&root) && is_writable(&root.join("cache")));
        assert!(!is_writable(&root.join("none/cache")));
        // Root may write everywhere.
        if !rustix::process::geteuid().is_root() {
            std::fs::write(root.join(".lock"), "").unwrap();
            std::fs::set_permissions(root.join(".lock"), std::os::unix::fs::PermissionsExt::from_mode(0o444)).unwrap();
            assert!(!is_writable(&root), "the lock is another user's");
        }
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn commas_separate_the_places_of_modules() {
        assert_eq!(places(Some("/none/a.rpm,/none/b")), ["/none/a.rpm", "/none/b"]);
        assert!(places(None).is_empty());
        let directory = std::env::temp_dir().join(format!("tollgate,comma-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        assert_eq!(places(directory.to_str()), [directory.to_str().unwrap()]);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn suites_and_flavours_are_fetched_by_their_names() {
        let names = ["trixie-backports", "cloud@trixie", "amd64@sid", "sid", "backports-amd64"].map(fetchable);
        let expected = ["cloud@trixie-backports", "cloud@trixie", "amd64@sid", "cloud@sid", "backports-amd64"];
        assert_eq!(names, expected.map(|name| Some(name.to_owned())));
        for name in ["cluod", "cloud@", "cloud@../x", "arm64@sid", "x/y-backports", "6.12.95", "bzImage"] {
            assert_eq!(fetchable(name), None, "{name}");
        }
    }

    #[test]
    fn a_kernel_without_modules_says_where_they_were_looked_for() {
        let text = |modules| Kernel { image: "/x/bzImage".into(), modules, others: Vec::new() }.without_modules();
        assert_eq!(
            text(None),
            "no modules of the kernel /x/bzImage (RELEASE) were found: there are none in /lib/modules/RELEASE/kernel or /usr/lib/modules/RELEASE/kernel; --modules DIR names their directory, and a kernel with its drivers built in needs none"
        );
        assert!(text(Some("/tree".into())).contains("there are none in /tree; --modules DIR"));
    }

    #[test]
    fn modules_are_found_below_the_directory_that_is_named() {
        let root = std::env::temp_dir().join(format!("tollgate-modules-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(root.join("lib/modules/6.1.0-9/kernel")).unwrap();
        let image = root.join("bzImage");
        let mut bytes = vec![0; 0x400];
        bytes[0x202..0x206].copy_from_slice(b"HdrS");
        bytes[0x20e..0x210].copy_from_slice(&0x100u16.to_le_bytes());
        bytes[0x300..0x307].copy_from_slice(b"6.1.0-9");
        std::fs::write(&image, &bytes).unwrap();
        let find = |modules: &Path| Kernel::find(image.to_str(), modules.to_str());
        let own = root.join("lib/modules/6.1.0-9");
        for empty in [&root, &own] {
            let error = format!("{:#}", find(empty).unwrap_err());
            assert!(error.ends_with("it contains neither modules nor a directory lib/modules/RELEASE"), "{error}");
        }
        std::fs::write(own.join("kernel/fuse.ko"), "").unwrap();
        assert_eq!(find(&root).unwrap().modules.unwrap(), own.canonicalize().unwrap());
        assert_eq!(find(&own).unwrap().modules.unwrap(), own.canonicalize().unwrap());
        std::fs::rename(&own, root.join("lib/modules/6.1.0-8")).unwrap();
        let error = format!("{:#}", find(&root).unwrap_err());
        assert!(error.ends_with("it has the modules of 6.1.0-8, and the kernel is 6.1.0-9"), "{error}");
        let error = format!("{:#}", find(&image).unwrap_err());
        assert!(error.ends_with("it is neither a directory nor a package"), "{error}");
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn the_release_is_in_the_images_header() {
        let mut image = vec![0; 0x400];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x20e..0x210].copy_from_slice(&0x100u16.to_le_bytes());
        image[0x300..0x312].copy_from_slice(b"6.1.0-56 (x@y) #1\0");
        assert_eq!(release(&image).as_deref(), Some("6.1.0-56"));
        image[0x300] = b'/';
        assert_eq!(release(&image), None);
        assert_eq!(release(&[0; 100]), None);
        image[0x20e..0x210].copy_from_slice(&0xffffu16.to_le_bytes());
        assert_eq!(release(&image), None);
    }
}

//! Builds of kernels: by the tree's own make, in a build directory, or by a command of the user.

use super::state::{State, hash, replace};
use anyhow::{Context, Result, bail};
use lab::diff::runner::killed;
use lab::diff::runner::{self, Ended};
use lab::diff::series::Broken;
use lab::diff::series::course::Built;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

/// Variables that would make two builds of the same source differ (Linux: Documentation/kbuild/reproducible-builds.rst).
const REPRODUCIBLE: [(&str, &str); 5] = [
    ("KBUILD_BUILD_TIMESTAMP", "Wed Jan  1 00:00:00 UTC 2025"),
    ("KBUILD_BUILD_USER", "tollgate"),
    ("KBUILD_BUILD_HOST", "tollgate"),
    ("KBUILD_BUILD_VERSION", "1"),
    // Without it a tree that is no release gets the sign + or its commit.
    ("LOCALVERSION", ""),
];
/// Paths at which an image is looked for: below the build directory, or the tree.
const IMAGES: [&str; 3] = ["arch/x86/boot/bzImage", "bzImage", "vmlinuz"];
/// Words in the lines of compilers, linkers and make that name an error.
const ERRORS: [&str; 4] = [" error: ", " error ", "undefined reference", "*** "];
/// Lines that are shown of them.
const MOST_ERRORS: usize = 12;
/// Larger than the output of any build, in bytes.
const LARGEST_LOG: u64 = 128 << 20;
/// Path of the image in a kept kernel.
const IMAGE: &str = "boot/vmlinuz";

/// How kernels are built.
pub enum Way {
    /// By the tree's make, with this configuration and these further arguments.
    Make(PathBuf, Vec<OsString>),
    /// By a command for the shell. The image is at a path that the user names, or where it usually is.
    Command(String, Option<PathBuf>),
}

/// Builds kernels.
pub struct Builder<'a> {
    pub state: &'a State,
    pub way: Way,
    /// Number of jobs of make.
    pub jobs: usize,
    /// Hash of what kernels are built by, besides their commit.
    pub by: String,
    /// True if kernels are built that were built before.
    pub fresh: bool,
}

/// Returns the hash of what kernels are built by.
pub fn built_by(way: &Way) -> Result<String> {
    Ok(match way {
        Way::Make(config, arguments) => {
            let text = std::fs::read(config).with_context(|| format!("--config {}", config.display()))?;
            hash([b"make".as_slice(), &text].into_iter().chain(arguments.iter().map(|word| word.as_bytes())))
        }
        Way::Command(command, image) => {
            let image = image.as_deref().unwrap_or(Path::new(""));
            hash([b"command".as_slice(), command.as_bytes(), image.as_os_str().as_bytes()])
        }
    })
}

/// Returns the lines of a build's output that name an error: with several jobs the last lines are about other files. None if no line does.
fn errors(log: &Path) -> Option<Vec<String>> {
    let text = String::from_utf8_lossy(&crate::input::read(log, LARGEST_LOG).ok()?).into_owned();
    let is_error = |line: &&str| ERRORS.iter().any(|word| line.contains(word));
    let printable = |line: &str| line.chars().filter(|c| !c.is_control()).collect();
    let found: Vec<String> = text.lines().filter(is_error).take(MOST_ERRORS).map(printable).collect();
    (!found.is_empty()).then_some(found)
}

/// Returns the reason for the end of a step in a few words.
fn broken(what: &str, ended: Ended, log: &Path) -> Broken {
    match ended {
        Ended::Badly(status, tail) => {
            let log = errors(log).unwrap_or(tail);
            Broken { why: format!("{what} ended with status {status}"), log }
        }
        Ended::Killed(signal) => Broken { why: format!("{what} {}", killed(signal)), log: Vec::new() },
        _ => Broken { why: format!("{what} printed too much"), log: Vec::new() },
    }
}

/// Hashes a kernel: its image, and the names and contents of its modules.
fn identity(kernel: &Path) -> Result<String> {
    let mut files = vec![kernel.join(IMAGE)];
    let mut directories = vec![kernel.join("lib")];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            let kind = entry.file_type()?;
            match kind {
                _ if kind.is_dir() => directories.push(entry.path()),
                _ if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let bytes = std::fs::read(&file).with_context(|| file.display().to_string())?;
        let name = file.strip_prefix(kernel).unwrap_or(&file).as_os_str().as_bytes().to_vec();
        all.push(name);
        all.push(hash([bytes.as_slice()]).into_bytes());
    }
    Ok(hash(all.iter().map(Vec::as_slice)))
}

impl Builder<'_> {
    /// Returns the place of a commit's kernel.
    pub fn kernel(&self, commit: &str) -> PathBuf {
        self.state.kernel(&self.by, commit)
    }

    /// Builds a commit, which `check_out` checks out unless the user stops it, if its kernel is not there. What a build that failed has left is used by the next one.
    pub fn build(&self, commit: &str, stop: &AtomicBool, check_out: impl FnOnce() -> Result<bool>) -> Result<Built> {
        let kernel = self.kernel(commit);
        let mark = kernel.join("identity");
        match std::fs::read_to_string(&mark) {
            Ok(identity) if !self.fresh => return Ok(Built::Kernel(identity.trim().to_owned())),
            _ => {}
        }
        if !check_out()? {
            return Ok(Built::Stopped);
        }
        std::fs::create_dir_all(self.state.build()).context("can't make the directory of builds")?;
        if kernel.exists() {
            std::fs::remove_dir_all(&kernel).with_context(|| format!("can't remove {}", kernel.display()))?;
        }
        std::fs::create_dir_all(kernel.join("boot")).with_context(|| format!("can't make {}", kernel.display()))?;
        let built = match &self.way {
            Way::Make(config, arguments) => self.make(config, arguments, &kernel, stop)?,
            Way::Command(command, image) => self.command(commit, command, image.as_deref(), &kernel, stop)?,
        };
        if let Some(built) = built {
            // Only a kernel that is complete is found again.
            let _ = std::fs::remove_dir_all(&kernel);
            return Ok(built);
        }
        let identity = identity(&kernel)?;
        replace(&mark, identity.as_bytes())?;
        Ok(Built::Kernel(identity))
    }

    /// Runs one step. Returns what became of the build if that is its end.
    fn step(&self, what: &str, command: &mut Command, directory: &Path, stop: &AtomicBool) -> Result<Option<Built>> {
        let log = self.state.directory.join("build.log");
        let ended =
            runner::alone(command, &log, directory, stop).with_context(|| format!("{what} can't be started"))?;
        Ok(match ended {
            Ended::Well => None,
            Ended::Stopped => Some(Built::Stopped),
            ended => Some(Built::Broken(broken(what, ended, &log))),
        })
    }

    /// Builds by the tree's make, and keeps image, configuration and modules. Returns None if all went well.
    fn make(&self, config: &Path, arguments: &[OsString], kernel: &Path, stop: &AtomicBool) -> Result<Option<Built>> {
        let (tree, build) = (self.state.tree(), self.state.build());
        let own = build.join(".config");
        std::fs::copy(config, &own).with_context(|| format!("--config {}", config.display()))?;
        let make = |target: &[&str]| {
            let mut command = Command::new("make");
            command.arg(format!("O={}", build.display())).arg(format!("-j{}", self.jobs)).args(arguments).args(target);
            command.env("LC_ALL", "C").envs(REPRODUCIBLE).env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
            command
        };
        let run = |what: &str, target: &[&str]| self.step(what, &mut make(target), &tree, stop);
        if let Some(end) = run("make olddefconfig", &["olddefconfig"])? {
            return Ok(Some(end));
        }
        let configured = std::fs::read_to_string(&own).unwrap_or_default();
        let modules = configured.lines().any(|line| line.ends_with("=m"));
        if let Some(end) = run("make bzImage", &["bzImage"])? {
            return Ok(Some(end));
        }
        if modules {
            if let Some(end) = run("make modules", &["modules"])? {
                return Ok(Some(end));
            }
            let path = format!("INSTALL_MOD_PATH={}", kernel.display());
            if let Some(end) = run("make modules_install", &["INSTALL_MOD_STRIP=1", &path, "modules_install"])? {
                return Ok(Some(end));
            }
        }
        std::fs::copy(build.join(IMAGES[0]), kernel.join(IMAGE)).context("make has made no bzImage")?;
        std::fs::copy(&own, kernel.join("boot/config")).context("the configuration can't be kept")?;
        if !modules {
            self.keep_list_of_drivers(&build, kernel)?;
        }
        Ok(None)
    }

    /// Keeps the list of drivers that are built in, by which a kernel without modules says what it has.
    fn keep_list_of_drivers(&self, build: &Path, kernel: &Path) -> Result<()> {
        let release = std::fs::read_to_string(build.join("include/config/kernel.release")).unwrap_or_default();
        let list = build.join("modules.builtin");
        if release.trim().is_empty() || release.contains('/') || !list.is_file() {
            return Ok(());
        }
        let directory = kernel.join("lib/modules").join(release.trim());
        std::fs::create_dir_all(&directory).and_then(|()| std::fs::copy(list, directory.join("modules.builtin")))?;
        Ok(())
    }

    /// Builds by the user's command. Returns None if all went well.
    fn command(
        &self,
        commit: &str,
        command: &str,
        image: Option<&Path>,
        kernel: &Path,
        stop: &AtomicBool,
    ) -> Result<Option<Built>> {
        let (tree, build) = (self.state.tree(), self.state.build());
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).envs(REPRODUCIBLE);
        let variables = [("TREE", tree.as_os_str()), ("OUT", build.as_os_str()), ("COMMIT", commit.as_ref())];
        shell.envs(variables.map(|(name, value)| (format!("TOLLGATE_{name}"), value)));
        shell.env("INSTALL_MOD_PATH", kernel).env("TOLLGATE_JOBS", self.jobs.to_string());
        if let Some(end) = self.step("the command of --build", &mut shell, &tree, stop)? {
            return Ok(Some(end));
        }
        let named = image.map(|path| vec![path]).unwrap_or_else(|| IMAGES.iter().map(Path::new).collect());
        let places = [&build, &tree].into_iter().flat_map(|place| named.iter().map(move |path| place.join(path)));
        let Some(found) = places.into_iter().find(|path| path.is_file()) else {
            let names = named.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
            let why = format!(
                "the command of --build has made no image: there is no {names} in $TOLLGATE_OUT or in the tree"
            );
            return Ok(Some(Built::Broken(Broken { why, log: Vec::new() })));
        };
        std::fs::copy(&found, kernel.join(IMAGE)).with_context(|| found.display().to_string())?;
        let config = [&build, &tree].map(|place| place.join(".config"));
        if let Some(config) = config.iter().find(|path| path.is_file()) {
            std::fs::copy(config, kernel.join("boot/config")).context("the configuration can't be kept")?;
        }
        Ok(None)
    }
}

/// Returns the configuration that kernels are built with: the given one, or that of the user's tree.
pub fn configuration(given: Option<&Path>, tree: &Path) -> Result<PathBuf> {
    let path = given.map_or_else(|| tree.join(".config"), Path::to_path_buf);
    match (path.is_file(), given) {
        (true, _) => path.canonicalize().with_context(|| path.display().to_string()),
        (false, Some(_)) => bail!("--config {}: there is no such file", path.display()),
        (false, None) => bail!(
            "{} has no .config: name a configuration by --config FILE, or a build script by --build COMMAND",
            tree.display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(test: &str) -> PathBuf {
        let place = std::env::temp_dir().join(format!("tollgate-build-{test}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir_all(place.join("state/tree")).unwrap();
        place
    }

    fn built(state: &State, way: Way, commit: &str, fresh: bool) -> (Built, PathBuf) {
        let by = built_by(&way).unwrap();
        let builder = Builder { state, way, jobs: 1, by, fresh };
        let built = builder.build(commit, &AtomicBool::new(false), || Ok(true)).unwrap();
        (built, builder.kernel(commit))
    }

    #[test]
    fn a_command_builds_and_its_image_is_kept() {
        let place = place("command");
        let state = State::open(&place.join("state"), &place.join("user")).unwrap();
        let script = |text: &str| Way::Command(text.to_owned(), None);
        let write = "echo $TOLLGATE_COMMIT | cut -c 1 > $TOLLGATE_OUT/bzImage; echo X=y > .config; echo ran >> ran";
        let (first, kernel) = built(&state, script(write), "a1", false);
        assert_eq!(std::fs::read_to_string(kernel.join(IMAGE)).unwrap(), "a\n");
        assert_eq!(std::fs::read_to_string(kernel.join("boot/config")).unwrap(), "X=y\n");
        let runs = || std::fs::read_to_string(place.join("state/tree/ran")).unwrap().lines().count();
        assert_eq!(built(&state, script(write), "a1", false).0, first);
        assert_eq!(runs(), 1, "what is built is not built again");
        assert_eq!(built(&state, script(write), "a2", false).0, first, "the images are the same");
        assert_ne!(built(&state, script(write), "b1", false).0, first);
        built(&state, script(write), "b1", true);
        assert_eq!(runs(), 4);
        std::fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn a_build_that_fails_says_why_and_is_tried_again() {
        let place = place("fails");
        let state = State::open(&place.join("state"), &place.join("user")).unwrap();
        let script = || Way::Command("test -f good && echo k > bzImage || { echo no rule; exit 2; }".to_owned(), None);
        let why = "the command of --build ended with status 2".to_owned();
        assert_eq!(
            built(&state, script(), "a", false).0,
            Built::Broken(Broken { why, log: vec!["no rule".to_owned()] })
        );
        let noisy =
            "echo 'f.c:7:2: error: no x'; for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14; do echo CC $n.o; done; exit 2";
        let Built::Broken(Broken { log, .. }) = built(&state, Way::Command(noisy.to_owned(), None), "a", false).0
        else {
            panic!("it is broken")
        };
        assert_eq!(log, ["f.c:7:2: error: no x"], "what the other jobs print hides no error");
        std::fs::write(place.join("state/tree/good"), "").unwrap();
        assert!(matches!(built(&state, script(), "a", false).0, Built::Kernel(_)));
        let silent = built(&state, Way::Command("true".to_owned(), Some("out/Image".into())), "a", false).0;
        let Built::Broken(Broken { why, .. }) = silent else { panic!("{silent:?}") };
        assert_eq!(
            why,
            "the command of --build has made no image: there is no out/Image in $TOLLGATE_OUT or in the tree"
        );
        let stopped = Builder { state: &state, way: script(), jobs: 1, by: "0".repeat(64), fresh: false };
        std::fs::remove_file(place.join("state/tree/good")).unwrap();
        assert!(stopped.build("b", &AtomicBool::new(true), || Ok(true)).is_ok());
        assert_eq!(stopped.build("b", &AtomicBool::new(false), || Ok(false)).unwrap(), Built::Stopped);
        std::fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn make_is_given_the_configuration_and_a_directory_of_its_own() {
        let place = place("make");
        let state = State::open(&place.join("state"), &place.join("user")).unwrap();
        // The targets of a kernel's Makefile.
        let makefile = "\
olddefconfig:\n\techo CONFIG_NEW=y >> $(O)/.config\n\
bzImage:\n\tmkdir -p $(O)/arch/x86/boot $(O)/include/config\n\tcat $(O)/.config > $(O)/arch/x86/boot/bzImage\n\techo $(WORD)$(KBUILD_BUILD_USER) >> $(O)/arch/x86/boot/bzImage\n\techo 6.1 > $(O)/include/config/kernel.release\n\techo kernel/fs/fuse/fuse.ko > $(O)/modules.builtin\n";
        std::fs::write(place.join("state/tree/Makefile"), makefile).unwrap();
        let config = place.join("config");
        std::fs::write(&config, "CONFIG_OLD=y\n").unwrap();
        let (result, kernel) = built(&state, Way::Make(config.clone(), vec!["WORD=by-".into()]), "a", false);
        assert!(matches!(result, Built::Kernel(_)), "{result:?}");
        assert_eq!(std::fs::read_to_string(kernel.join(IMAGE)).unwrap(), "CONFIG_OLD=y\nCONFIG_NEW=y\nby-tollgate\n");
        assert!(kernel.join("lib/modules/6.1/modules.builtin").is_file() && kernel.join("boot/config").is_file());
        assert_eq!(std::fs::read_to_string(&config).unwrap(), "CONFIG_OLD=y\n");
        std::fs::write(&config, "CONFIG_FUSE=m\n").unwrap();
        let (result, _) = built(&state, Way::Make(config, Vec::new()), "a", false);
        let Built::Broken(Broken { why, .. }) = result else { panic!("{result:?}") };
        assert_eq!(why, "make modules ended with status 2");
        assert!(configuration(None, &place).unwrap_err().to_string().contains("has no .config: name a configuration"));
        assert!(configuration(Some(Path::new("/nowhere")), &place).is_err());
        std::fs::remove_dir_all(place).unwrap();
    }
}

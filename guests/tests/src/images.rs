//! What tests run besides the program: bare-metal guests, kernels and their images. Each is made once, when a test first asks for it.

use crate::bench::need;
use crate::processes::Running;
use crate::root;
use crate::run::{Run, program, tollgate};
use crate::test::{Outcome, Stop};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The time that the making of a guest may take: packages are downloaded, and programs built.
const LONGEST: Duration = Duration::from_secs(3600);

type Lines = Result<Vec<String>, Stop>;
/// What each script printed, by its command line.
type Made = HashMap<Vec<String>, Arc<OnceLock<Lines>>>;

/// Runs a script once in this process and returns the lines that it printed.
fn once(script: &str, arguments: &[&str]) -> Lines {
    static MADE: Mutex<Option<Made>> = Mutex::new(None);
    let key = std::iter::once(&script).chain(arguments).map(|word| (*word).to_owned()).collect();
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let cell = made.get_or_insert_default().entry(key).or_default().clone();
    drop(made);
    cell.get_or_init(|| {
        let run = arguments.iter().fold(Run::new(root().join(script)), Run::arg);
        match ended(&run)? {
            (0, output, _) => Ok(output.lines().map(str::to_owned).collect()),
            (_, _, messages) => {
                let reason = messages.lines().last().unwrap_or("it says no reason").to_owned();
                Err(Stop::Skipped(format!("{script} {}: {reason}", arguments.join(" "))))
            }
        }
    })
    .clone()
}

/// Runs a command that makes something, and returns its status, output and messages.
fn ended(run: &Run) -> Result<(i32, String, String), Stop> {
    let (mut output, mut messages) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let status = Running::start(run, &output, &messages)?.wait(Instant::now() + LONGEST)?;
    let text = |file: &mut File| {
        let mut bytes = Vec::new();
        file.rewind()?;
        file.read_to_end(&mut bytes)?;
        Ok::<_, Stop>(String::from_utf8_lossy(&bytes).into_owned())
    };
    let (output, messages) = (text(&mut output)?, text(&mut messages)?);
    match status {
        Some(status) => Ok((status, output, messages)),
        None => Err(Stop::Failed(format!("in {LONGEST:?}, '{}' has not ended: {messages}", run.shown()))),
    }
}

/// Runs a script of `guests/linux` once and returns the path that it printed.
fn path(script: &str, arguments: &[&str]) -> Result<PathBuf, Stop> {
    need("apt-get")?;
    let lines = once(&format!("guests/linux/{script}"), arguments)?;
    Ok(PathBuf::from(lines.last().ok_or_else(|| Stop::Failed(format!("guests/linux/{script} prints no path")))?))
}

/// Checks that there is a program to test.
pub fn the_program() -> Outcome {
    let program = program();
    match program.is_file() {
        true => Ok(()),
        false => Err(Stop::Failed(format!("there is no {}: run 'make build', or set TOLLGATE", program.display()))),
    }
}

/// Makes the bare-metal guests.
pub fn bare_guests() -> Outcome {
    static MADE: OnceLock<Outcome> = OnceLock::new();
    the_program()?;
    MADE.get_or_init(|| {
        // Several processes may run tests.
        std::fs::create_dir_all(root().join("target"))?;
        let lock = File::create(root().join("target/guests.lock"))?;
        lock.lock()?;
        match ended(&Run::new("make").words("--no-print-directory -s -C").arg(root().join("guests/bare")))? {
            (0, ..) => Ok(()),
            (_, _, messages) => Err(Stop::Failed(messages)),
        }
    })
    .clone()
}

/// Returns the image of a kernel: `cloud`, `amd64`, `backports` or `backports-amd64`.
pub fn kernel(flavour: &str) -> Result<PathBuf, Stop> {
    the_program()?;
    path("kernel", &[flavour])
}

/// Returns the directory of a kernel's modules.
pub fn modules(flavour: &str) -> Result<PathBuf, Stop> {
    the_program()?;
    path("kernel", &["--modules", flavour])
}

/// Returns the initial RAM disk with the workloads.
pub fn initrd() -> Result<PathBuf, Stop> {
    path("build", &[])
}

/// Returns the initial RAM disk with the module that toggles CR0.WP.
pub fn kernexec() -> Result<PathBuf, Stop> {
    path("build", &["--kernexec"])
}

/// Returns the ext4 disk and the initial RAM disk of the full kernel.
pub fn disk() -> Result<(PathBuf, PathBuf), Stop> {
    path("disk", &["amd64"])?;
    match &once("guests/linux/disk", &["amd64"])?[..] {
        [disk, initrd] => Ok((disk.into(), initrd.into())),
        other => Err(Stop::Failed(format!("guests/linux/disk printed {other:?}"))),
    }
}

/// Returns an image of software that is not Linux, or the initial RAM disk with dmidecode.
pub fn other(which: &str) -> Result<PathBuf, Stop> {
    the_program()?;
    path("other", &[which])
}

/// Returns the initial RAM disk of a Linux that hosts virtual machines.
pub fn nested() -> Result<PathBuf, Stop> {
    path("nested/build", &[])
}

/// Returns the initial RAM disk of a Linux that hosts virtual machines with files of a user, given by the options of `nested/build`.
pub fn nested_with(options: &[&str]) -> Result<PathBuf, Stop> {
    path("nested/build", options)
}

/// Returns the initial RAM disk of a Linux that hosts virtual machines on the program itself.
pub fn nested_tollgate() -> Result<PathBuf, Stop> {
    if !root().join("guests/linux/out/initramfs-nested-cloud.cpio").is_file() {
        return Err(Stop::Skipped(
            "there is no image of a Linux with KVM: guests/linux/nested/build makes it".to_owned(),
        ));
    }
    path("nested/tollgate", &[&program().to_string_lossy()])
}

/// Returns the initial RAM disk whose program tests tiles and shadow stacks.
pub fn xstate() -> Result<PathBuf, Stop> {
    path("xstate/build", &[])
}

/// Returns the initial RAM disk with Linux's own tests of extended state.
pub fn selftests() -> Result<PathBuf, Stop> {
    path("xstate/selftests", &[])
}

/// Returns the initial RAM disk with network tools for a kernel.
pub fn net(flavour: &str) -> Result<PathBuf, Stop> {
    path("net/build", &[flavour])
}

/// Returns the disk with Debian and the initial RAM disk that mounts it.
pub fn debian() -> Result<(PathBuf, PathBuf), Stop> {
    let initrd = path("debian/build", &["amd64"])?;
    Ok((root().join("guests/linux/out/debian.img"), initrd))
}

/// Returns the address of the package mirror of this host.
pub fn mirror() -> Result<String, Stop> {
    Ok(path("debian/build", &["--mirror"])?.to_string_lossy().into_owned())
}

/// `tollgate run` with a Linux.
pub fn linux(flavour: &str, initrd: PathBuf) -> Result<Run, Stop> {
    Ok(tollgate("run").with("--kernel", kernel(flavour)?).with("--initrd", initrd))
}

/// `tollgate run` with the distribution's newest kernel for clouds and the workloads.
pub fn cloud() -> Result<Run, Stop> {
    linux("cloud", initrd()?)
}

//! `--kernel`: the guests of an experiment with kernels of the user, which the scripts of a checkout make.

use crate::places;
use crate::table::hexadecimal;
use anyhow::{Context, Result, bail};
use lab::experiment::{Experiment, Image, Kernel};
use lab::store::Images;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};

/// The script that makes the guest which is the same for all kernels.
const SAME_FOR_ALL: &str = "guests/linux/build";
/// Bytes of a hash that the name of an image has.
const IN_NAME: usize = 6;

/// A value of `--kernel`: a kernel, and patches behind colons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    kernel: String,
    patches: Vec<String>,
}

impl Wanted {
    /// Reads a value.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.split(':');
        let kernel =
            parts.next().filter(|kernel| !kernel.is_empty()).ok_or("a kernel, such as cloud or a directory")?;
        let patches: Vec<String> = parts.map(str::to_owned).collect();
        match patches.iter().find(|patch| !Path::new(patch).is_file()) {
            Some(patch) => Err(format!("there is no patch at '{patch}'")),
            None => Ok(Self { kernel: kernel.to_owned(), patches }),
        }
    }

    /// Its name in tables: those of its files without directories. A patch that `git format-patch` has numbered is its number.
    fn name(&self) -> String {
        let last = |text: &String| {
            Path::new(text).file_name().map_or_else(|| text.clone(), |name| name.to_string_lossy().into_owned())
        };
        let patches = self.patches.iter().map(|patch| {
            let name = last(patch);
            match name.split_once('-') {
                Some((number, _)) if number.len() == 4 && number.bytes().all(|b| b.is_ascii_digit()) => {
                    number.to_owned()
                }
                _ => name.trim_end_matches(".patch").to_owned(),
            }
        });
        std::iter::once(last(&self.kernel)).chain(patches).collect::<Vec<_>>().join(" + ")
    }

    /// Checks that a file is a kernel, before a guest is made with it. Names of kernels, directories and packages are checked by the script that
    /// looks for the kernel in them.
    fn check(&self) -> Result<()> {
        let path = Path::new(&self.kernel);
        let is_package = path.extension().is_some_and(|extension| extension == "deb");
        if path.is_file() && !is_package {
            machine::loader::check_linux(path).with_context(|| format!("--kernel {}", path.display()))?;
        }
        Ok(())
    }

    /// Returns the name of the image that a command makes with this kernel. Runs at the same time, with other patches or other commands, have images of
    /// other names.
    fn image(&self, experiment: &str, builder: &[String], label: &str) -> Result<String> {
        let mut hasher = Sha256::new();
        let mut part = |bytes: &[u8]| {
            hasher.update(bytes.len().to_le_bytes());
            hasher.update(bytes);
        };
        builder.iter().for_each(|word| part(word.as_bytes()));
        for patch in &self.patches {
            part(&std::fs::read(patch).with_context(|| format!("{patch} can't be read"))?);
        }
        let hash = hexadecimal(&hasher.finalize()[..IN_NAME]);
        Ok(format!("{experiment}-{label}-{hash}"))
    }

    /// Words of a script that takes a kernel.
    pub fn words(&self) -> impl Iterator<Item = &str> {
        let patches = self.patches.iter().flat_map(|patch| ["--patch", patch]);
        std::iter::once(self.kernel.as_str()).chain(patches)
    }
}

/// Makes the guests of experiments with these kernels, and returns the experiments over them and the images of the guests, which are in the directory of
/// finished cells, `out`.
pub fn over(experiments: Vec<Experiment>, wanted: &[Wanted], out: &Path) -> Result<(Vec<Experiment>, Option<Images>)> {
    if wanted.is_empty() {
        return Ok((experiments, None));
    }
    wanted.iter().try_for_each(Wanted::check)?;
    let Some(root) = places::checkout() else {
        bail!(
            "--kernel: the scripts that make guests are in a checkout, and neither this directory nor the program is in one"
        );
    };
    let mut images: Option<Images> = None;
    let mut over = Vec::new();
    for experiment in experiments {
        let builders = experiment.builders();
        if builders.is_empty() {
            bail!("--kernel: the experiment {} runs no Linux, so that a kernel has no effect", experiment.name);
        }
        let mut names = BTreeSet::new();
        let mut kernels = Vec::new();
        for (number, kernel) in wanted.iter().enumerate() {
            let image = last_line(&root, "guests/linux/kernel", kernel.words())?;
            let label = last_line(&root, "guests/linux/kernel", ["--label", &kernel.kernel])?;
            let mut guests = BTreeMap::new();
            for builder in &builders {
                let (script, options) = builder.split_first().context("a guest is made by no command")?;
                let options: Vec<String> = options.iter().map(|word| in_checkout(&root, word)).collect();
                let initrd = match script.as_str() {
                    SAME_FOR_ALL => last_line(&root, script, options.iter().map(String::as_str))?,
                    _ => {
                        let images = match &mut images {
                            Some(images) => images,
                            none => none.insert(Images::open(&std::path::absolute(out)?)?),
                        };
                        let to = images.file(&kernel.image(&experiment.name, builder, &label)?);
                        let to = to.to_string_lossy().into_owned();
                        let words = options.iter().map(String::as_str).chain(kernel.words()).chain(["--to", &to]);
                        last_line(&root, script, words)?
                    }
                };
                guests.insert(builder.clone(), Image::Linux { kernel: image.clone(), initrd: Some(initrd) });
            }
            let name = Some(kernel.name()).filter(|name| names.insert(name.clone()));
            kernels
                .push(Kernel { name: name.unwrap_or_else(|| format!("{} ({})", kernel.name(), number + 1)), guests });
        }
        over.push(experiment.over(&kernels));
    }
    Ok((over, images))
}

/// A word of the command that makes a guest. The names of files there are those from the checkout, and the user may be elsewhere.
fn in_checkout(root: &Path, word: &str) -> String {
    let place = root.join(word);
    if place.is_file() { place.to_string_lossy().into_owned() } else { word.to_owned() }
}

/// Runs a script of the checkout, which says on standard error what it does, and returns the last line that it prints: a path.
fn last_line<'a>(root: &Path, script: &str, words: impl IntoIterator<Item = &'a str>) -> Result<String> {
    let words: Vec<&str> = words.into_iter().collect();
    let mut command = Command::new(root.join(script));
    command.args(&words).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().with_context(|| format!("{script} can't be started"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match text.lines().last().filter(|_| output.status.success()) {
        Some(line) => Ok(line.to_owned()),
        None => bail!("--kernel: `{script} {}` has failed (see above)", words.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_has_patches_behind_colons() {
        let kernel = Wanted::parse("/home/me/kvm/").unwrap();
        assert_eq!((kernel.name().as_str(), kernel.words().collect::<Vec<_>>()), ("kvm", vec!["/home/me/kvm/"]));
        let patch = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let kernel = Wanted::parse(&format!("cloud:{patch}")).unwrap();
        assert_eq!(kernel.name(), "cloud + Cargo.toml");
        assert_eq!(kernel.words().collect::<Vec<_>>(), ["cloud", "--patch", patch]);
        let numbered =
            Wanted { kernel: "kvm".to_owned(), patches: vec!["a/0002-x86-more.patch".into(), "b.patch".into()] };
        assert_eq!(numbered.name(), "kvm + 0002 + b");
        assert_eq!(Wanted::parse("cloud:/absent.patch").unwrap_err(), "there is no patch at '/absent.patch'");
        assert!(Wanted::parse("").unwrap_err().starts_with("a kernel"));
    }

    #[test]
    fn images_with_other_patches_have_other_names() {
        let directory = std::env::temp_dir().join(format!("tollgate-images-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let patch = |name: &str, text: &str| {
            let path = directory.join(name).to_string_lossy().into_owned();
            std::fs::write(&path, text).unwrap();
            path
        };
        let (a, b) = (patch("a", "one"), patch("b", "two"));
        let builder = ["guests/linux/net/build".to_owned(), "amd64".to_owned()];
        let image = |patches: &[&String], builder: &[String]| {
            let patches = patches.iter().map(|patch| (*patch).clone()).collect();
            Wanted { kernel: "cloud".to_owned(), patches }.image("net", builder, "6.1").unwrap()
        };
        let names = [&[][..], &[&a], &[&b], &[&a, &b], &[&b, &a]].map(|patches| image(patches, &builder));
        assert!(names.iter().all(|name| name.starts_with("net-6.1-")), "{names:?}");
        assert_eq!(BTreeSet::from(names.clone()).len(), names.len());
        assert_ne!(image(&[&a], &builder[..1]), names[1]);
        // A patch of the same contents makes the same image, and a changed one another.
        assert_eq!(image(&[&patch("c", "one")], &builder), names[1]);
        patch("a", "three");
        assert_ne!(image(&[&a], &builder), names[1]);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_file_that_is_no_kernel_is_refused() {
        let directory = std::env::temp_dir().join(format!("tollgate-kernels-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let mut image = vec![0; 4096];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x208].copy_from_slice(&0x020f_u16.to_le_bytes());
        image[0x1fe..0x200].copy_from_slice(&0xaa55_u16.to_le_bytes());
        image[0x211] = 1;
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for (name, bytes, wrong) in [
            ("bzImage", &image[..], ""),
            ("text", b"some notes\n", "a text file"),
            ("empty", b"", "empty"),
            ("program", &program, "an ELF"),
            ("archive", b"070701", "a cpio archive"),
            ("k.rpm", b"\xed\xab\xee\xdb", "an RPM package"),
            ("k.deb", b"anything", ""),
        ] {
            let path = directory.join(name);
            std::fs::write(&path, bytes).unwrap();
            let found = Wanted::parse(path.to_str().unwrap()).unwrap().check().map_err(|error| format!("{error:#}"));
            match wrong {
                "" => assert_eq!(found, Ok(()), "{name}"),
                wrong => {
                    let error = found.unwrap_err();
                    assert!(error.contains(wrong) && error.contains("--kernel "), "{name}: {error}");
                }
            }
        }
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(Wanted::parse("cloud").unwrap().check().is_ok());
    }

    #[test]
    fn an_experiment_without_linux_is_refused() {
        let experiment = Experiment::named("pv-cr3").unwrap();
        let wanted = [Wanted::parse("cloud").unwrap()];
        let error = over(vec![experiment], &wanted, Path::new("nowhere")).unwrap_err().to_string();
        assert!(error.contains("the experiment pv-cr3 runs no Linux"), "{error}");
    }
}

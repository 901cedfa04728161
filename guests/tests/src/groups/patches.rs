//! `guests/linux/patched` and the scripts that use it: what a patch changes is in what is booted.
//!
//! A patch to the image needs a tree in which a kernel was built: `TOLLGATE_TREE`, or else `target/kernel-tree`. The copies that are built stay in
//! `guests/linux/cache`, so that only a changed patch, tree or script takes the time of a build.

use crate::bench::{Bench, need};
use crate::images::the_program;
use crate::root;
use crate::run::{Run, tollgate};
use crate::test::{Group, Outcome, Stop};
use std::path::{Path, PathBuf};

/// A file of the image and a file of a module, in one directory of the kernel's tree.
const IMAGE: (&str, &str) = ("net/core/skbuff.c", "tollgate_in_the_image");
const MODULE: (&str, &str) = ("net/core/pktgen.c", "tollgate_in_the_module");
/// The first line of both.
const LICENSE: &str = "// SPDX-License-Identifier: GPL-2.0-or-later";

pub fn group() -> Group {
    let mut group = Group::on_request("patches", 7200);
    group.add("a_patch_to_the_image_of_a_package_is_refused", |bench| {
        need("apt-get")?;
        let reason = "net/core/skbuff.c is of the kernel itself, not of a module";
        for files in [&[IMAGE][..], &[MODULE, IMAGE]] {
            bench.expect(&script("patched", Path::new("cloud"), &patches(bench, files)?), 1, reason)?;
        }
        Ok(())
    });
    for (name, files) in [
        ("a_patch_to_the_image_is_in_the_image", &[IMAGE][..]),
        ("a_patch_to_a_module_is_in_the_module_alone", &[MODULE]),
        ("patches_to_both_are_in_both", &[MODULE, IMAGE]),
    ] {
        group.add(name, move |bench| boots_what_was_patched(bench, files));
    }
    group
}

/// Boots the kernel of the tree with patches that add a function to each file. The guest must have these functions, and no other of them; the tree must stay as it is.
fn boots_what_was_patched(bench: &Bench, files: &[(&str, &str)]) -> Outcome {
    the_program()?;
    need("apt-get")?;
    let tree = tree()?;
    let sources = || [IMAGE, MODULE].map(|(file, _)| std::fs::read(tree.join(file)).ok());
    let before = (sources(), std::fs::read(tree.join("arch/x86/boot/bzImage"))?);
    let patches = patches(bench, files)?;
    let image = bench.expect(&script("kernel", &tree, &patches), 0, "^/")?.text();
    let image = Path::new(image.lines().last().expect("a line of the output has a slash"));
    let initrd = bench.file("net.cpio");
    bench.expect(&script("net/build", &tree, &patches).with("--to", &initrd), 0, "")?;
    if (sources(), std::fs::read(tree.join("arch/x86/boot/bzImage"))?) != before {
        return Err(Stop::Failed(format!("{} has changed", tree.display())));
    }
    if !files.contains(&IMAGE) && image != tree.join("arch/x86/boot/bzImage") {
        return Err(Stop::Failed(format!("only a module is patched, and the image is {}", image.display())));
    }
    let run = tollgate("run").with("--kernel", image).with("--initrd", initrd).words("--memory 512M --limit 60");
    let workload = ". /lib/network.sh && load pktgen && cat /proc/modules && grep tollgate_in_the /proc/kallsyms";
    let run = run.append(&format!("tollgate.run=\"{workload}\""));
    let mut output = bench.expect(&run, 0, "^pktgen ")?;
    for (file, function) in [IMAGE, MODULE] {
        output = match files.contains(&(file, function)) {
            true => output.shows(&format!(" {function}\\b"))?,
            false => output.lacks(&format!(" {function}\\b"))?,
        };
    }
    Ok(())
}

/// Returns the tree, if it has both files in the places that the tests need.
fn tree() -> Result<PathBuf, Stop> {
    let tree = std::env::var_os("TOLLGATE_TREE").map_or_else(|| root().join("target/kernel-tree"), PathBuf::from);
    let skipped = |reason: &str| Err(Stop::Skipped(format!("{}: {reason}", tree.display())));
    let Ok(tree) = tree.canonicalize() else {
        return skipped("there is no tree in which a kernel was built; TOLLGATE_TREE names one");
    };
    if !tree.join("arch/x86/boot/bzImage").is_file() || !tree.join("Kbuild").is_file() {
        return skipped("no kernel was built in it");
    }
    match tree.join("net/core/pktgen.ko").is_file() {
        true => Ok(tree),
        false => skipped("its configuration has no CONFIG_NET_PKTGEN=m"),
    }
}

/// Makes a patch for each file, which adds the function.
fn patches(bench: &Bench, files: &[(&str, &str)]) -> Result<Vec<PathBuf>, Stop> {
    let one = |(file, function): &(&str, &str)| {
        let path = bench.file(&format!("{function}.patch"));
        let added = format!("+void {function}(void);\n+void {function}(void) {{}}\n");
        std::fs::write(&path, format!("--- a/{file}\n+++ b/{file}\n@@ -1 +1,3 @@\n {LICENSE}\n{added}"))?;
        Ok(path)
    };
    files.iter().map(one).collect()
}

/// A script of `guests/linux` for a kernel with patches.
fn script(name: &str, kernel: &Path, patches: &[PathBuf]) -> Run {
    let option = if name == "patched" { None } else { Some("--patch") };
    let run = Run::new(root().join("guests/linux").join(name)).arg(kernel);
    patches.iter().fold(run, |run, patch| option.iter().fold(run, Run::arg).arg(patch))
}

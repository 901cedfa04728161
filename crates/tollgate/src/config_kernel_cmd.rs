//! `tollgate config-kernel`: adds to the configuration of a kernel tree what `exec` needs, by the tree's own scripts.

use crate::exec_cmd::needs::{fragment, lacking};
use crate::table::emit;
use anyhow::{Context, Result, bail};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// The script of a kernel tree that merges fragments of configurations.
const SCRIPT: &str = "scripts/kconfig/merge_config.sh";
/// Name of the fragment.
const FRAGMENT: &str = "tollgate.config";
/// Exit status if the configuration still lacks something that is needed.
const LACKING: u8 = 1;
/// Lines that are shown of the script's output after a failure.
const LINES: usize = 12;

/// Adds to the configuration of a kernel tree what tollgate exec needs, by the tree's own scripts.
#[derive(Args)]
#[command(after_help = "\
Examples:
  make -C ~/linux tinyconfig && tollgate config-kernel ~/linux
  tollgate config-kernel ~/linux --output ~/build
  tollgate config-kernel --print > tollgate.config

The fragment is written to tollgate.config beside .config, and scripts/kconfig/merge_config.sh of the tree merges both.

Exit status: 0, or 1 if the tree does not take an option that is needed; 126 if the configuration can't be changed.")]
pub struct ConfigKernelArgs {
    /// The kernel tree
    #[arg(value_name = "DIR", required_unless_present = "print")]
    tree: Option<PathBuf>,
    /// The directory of the build, as for `make O=DIR` [default: the tree]
    #[arg(long, value_name = "DIR", conflicts_with = "print")]
    output: Option<PathBuf>,
    /// Prints the fragment, and changes nothing
    #[arg(long)]
    print: bool,
}

/// Names options in a sentence.
fn named(options: &[&str]) -> String {
    options.iter().map(|option| format!("CONFIG_{option}")).collect::<Vec<_>>().join(", ")
}

/// Runs the tree's script on a configuration and the fragment beside it.
fn merge(tree: &Path, output: &Path) -> Result<()> {
    let mut command = Command::new("sh");
    command.arg(SCRIPT);
    if output != tree {
        command.arg("-O").arg(output);
    }
    command.arg(output.join(".config")).arg(output.join(FRAGMENT));
    let done = command.current_dir(tree).env("LC_ALL", "C").env_remove("MAKEFLAGS").stdin(Stdio::null()).output();
    let done = done.context("sh can't be started")?;
    if !done.status.success() {
        let said = [done.stdout, done.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let lines: Vec<&str> = said.lines().collect();
        let last = lines[lines.len().saturating_sub(LINES)..].join("\n    | ");
        bail!("{SCRIPT} of {} ended with {}:\n    | {last}", tree.display(), done.status);
    }
    Ok(())
}

/// Runs the command.
pub fn run(args: &ConfigKernelArgs) -> Result<ExitCode> {
    let Some(tree) = args.tree.as_ref().filter(|_| !args.print) else {
        emit(&fragment())?;
        return Ok(ExitCode::SUCCESS);
    };
    let real = |path: &Path| path.canonicalize().with_context(|| path.display().to_string());
    let tree = real(tree)?;
    let output = args.output.as_deref().map_or_else(|| Ok(tree.clone()), real)?;
    if !tree.join(SCRIPT).is_file() {
        bail!("{} has no {SCRIPT}: it is not the source of a kernel", tree.display());
    }
    let config = output.join(".config");
    let Ok(before) = std::fs::read_to_string(&config) else {
        let make = if output == tree { String::new() } else { format!(" O={}", output.display()) };
        bail!(
            "{} is not there: make a configuration first, such as make -C {}{make} defconfig (or tinyconfig)",
            config.display(),
            tree.display()
        );
    };
    let lacked = [true, false].map(|required| lacking(&before, required));
    if lacked.iter().all(Vec::is_empty) {
        emit(&format!("{} has all options that tollgate exec needs or uses.\n", config.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    std::fs::write(output.join(FRAGMENT), fragment()).with_context(|| format!("can't write {FRAGMENT}"))?;
    merge(&tree, &output)?;
    let after = std::fs::read_to_string(&config).with_context(|| config.display().to_string())?;
    let still = [true, false].map(|required| lacking(&after, required));
    let added: Vec<&str> = lacked
        .iter()
        .flatten()
        .filter(|option| !still.iter().flatten().any(|other| other == *option))
        .copied()
        .collect();
    let mut out = String::new();
    if !added.is_empty() {
        out += &format!("Added to {}: {}.\n", config.display(), named(&added));
    }
    for (options, word) in still.iter().zip(["needs", "uses"]).filter(|(options, _)| !options.is_empty()) {
        let text = named(options);
        out += &format!(
            "tollgate exec {word} {text}, which this tree does not accept: the options do not exist in it, or they depend on other options.\n"
        );
    }
    emit(&out)?;
    Ok(if still[0].is_empty() { ExitCode::SUCCESS } else { ExitCode::from(LACKING) })
}

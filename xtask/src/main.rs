//! Checks of this repository's own structure.

mod arrows;
mod circles;
mod rooms;
mod source;
#[cfg(test)]
mod tests;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use source::Module;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Checks of this repository's own structure.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Prints the circles of each crate: files that name each other in a loop, by imports and by paths in the code
    Circles {
        /// Also follow method calls, where one module alone defines a method of that name
        #[arg(long)]
        methods: bool,
        /// Print only the circles of more than ten files and those across rooms, and fail if there is one
        #[arg(long, conflicts_with = "methods")]
        check: bool,
        /// Only these crates
        crates: Vec<String>,
    },
    /// Checks the pairs of xtask/rooms.toml: which room of a crate never names which
    Rooms {
        /// Print the numbers of arrows from room to room
        #[arg(long)]
        arrows: bool,
        /// Only these crates
        crates: Vec<String>,
    },
}

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder is in the repository").to_owned()
}

/// Returns the crates of the folder `crates`: their names, and the modules of each. A crate with a library and a program has both.
fn read_crates(only: &[String]) -> Result<Vec<(String, Vec<Module>)>> {
    let folder = root().join("crates");
    let mut found = Vec::new();
    let mut names: Vec<_> = std::fs::read_dir(&folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    names.sort();
    for path in names {
        let name = path.file_name().and_then(|name| name.to_str()).context("a crate's name is no text")?.to_owned();
        if !only.is_empty() && !only.contains(&name) {
            continue;
        }
        for file in ["src/lib.rs", "src/main.rs"].map(|file| path.join(file)) {
            if file.exists() {
                found.push((name.clone(), source::read(&file)?));
            }
        }
    }
    if let Some(name) = only.iter().find(|name| !found.iter().any(|(found, _)| found == *name)) {
        anyhow::bail!("there is no crate {name}");
    }
    Ok(found)
}

/// The most files that may name each other in a loop.
const LARGEST_CIRCLE: usize = 10;

/// Returns the names of a circle's modules, and the number of its rooms.
fn describe(circle: &[usize], modules: &[Module]) -> (String, usize) {
    let rooms: std::collections::BTreeSet<&str> = circle.iter().map(|at| rooms::room(&modules[*at])).collect();
    let names: Vec<String> = circle.iter().map(|at| rooms::name(&modules[*at])).collect();
    (names.join(" "), rooms.len())
}

fn check_circles(crates: &[String]) -> Result<bool> {
    let mut sound = true;
    for (package, modules) in read_crates(crates)? {
        for circle in circles::find(&modules, &arrows::of_paths(&modules)) {
            let (names, rooms) = describe(&circle, &modules);
            if circle.len() > LARGEST_CIRCLE || rooms > 1 {
                eprintln!("{package}: {} files of {rooms} rooms name each other in a loop: {names}", circle.len());
                sound = false;
            }
        }
    }
    Ok(sound)
}

fn print_circles(methods: bool, crates: &[String]) -> Result<()> {
    for (package, modules) in read_crates(crates)? {
        let mut found = arrows::of_paths(&modules);
        if methods {
            found.extend(arrows::of_methods(&modules));
        }
        let circles = circles::find(&modules, &found);
        let files = modules.iter().map(|module| &module.file).collect::<std::collections::BTreeSet<_>>().len();
        let sizes: Vec<String> = circles.iter().map(|circle| circle.len().to_string()).collect();
        let sizes = if sizes.is_empty() { "none".to_owned() } else { sizes.join(", ") };
        println!("{package}: {files} files, circles of {sizes}");
        for circle in circles {
            let (names, rooms) = describe(&circle, &modules);
            let across = if rooms > 1 { format!("  (across {rooms} rooms)") } else { String::new() };
            println!("  {names}{across}");
        }
    }
    Ok(())
}

fn check_rooms(print: bool, crates: &[String]) -> Result<bool> {
    let rules = rooms::Rules::read(&root().join("xtask/rooms.toml"))?;
    let read = read_crates(crates)?;
    if crates.is_empty() {
        rules.check_crates(&read.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>())?;
    }
    let mut sound = true;
    for (package, modules) in read {
        let found = arrows::of_paths(&modules);
        if print {
            for ((from, to), arrows) in rooms::between(&modules, &found) {
                println!("{package}: {from} -> {to}  {arrows}");
            }
        }
        for message in rules.broken(&package, &modules, &found)? {
            eprintln!("{message}");
            sound = false;
        }
    }
    Ok(sound)
}

fn main() -> Result<ExitCode> {
    let sound = match Arguments::parse().command {
        Command::Circles { check: true, crates, .. } => check_circles(&crates),
        Command::Circles { methods, crates, .. } => print_circles(methods, &crates).map(|()| true),
        Command::Rooms { arrows, crates } => check_rooms(arrows, &crates),
    }?;
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

//! `tollgate generate`: manual pages and completions for packages, generated from the program's options.

use anyhow::{Context, Result};
use clap::{Args, Command, Subcommand};
use clap_complete::Shell;
use std::path::PathBuf;

/// Writes manual pages and completions, for packages.
#[derive(Args)]
#[command(hide = true)]
pub struct GenerateArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Manual pages: one for the program, and one for each command
    Man {
        /// Destination directory
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Completions for a shell, on standard output
    Completions {
        /// Name of the shell
        #[arg(value_name = "SHELL")]
        shell: Shell,
    },
}

/// Runs the command.
pub fn run(args: &GenerateArgs, mut program: Command) -> Result<()> {
    match &args.what {
        What::Completions { shell } => {
            clap_complete::generate(*shell, &mut program, "tollgate", &mut std::io::stdout());
            Ok(())
        }
        What::Man { directory } => {
            std::fs::create_dir_all(directory).with_context(|| format!("can't make {}", directory.display()))?;
            clap_mangen::generate_to(program, directory)
                .with_context(|| format!("can't write manual pages to {}", directory.display()))
        }
    }
}

//! `tollgate generate`: manual pages and completions for packages, generated from the program's options.

use crate::table::emit;
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

/// Returns the program without its hidden commands, which completions would offer otherwise.
fn visible(program: &Command) -> Command {
    let commands = program.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    Command::new("tollgate").version(env!("CARGO_PKG_VERSION")).args(program.get_arguments()).subcommands(commands)
}

/// Runs the command.
pub fn run(args: &GenerateArgs, program: Command) -> Result<()> {
    match &args.what {
        What::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut visible(&program), "tollgate", &mut script);
            emit(&String::from_utf8(script).context("the completions are not text")?)
        }
        What::Man { directory } => {
            std::fs::create_dir_all(directory).with_context(|| format!("can't make {}", directory.display()))?;
            clap_mangen::generate_to(program, directory)
                .with_context(|| format!("can't write manual pages to {}", directory.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, ValueEnum};

    #[test]
    fn completions_offer_no_hidden_command() {
        let program = crate::Cli::command();
        let hidden: Vec<_> = program.get_subcommands().filter(|command| command.is_hide_set()).collect();
        assert!(hidden.len() >= 2);
        for shell in Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut visible(&program), "tollgate", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("exec") && script.contains("diff"), "{shell}");
            for command in &hidden {
                assert!(!script.contains(&command.get_about().unwrap().to_string()), "{shell}: {}", command.get_name());
                assert!(
                    !script.contains(&format!("tollgate,{}", command.get_name())),
                    "{shell}: {}",
                    command.get_name()
                );
            }
        }
    }
}

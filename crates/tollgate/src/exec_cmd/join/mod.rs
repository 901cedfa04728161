//! `tollgate exec --join`: further commands in a guest that runs ([decision 35](../../../../../docs/decisions/0035-joining-a-guest.md)).

mod client;
mod place;
mod server;
mod wire;

pub use client::run;
pub use server::Joins;

use crate::contain::Sandbox;
use anyhow::{Context, Result};
use place::Socket;

/// Key of the commands that have joined a run, in a ledger: their number.
pub const JOINED: &str = "joined by";

/// Lets commands join the guest of this process: `asked` if the user wants it, and otherwise if it is possible.
pub fn listen(asked: bool, sandbox: Sandbox) -> Result<Joins> {
    match Socket::listen(&place::directory(), sandbox) {
        Ok(socket) => Ok(Joins::listen(socket)),
        Err(error) if asked => Err(error).context("--joinable"),
        Err(_) => Ok(Joins::default()),
    }
}

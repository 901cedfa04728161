//! File trees for guests: packed copies of the host's files, or directories of the host. A guest receives a tree from a FUSE server behind a virtio
//! file system device, or as an archive in the initial RAM disk.

#![forbid(unsafe_code)]

pub mod archive;
pub mod attributes;
pub mod closure;
pub mod host_tree;
pub mod kernel_modules;
mod pack_error;
pub mod packed;
pub mod rpm;
pub mod server;
#[cfg(test)]
mod server_tests;
pub mod shares;
#[cfg(test)]
mod testing;
pub mod tree;
mod wire;

pub use attributes::{Attributes, Kind, Time};
pub use pack_error::PackError;
pub use packed::Packed;
pub use server::Server;
pub use shares::Shares;
pub use tree::Tree;

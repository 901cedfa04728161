//! Files for guests: trees of files that are packed from the host's or that are the host's, and the ways by which a guest gets them (a FUSE server
//! behind a virtio file system device, or an archive for the initial RAM disk).

#![forbid(unsafe_code)]

pub mod archive;
pub mod attributes;
pub mod closure;
pub mod host_tree;
pub mod kernel_modules;
pub mod packed;
pub mod server;
#[cfg(test)]
mod server_tests;
pub mod tree;
mod wire;

pub use attributes::{Attributes, Kind, Time};
pub use packed::Packed;
pub use server::Server;
pub use tree::Tree;

//! The machine of `testkit`, of this crate's own types: a test in here sees another `cpu` than the one `testkit` depends on.

#[path = "../../testkit/src/machine.rs"]
mod machine;

pub use machine::*;
pub use testkit::{Random, assemble, host_is_amd};

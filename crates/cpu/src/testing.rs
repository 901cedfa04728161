//! The test machine of `testkit`, with this crate's own types: a unit test sees a different `cpu` crate than the one on
//! which `testkit` depends.

#[path = "../../testkit/src/machine.rs"]
mod machine;

pub use machine::*;
pub use testkit::{Random, assemble, host_is_amd};

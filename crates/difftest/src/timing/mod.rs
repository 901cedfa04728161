//! The time of blocks: models of time beside measurements of this machine's processor.

pub mod profile;
pub mod random;
pub mod sample;

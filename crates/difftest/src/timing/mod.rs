//! The time of blocks: models of time beside measurements of this machine's processor, and tables of forms from such measurements.

pub mod profile;
pub mod random;
pub mod sample;
pub mod table;

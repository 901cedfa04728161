//! The fuzz targets. Each module has `run`, which must return for any bytes, and `seeds`, the initial inputs.

pub mod capture;
pub mod decode;
pub mod devices;
pub mod files;
pub mod hypervisor;
pub mod ixgbe;
pub mod ledger;
pub mod loader;
pub mod nested;
pub mod passt;
pub mod profile;
pub mod restore;
mod rig;
pub mod shared;
pub mod snapshot;
pub mod translate;
pub mod virtio;
pub mod vmx;

//! The board: guest memory, devices, interrupt controllers, firmware tables, loaders and the loop that drives processors.

pub mod acpi;
pub mod devices;
pub mod loader;
pub mod memory;
pub mod pci;
pub mod virtio;

//! Data structures that a PC's firmware leaves in memory: interrupt vectors with their handlers, the BIOS data area and
//! its extension, SMBIOS tables, and the [ACPI tables](crate::acpi).
//!
//! No firmware runs on this board. Only its results are there, for images that look for them: hypervisors and kernels
//! place their real-mode code below the base memory size in the data area, and search for tables in its extension.

mod data_area;
mod handlers;
mod smbios;
#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;

use ledger::profile::CpuidLeaf;
use thiserror::Error;

use crate::acpi::{self, AcpiError};
use crate::memory::{GuestRam, layout};

/// Parameters of the data structures.
#[derive(Clone, Debug)]
pub struct FirmwareConfig {
    /// Local APIC IDs of the processors, the boot processor first.
    pub apic_ids: Vec<u32>,
    /// ID of the I/O APIC.
    pub io_apic_id: u8,
    /// The processor, for SMBIOS.
    pub processor: SmbiosProcessor,
    /// True if the machine presents itself to its guest as a virtual one.
    pub virtual_machine: bool,
    /// Second of the day at which the real-time clock starts.
    pub second_of_day: u32,
}

/// Description of the processor in SMBIOS.
#[derive(Clone, Debug, Default)]
pub struct SmbiosProcessor {
    /// Vendor, as a string.
    pub manufacturer: String,
    /// Name of the processor.
    pub name: String,
    /// CPUID leaf 1: EAX and EDX.
    pub id: [u32; 2],
    /// Frequency in MHz.
    pub mhz: u16,
}

impl SmbiosProcessor {
    /// Derives the description from CPUID.
    pub fn of(cpuid: &[CpuidLeaf], hz: u64) -> Self {
        const BRAND: RangeInclusive<u32> = 0x8000_0002..=0x8000_0004;
        let leaf = |number| cpuid.iter().find(|l| l.leaf == number);
        let text = |registers: Vec<u32>| {
            let bytes: Vec<u8> = registers.iter().flat_map(|r| r.to_le_bytes()).take_while(|&b| b != 0).collect();
            String::from_utf8_lossy(&bytes).trim().to_owned()
        };
        Self {
            manufacturer: text(leaf(0).map_or(Vec::new(), |l| vec![l.ebx, l.edx, l.ecx])),
            name: text(BRAND.filter_map(leaf).flat_map(|l| [l.eax, l.ebx, l.ecx, l.edx]).collect()),
            id: leaf(1).map_or([0; 2], |l| [l.eax, l.edx]),
            mhz: u16::try_from(hz / 1_000_000).unwrap_or(u16::MAX),
        }
    }
}

/// Results of firmware that loaders need.
#[derive(Clone, Debug)]
pub struct Firmware {
    /// Address of the ACPI root pointer.
    pub rsdp: u64,
    /// Interrupt vectors and BIOS data area, from address 0 on. A loader writes them if the image leaves room for them.
    pub low_memory: Vec<u8>,
}

/// Reason for which firmware's tables can't be placed.
#[derive(Debug, Error)]
pub enum FirmwareError {
    /// The ACPI tables can't be placed.
    #[error(transparent)]
    Acpi(#[from] AcpiError),
    /// The firmware area is not RAM.
    #[error("there is no memory at {0:#x} for firmware's tables")]
    NoMemory(u64),
}

/// Writes the parts in reserved memory, and returns the parts that a loader needs.
pub fn install(ram: &GuestRam, config: &FirmwareConfig) -> Result<Firmware, FirmwareError> {
    let acpi = acpi::AcpiConfig { apic_ids: config.apic_ids.clone(), io_apic_id: config.io_apic_id };
    let rsdp = acpi::install(ram, &acpi)?;
    let put = |address: u64, bytes: &[u8]| {
        if ram.write(address, bytes) { Ok(()) } else { Err(FirmwareError::NoMemory(address)) }
    };
    put(layout::CONVENTIONAL_END, &data_area::extended())?;
    put(layout::SMBIOS.start, &smbios::build(config, ram))?;
    handlers::CODE.iter().try_for_each(|handler| put(handler.address(), handler.code))?;
    let mut low_memory = handlers::vectors();
    low_memory.extend(data_area::build(config.second_of_day));
    Ok(Firmware { rsdp, low_memory })
}

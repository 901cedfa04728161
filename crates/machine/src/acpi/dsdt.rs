//! The DSDT: devices that can't be enumerated, and the PCI root with its windows and interrupt routing.

use acpi_tables::Aml;
use acpi_tables::aml::{
    AddressSpace, AddressSpaceCacheable, Device, EISAName, IO, Interrupt, Memory32Fixed, Name, Package, PackageBuilder,
    ResourceTemplate, Scope,
};

use super::{PCI_LINES, SOFT_OFF, pci_line, tables};
use crate::devices::{pm, pvpanic};
use crate::memory::layout;

const PCI_DEVICES: u8 = 32;

pub(super) fn dsdt() -> Vec<u8> {
    let mut body = Vec::new();
    soft_off().to_aml_bytes(&mut body);
    let devices = Scope::raw("\\_SB_".into(), [pci_root(), board(), serial(), rtc(), panic()].concat());
    body.extend(devices);
    tables::table(b"DSDT", 2, &body)
}

/// Returns the sleep type of soft-off for both fields; the board has only one sleep type register.
fn soft_off() -> Name {
    Name::new("_S5_".into(), &Package::new(vec![&SOFT_OFF, &SOFT_OFF, &0u8, &0u8]))
}

/// Describes a device with a hardware ID, further names, and its resources.
fn device(path: &str, id: &dyn Aml, names: &[(&str, &dyn Aml)], resources: Vec<&dyn Aml>) -> Vec<u8> {
    let mut names: Vec<Name> = names.iter().map(|(name, value)| Name::new((*name).into(), *value)).collect();
    names.insert(0, Name::new("_HID".into(), id));
    names.push(Name::new("_CRS".into(), &ResourceTemplate::new(resources)));
    let children = names.iter().map(|name| name as &dyn Aml).collect();
    let mut out = Vec::new();
    Device::new(path.into(), children).to_aml_bytes(&mut out);
    out
}

/// Describes the PCI host bridge.
fn pci_root() -> Vec<u8> {
    let (start, last) = (layout::PCI_WINDOW.start as u32, (layout::PCI_WINDOW.end - 1) as u32);
    let mut routing = PackageBuilder::new();
    for device in 0..PCI_DEVICES {
        for pin in 0..PCI_LINES as u8 {
            // The address covers all functions; a source of 0 makes the last element an interrupt line.
            let address = (u32::from(device) << 16) | 0xffff;
            routing.add_element(&Package::new(vec![&address, &pin, &0u8, &pci_line(device, pin)]));
        }
    }
    device(
        "PCI0",
        &EISAName::new("PNP0A08"),
        &[("_CID", &EISAName::new("PNP0A03")), ("_SEG", &0u8), ("_BBN", &0u8), ("_UID", &0u8), ("_PRT", &routing)],
        vec![
            &AddressSpace::new_bus_number(0u16, 0u16),
            &IO::new(0xcf8, 0xcf8, 1, 8),
            &AddressSpace::new_io(0u16, 0xcf7u16, None),
            &AddressSpace::new_io(0xd00u16, 0xffffu16, None),
            &AddressSpace::new_memory(AddressSpaceCacheable::NotCacheable, true, start, last, None),
        ],
    )
}

/// Describes the resources that the board uses and no other device claims: configuration space and the power-management
/// registers.
fn board() -> Vec<u8> {
    let ecam = layout::PCI_ECAM;
    device(
        "MBRD",
        &EISAName::new("PNP0C02"),
        &[("_UID", &0u8)],
        vec![
            &Memory32Fixed::new(true, ecam.start as u32, (ecam.end - ecam.start) as u32),
            &IO::new(pm::BASE, pm::BASE, 1, pm::SIZE as u8),
        ],
    )
}

/// Describes the first serial port.
fn serial() -> Vec<u8> {
    let line = Interrupt::new(true, true, false, false, 4);
    device("COM1", &EISAName::new("PNP0501"), &[("_UID", &1u8)], vec![&IO::new(0x3f8, 0x3f8, 1, 8), &line])
}

/// Describes the real-time clock.
fn rtc() -> Vec<u8> {
    let line = Interrupt::new(true, true, false, false, 8);
    device("RTC0", &EISAName::new("PNP0B00"), &[], vec![&IO::new(0x70, 0x70, 1, 2), &line])
}

/// Describes the port with which a kernel reports a panic.
fn panic() -> Vec<u8> {
    device("PEVT", &"QEMU0001", &[("_STA", &0xfu8)], vec![&IO::new(pvpanic::PVPANIC, pvpanic::PVPANIC, 1, 1)])
}

//! ACPI tables, in which an operating system finds processors, interrupt controllers, PCI and the power-off register.
//!
//! The tables are in the reserved part of the first megabyte. The RSDP comes first, where both a search of the BIOS
//! area and the pointers of boot protocols lead to it. The tables describe the board and promise nothing else: no HPET,
//! no sleep states except soft-off, no fixed buttons.

mod dsdt;
mod tables;

use thiserror::Error;

use crate::devices::pm;
use crate::memory::{GuestRam, layout};

/// Port of the PM1a event block (status, then enable; 4 bytes).
pub const PM1A_EVENT: u16 = pm::BASE + pm::PM1_EVENT;
/// Port of the PM1a control register (2 bytes).
pub const PM1A_CONTROL: u16 = pm::BASE + pm::PM1_CONTROL;
/// Port of the PM timer (4 bytes).
pub const PM_TIMER: u16 = pm::BASE + pm::TIMER;
/// Port of general-purpose event block 0 (2 bytes of status, 2 of enable).
pub const GPE0: u16 = pm::BASE + pm::GPE0;
/// Port of the reset register.
pub const RESET: u16 = 0xcf9;
/// Value that resets the machine when written to [`RESET`].
pub const RESET_VALUE: u8 = 6;
/// Address of the FACS, after the RSDP.
const FACS: u64 = layout::ACPI.start + 64;
/// Address of the waking vector in the FACS: the real-mode entry point of a machine that wakes from suspension to RAM.
pub const WAKING_VECTOR: u64 = FACS + 12;
/// Sleep type of soft-off (`\_S5`) in the PM1a control register, as the power-management device decodes it.
pub const SOFT_OFF: u8 = 0;
/// First I/O APIC line that PCI interrupts are routed to. INTx of a device goes to [`pci_line`].
pub const FIRST_PCI_LINE: u32 = 16;
/// Number of lines that PCI interrupts share.
pub const PCI_LINES: u32 = 4;

/// Returns the I/O APIC line to which a PCI device's interrupt pin (0 is INTA) is routed.
pub const fn pci_line(device: u8, pin: u8) -> u32 {
    FIRST_PCI_LINE + (device as u32 + pin as u32) % PCI_LINES
}

/// Parameters of the tables.
#[derive(Clone, Debug)]
pub struct AcpiConfig {
    /// Local APIC IDs of the processors, the boot processor first.
    pub apic_ids: Vec<u32>,
    /// ID of the I/O APIC.
    pub io_apic_id: u8,
}

/// Reason for which the tables can't be placed.
#[derive(Debug, Error)]
pub enum AcpiError {
    /// The tables of this many processors do not fit.
    #[error("the ACPI tables of {cpus} processors need {len} bytes; there is room for {room}")]
    TooManyProcessors {
        /// Number of processors.
        cpus: usize,
        /// Length of the tables.
        len: u64,
        /// Length of the firmware area.
        room: u64,
    },
    /// The firmware area is not RAM.
    #[error("there is no memory at {0:#x} for the ACPI tables")]
    NoMemory(u64),
}

/// Writes the tables into guest memory and returns the address of the RSDP.
pub fn install(ram: &GuestRam, config: &AcpiConfig) -> Result<u64, AcpiError> {
    let base = layout::ACPI.start;
    let room = layout::ACPI.end - base;
    let bytes = build(config, base as u32);
    let len = bytes.len() as u64;
    if len > room {
        return Err(AcpiError::TooManyProcessors { cpus: config.apic_ids.len(), len, room });
    }
    if ram.write(base, &bytes) { Ok(base) } else { Err(AcpiError::NoMemory(base)) }
}

/// Builds all tables, to be placed at `base`: RSDP, FACS, DSDT, FADT, MADT, MCFG, RSDT and XSDT.
fn build(config: &AcpiConfig, base: u32) -> Vec<u8> {
    /// The strictest alignment, that of the FACS.
    const ALIGN: usize = 64;
    let mut image = vec![0; ALIGN];
    let mut add = |table: &[u8]| {
        image.resize(image.len().next_multiple_of(ALIGN), 0);
        let at = base + image.len() as u32;
        image.extend_from_slice(table);
        at
    };
    let facs = add(&tables::facs());
    let dsdt = add(&dsdt::dsdt());
    let listed = [add(&tables::fadt(facs, dsdt)), add(&tables::madt(config)), add(&tables::mcfg())];
    let rsdt = add(&tables::rsdt(&listed));
    let xsdt = add(&tables::xsdt(&listed));
    let rsdp = tables::rsdp(rsdt, xsdt);
    image[..rsdp.len()].copy_from_slice(&rsdp);
    image
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(bytes: &[u8]) -> u8 {
        bytes.iter().fold(0, |sum, b| sum.wrapping_add(*b))
    }

    fn word(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    fn config(cpus: u32) -> AcpiConfig {
        AcpiConfig { apic_ids: (0..cpus).collect(), io_apic_id: 0 }
    }

    /// Returns the table at an address, after a check of its checksum.
    fn table(image: &[u8], base: u32, address: u32) -> &[u8] {
        let bytes = &image[(address - base) as usize..];
        let bytes = &bytes[..word(bytes, 4) as usize];
        assert_eq!(sum(bytes), 0);
        bytes
    }

    fn find<'a>(image: &'a [u8], base: u32, signature: &[u8]) -> &'a [u8] {
        let root = table(image, base, word(image, 16));
        let mut tables = root[36..].chunks(4).map(|a| table(image, base, word(a, 0)));
        tables.find(|t| t.starts_with(signature)).unwrap()
    }

    #[test]
    fn both_roots_lead_to_the_same_tables() {
        let base = 0xe_0000;
        let image = build(&config(2), base);
        assert_eq!(&image[..8], b"RSD PTR ");
        assert_eq!((sum(&image[..20]), sum(&image[..36])), (0, 0));
        let rsdt = table(&image, base, word(&image, 16));
        let xsdt = table(&image, base, word(&image, 24));
        assert_eq!((&rsdt[..4], &xsdt[..4]), (&b"RSDT"[..], &b"XSDT"[..]));
        let short: Vec<u32> = rsdt[36..].chunks(4).map(|a| word(a, 0)).collect();
        let long: Vec<u32> = xsdt[36..].chunks(8).map(|a| word(a, 0)).collect();
        assert_eq!(short, long);
        let fadt = find(&image, base, b"FACP");
        assert_eq!(table(&image, base, word(fadt, 40))[..4], *b"DSDT");
        assert_eq!(image[(word(fadt, 36) - base) as usize..][..4], *b"FACS");
        assert_eq!(word(fadt, 36) % 64, 0);
        assert_eq!(u64::from(word(fadt, 36)), FACS);
        assert_eq!(word(fadt, 64), u32::from(PM1A_CONTROL));
        assert_eq!(word(fadt, 48), 0);
        let mcfg = find(&image, base, b"MCFG");
        assert_eq!(u64::from(word(mcfg, 44)), layout::PCI_ECAM.start);
    }

    #[test]
    fn processors_beyond_an_8_bit_id_get_x2apic_entries() {
        let base = 0xe_0000;
        let image = build(&config(300), base);
        let madt = find(&image, base, b"APIC");
        let (mut local, mut x2apic, mut at) = (0, 0, 44);
        while at < madt.len() {
            match madt[at] {
                0 => local += 1,
                9 => x2apic += 1,
                _ => {}
            }
            at += usize::from(madt[at + 1]);
        }
        assert_eq!((local, x2apic, at), (255, 45, madt.len()));
    }

    #[test]
    fn tables_that_do_not_fit_are_refused() {
        let ram = GuestRam::new(1 << 20).unwrap();
        assert_eq!(install(&ram, &config(4)).unwrap(), 0xe_0000);
        assert!(matches!(install(&ram, &config(5000)), Err(AcpiError::TooManyProcessors { .. })));
    }

    #[test]
    fn soft_off_is_where_a_simple_parser_finds_it() {
        let dsdt = dsdt::dsdt();
        assert_eq!(sum(&dsdt), 0);
        let at = dsdt.windows(4).position(|w| w == b"_S5_").unwrap();
        assert_eq!(dsdt[at + 4..at + 9], [0x12, 6, 4, SOFT_OFF, SOFT_OFF]);
    }
}

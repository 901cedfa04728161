//! Tables with a fixed layout (ACPI 6.5, chapter 5.2).

use acpi_tables::fadt::{FADTBuilder, Flags};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::sdt::Sdt;
use acpi_tables::{Aml, facs::FACS};

use super::{AcpiConfig, GPE0, PM_TIMER, PM1A_CONTROL, PM1A_EVENT, RESET, RESET_VALUE};
use crate::devices::pm;
use crate::memory::layout;

const OEM: [u8; 6] = *b"TOLLGT";
const OEM_TABLE: [u8; 8] = *b"TOLLGATE";
const OEM_REVISION: u32 = 1;
const HEADER_LEN: u32 = 36;

/// Builds a table with the common header.
pub(super) fn table(signature: &[u8; 4], revision: u8, body: &[u8]) -> Vec<u8> {
    let mut table = Sdt::new(*signature, HEADER_LEN, revision, OEM, OEM_TABLE, OEM_REVISION);
    table.append_slice(body);
    table.as_slice().to_vec()
}

fn bytes(table: &dyn Aml) -> Vec<u8> {
    let mut out = Vec::new();
    table.to_aml_bytes(&mut out);
    out
}

/// Builds the root pointer, with both roots.
pub(super) fn rsdp(rsdt: u32, xsdt: u32) -> Vec<u8> {
    const V1_LEN: usize = 20;
    const LEN: u32 = 36;
    let mut out = b"RSD PTR \0".to_vec();
    out.extend(OEM);
    out.push(2);
    out.extend(rsdt.to_le_bytes());
    out[8] = checksum(&out);
    debug_assert_eq!(out.len(), V1_LEN);
    out.extend(LEN.to_le_bytes());
    out.extend(u64::from(xsdt).to_le_bytes());
    out.push(checksum(&out));
    out.extend([0; 3]);
    out
}

fn checksum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0u8, |sum, b| sum.wrapping_sub(*b))
}

pub(super) fn rsdt(tables: &[u32]) -> Vec<u8> {
    let body: Vec<u8> = tables.iter().flat_map(|a| a.to_le_bytes()).collect();
    table(b"RSDT", 1, &body)
}

pub(super) fn xsdt(tables: &[u32]) -> Vec<u8> {
    let body: Vec<u8> = tables.iter().flat_map(|a| u64::from(*a).to_le_bytes()).collect();
    table(b"XSDT", 1, &body)
}

pub(super) fn facs() -> Vec<u8> {
    bytes(&FACS::new())
}

pub(super) fn fadt(facs: u32, dsdt: u32) -> Vec<u8> {
    /// IAPC_BOOT_ARCH: legacy devices, an 8042, no VGA, no control of link power states.
    const BOOT_ARCH: u16 = 1 | 1 << 1 | 1 << 2 | 1 << 4;
    /// Worst-case latencies that mean "C2 and C3 are not supported".
    const NO_C2: u16 = 0xffff;
    /// Offset of the century in the real-time clock's memory.
    const CENTURY: u8 = 0x32;
    const EVENT_LEN: u8 = 4;
    const CONTROL_LEN: u8 = 2;
    const TIMER_LEN: u8 = 4;
    const GPE_LEN: u8 = pm::GPE0_SIZE as u8;
    let port = |address: u16, len: u8, access| GAS::new(AddressSpace::SystemIo, 8 * len, 0, access, u64::from(address));
    let mut fadt = FADTBuilder::new(OEM, OEM_TABLE, OEM_REVISION)
        .gpe_info(GPE0.into(), 0, GPE_LEN, 0, 0)
        .flag(Flags::Wbinvd)
        .flag(Flags::ProcC1)
        // These two flags mean that the fixed-hardware buttons are absent. Without the 32-bit timer flag the timer has
        // 24 bits.
        .flag(Flags::PwrButton)
        .flag(Flags::SlpButton)
        .flag(Flags::ResetRegSup);
    fadt.firmware_ctrl = facs.into();
    fadt.dsdt = dsdt.into();
    fadt.x_dsdt = u64::from(dsdt).into();
    fadt.sci_int = u16::from(pm::SCI_IRQ).into();
    fadt.pm1a_evt_blk = u32::from(PM1A_EVENT).into();
    fadt.pm1a_cnt_blk = u32::from(PM1A_CONTROL).into();
    fadt.pm_tmr_blk = u32::from(PM_TIMER).into();
    fadt.pm1_evt_len = EVENT_LEN;
    fadt.pm1_cnt_len = CONTROL_LEN;
    fadt.pm_tmr_len = TIMER_LEN;
    fadt.p_lvl2_lat = NO_C2.into();
    fadt.p_lvl3_lat = NO_C2.into();
    fadt.century = CENTURY;
    fadt.iapc_boot_arch = BOOT_ARCH.into();
    fadt.reset_reg = port(RESET, 1, AccessSize::ByteAccess);
    fadt.reset_value = RESET_VALUE;
    fadt.x_pm1a_evt_blk = port(PM1A_EVENT, EVENT_LEN, AccessSize::WordAccess);
    fadt.x_pm1a_cnt_blk = port(PM1A_CONTROL, CONTROL_LEN, AccessSize::WordAccess);
    fadt.x_pm_tmr_blk = port(PM_TIMER, TIMER_LEN, AccessSize::DwordAccess);
    fadt.x_gpe0_blk = port(GPE0, GPE_LEN, AccessSize::ByteAccess);
    bytes(&fadt.finalize())
}

/// Builds the table of processors and interrupt controllers.
pub(super) fn madt(config: &AcpiConfig) -> Vec<u8> {
    const REVISION: u8 = 5;
    const PC_COMPATIBLE: u32 = 1;
    const ENABLED: u32 = 1;
    /// First ID that needs an x2APIC entry; 255 is the broadcast ID.
    const FIRST_X2APIC: u32 = 255;
    const LEVEL_HIGH: u16 = 0xd;
    let mut body = Vec::new();
    body.extend((layout::LOCAL_APIC as u32).to_le_bytes());
    body.extend(PC_COMPATIBLE.to_le_bytes());
    for (uid, &id) in config.apic_ids.iter().enumerate() {
        if id < FIRST_X2APIC && uid < 255 {
            body.extend([0, 8, uid as u8, id as u8]);
            body.extend(ENABLED.to_le_bytes());
        } else {
            body.extend([9, 16, 0, 0]);
            body.extend(id.to_le_bytes());
            body.extend(ENABLED.to_le_bytes());
            body.extend((uid as u32).to_le_bytes());
        }
    }
    body.extend([1, 12, config.io_apic_id, 0]);
    body.extend((layout::IO_APIC as u32).to_le_bytes());
    body.extend(0u32.to_le_bytes());
    for (irq, line, flags) in [(0u8, 2u32, 0u16), (pm::SCI_IRQ, u32::from(pm::SCI_IRQ), LEVEL_HIGH)] {
        body.extend([2, 10, 0, irq]);
        body.extend(line.to_le_bytes());
        body.extend(flags.to_le_bytes());
    }
    // NMI is connected to LINT1 of every processor.
    body.extend([4, 6, 0xff, 0, 0, 1]);
    if config.apic_ids.iter().any(|&id| id >= FIRST_X2APIC) {
        body.extend([10, 12, 0, 0, 0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0]);
    }
    table(b"APIC", REVISION, &body)
}

/// Builds the table of enhanced PCI configuration space: segment 0, bus 0.
pub(super) fn mcfg() -> Vec<u8> {
    let mut body = vec![0; 8];
    body.extend(layout::PCI_ECAM.start.to_le_bytes());
    body.extend([0; 8]);
    table(b"MCFG", 1, &body)
}

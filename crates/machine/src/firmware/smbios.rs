//! SMBIOS tables (DMTF DSP0134, version 3.0): identification of the machine, its processors and its memory.
//!
//! Both entry points refer to the same tables: software that knows version 3 looks for `_SM3_`, older software for
//! `_SM_`.

use super::FirmwareConfig;
use crate::memory::{GuestRam, layout};

const MANUFACTURER: &str = "Tollgate";
const PRODUCT: &str = "PC";
/// The default start date of the real-time clock. Kernels derive the machine's age from the year.
const RELEASE_DATE: &str = "01/01/2025";

/// Handles; where there are several structures of a kind, their handles count up from these.
mod handle {
    pub const BIOS: u16 = 0x0000;
    pub const SYSTEM: u16 = 0x0100;
    pub const CHASSIS: u16 = 0x0300;
    pub const PROCESSOR: u16 = 0x0400;
    pub const MEMORY_ARRAY: u16 = 0x1000;
    pub const MEMORY_DEVICE: u16 = 0x1100;
    pub const MAPPED_ADDRESS: u16 = 0x1300;
    pub const BOOT: u16 = 0x2000;
    pub const END: u16 = 0x7f00;
    /// No such structure.
    pub const NONE: u16 = 0xffff;
    /// Errors are not recorded.
    pub const NO_ERRORS: u16 = 0xfffe;
}

/// Length of the first entry point, and offsets of the second one and of the tables.
const ENTRY_LEN: usize = 31;
const ENTRY64_AT: usize = 32;
const ENTRY64_LEN: usize = 24;
const TABLES_AT: usize = 64;

/// Maximum size of a memory device, in MiB; more memory is described as several devices.
const DEVICE_MIB: u64 = 16 << 10;
/// First size in MiB, or in KiB of a memory array, that exceeds the fields of early versions.
const LARGE_DEVICE_MIB: u64 = 0x7fff;
const LARGE_ARRAY_KIB: u64 = 1 << 31;

/// Builds entry points and tables, to be placed at the start of the area.
pub(super) fn build(config: &FirmwareConfig, ram: &GuestRam) -> Vec<u8> {
    let mut tables = Tables::default();
    tables.bios(config.virtual_machine);
    tables.system();
    tables.chassis();
    tables.processor(config);
    tables.memory(ram);
    tables.boot();
    tables.end();
    let base = layout::SMBIOS.start + TABLES_AT as u64;
    let mut image = entry(&tables, base as u32);
    image.resize(ENTRY64_AT, 0);
    image.extend(entry64(&tables, base));
    image.resize(TABLES_AT, 0);
    image.extend(tables.bytes);
    image
}

fn checksum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0u8, |sum, b| sum.wrapping_sub(*b))
}

/// Builds the entry point of version 2, two structures with a checksum each.
fn entry(tables: &Tables, base: u32) -> Vec<u8> {
    const OUTER_LEN: usize = 16;
    let mut inner = b"_DMI_\0".to_vec();
    inner.extend((tables.bytes.len() as u16).to_le_bytes());
    inner.extend(base.to_le_bytes());
    inner.extend(tables.count.to_le_bytes());
    // The version in binary-coded decimal.
    inner.push(0x28);
    inner[5] = checksum(&inner);
    let mut entry = b"_SM_\0".to_vec();
    entry.extend([ENTRY_LEN as u8, 2, 8]);
    entry.extend((tables.longest as u16).to_le_bytes());
    entry.resize(OUTER_LEN, 0);
    entry.extend(inner);
    entry[4] = checksum(&entry);
    entry
}

/// Builds the entry point of version 3.
fn entry64(tables: &Tables, base: u64) -> Vec<u8> {
    let mut entry = b"_SM3_\0".to_vec();
    entry.extend([ENTRY64_LEN as u8, 3, 0, 0, 1, 0]);
    entry.extend((tables.bytes.len() as u32).to_le_bytes());
    entry.extend(base.to_le_bytes());
    entry[5] = checksum(&entry);
    entry
}

/// A structure under construction.
struct Structure {
    bytes: Vec<u8>,
    strings: Vec<u8>,
    count: u8,
}

impl Structure {
    fn new(kind: u8, handle: u16) -> Self {
        let mut bytes = vec![kind, 0];
        bytes.extend(handle.to_le_bytes());
        Self { bytes, strings: Vec::new(), count: 0 }
    }

    fn u8(&mut self, values: &[u8]) -> &mut Self {
        self.bytes.extend(values);
        self
    }

    fn u16(&mut self, values: &[u16]) -> &mut Self {
        self.bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        self
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes.extend(value.to_le_bytes());
        self
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes.extend(value.to_le_bytes());
        self
    }

    /// Adds the number of a string that follows the structure; an empty string has number 0.
    fn string(&mut self, text: &str) -> &mut Self {
        let number = if text.is_empty() {
            0
        } else {
            self.strings.extend(text.bytes().filter(|&b| b != 0));
            self.strings.push(0);
            self.count += 1;
            self.count
        };
        self.u8(&[number])
    }
}

#[derive(Default)]
struct Tables {
    bytes: Vec<u8>,
    count: u16,
    longest: usize,
}

impl Tables {
    fn add(&mut self, structure: &mut Structure) {
        structure.bytes[1] = structure.bytes.len() as u8;
        let before = self.bytes.len();
        self.bytes.append(&mut structure.bytes);
        if structure.strings.is_empty() {
            self.bytes.push(0);
        }
        self.bytes.append(&mut structure.strings);
        self.bytes.push(0);
        self.longest = self.longest.max(self.bytes.len() - before);
        self.count += 1;
    }

    fn bios(&mut self, virtual_machine: bool) {
        const PCI: u64 = 1 << 7;
        const ACPI: u8 = 1;
        const VIRTUAL_MACHINE: u8 = 1 << 4;
        const SEGMENT: u16 = (layout::FIRMWARE.start >> 4) as u16;
        const ROM_BLOCKS: u8 = ((layout::LEGACY_END - layout::FIRMWARE.start) / (64 << 10) - 1) as u8;
        const NO_RELEASE: u8 = 0xff;
        let kind = if virtual_machine { VIRTUAL_MACHINE } else { 0 };
        let mut bios = Structure::new(0, handle::BIOS);
        bios.string(MANUFACTURER).string(env!("CARGO_PKG_VERSION")).u16(&[SEGMENT]).string(RELEASE_DATE);
        bios.u8(&[ROM_BLOCKS]).u64(PCI).u8(&[ACPI, kind]).u8(&[NO_RELEASE; 4]);
        self.add(&mut bios);
    }

    fn system(&mut self) {
        /// No universally unique identifier.
        const UUID: [u8; 16] = [0; 16];
        const POWER_SWITCH: u8 = 6;
        let mut system = Structure::new(1, handle::SYSTEM);
        system.string(MANUFACTURER).string(PRODUCT).string("").string("").u8(&UUID).u8(&[POWER_SWITCH]);
        self.add(system.string("").string(""));
    }

    fn chassis(&mut self) {
        const OTHER: u8 = 1;
        const SAFE: u8 = 3;
        const NO_SECURITY: u8 = 3;
        let mut chassis = Structure::new(3, handle::CHASSIS);
        chassis.string(MANUFACTURER).u8(&[OTHER]).string("").string("").string("");
        // States of the chassis, of its power supply and of its temperature; height, power cords, contained elements.
        chassis.u8(&[SAFE, SAFE, SAFE, NO_SECURITY]).u32(0).u8(&[0; 4]);
        self.add(chassis.string(""));
    }

    /// Adds one socket, described from CPUID, whose cores have one thread each.
    fn processor(&mut self, config: &FirmwareConfig) {
        const CENTRAL: u8 = 3;
        const OTHER: u8 = 1;
        const ENABLED: u8 = 0x41;
        const WIDE: u16 = 1 << 2;
        const MULTI_CORE: u16 = 1 << 3;
        let cores = config.apic_ids.len() as u16;
        let short = u8::try_from(cores).unwrap_or(u8::MAX);
        let kind = WIDE | if cores > 1 { MULTI_CORE } else { 0 };
        let about = &config.processor;
        let mut processor = Structure::new(4, handle::PROCESSOR);
        processor.string("CPU 0").u8(&[CENTRAL, OTHER]).string(&about.manufacturer);
        processor.u32(about.id[0]).u32(about.id[1]).string(&about.name).u8(&[0]);
        // No external clock; maximum and current frequency.
        processor.u16(&[0, about.mhz, about.mhz]).u8(&[ENABLED, OTHER]).u16(&[handle::NONE; 3]);
        processor.string("").string("").string("").u8(&[short; 3]).u16(&[kind, u16::from(OTHER), cores, cores, cores]);
        self.add(&mut processor);
    }

    /// Adds one array of memory devices, and its location in the address space.
    fn memory(&mut self, ram: &GuestRam) {
        const SYSTEM_BOARD: u8 = 3;
        const SYSTEM_MEMORY: u8 = 3;
        const NO_CORRECTION: u8 = 3;
        let kib = ram.size() >> 10;
        let devices = (ram.size() >> 20).div_ceil(DEVICE_MIB);
        let (short, long) = if kib < LARGE_ARRAY_KIB { (kib, 0) } else { (LARGE_ARRAY_KIB, ram.size()) };
        let mut array = Structure::new(16, handle::MEMORY_ARRAY);
        array.u8(&[SYSTEM_BOARD, SYSTEM_MEMORY, NO_CORRECTION]).u32(short as u32);
        self.add(array.u16(&[handle::NO_ERRORS, devices as u16]).u64(long));
        for number in 0..devices {
            self.memory_device(number, ((ram.size() >> 20) - number * DEVICE_MIB).min(DEVICE_MIB));
        }
        for (number, range) in ram.ranges().into_iter().enumerate() {
            let (start, last) = (range.start, range.end - 1);
            let mut mapped = Structure::new(19, handle::MAPPED_ADDRESS + number as u16);
            match (u32::try_from(start >> 10), u32::try_from(last >> 10)) {
                (Ok(start), Ok(last)) if last < u32::MAX => mapped.u32(start).u32(last),
                _ => mapped.u32(u32::MAX).u32(u32::MAX),
            };
            let long = mapped.bytes[4..8] == [0xff; 4];
            mapped.u16(&[handle::MEMORY_ARRAY]).u8(&[1]);
            let (start, last) = if long { (start, last) } else { (0, 0) };
            self.add(mapped.u64(start).u64(last));
        }
    }

    fn memory_device(&mut self, number: u64, mib: u64) {
        const UNKNOWN_WIDTH: u16 = 0xffff;
        const DIMM: u8 = 9;
        const RAM: u8 = 7;
        const OTHER: u16 = 1 << 1;
        let mut device = Structure::new(17, handle::MEMORY_DEVICE + number as u16);
        device.u16(&[handle::MEMORY_ARRAY, handle::NO_ERRORS, UNKNOWN_WIDTH, UNKNOWN_WIDTH]);
        device.u16(&[mib.min(LARGE_DEVICE_MIB) as u16]).u8(&[DIMM, 0]).string(&format!("DIMM {number}")).string("");
        // No speed, manufacturer, serial number, asset tag, part number, rank.
        device.u8(&[RAM]).u16(&[OTHER, 0]).string(MANUFACTURER).u8(&[0; 4]);
        // The extended size for large devices, then speed and voltages, which are unknown.
        self.add(device.u32(if mib < LARGE_DEVICE_MIB { 0 } else { mib as u32 }).u16(&[0; 4]));
    }

    fn boot(&mut self) {
        // Six reserved bytes; no errors.
        self.add(Structure::new(32, handle::BOOT).u8(&[0; 7]));
    }

    fn end(&mut self) {
        self.add(&mut Structure::new(127, handle::END));
    }
}

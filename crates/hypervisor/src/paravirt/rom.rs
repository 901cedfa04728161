//! The hypercall code, and the PCI expansion ROM that provides it to early boot code.

use x86::page::PAGE;

/// Size of the ROM in bytes.
pub const ROM_LENGTH: usize = 2048;
/// Offset of the code in the ROM.
const CODE_OFFSET: usize = 0x200;
/// PCI vendor ID of the function with the ROM.
pub const VENDOR: u16 = 0x1234;
/// PCI device ID of the function with the ROM.
pub const DEVICE: u16 = 0x5447;

/// Returns a hypercall and a near return, which are the same in 32-bit and in 64-bit code.
pub const fn hypercall_code(amd: bool) -> [u8; 4] {
    // VMMCALL or VMCALL, RET.
    [0x0f, 0x01, if amd { 0xd9 } else { 0xc1 }, 0xc3]
}

/// INT3, which fills the rest of the hypercall page.
const BREAKPOINT: u8 = 0xcc;

/// Returns the contents of the hypercall page.
pub fn hypercall_page(amd: bool) -> [u8; PAGE as usize] {
    let mut page = [BREAKPOINT; PAGE as usize];
    let code = hypercall_code(amd);
    page[..code.len()].copy_from_slice(&code);
    page
}

/// Returns the expansion ROM (PCI firmware specification 3.0, 5.1), with the hypercall code at an offset given in its
/// header.
pub fn option_rom(amd: bool) -> [u8; ROM_LENGTH] {
    const PCI_DATA: u16 = 0x1c;
    let mut rom = [0; ROM_LENGTH];
    let mut put = |at: usize, bytes: &[u8]| rom[at..at + bytes.len()].copy_from_slice(bytes);
    // Signature, size in units of 512 bytes, an entry point that returns at once.
    put(0, &[0x55, 0xaa, (ROM_LENGTH / 512) as u8, 0xcb]);
    put(0x18, &PCI_DATA.to_le_bytes());
    let data = usize::from(PCI_DATA);
    put(data, b"PCIR");
    put(data + 4, &VENDOR.to_le_bytes());
    put(data + 6, &DEVICE.to_le_bytes());
    put(data + 10, &0x18u16.to_le_bytes());
    // Class 0xff0000: unassigned.
    put(data + 15, &[0xff]);
    put(data + 16, &((ROM_LENGTH / 512) as u16).to_le_bytes());
    put(data + 18, &1u16.to_le_bytes());
    // Code of no standard type, in the last image.
    put(data + 20, &[0xff, 0x80]);
    put(0x40, b"TGPV");
    put(0x44, &super::page::API_VERSION.to_le_bytes());
    put(0x48, &(CODE_OFFSET as u32).to_le_bytes());
    let code = hypercall_code(amd);
    put(0x4c, &(code.len() as u32).to_le_bytes());
    put(CODE_OFFSET, &code);
    let sum = rom.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    rom[ROM_LENGTH - 1] = sum.wrapping_neg();
    rom
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rom_is_well_formed_and_leads_to_the_code() {
        for amd in [false, true] {
            let rom = option_rom(amd);
            assert_eq!(rom.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)), 0);
            assert_eq!((rom[0], rom[1], usize::from(rom[2]) * 512), (0x55, 0xaa, ROM_LENGTH));
            let data = usize::from(u16::from_le_bytes([rom[0x18], rom[0x19]]));
            assert_eq!(&rom[data..data + 4], b"PCIR");
            assert_eq!(&rom[0x40..0x44], b"TGPV");
            let at = u32::from_le_bytes([rom[0x48], rom[0x49], rom[0x4a], rom[0x4b]]) as usize;
            assert_eq!(rom[at..at + 4], hypercall_code(amd));
        }
    }
}

//! What a BIOS leaves behind in the interrupt vector table.
//!
//! A multiboot image may go back to real mode with interrupts on. It then finds vectors that return, and for the
//! vectors of the two interrupt controllers (0x08-0x0f and 0x70-0x77) ones that also end the interrupt.

use super::LoadError;
use super::space::Space;

/// Segment of the handlers; the reserved top of the first megabyte.
const SEGMENT: u16 = 0xf000;
/// The traditional place of the handler that does nothing.
const RETURN: u16 = 0xff53;
const END_PRIMARY: u16 = 0xff00;
const END_SECONDARY: u16 = 0xff10;

const RETURN_CODE: [u8; 1] = [0xcf];
/// push ax; mov al, 0x20; out 0x20, al; pop ax; iret
const END_PRIMARY_CODE: [u8; 7] = [0x50, 0xb0, 0x20, 0xe6, 0x20, 0x58, 0xcf];
/// push ax; mov al, 0x20; out 0xa0, al; out 0x20, al; pop ax; iret
const END_SECONDARY_CODE: [u8; 9] = [0x50, 0xb0, 0x20, 0xe6, 0xa0, 0xe6, 0x20, 0x58, 0xcf];

/// Writes the vectors that the image does not cover itself, and the handlers.
pub(super) fn install(space: &Space) -> Result<(), LoadError> {
    let base = u64::from(SEGMENT) << 4;
    for (offset, code) in
        [(RETURN, &RETURN_CODE[..]), (END_PRIMARY, &END_PRIMARY_CODE), (END_SECONDARY, &END_SECONDARY_CODE)]
    {
        space.fill(base + u64::from(offset), code, "interrupt handlers")?;
    }
    for vector in 0..=255u64 {
        if space.is_taken(4 * vector, 4) {
            continue;
        }
        let offset = match vector {
            0x08..=0x0f => END_PRIMARY,
            0x70..=0x77 => END_SECONDARY,
            _ => RETURN,
        };
        let [a, b] = offset.to_le_bytes();
        let [c, d] = SEGMENT.to_le_bytes();
        space.fill(4 * vector, &[a, b, c, d], "interrupt vectors")?;
    }
    Ok(())
}

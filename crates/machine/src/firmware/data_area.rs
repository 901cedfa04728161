//! The BIOS data area at 0x400, and the extended one at the end of conventional memory.
//!
//! The board has no display adapter and no disk that a BIOS would serve. The fields for these are zero, as firmware
//! leaves them on such a machine.

use crate::devices::serial;
use crate::memory::layout;

/// Length of the data area.
pub(super) const LEN: usize = 0x100;
/// Size in KiB of the extended data area, stored in its first byte.
const EXTENDED_KIB: u8 = ((0xa_0000 - layout::CONVENTIONAL_END) >> 10) as u8;
/// Equipment: a math coprocessor, a pointing device's controller, one serial port.
const EQUIPMENT: u16 = 1 << 1 | 1 << 2 | 1 << 9;
/// Begin and end of the keyboard's ring buffer, as offsets from 0x400.
const KEYBOARD_BUFFER: [u16; 2] = [0x1e, 0x3e];
/// A keyboard of 101 or 102 keys.
const ENHANCED_KEYBOARD: u8 = 1 << 4;
/// Timeout of a serial port, in seconds.
const SERIAL_TIMEOUT: u8 = 1;
/// Input clock of the interval timer, and its divisor.
const TIMER_HZ: u64 = 1_193_182;
const TIMER_DIVISOR: u64 = 65_536;

/// Builds the data area, with the number of ticks since midnight for a clock that starts at this second of the day.
pub(super) fn build(second_of_day: u32) -> Vec<u8> {
    let ticks = (u64::from(second_of_day) * TIMER_HZ / TIMER_DIVISOR) as u32;
    let word = u16::to_le_bytes;
    let [buffer, buffer_end] = KEYBOARD_BUFFER.map(word);
    let fields: [(usize, &[u8]); 12] = [
        (0x00, &word(serial::COM1)),
        (0x0e, &word((layout::CONVENTIONAL_END >> 4) as u16)),
        (0x10, &word(EQUIPMENT)),
        (0x13, &word((layout::CONVENTIONAL_END >> 10) as u16)),
        // Head and tail of an empty buffer.
        (0x1a, &buffer),
        (0x1c, &buffer),
        (0x6c, &ticks.to_le_bytes()),
        (0x7c, &[SERIAL_TIMEOUT]),
        (0x80, &buffer),
        (0x82, &buffer_end),
        (0x96, &[ENHANCED_KEYBOARD]),
        // Video: no save area; the other fields are zero.
        (0xa8, &[0; 4]),
    ];
    let mut area = vec![0; LEN];
    for (at, bytes) in fields {
        area[at..at + bytes.len()].copy_from_slice(bytes);
    }
    area
}

/// Builds the extended data area, which contains only its size.
pub(super) fn extended() -> Vec<u8> {
    let mut area = vec![0; usize::from(EXTENDED_KIB) << 10];
    area[0] = EXTENDED_KIB;
    area
}

//! What the device counts (82599 datasheet, 8.2.3.23).

use super::file::{File, QUEUES};
use super::reg;
use network::headers::{is_group, macs};

/// Bytes of a frame on the wire beside those that it has in memory: the check sequence.
pub const CHECK_SEQUENCE: u64 = 4;
/// Upper ends of the classes of sizes.
const SIZES: [u64; 5] = [64, 127, 255, 511, 1023];

fn class(first: u32, bytes: u64) -> u32 {
    first + 4 * SIZES.iter().take_while(|end| bytes > **end).count() as u32
}

/// Which set of counters belongs to a queue, of 16; four queues to a register from `map` on.
fn set_of(file: &File, map: u32, queue: usize) -> u32 {
    let queue = queue % QUEUES;
    file.get(map + queue as u32 / 4 * 4) >> (8 * (queue % 4)) & 0xf
}

/// A frame has come from the wire, whoever wants it.
pub fn arrived(file: &mut File, frame: &[u8]) {
    file.add(reg::TPR, 1);
    file.add_wide(reg::TORL, frame.len() as u64 + CHECK_SEQUENCE);
}

/// A frame has passed the filters.
pub fn received(file: &mut File, frame: &[u8]) {
    let bytes = frame.len() as u64 + CHECK_SEQUENCE;
    file.add(class(reg::PRC64, bytes), 1);
    file.add(reg::GPRC, 1);
    file.add_wide(reg::GORCL, bytes);
    match macs(frame) {
        Some((to, _)) if to == [0xff; 6] => file.add(reg::BPRC, 1),
        Some((to, _)) if is_group(to) => file.add(reg::MPRC, 1),
        _ => {}
    }
}

/// A queue has got a frame.
pub fn queued(file: &mut File, queue: usize, bytes: u64) {
    let set = set_of(file, reg::RQSMR, queue);
    file.add(reg::QPRC + 0x40 * set, 1);
    file.add_wide(reg::QBRC + 0x40 * set, bytes);
}

/// The Flow Director was asked for a frame's flow, and has a filter for it or not.
pub fn looked_up(file: &mut File, found: Option<bool>) {
    if let Some(found) = found {
        file.add(if found { reg::FDIRMATCH } else { reg::FDIRMISS }, 1);
    }
}

/// A queue has lost a frame.
pub fn dropped(file: &mut File, queue: usize) {
    let set = set_of(file, reg::RQSMR, queue);
    file.add(reg::QPRDC + 0x40 * set, 1);
}

/// Frames have been sent: so many of one size, and perhaps a last one, with their check sequences.
pub fn sent(file: &mut File, queue: usize, to: &[u8], (frames, size): (u64, u64), last: Option<u64>) {
    let bytes = frames * size + last.unwrap_or(0);
    let count = frames + u64::from(last.is_some());
    file.add(class(reg::PTC64, size), frames);
    if let Some(last) = last {
        file.add(class(reg::PTC64, last), 1);
    }
    for register in [reg::GPTC, reg::TPT] {
        file.add(register, count);
    }
    file.add_wide(reg::GOTCL, bytes);
    match macs(to) {
        Some((to, _)) if to == [0xff; 6] => file.add(reg::BPTC, count),
        Some((to, _)) if is_group(to) => file.add(reg::MPTC, count),
        _ => {}
    }
    // The map of transmit queues.
    let set = set_of(file, reg::TQSMR, queue);
    file.add(reg::QPTC + 0x40 * set, count);
    file.add_wide(reg::QBTC + 8 * set, bytes);
}

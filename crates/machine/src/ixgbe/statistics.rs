//! Statistics registers (82599 datasheet, 8.2.3.23).

use super::file::{File, QUEUES};
use super::reg;
use network::headers::{is_group, macs};

/// Bytes that statistics count in addition to the frame in memory: the frame check sequence.
pub const CHECK_SEQUENCE: u64 = 4;
/// Upper bounds of the frame size counters.
const SIZES: [u64; 5] = [64, 127, 255, 511, 1023];

fn class(first: u32, bytes: u64) -> u32 {
    first + 4 * SIZES.iter().take_while(|end| bytes > **end).count() as u32
}

/// Returns the statistics set (of 16) of a queue; each register from `map` on maps four queues.
fn set_of(file: &File, map: u32, queue: usize) -> u32 {
    let queue = queue % QUEUES;
    file.get(map + queue as u32 / 4 * 4) >> (8 * (queue % 4)) & 0xf
}

/// Counts a frame from the wire, before filtering.
pub fn arrived(file: &mut File, frame: &[u8]) {
    file.add(reg::TPR, 1);
    file.add_wide(reg::TORL, frame.len() as u64 + CHECK_SEQUENCE);
}

/// Counts a frame that has passed the filters.
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

/// Counts a frame that a queue has received.
pub fn queued(file: &mut File, queue: usize, bytes: u64) {
    let set = set_of(file, reg::RQSMR, queue);
    file.add(reg::QPRC + 0x40 * set, 1);
    file.add_wide(reg::QBRC + 0x40 * set, bytes);
}

/// Counts a Flow Director lookup, by its result.
pub fn looked_up(file: &mut File, found: Option<bool>) {
    if let Some(found) = found {
        file.add(if found { reg::FDIRMATCH } else { reg::FDIRMISS }, 1);
    }
}

/// Counts a frame that a queue has dropped.
pub fn dropped(file: &mut File, queue: usize) {
    let set = set_of(file, reg::RQSMR, queue);
    file.add(reg::QPRDC + 0x40 * set, 1);
}

/// Counts sent frames: a number of frames of one size, and a last frame of a size of its own. Sizes include the frame
/// check sequence.
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

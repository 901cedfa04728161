//! Code of random bytes: what a guest may execute that no compiler makes.

use crate::Random;

/// At least `length` bytes, and now and then, once in `often` times, one of the encodings in `known`, with which chance would
/// be too slow.
pub fn with_known(random: &mut Random, length: usize, known: &[&[u8]], often: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < length {
        if random.one_in(often) {
            bytes.extend_from_slice(random.of(known));
        }
        bytes.push(random.next() as u8);
    }
    bytes
}

/// `count` of the encodings in `known`; `before` gives what precedes each.
pub fn of_known(
    random: &mut Random,
    count: usize,
    known: &[&[u8]],
    mut before: impl FnMut(&mut Random) -> Vec<u8>,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..count {
        bytes.extend(before(random));
        bytes.extend_from_slice(random.of(known));
    }
    bytes
}

/// One instruction with what may follow it: prefixes now and then, the opcode map chosen at random, and random bytes.
pub fn instruction(random: &mut Random) -> [u8; 15] {
    let mut bytes: [u8; 15] = std::array::from_fn(|_| (random.next() >> 20) as u8);
    let mut at = 0;
    for (odds, prefix) in [(12, 0xf3), (12, 0x66), (24, 0xf0), (16, 0x48)] {
        if random.one_in(odds) {
            bytes[at] = prefix;
            at += 1;
        }
    }
    if random.one_in(3) {
        bytes[at] = 0x0f;
    }
    bytes
}

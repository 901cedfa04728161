//! Code of random bytes: code that a guest may execute and no compiler makes.

use crate::Random;

/// Returns at least `length` bytes. Once in `often` times, one of the encodings in `known` is among them, which chance
/// would find too slowly.
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

/// Returns `count` of the encodings in `known`; `before` returns the bytes that precede each.
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

/// Returns one instruction with possible operand bytes: sometimes prefixes, a random opcode map, and random bytes.
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

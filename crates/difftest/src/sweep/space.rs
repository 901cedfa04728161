//! The encodings that a sweep goes through: prefixes, opcode maps, opcodes and operand bytes, defined or not.

use crate::layout::{ARENA, SWEEP};
use serde::{Deserialize, Serialize};

/// Address of the sweep's instructions.
pub const AT: u64 = SWEEP + 0x800;
/// Middle of the memory in which operands lie.
pub const DATA: u64 = ARENA + 0x1800;

/// An opcode map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Map {
    /// One-byte opcodes.
    One,
    /// 0F.
    Two,
    /// 0F 38.
    Three38,
    /// 0F 3A.
    Three3A,
    /// Any map, under C4 or C5.
    Vex,
    /// Any map, under 62.
    Evex,
}

/// All maps, with their names on the command line.
pub const MAPS: [(&str, Map); 6] = [
    ("one", Map::One),
    ("0f", Map::Two),
    ("0f38", Map::Three38),
    ("0f3a", Map::Three3A),
    ("vex", Map::Vex),
    ("evex", Map::Evex),
];

impl Map {
    /// Returns the map's name.
    pub fn name(self) -> &'static str {
        MAPS.iter().find(|(_, map)| *map == self).map_or("", |(name, _)| name)
    }
}

/// An encoding.
#[derive(Clone, Copy, Debug)]
pub struct Encoding {
    /// The chosen bytes, followed by INT3s.
    pub bytes: [u8; 15],
    /// Number of chosen bytes; immediate operands are INT3s.
    pub len: usize,
    /// Opcode map.
    pub map: Map,
    /// Opcode.
    pub opcode: u8,
    /// ModRM, if the opcode has one.
    pub modrm: Option<u8>,
}

/// Prefixes before opcodes of the legacy maps, in 64-bit and in 32-bit code. The order of two matters if one cancels
/// the other.
const PREFIXES64: &[&[u8]] = &[
    &[],
    &[0x66],
    &[0xf2],
    &[0xf3],
    &[0x48],
    &[0x66, 0x48],
    &[0xf2, 0x48],
    &[0xf3, 0x48],
    &[0xf0],
    &[0xf0, 0x66],
    &[0xf0, 0xf2],
    &[0xf0, 0xf3],
    &[0xf0, 0x48],
    &[0x66, 0xf2],
    &[0x66, 0xf3],
    &[0xf2, 0xf3],
    &[0xf3, 0xf2],
    &[0x66, 0xf2, 0x48],
    &[0x66, 0xf3, 0x48],
    &[0x48, 0x66],
    &[0x48, 0xf3],
    &[0x40],
    &[0x41],
    &[0x44],
    &[0x4f],
    &[0xf3, 0x41],
    &[0x66, 0x41],
    &[0x67],
    &[0x67, 0x48],
    &[0x2e],
    &[0x64],
];
const PREFIXES32: &[&[u8]] = &[
    &[],
    &[0x66],
    &[0xf2],
    &[0xf3],
    &[0xf0],
    &[0xf0, 0x66],
    &[0xf0, 0xf2],
    &[0xf0, 0xf3],
    &[0x66, 0xf2],
    &[0x66, 0xf3],
    &[0xf2, 0xf3],
    &[0xf3, 0xf2],
    &[0x67],
    &[0x66, 0x67],
    &[0x2e],
    &[0x36],
    &[0x64],
];

fn is_prefix(opcode: u8, bits: u32) -> bool {
    matches!(opcode, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3)
        || bits == 64 && matches!(opcode, 0x40..=0x4f)
}

/// Returns true if an opcode has a ModRM byte. Undefined opcodes are assumed to have one.
fn has_modrm(map: Map, opcode: u8) -> bool {
    match map {
        Map::One => match opcode {
            0x00..=0x3f => opcode & 7 < 4,
            0x62 | 0x63 | 0x69 | 0x6b | 0x80..=0x8f | 0xc0 | 0xc1 | 0xc4..=0xc7 => true,
            0xd0..=0xd3 | 0xd8..=0xdf | 0xf6 | 0xf7 | 0xfe | 0xff => true,
            _ => false,
        },
        Map::Two => !matches!(
            opcode,
            0x05..=0x09 | 0x0b | 0x0e | 0x30..=0x37 | 0x77 | 0x80..=0x8f | 0xa0..=0xa2 | 0xa8..=0xaa | 0xc8..=0xcf
        ),
        _ => true,
    }
}

/// Bytes under construction.
#[derive(Clone, Copy)]
struct Builder {
    bytes: [u8; 15],
    len: usize,
}

impl Builder {
    fn new(start: &[u8]) -> Self {
        Self { bytes: [0xcc; 15], len: 0 }.with(start)
    }

    fn with(mut self, more: &[u8]) -> Self {
        self.bytes[self.len..self.len + more.len()].copy_from_slice(more);
        self.len += more.len();
        self
    }

    /// Adds a ModRM byte, and a SIB byte and displacement that lead to memory of the arena.
    fn operand(self, modrm: u8, bits: u32, wide_addresses: bool) -> Self {
        let (mode, rm) = (modrm >> 6, modrm & 7);
        let built = self.with(&[modrm]);
        if mode == 3 {
            return built;
        }
        if !wide_addresses {
            return match (mode, rm) {
                (0, 6) | (2, _) => built.with(&[0x40, 0]),
                (1, _) => built.with(&[0x40]),
                _ => built,
            };
        }
        // There is no index (or XMM4, YMM4), and the base is RAX.
        let built = if rm == 4 { built.with(&[0x20]) } else { built };
        match (mode, rm) {
            (0, 5) if bits == 64 => built.with(&(DATA as u32).wrapping_sub(AT as u32).to_le_bytes()),
            (0, 5) => built.with(&(DATA as u32).to_le_bytes()),
            (1, _) => built.with(&[0x40]),
            (2, _) => built.with(&0x40u32.to_le_bytes()),
            _ => built,
        }
    }

    fn finish(self, map: Map, opcode: u8, modrm: Option<u8>) -> Encoding {
        Encoding { bytes: self.bytes, len: self.len, map, opcode, modrm }
    }
}

/// Returns a sample of ModRM bytes: each /r, with registers 1 and 4, and memory by a register, by a SIB byte and by a
/// displacement.
fn some_modrm() -> impl Iterator<Item = u8> {
    const RM: [u8; 5] = [0xc1, 0xc4, 0x00, 0x04, 0x05];
    (0..8).flat_map(|reg| RM.map(|rm| rm | reg << 3))
}

/// Calls `visit` with each encoding of these maps.
pub fn each(bits: u32, maps: &[Map], mut visit: impl FnMut(&Encoding)) {
    for &map in maps {
        match map {
            Map::Vex => vex(bits, &mut visit),
            Map::Evex => evex(bits, &mut visit),
            _ => legacy(bits, map, &mut visit),
        }
    }
}

fn legacy(bits: u32, map: Map, visit: &mut impl FnMut(&Encoding)) {
    let escape: &[u8] = match map {
        Map::Two => &[0x0f],
        Map::Three38 => &[0x0f, 0x38],
        Map::Three3A => &[0x0f, 0x3a],
        _ => &[],
    };
    for prefixes in if bits == 64 { PREFIXES64 } else { PREFIXES32 } {
        let wide_addresses = bits == 64 || !prefixes.contains(&0x67);
        for opcode in 0..=u8::MAX {
            let other = match map {
                // These bytes are prefixes or begin another map; in 32-bit code LES, LDS and BOUND with memory operands
                // remain.
                Map::One => is_prefix(opcode, bits) || opcode == 0x0f,
                Map::Two => matches!(opcode, 0x38 | 0x3a),
                _ => false,
            };
            if other {
                continue;
            }
            let built = Builder::new(prefixes).with(escape).with(&[opcode]);
            if !has_modrm(map, opcode) {
                visit(&built.finish(map, opcode, None));
                continue;
            }
            let vector = map == Map::One && matches!(opcode, 0x62 | 0xc4 | 0xc5);
            for modrm in 0..=u8::MAX {
                if !vector || bits == 32 && modrm < 0xc0 {
                    visit(&built.operand(modrm, bits, wide_addresses).finish(map, opcode, Some(modrm)));
                }
            }
        }
    }
}

/// Visits VEX encodings: all maps, pp, L and W; vvvv none and 0; with 2 bytes and with 3; and after each prefix that
/// makes them undefined.
fn vex(bits: u32, visit: &mut impl FnMut(&Encoding)) {
    let mut all = |built: Builder, known: bool| {
        for opcode in 0..=u8::MAX {
            let built = built.with(&[opcode]);
            if known {
                for modrm in some_modrm() {
                    visit(&built.operand(modrm, bits, true).finish(Map::Vex, opcode, Some(modrm)));
                }
            } else {
                for modrm in [0xc1, 0x00] {
                    visit(&built.operand(modrm, bits, true).finish(Map::Vex, opcode, Some(modrm)));
                }
            }
        }
    };
    // The prefix's last byte holds the inverted vvvv, L and pp.
    let lasts = || {
        [0x78u8, 0x00, 0x28].into_iter().flat_map(|vvvv| (0..8u8).map(move |rest| vvvv | rest)).filter(move |last| {
            // In the short form in 32-bit code, a vvvv above 7 is another opcode's operand.
            bits == 64 || last & 0x40 != 0 || *last & 0x78 == 0
        })
    };
    for last in lasts() {
        if bits == 64 || last & 0x40 != 0 {
            all(Builder::new(&[0xc5, 0x80 | last]), true);
        }
        for map in 0..32 {
            for wide in [0, 0x80] {
                let known = (1..=3).contains(&map);
                all(Builder::new(&[0xc4, 0xe0 | map, wide | last]), known);
                if bits == 64 && known {
                    all(Builder::new(&[0xc4, map, wide | last]), false);
                }
            }
        }
    }
    for prefix in [0x66, 0xf2, 0xf3, 0xf0, 0x48] {
        if bits == 64 || prefix != 0x48 {
            all(Builder::new(&[prefix, 0xc5, 0xf8]), false);
            all(Builder::new(&[prefix, 0xc4, 0xe2, 0x79]), false);
        }
    }
}

/// Visits EVEX encodings: all maps, W, pp, z, L'L, b, V', an opmask or none; vvvv none and 7; in maps that have
/// instructions also the bits that extend registers and the fixed bits.
fn evex(bits: u32, visit: &mut impl FnMut(&Encoding)) {
    for map in 0..16u8 {
        let known = matches!(map, 1..=3 | 5 | 6);
        for (pp, wide) in (0..4u8).flat_map(|pp| [(pp, 0), (pp, 0x80)]) {
            for last in 0..64u8 {
                // This byte holds z, L'L, b, V'; the opmask is none or K1.
                let last = last >> 1 << 3 | last & 1;
                for (extensions, middle) in
                    [(0xf0, 0x7c), (0xf0, 0x44), (0xf0, 0x78), (0, 0x7c), (0xc0, 0x7c), (0xd0, 0x7c)]
                {
                    let plain = (extensions, middle) == (0xf0, 0x7c);
                    // In 32-bit code R and X distinguish EVEX from BOUND.
                    if !plain && (!known || bits == 32 && extensions & 0xc0 != 0xc0) {
                        continue;
                    }
                    let built = Builder::new(&[0x62, extensions | map, wide | middle | pp, last]);
                    for opcode in 0..=u8::MAX {
                        for modrm in [0xc1, 0x00, 0x04, 0x45] {
                            if known || modrm < 4 {
                                let built = built.with(&[opcode]).operand(modrm, bits, true);
                                visit(&built.finish(Map::Evex, opcode, Some(modrm)));
                            }
                        }
                    }
                }
            }
        }
    }
}

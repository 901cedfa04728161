//! SHA extensions in Rust, so that hosts without them can run guests that use them.

use crate::exec::vector::execute::{aligned, ready};
use crate::fault::{Exec, Flow};
use crate::op::{Handler, Op};
use crate::state::Cpu;
use iced_x86::{Instruction, Mnemonic::*, OpKind};

/// Four 32-bit words, the lowest first.
type Words = [u32; 4];

fn split(value: [u64; 2]) -> Words {
    [value[0] as u32, (value[0] >> 32) as u32, value[1] as u32, (value[1] >> 32) as u32]
}

fn join(words: Words) -> [u64; 2] {
    [u64::from(words[0]) | u64::from(words[1]) << 32, u64::from(words[2]) | u64::from(words[3]) << 32]
}

/// Binds a SHA instruction.
pub fn bind(i: &Instruction, op: &mut Op) -> Option<Handler> {
    macro_rules! by_source {
        ($operation:ident) => {
            if i.op1_kind() == OpKind::Memory { run::<true, $operation> } else { run::<false, $operation> }
        };
    }
    op.imm &= 3;
    Some(match i.mnemonic() {
        Sha1msg1 => by_source!(Message1),
        Sha1msg2 => by_source!(Message2),
        Sha1nexte => by_source!(NextE),
        Sha1rnds4 => by_source!(Rounds),
        Sha256msg1 => by_source!(Message1Of256),
        Sha256msg2 => by_source!(Message2Of256),
        Sha256rnds2 => by_source!(RoundsOf256),
        _ => return None,
    })
}

fn run<const MEMORY: bool, O: Operation>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready::<false>(cpu)?;
    let mut source = [cpu.arch.vector.ymm[usize::from(op.r1 & 15)][0], cpu.arch.vector.ymm[usize::from(op.r1 & 15)][1]];
    if MEMORY {
        let linear = aligned(cpu, op, 16, 15, false)?;
        let mut bytes = [0; 16];
        cpu.read_bytes(linear, op.seg, &mut bytes)?;
        let value = u128::from_le_bytes(bytes);
        source = [value as u64, (value >> 64) as u64];
    }
    let implicit = split([cpu.arch.vector.ymm[0][0], cpu.arch.vector.ymm[0][1]]);
    let to = &mut cpu.arch.vector.ymm[usize::from(op.r0 & 15)];
    let result = join(O::compute(split([to[0], to[1]]), split(source), op.imm as u8, implicit));
    to[..2].copy_from_slice(&result);
    Ok(Flow::Next)
}

/// One of the seven operations.
trait Operation {
    /// Computes the result from destination `d`, source `s`, the immediate, and the words of XMM0.
    fn compute(d: Words, s: Words, immediate: u8, implicit: Words) -> Words;
}

struct Message1;
struct Message2;
struct NextE;
struct Rounds;
struct Message1Of256;
struct Message2Of256;
struct RoundsOf256;

impl Operation for Message1 {
    fn compute(d: Words, s: Words, _: u8, _: Words) -> Words {
        [s[2] ^ d[0], s[3] ^ d[1], d[0] ^ d[2], d[1] ^ d[3]]
    }
}

impl Operation for Message2 {
    fn compute(d: Words, s: Words, _: u8, _: Words) -> Words {
        let w16 = (d[3] ^ s[2]).rotate_left(1);
        let w17 = (d[2] ^ s[1]).rotate_left(1);
        let w18 = (d[1] ^ s[0]).rotate_left(1);
        [(d[0] ^ w16).rotate_left(1), w18, w17, w16]
    }
}

impl Operation for NextE {
    fn compute(d: Words, s: Words, _: u8, _: Words) -> Words {
        [s[0], s[1], s[2], s[3].wrapping_add(d[3].rotate_left(30))]
    }
}

impl Operation for Rounds {
    fn compute(d: Words, s: Words, immediate: u8, _: Words) -> Words {
        let [mut dd, mut c, mut b, mut a] = d;
        // The first word of the source already includes E.
        let mut e = 0;
        for word in s.into_iter().rev() {
            let (f, k) = match immediate & 3 {
                0 => ((b & c) ^ (!b & dd), 0x5a82_7999u32),
                1 => (b ^ c ^ dd, 0x6ed9_eba1),
                2 => ((b & c) ^ (b & dd) ^ (c & dd), 0x8f1b_bcdc),
                _ => (b ^ c ^ dd, 0xca62_c1d6),
            };
            let next = f.wrapping_add(a.rotate_left(5)).wrapping_add(word).wrapping_add(e).wrapping_add(k);
            (a, b, c, dd, e) = (next, a, b.rotate_left(30), c, dd);
        }
        [dd, c, b, a]
    }
}

fn small_sigma0(x: u32) -> u32 {
    x.rotate_right(7) ^ x.rotate_right(18) ^ (x >> 3)
}

fn small_sigma1(x: u32) -> u32 {
    x.rotate_right(17) ^ x.rotate_right(19) ^ (x >> 10)
}

impl Operation for Message1Of256 {
    fn compute(d: Words, s: Words, _: u8, _: Words) -> Words {
        let next = [d[1], d[2], d[3], s[0]];
        std::array::from_fn(|n| d[n].wrapping_add(small_sigma0(next[n])))
    }
}

impl Operation for Message2Of256 {
    fn compute(d: Words, s: Words, _: u8, _: Words) -> Words {
        let w16 = d[0].wrapping_add(small_sigma1(s[2]));
        let w17 = d[1].wrapping_add(small_sigma1(s[3]));
        [w16, w17, d[2].wrapping_add(small_sigma1(w16)), d[3].wrapping_add(small_sigma1(w17))]
    }
}

impl Operation for RoundsOf256 {
    fn compute(d: Words, s: Words, _: u8, implicit: Words) -> Words {
        let [mut f, mut e, mut b, mut a] = s;
        let [mut h, mut g, mut dd, mut c] = d;
        for word in &implicit[..2] {
            let choose = (e & f) ^ (!e & g);
            let majority = (a & b) ^ (a & c) ^ (b & c);
            let sigma1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
            let sigma0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
            let t = h.wrapping_add(sigma1).wrapping_add(choose).wrapping_add(*word);
            (h, g, f, e) = (g, f, e, dd.wrapping_add(t));
            (dd, c, b, a) = (c, b, a, t.wrapping_add(sigma0).wrapping_add(majority));
        }
        [f, e, b, a]
    }
}

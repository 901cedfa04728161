//! Memory operands under a mask: the bytes that an instruction accesses, and the faults of masked-out ones.

use crate::exec::vector::execute::aligned;
use crate::exec::vector::software::low_bits;
use crate::fault::Exec;
use crate::op::{Op, address_mask};
use crate::state::Cpu;
use iced_x86::{Instruction, Mnemonic, Mnemonic::*, OpKind};

/// Layout of the elements in a memory operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// Mask bit i selects element i.
    Each,
    /// The elements are repeated to fill the vector: an element is accessed if the mask selects any of its copies.
    Repeated,
    /// The selected elements are contiguous (compress and expand).
    Packed,
}

/// Bytes of the memory operand that an instruction accesses.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Size of the operand in bytes.
    pub len: u8,
    /// Address bits that must be 0.
    align: u8,
    /// Size of an element in bytes.
    element: u8,
    /// Number of mask bits in use.
    lanes: u8,
    shape: Shape,
    /// True if masked-out elements do not fault (exception classes without NF, SDM vol. 2, 2.8).
    suppresses: bool,
}

/// Instructions with an opmask in the classes E4NF, E5NF and E6NF, in addition to shifts by a count in memory.
const ALL_OR_NOTHING: &[Mnemonic] = &[
    Valignd,
    Valignq,
    Vdbpsadbw,
    Vmovddup,
    Vmovshdup,
    Vmovsldup,
    Vpackssdw,
    Vpacksswb,
    Vpackusdw,
    Vpackuswb,
    Vpalignr,
    Vpconflictd,
    Vpconflictq,
    Vpermb,
    Vpermd,
    Vpermi2b,
    Vpermi2d,
    Vpermi2pd,
    Vpermi2ps,
    Vpermi2q,
    Vpermi2w,
    Vpermilpd,
    Vpermilps,
    Vpermpd,
    Vpermps,
    Vpermq,
    Vpermt2b,
    Vpermt2d,
    Vpermt2pd,
    Vpermt2ps,
    Vpermt2q,
    Vpermt2w,
    Vpermw,
    Vpmaddubsw,
    Vpmaddwd,
    Vpmultishiftqb,
    Vpshufb,
    Vpshufd,
    Vpshufhw,
    Vpshuflw,
    Vpunpckhbw,
    Vpunpckhdq,
    Vpunpckhqdq,
    Vpunpckhwd,
    Vpunpcklbw,
    Vpunpckldq,
    Vpunpcklqdq,
    Vpunpcklwd,
    Vshuff32x4,
    Vshuff64x2,
    Vshufi32x4,
    Vshufi64x2,
    Vshufpd,
    Vshufps,
    Vunpckhpd,
    Vunpckhps,
    Vunpcklpd,
    Vunpcklps,
    Vcvtne2ps2bf16,
    Vgf2p8affineqb,
    Vgf2p8affineinvqb,
    Vextractf32x4,
    Vextractf32x8,
    Vextractf64x2,
    Vextractf64x4,
    Vextracti32x4,
    Vextracti32x8,
    Vextracti64x2,
    Vextracti64x4,
    Vinsertf32x4,
    Vinsertf32x8,
    Vinsertf64x2,
    Vinsertf64x4,
    Vinserti32x4,
    Vinserti32x8,
    Vinserti64x2,
    Vinserti64x4,
];

/// Shifts, whose forms with a count in memory (operand 2) are of class E4NF.
const SHIFTS: &[Mnemonic] = &[Vpslld, Vpsllq, Vpsllw, Vpsrad, Vpsraq, Vpsraw, Vpsrld, Vpsrlq, Vpsrlw];

const REPEATED: &[Mnemonic] = &[
    Vbroadcastf32x2,
    Vbroadcastf32x4,
    Vbroadcastf32x8,
    Vbroadcastf64x2,
    Vbroadcastf64x4,
    Vbroadcasti32x2,
    Vbroadcasti32x4,
    Vbroadcasti32x8,
    Vbroadcasti64x2,
    Vbroadcasti64x4,
    Vbroadcastsd,
    Vbroadcastss,
    Vpbroadcastb,
    Vpbroadcastd,
    Vpbroadcastq,
    Vpbroadcastw,
];

const PACKED: &[Mnemonic] = &[
    Vcompresspd,
    Vcompressps,
    Vpcompressb,
    Vpcompressd,
    Vpcompressq,
    Vpcompressw,
    Vexpandpd,
    Vexpandps,
    Vpexpandb,
    Vpexpandd,
    Vpexpandq,
    Vpexpandw,
];

const ALIGNED: &[Mnemonic] = &[Vmovaps, Vmovapd, Vmovdqa32, Vmovdqa64, Vmovntps, Vmovntpd, Vmovntdq, Vmovntdqa];

/// Returns the address bits that must be 0 in the memory operand of an instruction.
pub(crate) fn alignment(i: &Instruction) -> u8 {
    if ALIGNED.contains(&i.mnemonic()) { i.memory_size().size() as u8 - 1 } else { 0 }
}

impl Access {
    /// Describes an instruction; without a memory operand nothing is accessed.
    pub fn of(i: &Instruction) -> Self {
        let size = i.memory_size();
        let len = size.size();
        let mnemonic = i.mnemonic();
        let single = i.code().op_code().broadcast_memory_size();
        let complex = matches!(mnemonic, Vfmaddcsh | Vfcmaddcsh | Vfmulcsh | Vfcmulcsh);
        let element = match single.size() {
            0 if complex => len,
            0 => size.element_size().max(1),
            size => size,
        };
        let lanes = if i.is_broadcast() {
            i.code().op_code().memory_size().size() / element
        } else if REPEATED.contains(&mnemonic) {
            i.op0_register().size() / element
        } else {
            len / element
        };
        let shape = if i.is_broadcast() || REPEATED.contains(&mnemonic) {
            Shape::Repeated
        } else if PACKED.contains(&mnemonic) {
            Shape::Packed
        } else {
            Shape::Each
        };
        let count_in_memory = SHIFTS.contains(&mnemonic) && i.op_kind(2) == OpKind::Memory;
        Self {
            len: len as u8,
            align: alignment(i),
            element: element as u8,
            lanes: lanes as u8,
            shape,
            suppresses: !ALL_OR_NOTHING.contains(&mnemonic) && !count_in_memory,
        }
    }

    /// Describes the same instruction in a legacy encoding.
    pub fn aligned(self) -> Self {
        Self { align: self.len - 1, ..self }
    }

    /// Returns the bits of a mask that are in use.
    fn relevant(&self, mask: u64) -> u64 {
        mask & low_bits(usize::from(self.lanes))
    }

    /// Returns the contiguous ranges that are accessed with this mask, in bytes: start and length.
    fn runs(&self, mask: u64) -> Runs {
        let all = usize::from(self.len);
        let element = usize::from(self.element.max(1));
        let mask = self.relevant(mask);
        let left = match self.shape {
            Shape::Each => mask,
            Shape::Packed => low_bits(mask.count_ones() as usize),
            Shape::Repeated => {
                let period = all / element;
                (0..64).step_by(period.max(1)).fold(0, |any, by| any | mask >> by) & low_bits(period)
            }
        };
        Runs { left, element }
    }
}

struct Runs {
    left: u64,
    element: usize,
}

impl Iterator for Runs {
    type Item = (usize, usize);

    fn next(&mut self) -> Option<(usize, usize)> {
        if self.left == 0 {
            return None;
        }
        let start = self.left.trailing_zeros();
        let count = (self.left >> start).trailing_ones();
        let end = start + count;
        self.left = if end == 64 { 0 } else { self.left >> end << end };
        Some((start as usize * self.element, count as usize * self.element))
    }
}

/// Returns the linear address of `len` bytes at offset `at` of the operand, without an alignment check.
fn part(cpu: &mut Cpu, op: &Op, at: usize, len: usize, write: bool) -> Exec<u64> {
    let offset = op.ea(cpu).wrapping_add(at as u64) & address_mask(op.asize);
    cpu.linear(op.seg, offset, len as u64, write)
}

/// Checks the alignment of a memory operand if any part of it is accessed, as current processors do.
fn check_alignment(cpu: &mut Cpu, op: &Op, access: &Access, mask: u64) -> Exec {
    let linear = cpu.arch.seg[usize::from(op.seg & 7)].base.wrapping_add(op.ea(cpu));
    if access.relevant(mask) != 0 && linear & u64::from(access.align) != 0 { Err(cpu.gp(0)) } else { Ok(()) }
}

/// Reads a memory operand; masked-out bytes may be left unchanged. `mask` is `None` without an opmask.
pub fn load(cpu: &mut Cpu, op: &Op, access: &Access, mask: Option<u64>, to: &mut [u8; 64]) -> Exec {
    let len = usize::from(access.len).min(64);
    let Some(mask) = mask.filter(|_| access.suppresses) else {
        let linear = aligned(cpu, op, len as u64, access.align, false)?;
        return cpu.read_bytes(linear, op.seg, &mut to[..len]);
    };
    check_alignment(cpu, op, access, mask)?;
    for (start, len) in access.runs(mask) {
        let linear = part(cpu, op, start, len, false)?;
        cpu.read_bytes(linear, op.seg, &mut to[start..start + len])?;
    }
    Ok(())
}

/// Writes the selected elements of a memory operand, all or nothing.
pub fn store(cpu: &mut Cpu, op: &Op, access: &Access, mask: Option<u64>, from: &[u8; 64]) -> Exec {
    let len = usize::from(access.len).min(64);
    let Some(mask) = mask else {
        let linear = aligned(cpu, op, len as u64, access.align, true)?;
        return cpu.write_bytes(linear, op.seg, &from[..len]);
    };
    let privilege = cpu.privilege();
    if !access.suppresses {
        let linear = part(cpu, op, 0, len, true)?;
        cpu.prepare_write(linear, len as u64, privilege, op.seg)?;
    }
    check_alignment(cpu, op, access, mask)?;
    let mut places = [(0, 0, 0); 32];
    let mut count = 0;
    for ((start, len), place) in access.runs(mask).zip(&mut places) {
        let linear = part(cpu, op, start, len, true)?;
        cpu.prepare_write(linear, len as u64, privilege, op.seg)?;
        *place = (linear, start, len);
        count += 1;
    }
    for &(linear, start, len) in &places[..count] {
        cpu.write_bytes(linear, op.seg, &from[start..start + len])?;
    }
    Ok(())
}

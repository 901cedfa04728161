//! The 512-byte legacy region of FXSAVE and FXRSTOR (SDM vol. 1, 10.5.1).

use crate::arch::F80;
use crate::exec::vector::misc::MXCSR_MASK;
use crate::state::Cpu;

/// Writable bits of the x87 control word; bit 6 reads as 1.
const CONTROL_WORD: u16 = 0x1f3f;
/// Offsets of the x87 part, without the registers.
pub const X87_HEAD: std::ops::Range<usize> = 0..24;
/// Offsets of MXCSR and its mask.
pub const MXCSR: std::ops::Range<usize> = 24..32;
/// Offsets of the x87 registers.
pub const X87_REGISTERS: std::ops::Range<usize> = 32..160;
/// Offset of XMM0.
pub const XMM: usize = 160;

/// Returns the number of vector registers that the current mode saves.
pub fn registers(cpu: &Cpu) -> usize {
    if cpu.engine.long64 { 16 } else { 8 }
}

/// Returns the offsets of the XMM registers in the current mode.
pub fn xmm(cpu: &Cpu) -> std::ops::Range<usize> {
    XMM..XMM + 16 * registers(cpu)
}

/// Writes the x87 part. With `wide`, pointers have 64 bits and no selectors (REX.W).
pub fn save_x87(cpu: &Cpu, area: &mut [u8], wide: bool) {
    let x87 = &cpu.arch.x87;
    area[X87_HEAD].fill(0);
    area[0..2].copy_from_slice(&x87.control.to_le_bytes());
    area[2..4].copy_from_slice(&x87.status.to_le_bytes());
    area[4] = x87.tags;
    area[6..8].copy_from_slice(&x87.opcode.to_le_bytes());
    if wide {
        area[8..16].copy_from_slice(&x87.ip.to_le_bytes());
        area[16..24].copy_from_slice(&x87.dp.to_le_bytes());
    } else {
        let (cs, ds) = if cpu.wiring.fcs_deprecated { (0, 0) } else { (x87.cs, x87.ds) };
        area[8..12].copy_from_slice(&(x87.ip as u32).to_le_bytes());
        area[12..14].copy_from_slice(&cs.to_le_bytes());
        area[16..20].copy_from_slice(&(x87.dp as u32).to_le_bytes());
        area[20..22].copy_from_slice(&ds.to_le_bytes());
    }
    for i in 0..8u8 {
        let at = 32 + 16 * usize::from(i);
        area[at..at + 16].fill(0);
        area[at..at + 10].copy_from_slice(&x87.st(i).to_bytes());
    }
}

/// Reads the x87 part.
pub fn restore_x87(cpu: &mut Cpu, area: &[u8], wide: bool) {
    let word = |at: usize| u16::from_le_bytes([area[at], area[at + 1]]);
    let quad = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&area[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    // The instruction pointer has the width of linear addresses; the data pointer is stored unchanged.
    let la57 = cpu.wiring.model.cpuid.is_empty() || cpu.wiring.model.static_cpuid(7, 0).ecx & 1 << 16 != 0;
    let unused = if la57 { 7 } else { 16 };
    let canonical = |pointer: u64| ((pointer as i64) << unused >> unused) as u64;
    let x87 = &mut cpu.arch.x87;
    x87.control = word(0) & CONTROL_WORD | 0x40;
    x87.status = word(2);
    x87.tags = area[4];
    x87.opcode = word(6) & 0x7ff;
    if wide {
        (x87.ip, x87.dp) = (canonical(quad(8)), quad(16));
        (x87.cs, x87.ds) = (0, 0);
    } else {
        (x87.ip, x87.dp) = (quad(8) & 0xffff_ffff, quad(16) & 0xffff_ffff);
        (x87.cs, x87.ds) = if cpu.wiring.fcs_deprecated { (0, 0) } else { (word(12), word(20)) };
    }
    let top = x87.status >> 11;
    for i in 0..8u16 {
        let at = 32 + 16 * usize::from(i);
        let mut bytes = [0; 10];
        bytes.copy_from_slice(&area[at..at + 10]);
        x87.regs[usize::from((top + i) & 7)] = F80::from_bytes(bytes);
    }
    x87.summarize();
}

/// Initializes the x87 state as FNINIT does, and clears the registers.
pub fn init_x87(cpu: &mut Cpu) {
    cpu.arch.x87.init();
    cpu.arch.x87.regs = [F80::default(); 8];
}

/// Returns true if the x87 state is that of [`init_x87`].
pub fn x87_is_init(cpu: &Cpu) -> bool {
    let x = &cpu.arch.x87;
    let pointers = (x.opcode, x.ip, x.cs, x.dp, x.ds) == (0, 0, 0, 0, 0);
    (x.control, x.status, x.tags) == (0x37f, 0, 0) && pointers && x.regs.iter().all(|r| *r == F80::default())
}

/// Writes MXCSR and its mask.
pub fn save_mxcsr(cpu: &Cpu, area: &mut [u8]) {
    area[24..28].copy_from_slice(&cpu.arch.vector.mxcsr.to_le_bytes());
    area[28..32].copy_from_slice(&MXCSR_MASK.to_le_bytes());
}

/// Returns MXCSR from a save area.
pub fn mxcsr(area: &[u8]) -> u32 {
    u32::from_le_bytes([area[24], area[25], area[26], area[27]])
}

/// Writes halves of the vector registers, 16 bytes each: the lower (`half` is 0) or the upper (2).
pub fn save_halves(cpu: &Cpu, area: &mut [u8], half: usize) {
    let count = registers(cpu);
    for (register, bytes) in cpu.arch.vector.ymm[..count].iter().zip(area.as_chunks_mut::<16>().0) {
        bytes[..8].copy_from_slice(&register[half].to_le_bytes());
        bytes[8..].copy_from_slice(&register[half + 1].to_le_bytes());
    }
}

/// Reads halves of the vector registers.
pub fn restore_halves(cpu: &mut Cpu, area: &[u8], half: usize) {
    let count = registers(cpu);
    for (register, bytes) in cpu.arch.vector.ymm[..count].iter_mut().zip(area.as_chunks::<16>().0) {
        let value = u128::from_le_bytes(*bytes);
        register[half] = value as u64;
        register[half + 1] = (value >> 64) as u64;
    }
}

/// Clears halves of the vector registers.
pub fn init_halves(cpu: &mut Cpu, half: usize) {
    let count = registers(cpu);
    for register in &mut cpu.arch.vector.ymm[..count] {
        register[half] = 0;
        register[half + 1] = 0;
    }
}

/// Returns true if halves of the vector registers are clear.
pub fn halves_are_init(cpu: &Cpu, half: usize) -> bool {
    cpu.arch.vector.ymm[..registers(cpu)].iter().all(|r| r[half] == 0 && r[half + 1] == 0)
}

//! The processor state of both sides of a comparison, and the differences of two states.

use x86::{flags, reg};

/// The standard-format XSAVE area of x87, SSE and AVX state (SDM vol. 1, 13.4).
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Xsave {
    /// x87 control word.
    pub fcw: u16,
    /// x87 status word.
    pub fsw: u16,
    /// Abridged tags: bit i is set if physical register i is not empty.
    pub ftw: u8,
    _reserved: u8,
    /// Last opcode.
    pub fop: u16,
    /// Last instruction pointer.
    pub fip: u64,
    /// Last data pointer.
    pub fdp: u64,
    /// MXCSR.
    pub mxcsr: u32,
    /// MXCSR bits that exist.
    pub mxcsr_mask: u32,
    /// ST(0) to ST(7): significand; sign and exponent.
    pub st: [[u64; 2]; 8],
    /// XMM0-15.
    pub xmm: [[u64; 2]; 16],
    _unused: [u64; 12],
    /// XSAVE header; the first word is XSTATE_BV.
    pub header: [u64; 8],
    /// Upper halves of YMM0-15.
    pub ymm_high: [[u64; 2]; 16],
}

/// The state that AVX-512 adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Wide {
    /// Bits 511:256 of ZMM0-15.
    pub upper: [[u64; 4]; 16],
    /// ZMM16-31.
    pub high: [[u64; 8]; 16],
    /// Opmasks.
    pub k: [u64; 8],
}

/// User-visible state. The native stubs depend on the layout.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct State {
    /// RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8-R15.
    pub gpr: [u64; 16],
    /// Instruction pointer.
    pub rip: u64,
    /// RFLAGS.
    pub rflags: u64,
    /// FS base.
    pub fs_base: u64,
    /// GS base.
    pub gs_base: u64,
    _pad: [u64; 4],
    /// Floating-point and vector state.
    pub x: Xsave,
    /// The rest of the vector state; a host without AVX-512 ignores it.
    pub wide: Wide,
}

/// Size of a [`State`] in bytes.
pub const STATE_LEN: usize = size_of::<State>();
const _: () = assert!(STATE_LEN == 1024 + size_of::<Wide>() && size_of::<Xsave>() == 832);

impl Default for State {
    fn default() -> Self {
        // SAFETY: the fields are plain integers, for which zero is a valid value.
        let mut state: Self = unsafe { std::mem::zeroed() };
        state.x.header[0] = 7;
        state.x.fcw = 0x37f;
        state.x.mxcsr = 0x1f80;
        state.rflags = 0x202;
        state
    }
}

/// An exception as the program sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exception {
    /// Vector.
    pub vector: u8,
    /// Error code; 0 for vectors without one.
    pub code: u32,
    /// CR2 of a page fault, else 0.
    pub address: u64,
}

/// The effects of an instruction, apart from memory.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// State afterwards. With an exception, RIP is the exception's.
    pub state: State,
    /// The exception that the instruction raised.
    pub exception: Option<Exception>,
}

/// A value that differs.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Difference {
    /// Name of the value.
    pub what: String,
    /// The value natively.
    pub expected: String,
    /// The value in the emulated processor.
    pub got: String,
}

/// Returns every value of a state with its name.
pub fn fields(state: &State) -> Vec<(String, [u64; 4], usize)> {
    let mut all = Vec::with_capacity(64);
    let x = &state.x;
    for (name, value) in reg::NAMES.iter().zip(state.gpr) {
        all.push(((*name).to_string(), [value, 0, 0, 0], 8));
    }
    let mut word = |name: &str, value: u64, size: usize| all.push((name.to_string(), [value, 0, 0, 0], size));
    word("rip", state.rip, 8);
    word("rflags", state.rflags, 4);
    word("fs.base", state.fs_base, 8);
    word("gs.base", state.gs_base, 8);
    word("mxcsr", x.mxcsr.into(), 4);
    word("fcw", x.fcw.into(), 2);
    word("fsw", x.fsw.into(), 2);
    word("ftw", x.ftw.into(), 1);
    word("fop", x.fop.into(), 2);
    word("fip", x.fip, 8);
    word("fdp", x.fdp, 8);
    for i in 0..8 {
        all.push((format!("st{i}"), [x.st[i][0], x.st[i][1] & 0xffff, 0, 0], 10));
    }
    for i in 0..16 {
        let (low, high) = (x.xmm[i], x.ymm_high[i]);
        all.push((format!("ymm{i}"), [low[0], low[1], high[0], high[1]], 32));
        all.push((format!("zmm{i}[511:256]"), state.wide.upper[i], 32));
    }
    for (i, register) in state.wide.high.iter().enumerate() {
        let (halves, _) = register.as_chunks::<4>();
        for (half, value) in halves.iter().enumerate() {
            all.push((format!("zmm{}[{}]", i + 16, ["255:0", "511:256"][half]), *value, 32));
        }
    }
    for (i, value) in state.wide.k.iter().enumerate() {
        all.push((format!("k{i}"), [*value, 0, 0, 0], 8));
    }
    all
}

/// Formats a value of [`fields`] in hexadecimal.
pub fn show(value: [u64; 4], size: usize) -> String {
    match size {
        32 => format!("{:016x}_{:016x}_{:016x}_{:016x}", value[3], value[2], value[1], value[0]),
        10 => format!("{:04x}_{:016x}", value[1], value[0]),
        n => format!("{:0width$x}", value[0], width = 2 * n),
    }
}

/// Returns the names of the flags that differ.
pub fn flag_names(bits: u64) -> String {
    let names: Vec<_> = flags::NAMES.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect();
    names.join(" ")
}

//! The host's x87 unit in translated code: loading the guest's state, and taking it back.

use super::layout::{BIAS, Need, PRECISION, RESERVED_PRECISION, Running, Unit};
use crate::arch::X87;
use crate::exec::x87::stack::{data_selector, note_instruction};
use crate::f80::status::{B, C0, C1, C2, C3, ES, EXCEPTIONS};
use crate::state::Cpu;
use crate::translate::BlockCache;
use std::arch::{asm, naked_asm};
use std::mem::offset_of;
use std::sync::OnceLock;
use x86::control::*;

impl Cpu {
    /// Returns true if x87 instructions must be left to their handlers.
    pub(super) fn x87_refused(&self) -> bool {
        let x87 = &self.arch.x87;
        self.arch.cr0 & (CR0_EM | CR0_TS) != 0
            || x87.control & EXCEPTIONS != EXCEPTIONS
            || x87.control & PRECISION == RESERVED_PRECISION
            || x87.status & (ES | B) != 0
            || !host_agrees()
    }

    /// Takes the guest's state from the image of the host's unit.
    #[inline(never)]
    pub(super) fn take_x87(&mut self, running: &mut Running, cache: &BlockCache) {
        let unit = &mut running.x87;
        unit.loaded = 0;
        running.missing[Need::X87.number()] = 1;
        let image = &unit.image;
        self.arch.x87.control = image.control;
        self.arch.x87.status = image.status;
        self.arch.x87.tags = image.tags;
        let top = usize::from(self.arch.x87.top());
        for (i, value) in image.st.iter().enumerate() {
            self.arch.x87.regs[(top + i) & 7] = *value;
        }
        let op = |number: u64| &cache.code.ops[number as usize - 1];
        if unit.last != 0 {
            note_instruction(self, op(unit.last));
            unit.last = 0;
        }
        if unit.last_data != 0 {
            self.arch.x87.dp = unit.data;
            self.arch.x87.ds = data_selector(self, op(unit.last_data));
            unit.last_data = 0;
        }
    }
}

macro_rules! at {
    ($name:ident) => {
        // In a called function: the return address is at the stack pointer.
        8 + (offset_of!(Running, x87) + offset_of!(Unit, $name)) as isize - BIAS as isize
    };
}

/// Copies ST(i) from the register at RCX, and advances to the next.
macro_rules! copy {
    ($($i:literal)*) => {
        concat!($(
            "mov rax, [r10 + rcx + {regs}]\n",
            "movzx edx, word ptr [r10 + rcx + {regs} + 8]\n",
            "mov [rsp + {image} + 32 + 16*", $i, "], rax\n",
            "mov [rsp + {image} + 32 + 16*", $i, " + 8], rdx\n",
            "add ecx, 16\n",
            "and ecx, 0x70\n",
        )*)
    };
}

/// Called by translated code to load the guest's x87 state into the host's unit, if that is allowed; clobbers R10, R11
/// and RCX, and no flags.
#[unsafe(naked)]
pub unsafe extern "sysv64" fn load() {
    naked_asm!(
        "mov rcx, [rsp + {refused}]",
        "jrcxz 2f",
        "ret",
        "2:",
        "mov [rsp + {kept}], rax",
        "mov [rsp + {kept} + 8], rdx",
        "lahf",
        "seto al",
        "mov r11d, eax",
        "mov r10, [rsp + {state}]",
        "movzx ecx, word ptr [r10 + {status}]",
        // FXRSTOR also loads the vector registers.
        "cmp qword ptr [rsp + {vectors_loaded}], 0",
        "je 3f",
        "fxsave64 [rsp + {image}]",
        "jmp 4f",
        "3:",
        "mov eax, [rsp + {host_mxcsr}]",
        "mov [rsp + {image} + 24], eax",
        "4:",
        // TOP, in units of 16 bytes.
        "shr ecx, 11 - 4",
        "and ecx, 0x70",
        copy!(0 1 2 3 4 5 6 7),
        "movzx eax, word ptr [r10 + {control}]",
        "movzx edx, word ptr [r10 + {status}]",
        "shl edx, 16",
        "or eax, edx",
        "movzx edx, byte ptr [r10 + {tags}]",
        "mov [rsp + {image}], eax",
        "mov [rsp + {image} + 4], edx",
        "fxrstor64 [rsp + {image}]",
        "mov qword ptr [rsp + {loaded}], 1",
        "mov qword ptr [rsp + {missing}], 0",
        "mov eax, r11d",
        "add al, 127",
        "sahf",
        "mov rax, [rsp + {kept}]",
        "mov rdx, [rsp + {kept} + 8]",
        "ret",
        refused = const 8 + offset_of!(Running, refused) as isize + 8 * Need::X87.number() as isize - BIAS as isize,
        missing = const 8 + offset_of!(Running, missing) as isize + 8 * Need::X87.number() as isize - BIAS as isize,
        vectors_loaded = const 8 + offset_of!(Running, loaded) as isize - BIAS as isize,
        host_mxcsr = const 8 + offset_of!(Running, host_mxcsr) as isize - BIAS as isize,
        kept = const at!(kept),
        state = const at!(state),
        loaded = const at!(loaded),
        image = const at!(image),
        regs = const offset_of!(X87, regs),
        control = const offset_of!(X87, control),
        status = const offset_of!(X87, status),
        tags = const offset_of!(X87, tags),
    )
}

/// Offset of the image in [`Running`].
pub const IMAGE: usize = offset_of!(Running, x87) + offset_of!(Unit, image);
/// Offset of the control word for compiled code.
pub const CONTROL: usize = offset_of!(Running, x87) + offset_of!(Unit, host_control);
/// Offset of the flag for the guest's state in the unit.
pub const LOADED: usize = offset_of!(Running, x87) + offset_of!(Unit, loaded);

/// Condition codes.
const CODES: u16 = C0 | C1 | C2 | C3;

/// Returns true if the host's undefined condition codes and flags are those of the interpreter, as on all tested
/// processors.
fn host_agrees() -> bool {
    /// Returns the condition codes after an instruction on 1 and 1, given those before.
    macro_rules! after {
        ($before:expr, $instruction:literal) => {{
            let mut frame = [0u32; 8];
            let status: u16;
            // SAFETY: memory operands are inside the frame; all registers are declared as clobbered, and the unit is
            // left empty with its default control word.
            unsafe {
                asm!(
                    "fninit",
                    "fld1",
                    "fld1",
                    "fnstenv [{f}]",
                    "or word ptr [{f} + 4], {before:x}",
                    "fldenv [{f}]",
                    $instruction,
                    "fnstsw ax",
                    "fninit",
                    f = in(reg) &raw mut frame,
                    before = in(reg) $before,
                    out("ax") status,
                    out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                    out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                );
            }
            status & CODES
        }};
    }
    macro_rules! all {
        ($expected:expr; $($instruction:literal)*) => {
            [0, CODES].into_iter().all(|before: u16| true $(&& after!(before, $instruction) == before & $expected)*)
        };
    }
    static AGREES: OnceLock<bool> = OnceLock::new();
    *AGREES.get_or_init(|| {
        all!(CODES & !C1; "fadd st, st(1)" "fmul st, st(1)" "fsubp st(1), st" "fdiv st, st(1)" "fsqrt" "frndint" "fscale"
            "fld1" "fldpi" "fld st(1)" "fld dword ptr [{f} + 28]" "fild dword ptr [{f} + 28]" "fst dword ptr [{f} + 28]"
            "fist dword ptr [{f} + 28]" "fisttp dword ptr [{f} + 28]" "fstp st(1)" "fxch" "fabs" "fchs" "fincstp" "fdecstp"
            "ffree st(1)" "fadd dword ptr [{f} + 28]" "fiadd dword ptr [{f} + 28]")
            && all!(CODES; "fnop" "fnclex" "fldcw word ptr [{f}]" "fcmovb st, st(1)" "fcmovnb st, st(1)" "fcomi st, st(1)"
                "fucomip st, st(1)")
    })
}

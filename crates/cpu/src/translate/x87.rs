//! x87 instructions: native, on the host's x87 unit.
//!
//! Compiled code expects that unit to be empty and to have a control word of its own, so it contains the guest's state
//! only from the first x87 instruction of a piece of translated code on ([`load`]), until it leaves or calls a handler,
//! as with vector registers. All exceptions must be masked and none pending, so that no instruction can trap. The host
//! then updates registers, tags, condition codes and exception flags. The pointers of the last instruction, which on
//! the host would refer to translated code, are recorded by index and resolved when the state is taken back. Functions
//! whose results differ between processors are left to their handlers.

use super::asm::{M, R};
use super::emit::Emit;
use super::layout::{BIAS, FIRST, Need, Running, TEST, field};
use crate::arch::{F80, X87};
use crate::engine::BlockCache;
use crate::exec::x87::stack::{data_selector, note_instruction};
use crate::f80::status::{B, C0, C1, C2, C3, ES, EXCEPTIONS};
use crate::state::Cpu;
use iced_x86::{Instruction, Mnemonic, OpKind};
use std::arch::{asm, naked_asm};
use std::mem::offset_of;
use std::sync::OnceLock;
use x86::control::*;

/// Memory image of FXSAVE.
#[repr(C, align(16))]
pub struct FxsaveImage {
    control: u16,
    status: u16,
    tags: u8,
    /// Opcode and pointers of the host.
    pointers: [u8; 19],
    mxcsr: u32,
    mxcsr_mask: u32,
    /// ST(0) to ST(7).
    st: [F80; 8],
    vector: [u8; 352],
}

/// The control word of compiled code.
pub const HOST_CONTROL: u16 = 0x37f;

/// Precision control and its reserved value, which processors may interpret differently.
const PRECISION: u16 = 0x300;
const RESERVED_PRECISION: u16 = 0x100;

/// x87 data in [`Running`].
#[repr(C)]
pub struct Unit {
    /// Nonzero if the unit contains the guest's state.
    loaded: u64,
    /// The processor's state.
    state: *mut X87,
    /// Index plus 1 of the last recorded instruction's operation; 0 for none.
    pub(super) last: u64,
    /// Index plus 1 of the last one with a memory operand, if each records that operand's address.
    pub(super) last_data: u64,
    /// Address of that operand.
    pub(super) data: u64,
    /// Address of the current operand.
    pub(super) at_hand: u64,
    /// Exception masks, as bits of a control word.
    pub(super) exceptions: u64,
    /// Precision control, as bits of a control word.
    pub(super) precision: u64,
    /// See [`HOST_CONTROL`].
    host_control: u64,
    /// RAX and RDX while the unit is loaded.
    kept: [u64; 2],
    image: FxsaveImage,
}

/// Translation of an x87 instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct X87Form {
    /// True if it records itself in the pointers.
    notes: bool,
    /// True if it writes its memory operand.
    writes: bool,
}

/// Returns the form of an instruction, if the host executes it as the interpreter does.
pub fn form(i: &Instruction) -> Option<X87Form> {
    use Mnemonic::*;
    let (notes, writes) = match i.mnemonic() {
        Fld | Fild | Fld1 | Fldl2t | Fldl2e | Fldpi | Fldlg2 | Fldln2 | Fldz => (true, false),
        Fcmovb | Fcmovnb | Fcmove | Fcmovne | Fcmovbe | Fcmovnbe | Fcmovu | Fcmovnu | Fxch => (true, false),
        Fst | Fstp | Fist | Fistp | Fisttp => (true, true),
        Fadd | Fsub | Fsubr | Fmul | Fdiv | Fdivr => (true, false),
        Faddp | Fsubp | Fsubrp | Fmulp | Fdivp | Fdivrp => (true, false),
        Fiadd | Fisub | Fisubr | Fimul | Fidiv | Fidivr => (true, false),
        Fabs | Fchs | Fsqrt | Frndint | Fscale => (true, false),
        Fcom | Fcomp | Fcompp | Fucom | Fucomp | Fucompp | Ficom | Ficomp | Ftst => (true, false),
        Fcomi | Fcomip | Fucomi | Fucomip | Fxam => (true, false),
        Fincstp | Fdecstp | Ffree | Ffreep | Fnop => (true, false),
        Wait | Fnclex | Fldcw => (false, false),
        Fnstcw | Fnstsw => (false, true),
        _ => return None,
    };
    Some(X87Form { notes, writes })
}

fn has_memory(i: &Instruction) -> bool {
    (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory)
}

impl Emit<'_> {
    /// Emits the current instruction.
    pub fn x87(&mut self) -> bool {
        let mut i = *self.instruction();
        let Some(form) = form(&i) else { return false };
        self.ready(Need::X87);
        if i.mnemonic() == Mnemonic::Wait {
            return true;
        }
        if !has_memory(&i) {
            if form.notes && !self.next_notes() {
                self.note(field!(x87.last));
            }
            return self.native(&i);
        }
        let notes_data = form.notes && self.source.data_pointers;
        if notes_data {
            self.let_go();
            if !self.address(FIRST, false, false) {
                return false;
            }
            self.asm.flagless_store(field!(x87.at_hand), FIRST);
        }
        let Some(stub) = self.probe(form.writes) else { return false };
        let mut otherwise = None;
        if i.mnemonic() == Mnemonic::Fldcw {
            otherwise = Some(self.check_control());
        }
        if notes_data {
            self.asm.flagless_load(TEST, field!(x87.at_hand));
            self.asm.flagless_store(field!(x87.data), TEST);
            self.note(field!(x87.last_data));
        }
        if form.notes {
            self.note(field!(x87.last));
        }
        self.at_operand(&mut i);
        if !self.native(&i) {
            return false;
        }
        self.back_here(stub);
        for stub in otherwise.into_iter().flatten() {
            self.back_here(stub);
            // The handler may have unmasked exceptions.
            self.loaded &= !Need::X87.bit();
        }
        true
    }

    /// Records the current instruction as the last one.
    fn note(&mut self, place: M) {
        self.asm.flagless_store_constant32(place, (self.number() + 1) as i32);
    }

    /// Returns true if the next instruction certainly records itself, so that this one need not.
    fn next_notes(&self) -> bool {
        let Some(next) = self.part().instructions.get(self.at + 1) else { return false };
        next.code() as u16 == self.part().ops[self.at + 1].code
            && !has_memory(next)
            && form(next).is_some_and(|form| form.notes)
    }

    /// Lets the handler load a control word that unmasks an exception or has a reserved precision.
    fn check_control(&mut self) -> [usize; 2] {
        self.asm.flagless_load_part(true, TEST, self.operand);
        self.asm.flagless_not(TEST);
        self.asm.flagless_extract(TEST, TEST, field!(x87.exceptions));
        let masked = self.asm.flagless_if_zero();
        let unmasked = self.otherwise();
        self.asm.land(masked);
        self.asm.flagless_load_part(true, TEST, self.operand);
        self.asm.flagless_extract(TEST, TEST, field!(x87.precision));
        self.asm.flagless_lea(TEST, M::at(TEST, -i32::from(RESERVED_PRECISION >> 8)));
        let reserved = self.asm.flagless_if_zero();
        let good = self.asm.jump();
        self.asm.land(reserved);
        let bad = self.otherwise();
        let here = self.asm.here();
        self.asm.aim(good, here);
        [unmasked, bad]
    }
}

impl Unit {
    /// Initializes the fields of a new area: the unit does not contain the guest's state.
    pub fn reset(&mut self) {
        self.loaded = 0;
        self.last = 0;
        self.last_data = 0;
        self.exceptions = EXCEPTIONS.into();
        self.precision = PRECISION.into();
        self.host_control = HOST_CONTROL.into();
    }

    /// Sets the address of the processor's state.
    pub fn of(&mut self, state: *mut X87) {
        self.state = state;
    }

    /// Returns true if the unit contains the guest's state.
    pub fn loaded(&self) -> bool {
        self.loaded != 0
    }
}

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
        let op = |number: u64| &cache.ops[number as usize - 1];
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

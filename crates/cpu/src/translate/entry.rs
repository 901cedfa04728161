//! The way into translated code and out of it.
//!
//! On the way in the guest's registers are loaded from the processor's state, on the way out they are stored there, as
//! [`super::layout`] has them. In between, the stack pointer points into the current area; compiled code runs on the host's
//! stack.

use super::layout::{BIAS, Running};
use crate::state::VectorState;
use std::arch::naked_asm;
use std::mem::offset_of;

/// What [`enter`] returns when the processor's state already says where to go on.
pub const PLAIN: u64 = 0;

macro_rules! at {
    ($name:ident) => {
        offset_of!(Running, $name) as isize - BIAS as isize
    };
}

/// Translated code to processor state; clobbers RAX and R10.
macro_rules! save {
    () => {
        concat!(
            "mov r10, [rsp + {registers}]\n",
            "mov [r10], rax\n",
            "lahf\n",
            "seto al\n",
            "mov [rsp + {flags}], ax\n",
            "mov [r10 + 8*1], r9\n",
            "mov [r10 + 8*2], rdx\n",
            "mov [r10 + 8*3], rbx\n",
            "mov [r10 + 8*4], r15\n",
            "mov [r10 + 8*5], rbp\n",
            "mov [r10 + 8*6], rsi\n",
            "mov [r10 + 8*7], rdi\n",
            "mov [r10 + 8*8], r8\n",
            "mov [r10 + 8*12], r12\n",
            "mov [r10 + 8*13], r13\n",
            "mov rax, [rsp + {memory} + 8*0]\n",
            "mov [r10 + 8*9], rax\n",
            "mov rax, [rsp + {memory} + 8*1]\n",
            "mov [r10 + 8*10], rax\n",
            "mov rax, [rsp + {memory} + 8*2]\n",
            "mov [r10 + 8*11], rax\n",
            "mov rax, [rsp + {memory} + 8*3]\n",
            "mov [r10 + 8*14], rax\n",
            "mov rax, [rsp + {memory} + 8*4]\n",
            "mov [r10 + 8*15], rax\n",
            "mov [rsp + {budget}], r14\n",
            "cmp qword ptr [rsp + {loaded}], 0\n",
            "je 3f\n",
            "mov qword ptr [rsp + {loaded}], 0\n",
            "mov qword ptr [rsp + {missing} + 8*0], 1\n",
            "mov qword ptr [rsp + {missing} + 8*1], 1\n",
            "mov qword ptr [rsp + {missing} + 8*2], 1\n",
            "mov qword ptr [rsp + {missing} + 8*3], 1\n",
            "mov r10, [rsp + {vector}]\n",
            "vmovdqa [r10 + 32*0], ymm0\n",
            "vmovdqa [r10 + 32*1], ymm1\n",
            "vmovdqa [r10 + 32*2], ymm2\n",
            "vmovdqa [r10 + 32*3], ymm3\n",
            "vmovdqa [r10 + 32*4], ymm4\n",
            "vmovdqa [r10 + 32*5], ymm5\n",
            "vmovdqa [r10 + 32*6], ymm6\n",
            "vmovdqa [r10 + 32*7], ymm7\n",
            "vmovdqa [r10 + 32*8], ymm8\n",
            "vmovdqa [r10 + 32*9], ymm9\n",
            "vmovdqa [r10 + 32*10], ymm10\n",
            "vmovdqa [r10 + 32*11], ymm11\n",
            "vmovdqa [r10 + 32*12], ymm12\n",
            "vmovdqa [r10 + 32*13], ymm13\n",
            "vmovdqa [r10 + 32*14], ymm14\n",
            "vmovdqa [r10 + 32*15], ymm15\n",
            "vzeroupper\n",
            // Under unmasked exceptions MXCSR is not the guest's.
            "test byte ptr [rsp + {refused} + 8], 1\n",
            "jnz 3f\n",
            "stmxcsr [r10 + {mxcsr}]\n",
            "ldmxcsr [rsp + {host_mxcsr}]\n",
            "3:\n",
        )
    };
}

/// Back to the caller of [`enter`]; the host's stack pointer is in force, the code in EAX.
macro_rules! leave {
    () => {
        "add rsp, 8\npop r15\npop r14\npop r13\npop r12\npop rbp\npop rbx\nret\n"
    };
}

/// Runs translated code at `code` until it leaves, and returns why.
///
/// # Safety
/// `running` must be that of the current area, prepared, and `code` an entry of a translation for the mode in force.
#[unsafe(naked)]
pub unsafe extern "sysv64" fn enter(running: *mut Running, code: *const u8) -> u64 {
    naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "sub rsp, 8",
        "mov [rdi + {host_stack} + {bias}], rsp",
        "lea rsp, [rdi + {bias}]",
        "mov [rsp + {resume}], rsi",
        "jmp {restore}",
        host_stack = const at!(host_stack),
        resume = const at!(resume),
        bias = const BIAS,
        restore = sym restore,
    )
}

/// Processor state to translated code, which goes on at [`Running::resume`].
#[unsafe(naked)]
unsafe extern "sysv64" fn restore() {
    naked_asm!(
        "mov rcx, [rsp + {registers}]",
        "mov r10, [rcx + 8*9]",
        "mov [rsp + {memory} + 8*0], r10",
        "mov r10, [rcx + 8*10]",
        "mov [rsp + {memory} + 8*1], r10",
        "mov r10, [rcx + 8*11]",
        "mov [rsp + {memory} + 8*2], r10",
        "mov r10, [rcx + 8*14]",
        "mov [rsp + {memory} + 8*3], r10",
        "mov r10, [rcx + 8*15]",
        "mov [rsp + {memory} + 8*4], r10",
        "mov r9, [rcx + 8*1]",
        "mov rdx, [rcx + 8*2]",
        "mov rbx, [rcx + 8*3]",
        "mov r15, [rcx + 8*4]",
        "mov rbp, [rcx + 8*5]",
        "mov rsi, [rcx + 8*6]",
        "mov rdi, [rcx + 8*7]",
        "mov r8, [rcx + 8*8]",
        "mov r12, [rcx + 8*12]",
        "mov r13, [rcx + 8*13]",
        "mov r14, [rsp + {budget}]",
        // OF: 1 + 127 overflows, 0 + 127 does not. The others: SAHF.
        "movzx eax, word ptr [rsp + {flags}]",
        "add al, 127",
        "sahf",
        "mov rax, [rcx]",
        "jmp [rsp + {resume}]",
        registers = const at!(registers),
        memory = const at!(memory),
        budget = const at!(budget),
        flags = const at!(flags),
        resume = const at!(resume),
    )
}

/// Called by translated code, with a number in ECX, where an instruction is run by its handler.
#[unsafe(naked)]
pub unsafe extern "sysv64" fn slow() {
    naked_asm!(
        "pop qword ptr [rsp + {resume}]",
        save!(),
        "mov rdi, [rsp + {context}]",
        "mov esi, ecx",
        "mov rsp, [rsp + {host_stack}]",
        "call {handler}",
        "test rax, rax",
        "jz 2f",
        "lea rsp, [rax + {bias}]",
        "jmp {restore}",
        "2:",
        leave!(),
        registers = const at!(registers),
        memory = const at!(memory),
        budget = const at!(budget),
        loaded = const at!(loaded),
        missing = const at!(missing),
        refused = const at!(refused),
        vector = const at!(vector),
        mxcsr = const offset_of!(VectorState, mxcsr),
        host_mxcsr = const at!(host_mxcsr),
        flags = const at!(flags),
        resume = const at!(resume),
        context = const at!(context),
        host_stack = const at!(host_stack),
        bias = const BIAS,
        handler = sym super::run::slow,
        restore = sym restore,
    )
}

/// Jumped to by translated code that leaves, with the reason in ECX.
#[unsafe(naked)]
pub unsafe extern "sysv64" fn exit() {
    naked_asm!(
        save!(),
        "mov eax, ecx",
        "mov rsp, [rsp + {host_stack}]",
        leave!(),
        registers = const at!(registers),
        memory = const at!(memory),
        budget = const at!(budget),
        loaded = const at!(loaded),
        missing = const at!(missing),
        refused = const at!(refused),
        vector = const at!(vector),
        mxcsr = const offset_of!(VectorState, mxcsr),
        host_mxcsr = const at!(host_mxcsr),
        flags = const at!(flags),
        host_stack = const at!(host_stack),
    )
}

/// Called by translated code to have the guest's vector registers and, unless exceptions are unmasked, its MXCSR in the
/// host's; clobbers R10 and RCX, and no flags.
#[unsafe(naked)]
pub unsafe extern "sysv64" fn load() {
    naked_asm!(
        "mov r10, [rsp + 8 + {vector}]",
        "vmovdqa ymm0, [r10 + 32*0]",
        "vmovdqa ymm1, [r10 + 32*1]",
        "vmovdqa ymm2, [r10 + 32*2]",
        "vmovdqa ymm3, [r10 + 32*3]",
        "vmovdqa ymm4, [r10 + 32*4]",
        "vmovdqa ymm5, [r10 + 32*5]",
        "vmovdqa ymm6, [r10 + 32*6]",
        "vmovdqa ymm7, [r10 + 32*7]",
        "vmovdqa ymm8, [r10 + 32*8]",
        "vmovdqa ymm9, [r10 + 32*9]",
        "vmovdqa ymm10, [r10 + 32*10]",
        "vmovdqa ymm11, [r10 + 32*11]",
        "vmovdqa ymm12, [r10 + 32*12]",
        "vmovdqa ymm13, [r10 + 32*13]",
        "vmovdqa ymm14, [r10 + 32*14]",
        "vmovdqa ymm15, [r10 + 32*15]",
        "mov rcx, [rsp + 8 + {refused} + 8*0]",
        "mov [rsp + 8 + {missing} + 8*0], rcx",
        "mov rcx, [rsp + 8 + {refused} + 8*2]",
        "mov [rsp + 8 + {missing} + 8*2], rcx",
        "mov rcx, [rsp + 8 + {refused} + 8*3]",
        "mov [rsp + 8 + {missing} + 8*3], rcx",
        "mov qword ptr [rsp + 8 + {loaded}], 1",
        "mov rcx, [rsp + 8 + {refused} + 8*1]",
        "mov [rsp + 8 + {missing} + 8*1], rcx",
        "jrcxz 2f",
        "ret",
        "2:",
        "ldmxcsr [r10 + {mxcsr}]",
        "ret",
        vector = const at!(vector),
        refused = const at!(refused),
        missing = const at!(missing),
        loaded = const at!(loaded),
        mxcsr = const offset_of!(VectorState, mxcsr),
    )
}

//! Entry into translated code and exit from it.
//!
//! On entry the guest's registers are loaded from the processor's state, on exit they are stored there, with the layout
//! of [`super::layout`]. In between, the stack pointer points into the current area; compiled code runs on the host's
//! stack.

use super::layout::{BIAS, LOADED, LOADED_HIGH, LOADED_UPPER, Running};
use super::questions::ANSWERED;
use super::unit;
use crate::arch::VectorState;
use crate::op::Op;
use std::arch::naked_asm;
use std::mem::offset_of;

/// Return value of [`enter`] if the processor's state already has the address of the next instruction.
pub const PLAIN: u64 = 0;

macro_rules! at {
    ($name:ident) => {
        offset_of!(Running, $name) as isize - BIAS as isize
    };
}

/// Moves vector registers: all of them to or from memory at R10; or their lower halves from there, with upper halves
/// that are 0; or the upper halves of all but the first two, combined in XMM0.
macro_rules! vectors {
    (gather_upper) => {
        vectors!(gather_upper 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($way:ident) => {
        vectors!($way 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (store $($n:literal)*) => {
        concat!($("vmovdqa [r10 + 32*", $n, "], ymm", $n, "\n"),*)
    };
    (load $($n:literal)*) => {
        concat!($("vmovdqa ymm", $n, ", [r10 + 32*", $n, "]\n"),*)
    };
    (load_lower $($n:literal)*) => {
        concat!($("vmovdqa xmm", $n, ", [r10 + 32*", $n, "]\n"),*)
    };
    (store_wide $($n:literal)*) => {
        concat!($("vextracti64x4 [r10 + {upper} + 32*", $n, "], zmm", $n, ", 1\n"),*)
    };
    (load_wide $($n:literal)*) => {
        concat!($("vinserti64x4 zmm", $n, ", zmm", $n, ", [r10 + {upper} + 32*", $n, "], 1\n"),*)
    };
    (gather_upper $($n:literal)*) => {
        concat!($("vpor xmm0, xmm0, [r10 + 32*", $n, " + 16]\n"),*)
    };
}

/// Moves ZMM16-31 and opmasks to or from memory at R10.
macro_rules! high {
    (store) => {
        concat!(
            high!("vmovdqu64 [r10 + {high} + 64*(", ") - 1024], zmm", "\n"; 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31),
            high!("kmovq [r10 + {k} + 8*(", ")], k", "\n"; 0 1 2 3 4 5 6 7)
        )
    };
    (load) => {
        concat!(
            high!("vmovdqu64 zmm", ", [r10 + {high} + 64*(", ") - 1024]\n"; 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31),
            high!("kmovq k", ", [r10 + {k} + 8*(", ")]\n"; 0 1 2 3 4 5 6 7)
        )
    };
    ($before:literal, $between:literal, $after:literal; $($n:literal)*) => {
        concat!($($before, $n, $between, $n, $after),*)
    };
}

/// Loads the arithmetic flags; clobbers RAX.
macro_rules! load_flags {
    () => {
        // OF: 1 + 127 overflows, 0 + 127 does not. The others: SAHF.
        "movzx eax, word ptr [rsp + {flags}]\nadd al, 127\nsahf\n"
    };
}

/// Stores the arithmetic flags; clobbers RAX.
macro_rules! store_flags {
    () => {
        // The whole word, for later reads of it.
        "lahf\nseto al\nmovzx eax, ax\nmov [rsp + {flags}], rax\n"
    };
}

/// Defines a function that begins with `before`, stores the state of translated code to the processor (which clobbers
/// RAX and R10), and continues with `after`; constants follow.
macro_rules! saving {
    ({ $($before:literal)* } { $($after:expr),* $(,)? } $($name:ident = $kind:tt $value:expr),* $(,)?) => {
        naked_asm!(
            $($before,)*
            "mov r10, [rsp + {registers}]",
            "mov [r10], rax",
            store_flags!(),
            "mov [r10 + 8*1], r9",
            "mov [r10 + 8*2], rdx",
            "mov [r10 + 8*3], rbx",
            "mov [r10 + 8*4], r15",
            "mov [r10 + 8*5], rbp",
            "mov [r10 + 8*6], rsi",
            "mov [r10 + 8*7], rdi",
            "mov [r10 + 8*14], r8",
            "mov [r10 + 8*12], r12",
            "mov [r10 + 8*13], r13",
            "mov rax, [rsp + {memory} + 8*0]",
            "mov [r10 + 8*8], rax",
            "mov rax, [rsp + {memory} + 8*1]",
            "mov [r10 + 8*9], rax",
            "mov rax, [rsp + {memory} + 8*2]",
            "mov [r10 + 8*10], rax",
            "mov rax, [rsp + {memory} + 8*3]",
            "mov [r10 + 8*11], rax",
            "mov rax, [rsp + {memory} + 8*4]",
            "mov [r10 + 8*15], rax",
            "mov [rsp + {budget}], r14",
            "mov rax, [rsp + {loaded}]",
            "test eax, eax",
            "jz 3f",
            "mov qword ptr [rsp + {loaded}], 0",
            "mov qword ptr [rsp + {missing} + 8*0], 1",
            "mov qword ptr [rsp + {missing} + 8*1], 1",
            "mov qword ptr [rsp + {missing} + 8*2], 1",
            "mov qword ptr [rsp + {missing} + 8*3], 1",
            "mov r10, [rsp + {vector}]",
            vectors!(store),
            "cmp eax, {only}",
            "je 5f",
            vectors!(store_wide),
            "mov qword ptr [r10 + {upper_is_clear}], 0",
            "test eax, {with_high}",
            "jz 5f",
            "mov qword ptr [rsp + {missing} + 8*5], 1",
            "mov qword ptr [rsp + {missing} + 8*6], 1",
            high!(store),
            "5:",
            "vzeroupper",
            // With unmasked exceptions MXCSR is not the guest's.
            "test byte ptr [rsp + {refused} + 8], 1",
            "jnz 3f",
            "stmxcsr [r10 + {mxcsr}]",
            "ldmxcsr [rsp + {host_mxcsr}]",
            "3:",
            "cmp qword ptr [rsp + {x87_loaded}], 0",
            "je 4f",
            "fxsave64 [rsp + {x87_image}]",
            "emms",
            "fldcw [rsp + {x87_control}]",
            "4:",
            "mov rax, rsp",
            "mov rsp, [rsp + {host_stack}]",
            $($after,)*
            registers = const at!(registers),
            memory = const at!(memory),
            budget = const at!(budget),
            loaded = const at!(loaded),
            missing = const at!(missing),
            refused = const at!(refused),
            vector = const at!(vector),
            mxcsr = const offset_of!(VectorState, mxcsr),
            upper = const offset_of!(VectorState, upper),
            high = const offset_of!(VectorState, high),
            k = const offset_of!(VectorState, k),
            upper_is_clear = const offset_of!(VectorState, upper_is_clear),
            only = const LOADED,
            with_high = const LOADED_HIGH,
            host_mxcsr = const at!(host_mxcsr),
            x87_loaded = const unit::LOADED as isize - BIAS as isize,
            x87_control = const unit::CONTROL as isize - BIAS as isize,
            x87_image = const unit::IMAGE as isize - BIAS as isize,
            flags = const at!(flags),
            host_stack = const at!(host_stack),
            $($name = $kind $value,)*
        )
    };
}

/// Returns to the caller of [`enter`]; the host's stack pointer is active, the code is in EAX.
macro_rules! leave {
    () => {
        "add rsp, 8\npop r15\npop r14\npop r13\npop r12\npop rbp\npop rbx\nret\n"
    };
}

/// Defines a function that calls `$handler` for an operation: its index is in the low half of RCX, its site in the
/// other.
macro_rules! handing_over {
    ($handler:path) => {
        saving!(
            {
                "pop qword ptr [rsp + {resume}]"
                // The operation is unlikely to be in the host's caches.
                "mov r10, [rsp + {ops}]"
                "mov r11d, ecx"
                "lea r11, [r11 + 2*r11]"
                "lea r11, [r11 + r11]"
                "lea r11, [r10 + 8*r11]"
                "prefetcht0 [r11]"
                "prefetcht0 [r11 + 47]"
            }
            {
                "mov rdi, [rax + {context}]",
                "mov rsi, r11",
                "mov rdx, rcx",
                "shr rdx, 32",
                "call {handler}",
                "test rax, rax",
                "jz 2f",
                "lea rsp, [rax + {bias}]",
                "jmp {restore}",
                "2:",
                leave!(),
            }
            resume = const at!(resume),
            context = const at!(context),
            ops = const at!(ops),
            bias = const BIAS,
            handler = sym $handler,
            restore = sym restore,
        )
    };
}

// Address computation of an operation in [`handing_over`].
const _: () = assert!(size_of::<Op>() == 6 * 8);

/// Runs translated code at `code` until it leaves, and returns the exit code.
///
/// # Safety
/// `running` must be that of the current, prepared area, and `code` an entry point of a translation for the current
/// mode.
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

/// Loads the processor's state for translated code, which continues at [`Running::resume`].
#[unsafe(naked)]
unsafe extern "sysv64" fn restore() {
    naked_asm!(
        "mov rcx, [rsp + {registers}]",
        "mov r10, [rcx + 8*8]",
        "mov [rsp + {memory} + 8*0], r10",
        "mov r10, [rcx + 8*9]",
        "mov [rsp + {memory} + 8*1], r10",
        "mov r10, [rcx + 8*10]",
        "mov [rsp + {memory} + 8*2], r10",
        "mov r10, [rcx + 8*11]",
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
        "mov r8, [rcx + 8*14]",
        "mov r12, [rcx + 8*12]",
        "mov r13, [rcx + 8*13]",
        "mov r14, [rsp + {budget}]",
        load_flags!(),
        "mov rax, [rcx]",
        "jmp [rsp + {resume}]",
        registers = const at!(registers),
        memory = const at!(memory),
        budget = const at!(budget),
        flags = const at!(flags),
        resume = const at!(resume),
    )
}

/// Called by translated code with an operation in RCX, whose handler is executed before the block continues.
#[unsafe(naked)]
pub unsafe extern "sysv64" fn slow() {
    handing_over!(super::dispatch::slow::<false>)
}

/// Called by translated code with an operation in RCX that is the last of its block.
#[unsafe(naked)]
pub unsafe extern "sysv64" fn last() {
    handing_over!(super::dispatch::slow::<true>)
}

/// Stores the registers that compiled code changes, other than RAX, to the processor at R10, and the time; loads the context as the first
/// argument.
macro_rules! save_volatile {
    () => {
        "mov [r10 + 8*1], r9\nmov [r10 + 8*2], rdx\nmov [r10 + 8*6], rsi\nmov [r10 + 8*7], rdi\nmov [r10 + 8*14], r8\n\
         mov [rsp + {budget}], r14\nmov rdi, [rsp + {context}]\n"
    };
}

/// Calls the handler on the host's stack, and loads again what [`save_volatile`] has stored. The handler's result stays in RAX, and R10 has the
/// processor's registers.
macro_rules! call_and_restore_volatile {
    () => {
        call_and_restore_volatile!("{handler}")
    };
    ($handler:literal) => {
        concat!("mov rax, rsp\nmov rsp, [rsp + {host_stack}]\npush rax\npush rax\ncall ", $handler, "\n\
         pop rsp\nmov r10, [rsp + {registers}]\n\
         mov r9, [r10 + 8*1]\nmov rdx, [r10 + 8*2]\nmov rsi, [r10 + 8*6]\nmov rdi, [r10 + 8*7]\nmov r8, [r10 + 8*14]\n\
         mov r14, [rsp + {budget}]\n")
    };
}

/// Continues translated code `{on}` bytes behind the call, with R10 as [`briefly`] and [`by_number`] have stored it. What follows is jumped to as
/// `2`, and finds flags and RAX as they were.
macro_rules! go_on_or {
    () => {
        concat!(
            "add qword ptr [rsp + {resume}], {on}\n",
            load_flags!(),
            "mov rax, [r10]\nmov r10, [rsp + {refilled}]\njmp [rsp + {resume}]\n2:\n",
            load_flags!(),
            "mov rax, [r10]\n",
        )
    };
}

/// Defines a function that calls `$handler` for an operation, as [`handing_over`] does, while most registers of the guest stay where they
/// are. If that returns true, translated code continues `$on` bytes behind the call; otherwise `$slow` is called instead.
macro_rules! briefly {
    ($handler:path, $on:expr, $slow:path) => {
        naked_asm!(
            "pop qword ptr [rsp + {resume}]",
            "mov [rsp + {refilled}], r10",
            "mov [rsp + {refilled} + 8], rcx",
            "mov r10, [rsp + {registers}]",
            "mov [r10], rax",
            store_flags!(),
            "mov rax, [rsp + {loaded}]",
            "or rax, [rsp + {x87_loaded}]",
            "jnz 2f",
            save_volatile!(),
            "mov eax, ecx",
            "lea rax, [rax + 2*rax]",
            "shl rax, 4",
            "add rax, [rsp + {ops}]",
            "mov rsi, rax",
            "mov rdx, rcx",
            "shr rdx, 32",
            "mov rcx, [rsp + {refilled}]",
            "mov r8d, r11d",
            call_and_restore_volatile!(),
            "test al, al",
            "jz 2f",
            go_on_or!(),
            "mov rcx, [rsp + {refilled} + 8]",
            "push qword ptr [rsp + {resume}]",
            "jmp {slow}",
            resume = const at!(resume),
            refilled = const at!(refilled),
            registers = const at!(registers),
            flags = const at!(flags),
            loaded = const at!(loaded),
            x87_loaded = const unit::LOADED as isize - BIAS as isize,
            budget = const at!(budget),
            context = const at!(context),
            ops = const at!(ops),
            host_stack = const at!(host_stack),
            on = const $on,
            handler = sym $handler,
            slow = sym $slow,
        )
    };
}

/// Defines a function that calls `$handler` with the number in RCX and the address in R10, while most registers of the guest stay where they
/// are. If that returns [`ANSWERED`], translated code continues `$on` bytes behind the call; otherwise `$slow` is called with the result. If vector
/// or x87 registers are loaded, which compiled code may change, `$code` is called in place of `$handler`.
macro_rules! by_number {
    ($handler:path, $on:expr, $code:path, $slow:path) => {
        naked_asm!(
            "pop qword ptr [rsp + {resume}]",
            "mov [rsp + {refilled}], r10",
            "mov r10, [rsp + {registers}]",
            "mov [r10], rax",
            store_flags!(),
            save_volatile!(),
            "lea r11, [rip + {handler}]",
            "mov esi, ecx",
            "lea rcx, [rip + {code}]",
            "mov rax, [rsp + {loaded}]",
            "or rax, [rsp + {x87_loaded}]",
            "cmovnz r11, rcx",
            "mov rdx, [rsp + {refilled}]",
            call_and_restore_volatile!("r11"),
            "mov rcx, rax",
            "cmp rcx, {answered}",
            "jne 2f",
            go_on_or!(),
            "push qword ptr [rsp + {resume}]",
            "jmp {slow}",
            resume = const at!(resume),
            refilled = const at!(refilled),
            registers = const at!(registers),
            flags = const at!(flags),
            loaded = const at!(loaded),
            x87_loaded = const unit::LOADED as isize - BIAS as isize,
            budget = const at!(budget),
            context = const at!(context),
            host_stack = const at!(host_stack),
            answered = const ANSWERED as i64,
            on = const $on,
            handler = sym $handler,
            code = sym $code,
            slow = sym $slow,
        )
    };
}

/// Called by translated code with the index of a question for a line of code in RCX. Most registers of the guest stay where they are. If
/// an event may become due, [`ask_in_full`] is called instead.
#[unsafe(naked)]
pub unsafe extern "sysv64" fn ask_line() {
    by_number!(super::dispatch::ask_line, 0, super::dispatch::code_of_question, ask_in_full)
}

/// Called by translated code with a conditional branch in RCX that is not taken and was mispredicted.
#[unsafe(naked)]
pub unsafe extern "sysv64" fn missed() {
    briefly!(super::dispatch::missed_briefly::<false>, 0, missed_in_full)
}

/// Does the same as [`missed`] for a branch that is taken.
#[unsafe(naked)]
pub unsafe extern "sysv64" fn missed_taken() {
    briefly!(super::dispatch::missed_briefly::<true>, 0, missed_taken_in_full)
}

/// Does the same as [`missed`] if an event may become due.
#[unsafe(naked)]
unsafe extern "sysv64" fn missed_in_full() {
    handing_over!(super::dispatch::missed::<false>)
}

/// Does the same as [`missed_taken`] if an event may become due.
#[unsafe(naked)]
unsafe extern "sysv64" fn missed_taken_in_full() {
    handing_over!(super::dispatch::missed::<true>)
}

/// Called by translated code with an operation in RCX whose code is not known to be in the modelled caches.
#[unsafe(naked)]
pub unsafe extern "sysv64" fn ask() {
    briefly!(super::dispatch::ask_briefly::<false>, 0, ask_in_full)
}

/// Called by translated code with a conditional branch in RCX that is taken, and that the modelled front end is not known to
/// know.
#[unsafe(naked)]
pub unsafe extern "sysv64" fn ask_taken() {
    briefly!(super::dispatch::ask_briefly::<true>, 0, ask_taken_in_full)
}

/// Does the same as [`ask`] if an event may become due.
#[unsafe(naked)]
unsafe extern "sysv64" fn ask_in_full() {
    handing_over!(super::dispatch::ask::<false>)
}

/// Does the same as [`ask_taken`] if an event may become due.
#[unsafe(naked)]
unsafe extern "sysv64" fn ask_taken_in_full() {
    handing_over!(super::dispatch::ask::<true>)
}

/// Distance from the return address of [`refill`] or [`refill_last`] to the code that probes again.
pub const AGAIN: usize = 5;

/// Called by translated code for an access that was probed for in vain: its linear address is in R10, its size in R11
/// (with [`super::dispatch::WRITES`]), and RCX is as for [`slow`], which executes the instruction if the page cannot be
/// made known. In that case it returns to its caller, and else [`AGAIN`] bytes further on.
#[unsafe(naked)]
pub unsafe extern "sysv64" fn refill() {
    briefly!(super::dispatch::refill, AGAIN, slow)
}

/// Does the same as [`refill`] for an operation that is the last of its block, see [`last`].
#[unsafe(naked)]
pub unsafe extern "sysv64" fn refill_last() {
    briefly!(super::dispatch::refill, AGAIN, last)
}

/// Does what [`refill`] does where caches are modelled, for the access whose number is in RCX.
#[unsafe(naked)]
pub unsafe extern "sysv64" fn refill_line() {
    by_number!(super::dispatch::refill_line, AGAIN, super::dispatch::code_of_access, slow)
}

/// Does the same as [`refill_line`] for an operation that is the last of its block, see [`last`].
#[unsafe(naked)]
pub unsafe extern "sysv64" fn refill_line_last() {
    by_number!(super::dispatch::refill_line, AGAIN, super::dispatch::code_of_access, last)
}

/// Jumped to by translated code that leaves, with the reason in ECX.
#[unsafe(naked)]
pub unsafe extern "sysv64" fn exit() {
    saving!({} { "mov eax, ecx", leave!() })
}

/// Called by translated code to load the guest's vector registers and, unless exceptions are unmasked, its MXCSR;
/// clobbers R10 and RCX, and no flags.
#[unsafe(naked)]
pub unsafe extern "sysv64" fn load() {
    naked_asm!(
        "mov r10, [rsp + 8 + {vector}]",
        // Upper halves that are all 0 are not loaded: if they were in use, an SSE instruction would depend on its
        // destination register, whose upper half it preserves.
        "vmovdqa xmm0, [r10 + 16]",
        "vpor xmm0, xmm0, [r10 + 32 + 16]",
        vectors!(gather_upper),
        "vpsrldq xmm1, xmm0, 8",
        "vpor xmm0, xmm0, xmm1",
        "vmovq rcx, xmm0",
        "jrcxz 3f",
        "jmp 4f",
        "3:",
        vectors!(load_lower),
        "jmp 5f",
        "4:",
        vectors!(load),
        "5:",
        "mov rcx, [rsp + 8 + {upper_in_use}]",
        "jrcxz 6f",
        "jmp 7f",
        "6:",
        "jmp 8f",
        "7:",
        vectors!(load_wide),
        "mov ecx, {upper_too}",
        "8:",
        "lea rcx, [rcx + {only}]",
        "mov [rsp + 8 + {loaded}], rcx",
        "mov rcx, [rsp + 8 + {refused} + 8*0]",
        "mov [rsp + 8 + {missing} + 8*0], rcx",
        "mov rcx, [rsp + 8 + {refused} + 8*2]",
        "mov [rsp + 8 + {missing} + 8*2], rcx",
        "mov rcx, [rsp + 8 + {refused} + 8*3]",
        "mov [rsp + 8 + {missing} + 8*3], rcx",
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
        upper = const offset_of!(VectorState, upper),
        upper_in_use = const at!(upper),
        upper_too = const LOADED_UPPER,
        only = const LOADED,
    )
}

/// Called by translated code to load all AVX-512 registers, including those of [`load`]; clobbers R10 and RCX, and no
/// flags. On hosts without AVX-512 it is never called.
#[unsafe(naked)]
pub unsafe extern "sysv64" fn load_wide() {
    naked_asm!(
        "mov rcx, [rsp + 8 + {refused} + 8*5]",
        "jrcxz 3f",
        "ret",
        "3:",
        "mov rcx, [rsp + 8 + {loaded}]",
        "jrcxz 4f",
        "jmp 5f",
        "4:",
        // As if called by translated code.
        "pop qword ptr [rsp + {resume}]",
        "call {load}",
        "push qword ptr [rsp + {resume}]",
        "5:",
        "mov r10, [rsp + 8 + {vector}]",
        high!(load),
        "mov qword ptr [rsp + 8 + {loaded}], {all}",
        "mov rcx, [rsp + 8 + {refused} + 8*5]",
        "mov [rsp + 8 + {missing} + 8*5], rcx",
        "mov rcx, [rsp + 8 + {refused} + 8*6]",
        "mov [rsp + 8 + {missing} + 8*6], rcx",
        "ret",
        load = sym load,
        vector = const at!(vector),
        refused = const at!(refused),
        missing = const at!(missing),
        loaded = const at!(loaded),
        resume = const at!(resume),
        high = const offset_of!(VectorState, high),
        k = const offset_of!(VectorState, k),
        all = const LOADED | LOADED_UPPER | LOADED_HIGH,
    )
}

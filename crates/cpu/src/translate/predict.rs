//! The modelled predictors, as translated code calls them, with the guest's registers and flags in the host's: [`predict`] does what
//! [`Conditional::predicts`] does, and [`predict_target`] what [`Predictor::indirect`](crate::time::predictor::Predictor::indirect) does. Tests
//! compare them.

use super::layout::{BIAS, Running};
use crate::time::conditional::*;
use crate::time::paths;
use crate::time::predictor::Target;
use std::arch::naked_asm;
use std::mem::offset_of;

/// Returns the distance of a field of [`Running`] from the stack pointer in a function that translated code calls.
macro_rules! at {
    ($name:ident) => {
        offset_of!(Running, $name) as isize - BIAS as isize + 8
    };
}

/// Saves the registers that both functions use, and the arithmetic flags.
macro_rules! save {
    () => {
        concat!(
            "mov [rsp + {saved} + 8*0], rax\n",
            "lahf\n",
            "seto al\n",
            "mov [rsp + {saved} + 8*1], rax\n",
            "mov [rsp + {saved} + 8*2], rdx\n",
            "mov [rsp + {saved} + 8*3], rbx\n",
            "mov [rsp + {saved} + 8*4], rsi\n",
        )
    };
}

/// Restores what [`save`] has saved.
macro_rules! give_back {
    () => {
        concat!(
            "mov rax, [rsp + {saved} + 8*1]\n",
            "movzx eax, ax\n",
            "add al, 127\n",
            "sahf\n",
            "mov rax, [rsp + {saved} + 8*0]\n",
            "mov rdx, [rsp + {saved} + 8*2]\n",
            "mov rbx, [rsp + {saved} + 8*3]\n",
            "mov rsi, [rsp + {saved} + 8*4]\n",
        )
    };
}

/// Hashes the branch and its history for table `$n`: the position's address in RDX, the tag in EAX. The path is in R9, the history of
/// the last table in R13, the key in RCX, the predictor in R10.
macro_rules! place {
    ("3") => {
        place!("3", "mov rax, r9\n")
    };
    ("4") => {
        place!("4", "mov rax, r13\n")
    };
    ($n:literal) => {
        place!($n, concat!("mov edx, {length", $n, "}\n", "bzhi rax, r9, rdx\n"))
    };
    ($n:literal, $history:expr) => {
        concat!(
            $history,
            "movabs rdx, {factor",
            $n,
            "}\n",
            "imul rax, rdx\n",
            "add rax, rcx\n",
            "mov rdx, rax\n",
            "shr rdx, {position}\n",
            "lea rdx, [r10 + 2*rdx + {tables} + ",
            $n,
            "*{table}]\n",
            "shr rax, {tag}\n",
            "and eax, {tag_mask}\n",
        )
    };
}

/// If table `$n` has an entry for the branch, it becomes the provider (its address in RBX, the entry in EDI), and the one before it the
/// alternative (R8D).
macro_rules! look_up {
    ($n:tt) => {
        concat!(
            place!($n),
            "movzx esi, word ptr [rdx]\n",
            "mov r12d, esi\n",
            "shr r12d, {entry_tag}\n",
            "cmp r12d, eax\n",
            "cmove r8d, edi\n",
            "cmove edi, esi\n",
            "cmove rbx, rdx\n",
        )
    };
}

/// Makes an entry in table `$n`, or makes the entry there less useful.
macro_rules! allocate {
    ($n:tt) => {
        concat!(
            place!($n),
            "test word ptr [rdx], {useful}\n",
            "jz 12f\n",
            "sub word ptr [rdx], {useful_step}\n",
            "jmp 13f\n",
            "12:\n",
            "shl eax, {entry_tag}\n",
            "lea eax, [rax + r11 + {not_taken}]\n",
            "mov [rdx], ax\n",
            "13:\n",
        )
    };
}

// The highest bit of the count of directions is the prediction.
const _: () = assert!(TAKEN == 4 && NOT_TAKEN == 3);

/// Records the direction of a branch: its key, plus 1 if it is taken, is in RCX. RCX is then 0 if the direction was
/// predicted, and otherwise 1. The function preserves all other registers but R11, and the arithmetic flags. The branch may not be one that went the same way for a
/// long time: translated code finds these itself.
#[unsafe(naked)]
pub unsafe extern "sysv64" fn predict() {
    naked_asm!(
        save!(),
        "mov [rsp + {saved} + 8*5], rdi",
        "mov [rsp + {saved} + 8*6], r8",
        "mov [rsp + {saved} + 8*7], r9",
        "mov [rsp + {saved} + 8*8], r10",
        "mov [rsp + {saved} + 8*9], r12",
        "mov [rsp + {saved} + 8*10], r13",
        "mov r10, [rsp + {conditional}]",
        // R11: the direction; RCX: the key.
        "mov r11d, ecx",
        "and r11d, 1",
        "xor rcx, r11",
        // R9: the path; R13: the history of the last table. Both go on.
        "mov r9, [r10 + {path}]",
        "mov rax, [r10 + {directions}]",
        "mov rdx, [r10 + {directions} + 8]",
        "movabs r13, {word0}",
        "imul r13, rax",
        "movabs rsi, {word1}",
        "imul rsi, rdx",
        "add r13, r9",
        "add r13, rsi",
        "bt r11d, 0",
        "adc rax, rax",
        "adc rdx, rdx",
        "mov [r10 + {directions}], rax",
        "mov [r10 + {directions} + 8], rdx",
        "mov rsi, r9",
        "bt rcx, {way}",
        "adc rsi, rsi",
        "lea rsi, [r11 + 2*rsi]",
        "mov [r10 + {path}], rsi",
        // The base: EAX is how often the branch has gone this way, negative if it went the other.
        "mov rsi, rcx",
        "shr rsi, {base_shift}",
        "movsx eax, byte ptr [r10 + rsi + {base}]",
        "xor edi, edi",
        "test eax, eax",
        "setg dil",
        "lea edx, [r11 - 1]",
        "xor eax, edx",
        "sub eax, edx",
        // EBX: after one more; R8D: halved, but not below the limit.
        "lea ebx, [rax + 1]",
        "mov r8d, eax",
        "neg r8d",
        "shr r8d, 1",
        "mov r12d, {broken}",
        "cmp r8d, r12d",
        "cmova r8d, r12d",
        "neg r8d",
        "test eax, eax",
        "cmovs ebx, r8d",
        "xor ebx, edx",
        "sub ebx, edx",
        "mov [r10 + rsi + {base}], bl",
        "cmp eax, -{steady}",
        "je 8f",
        // The base predicts as an entry would.
        "xor ebx, ebx",
        "shl edi, 2",
        "mov r8d, edi",
        look_up!("0"),
        look_up!("1"),
        look_up!("2"),
        look_up!("3"),
        look_up!("4"),
        // ESI: the entry; EDI: its prediction; R8D: 1 if the alternative is another; EDX: the result.
        "mov esi, edi",
        "xor r8d, edi",
        "shr edi, 2",
        "and edi, 1",
        "shr r8d, 2",
        "and r8d, 1",
        "mov edx, edi",
        "test rbx, rbx",
        "jz 3f",
        // R12: 1 if the entry has also just been made.
        "mov eax, esi",
        "and eax, {useful} + 7",
        "sub eax, {not_taken}",
        "cmp eax, 2",
        "sbb r12, r12",
        "and r12d, r8d",
        "jz 2f",
        "mov rax, [r10 + {distrust}]",
        "mov rdx, rax",
        "shr rdx, 63",
        "xor edx, 1",
        "xor edx, edi",
        // R12: one more if the alternative was right, else one less.
        "mov r12d, edi",
        "xor r12d, r11d",
        "lea r12, [rax + 2*r12 - 1]",
        "lea rax, [r12 + {least_distrust}]",
        "cmp rax, {distrusts}",
        "ja 2f",
        "mov [r10 + {distrust}], r12",
        "2:",
        // The count of directions, which stays within its bits.
        "lea r12d, [2*r11 - 1]",
        "mov eax, esi",
        "and eax, 7",
        "add eax, r12d",
        "cmp eax, 8",
        "sbb eax, eax",
        "and eax, r12d",
        "add esi, eax",
        // How useful the entry is: EAX is one step more or less, or nothing if the alternative is the same.
        "mov eax, edi",
        "xor eax, r11d",
        "neg eax",
        "and eax, -2*{useful_step}",
        "add eax, {useful_step}",
        "neg r8d",
        "and eax, r8d",
        "mov r12d, esi",
        "and r12d, {useful}",
        "add r12d, eax",
        "cmp r12d, {useful} + 1",
        "sbb r12d, r12d",
        "and eax, r12d",
        "add esi, eax",
        "mov [rbx], si",
        "3:",
        "cmp edx, r11d",
        "jne 4f",
        "xor ecx, ecx",
        "9:",
        give_back!(),
        "mov rdi, [rsp + {saved} + 8*5]",
        "mov r8, [rsp + {saved} + 8*6]",
        "mov r9, [rsp + {saved} + 8*7]",
        "mov r10, [rsp + {saved} + 8*8]",
        "mov r12, [rsp + {saved} + 8*9]",
        "mov r13, [rsp + {saved} + 8*10]",
        "ret",
        // Not predicted: entries in the tables with longer histories than the provider's.
        "4:",
        "test rbx, rbx",
        "jz 2f",
        "sub rbx, r10",
        "sub rbx, {tables} + {table}",
        "jb 3f",
        "sub rbx, {table}",
        "jb 4f",
        "sub rbx, {table}",
        "jb 5f",
        "sub rbx, {table}",
        "jb 6f",
        "jmp 8f",
        "2:",
        allocate!("0"),
        "3:",
        allocate!("1"),
        "4:",
        allocate!("2"),
        "5:",
        allocate!("3"),
        "6:",
        allocate!("4"),
        "8:",
        "mov ecx, 1",
        "jmp 9b",
        saved = const at!(saved),
        conditional = const at!(conditional),
        path = const Conditional::PATH,
        directions = const Conditional::DIRECTIONS,
        way = const WAY,
        distrust = const Conditional::DISTRUST,
        least_distrust = const -*DISTRUST.start(),
        distrusts = const *DISTRUST.end() - *DISTRUST.start(),
        word0 = const WORDS[0] as i64,
        word1 = const WORDS[1] as i64,
        base = const Conditional::BASE,
        base_shift = const BASE_SHIFT,
        steady = const STEADY,
        broken = const BROKEN,
        tables = const Conditional::TABLES,
        table = const 2 * ENTRIES,
        position = const POSITION_SHIFT,
        tag = const TAG_SHIFT,
        tag_mask = const (1 << TAG_BITS) - 1,
        entry_tag = const ENTRY_TAG,
        useful = const USEFUL,
        useful_step = const USEFUL_STEP,
        not_taken = const NOT_TAKEN,
        length0 = const LENGTHS[0],
        length1 = const LENGTHS[1],
        length2 = const LENGTHS[2],
        factor0 = const FACTORS[0] as i64,
        factor1 = const FACTORS[1] as i64,
        factor2 = const FACTORS[2] as i64,
        factor3 = const FACTORS[3] as i64,
        factor4 = const FACTORS[4] as i64,
    )
}

/// Records the target of an indirect branch, which is in [`Running::wanted`]: the distance of the branch's entry in the target cache is in RCX,
/// its address in R11. RCX is then 0 if the target was predicted, and otherwise 1. The function preserves all other registers but R11, and
/// the arithmetic flags. The branch may not be one that has only one target and has gone there: translated code finds these itself.
#[unsafe(naked)]
pub unsafe extern "sysv64" fn predict_target() {
    naked_asm!(
        save!(),
        // RBX: the entry; RDX: the target; RSI: the last one.
        "mov rbx, [rsp + {targets}]",
        "add rbx, rcx",
        "mov rdx, [rsp + {wanted}]",
        "mov rsi, [rbx + {to}]",
        "mov [rbx + {to}], rdx",
        "mov rax, [rbx + {from}]",
        "cmp rax, r11",
        "je 2f",
        "not rax",
        "cmp rax, r11",
        "je 3f",
        // The entry was another branch's.
        "mov [rbx + {from}], r11",
        "mov ecx, 1",
        "jmp 9f",
        // The branch has a second target.
        "2:",
        "not rax",
        "mov [rbx + {from}], rax",
        "3:",
        // R11: the tag; RBX: its entry; RSI: the predicted target.
        "mov rax, [rsp + {path}]",
        "add r11, rax",
        "movabs rbx, {factor}",
        "imul r11, rbx",
        "mov rbx, r11",
        "shr rbx, {position}",
        "and rbx, [rsp + {path_mask}]",
        "add rbx, [rsp + {paths}]",
        // The path goes on.
        "shl rax, {step}",
        "xor rax, rdx",
        "mov [rsp + {path}], rax",
        "cmp [rbx + {from}], r11",
        "jne 4f",
        "mov rsi, [rbx + {to}]",
        "4:",
        "xor ecx, ecx",
        "cmp rsi, rdx",
        "je 9f",
        "mov [rbx + {from}], r11",
        "mov [rbx + {to}], rdx",
        "mov ecx, 1",
        "9:",
        give_back!(),
        "ret",
        saved = const at!(saved),
        targets = const at!(targets),
        wanted = const at!(wanted),
        paths = const at!(paths),
        path_mask = const at!(path_mask),
        path = const at!(path),
        to = const offset_of!(Target, to),
        from = const offset_of!(Target, from),
        factor = const paths::FACTOR as i64,
        position = const paths::POSITION_SHIFT,
        step = const paths::STEP,
    )
}

//! The program: the functions of all kernels, and what a process needs around them, as a static ELF file.
//!
//! In a process the program answers requests: it reads a request and its data from the standard input, calls the
//! function as often as asked, and writes three figures for each call to the standard output: the time stamps that the
//! kernel took, and those that a chain of additions and chains that overlap took beside it. On the modelled processor
//! there is no process: its caller writes the data and calls the function. The functions are the same bytes at the same
//! addresses.

use crate::kernel::Kernel;
use crate::layout::{self, CODE, CODE_LEN, CONTROL, CONTROL_LEN, HUGE, HUGE_LEN, RESULTS, SMALL, SMALL_LEN, Slot};
use iced_x86::code_asm::{AsmMemoryOperand, CodeAssembler, CodeLabel, qword_ptr, registers::*};
use iced_x86::{BlockEncoderOptions, IcedError};
use silicon::window::{CHAINS, Chain, ROUNDS};

/// Size of a line of code.
const LINE: usize = 64;
/// Dependent additions in a round of the chain by which the clock is known, and its rounds.
const CHAIN: (usize, u64) = (64, 64);
/// Chains of the loop that shows whether the core is shared.
pub const WINDOWS: f64 = (CHAINS as u64 * ROUNDS) as f64;
/// Cycles of the core that the chain takes.
pub const CHAIN_CYCLES: f64 = (CHAIN.0 as u64 * CHAIN.1) as f64;

/// The assembled program.
pub struct Program {
    /// Bytes at [`CODE`].
    pub code: Vec<u8>,
    /// Address at which a process begins.
    pub start: u64,
    /// Addresses of the functions, in the order of the kernels.
    pub functions: Vec<u64>,
    /// Address of the function whose kernel is [`waiting`].
    pub waiting: u64,
}

impl Program {
    /// Assembles the program of these kernels.
    pub fn new(kernels: &[Kernel]) -> Result<Self, IcedError> {
        let mut code = Vec::new();
        let mut functions = Vec::new();
        for kernel in kernels {
            functions.push(append(&mut code, |a, padding| function(a, kernel, padding))?);
        }
        let beside = [chain(), window(Chain::Own)];
        let mut entries = [0; 2];
        for (entry, kernel) in entries.iter_mut().zip(&beside) {
            *entry = append(&mut code, |a, padding| function(a, kernel, padding))?;
        }
        let waiting = append(&mut code, |a, padding| function(a, &waiting(), padding))?;
        let start = append(&mut code, |a, _| process(a, [0, 1].map(|n| (entries[n], &beside[n]))))?;
        assert!(code.len() as u64 <= CODE_LEN, "the code fits");
        Ok(Self { code, start, functions, waiting })
    }

    /// Returns the ELF file.
    pub fn elf(&self) -> Vec<u8> {
        const HEADER: u64 = 64;
        const SEGMENT: u64 = 56;
        // The code begins with a page of the file, as the kernel requires.
        let at = layout::PAGE;
        let segments = [
            (5u32, at, CODE, self.code.len() as u64, self.code.len() as u64),
            (6, 0, CONTROL, 0, CONTROL_LEN),
            (6, 0, SMALL, 0, SMALL_LEN),
            (6, 0, HUGE, 0, HUGE_LEN),
        ];
        let mut file = Vec::new();
        file.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
        file.extend([2u16, 62].iter().flat_map(|half| half.to_le_bytes()));
        file.extend(1u32.to_le_bytes());
        file.extend([self.start, HEADER, 0].iter().flat_map(|quad| quad.to_le_bytes()));
        file.extend(0u32.to_le_bytes());
        let halves = [HEADER as u16, SEGMENT as u16, segments.len() as u16, 64, 0, 0];
        file.extend(halves.iter().flat_map(|half| half.to_le_bytes()));
        for (flags, offset, address, in_file, in_memory) in segments {
            file.extend(1u32.to_le_bytes());
            file.extend(flags.to_le_bytes());
            let quads = [offset, address, address, in_file, in_memory, layout::PAGE];
            file.extend(quads.iter().flat_map(|quad| quad.to_le_bytes()));
        }
        file.resize(at as usize, 0);
        file.extend(&self.code);
        file
    }
}

/// Returns the bytes of a request: so many measurements of a kernel, with its data if the process does not have them.
pub fn request(kernel: &Kernel, entry: u64, repeats: u64, data: bool) -> Vec<u8> {
    let pieces = if data { kernel.data.as_slice() } else { &[] };
    let quads = [entry, kernel.rounds, kernel.warm, repeats, pieces.len() as u64];
    let mut bytes: Vec<u8> = quads.iter().flat_map(|quad| quad.to_le_bytes()).collect();
    debug_assert_eq!(bytes.len(), layout::REQUEST);
    for piece in pieces {
        let (address, contents) = piece.contents();
        bytes.extend(address.to_le_bytes());
        bytes.extend((contents.len() as u64).to_le_bytes());
        bytes.extend(contents);
    }
    bytes
}

/// The time stamps of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamps {
    /// Of the kernel.
    pub kernel: u64,
    /// Of the chain of additions behind the kernel.
    pub chain: u64,
    /// Of the chains that overlap, behind the additions.
    pub window: u64,
}

/// Returns the measurements of an answer.
pub fn answers(bytes: &[u8]) -> Vec<Stamps> {
    let quad = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    let stamps = |all: &[u8]| Stamps { kernel: quad(&all[..8]), chain: quad(&all[8..16]), window: quad(&all[16..]) };
    bytes.chunks_exact(layout::ANSWER as usize).map(stamps).collect()
}

/// The kernel of dependent additions.
fn chain() -> Kernel {
    Kernel::new("chain", CHAIN.1, |a| a.mov(ebx, 1), |a| (0..CHAIN.0).try_for_each(|_| a.add(rcx, rbx))).warm(16)
}

/// The kernel of chains that each fill a part of the reorder buffer: see [`silicon::window`]. A step is a chain.
fn window(begin: Chain) -> Kernel {
    let prepare = |a: &mut CodeAssembler| {
        a.mov(ebx, 1)?;
        a.cvtsi2sd(xmm0, ebx)?;
        a.movaps(xmm1, xmm0)
    };
    let body = move |a: &mut CodeAssembler| (0..CHAINS).try_for_each(|_| silicon::window::emit(a, begin));
    Kernel::new("window", ROUNDS, prepare, body).warm(2).steps(CHAINS as u32)
}

/// The kernel of the same chains if each waits for the one before it.
pub fn waiting() -> Kernel {
    window(Chain::Previous)
}

/// Appends a function at the next line of code, and returns its address. A label that the function returns begins a
/// line too.
fn append(
    code: &mut Vec<u8>,
    emit: impl Fn(&mut CodeAssembler, usize) -> Result<Option<CodeLabel>, IcedError>,
) -> Result<u64, IcedError> {
    code.resize(code.len().next_multiple_of(LINE), 0xcc);
    let at = CODE + code.len() as u64;
    let assemble = |padding: usize| {
        let mut a = CodeAssembler::new(64)?;
        let top = emit(&mut a, padding)?;
        let result = a.assemble_options(at, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)?;
        let top = top.map(|top| result.label_ip(&top)).transpose()?;
        Ok::<_, IcedError>((result.inner.code_buffer, top.unwrap_or(at) as usize))
    };
    let (bytes, top) = assemble(0)?;
    let padding = top.next_multiple_of(LINE) - top;
    code.extend(if padding == 0 { bytes } else { assemble(padding)?.0 });
    Ok(at)
}

/// A variable.
fn slot(slot: Slot) -> AsmMemoryOperand {
    qword_ptr(slot.address())
}

/// Puts the time stamp into RAX when all that came before is complete; changes RDX.
fn stamp(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.lfence()?;
    a.rdtsc()?;
    a.lfence()?;
    a.shl(rdx, 32)?;
    a.or(rax, rdx)
}

/// The function of a kernel. The loop is a function of its own, so that the rounds before the measurement execute the
/// same instructions.
fn function(a: &mut CodeAssembler, kernel: &Kernel, padding: usize) -> Result<Option<CodeLabel>, IcedError> {
    let (mut rounds, mut top) = (a.create_label(), a.create_label());
    a.cld()?;
    (kernel.prepare)(a)?;
    a.mov(r15, slot(Slot::Warm))?;
    a.call(rounds)?;
    stamp(a)?;
    a.mov(slot(Slot::Start), rax)?;
    a.mov(r15, slot(Slot::Rounds))?;
    a.call(rounds)?;
    stamp(a)?;
    a.sub(rax, slot(Slot::Start))?;
    a.mov(slot(Slot::Elapsed), rax)?;
    a.ret()?;
    a.set_label(&mut rounds)?;
    a.nops_with_size(padding)?;
    a.nop()?;
    a.set_label(&mut top)?;
    (kernel.body)(a)?;
    a.dec(r15)?;
    a.jne(top)?;
    a.ret()?;
    Ok(Some(top))
}

/// Numbers of Linux's system calls, and of what it is told about priority and memory.
const READ: u32 = 0;
const WRITE: u32 = 1;
const MADVISE: u32 = 28;
const EXIT: u32 = 60;
const SCHED_SETSCHEDULER: u32 = 144;
const FIFO: u32 = 1;
const HUGE_PAGES: u32 = 14;
const NO_HUGE_PAGES: u32 = 15;

/// The life of a process. The functions `beside` the measured one follow each of its calls.
fn process(a: &mut CodeAssembler, beside: [(u64, &Kernel); 2]) -> Result<Option<CodeLabel>, IcedError> {
    let [mut request, mut pieces, mut repeat, mut call, mut read, mut ready, mut end, mut exit] =
        std::array::from_fn(|_| a.create_label());
    // The stack has the number of arguments, the first of which is the name. A process with more than the name is one
    // that a kernel has started, and ends.
    a.cmp(qword_ptr(rsp), 1)?;
    a.ja(exit)?;
    a.mov(rax, qword_ptr(rsp + 8))?;
    a.mov(slot(Slot::Name), rax)?;
    // Real-time priority, if the kernel grants it: other work of the machine then waits.
    a.mov(slot(Slot::Length), 1)?;
    a.xor(edi, edi)?;
    a.mov(esi, FIFO)?;
    a.mov(edx, Slot::Length.address() as u32)?;
    a.mov(eax, SCHED_SETSCHEDULER)?;
    a.syscall()?;
    for (address, len, advice) in [(HUGE, HUGE_LEN, HUGE_PAGES), (SMALL, SMALL_LEN, NO_HUGE_PAGES)] {
        a.mov(edi, address as u32)?;
        a.mov(esi, len as u32)?;
        a.mov(edx, advice)?;
        a.mov(eax, MADVISE)?;
        a.syscall()?;
    }
    a.set_label(&mut request)?;
    a.mov(esi, CONTROL as u32)?;
    a.mov(r12d, layout::REQUEST as u32)?;
    a.call(read)?;
    a.set_label(&mut pieces)?;
    a.sub(slot(Slot::Pieces), 1)?;
    a.jb(ready)?;
    a.mov(esi, Slot::Address.address() as u32)?;
    a.mov(r12d, 16)?;
    a.call(read)?;
    a.mov(rsi, slot(Slot::Address))?;
    a.mov(r12, slot(Slot::Length))?;
    a.call(read)?;
    a.jmp(pieces)?;
    a.set_label(&mut ready)?;
    a.mov(slot(Slot::Next), RESULTS as i32)?;
    a.set_label(&mut repeat)?;
    for entry in std::iter::once(None).chain(beside.map(Some)) {
        let (rounds, warm) = (slot(Slot::Rounds), slot(Slot::Warm));
        match entry {
            None => a.call(slot(Slot::Entry))?,
            Some((entry, kernel)) => {
                a.push(rounds)?;
                a.push(warm)?;
                a.mov(rounds, kernel.rounds as i32)?;
                a.mov(warm, kernel.warm as i32)?;
                a.mov(eax, entry as u32)?;
                a.call(rax)?;
                a.pop(warm)?;
                a.pop(rounds)?;
            }
        }
        a.mov(rax, slot(Slot::Elapsed))?;
        a.mov(rbx, slot(Slot::Next))?;
        a.mov(qword_ptr(rbx), rax)?;
        a.add(slot(Slot::Next), 8)?;
    }
    a.dec(slot(Slot::Repeats))?;
    a.jne(repeat)?;
    a.mov(edi, 1)?;
    a.mov(esi, RESULTS as u32)?;
    a.mov(rdx, slot(Slot::Next))?;
    a.sub(rdx, rsi)?;
    a.mov(eax, WRITE)?;
    a.syscall()?;
    a.jmp(request)?;
    // Reads R12 bytes to RSI, or ends the process.
    a.set_label(&mut read)?;
    a.test(r12, r12)?;
    a.je(end)?;
    a.set_label(&mut call)?;
    a.xor(edi, edi)?;
    a.mov(rdx, r12)?;
    a.mov(eax, READ)?;
    a.syscall()?;
    a.test(rax, rax)?;
    a.jle(exit)?;
    a.add(rsi, rax)?;
    a.sub(r12, rax)?;
    a.jne(call)?;
    a.set_label(&mut end)?;
    a.ret()?;
    a.set_label(&mut exit)?;
    a.xor(edi, edi)?;
    a.mov(eax, EXIT)?;
    a.syscall()?;
    Ok(None)
}

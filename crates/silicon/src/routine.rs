//! The code around a block: a function that loads registers, repeats the block in a loop, and stores two time stamps.
//!
//! The code is made by the assembler of the decoder library, at fixed addresses ([`crate::layout`]).

use crate::block::Block;
use crate::failure::Failure;
use crate::layout::{self, Slot};
use crate::window::{self, Chain};
use iced_x86::code_asm::{
    AsmMemoryOperand, CodeAssembler, CodeLabel, dword_ptr, get_gpr64, qword_ptr, registers::*, xmmword_ptr,
};
use iced_x86::{BlockEncoderOptions, IcedError};

/// Size of a line of code.
const LINE: usize = 64;
/// Instructions that the body of a loop has at least: the branch at its end, behind which a core begins with another entry of its decoded uops,
/// is then one of many. With 64, blocks seemed to execute up to seven instructions a cycle on cores that can execute six.
const BODY: usize = 256;

/// Returns how often the shorter of the two loops contains the block.
pub fn copies(block: &Block) -> usize {
    BODY.div_ceil(block.instructions().len())
}

/// Properties of the code around a block.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The processor has AVX.
    pub avx: bool,
    /// All registers point to addresses that are aligned to 64 bytes; see [`layout::register`].
    pub aligned: bool,
}

impl Kind {
    /// Returns the usual properties on this machine's processor.
    pub fn of_host() -> Self {
        Self { avx: std::is_x86_feature_detected!("avx"), aligned: false }
    }
}

/// The code of a measurement.
#[derive(Clone, Debug)]
pub struct Code {
    /// Bytes, to be placed at [`layout::CODE`].
    pub bytes: Vec<u8>,
    /// Address of the function that repeats the block [`copies`] times in a round.
    pub once: u64,
    /// Address of the function that repeats the block twice as often.
    pub twice: u64,
    /// How often the shorter loop contains the block: [`copies`].
    pub copies: usize,
    /// Addresses of the same functions for the dependent additions by which the clock is known.
    pub chain: [u64; 2],
    /// Address of the function of chains that overlap, unless another thread executes on the core: see [`window`].
    pub window: u64,
}

/// Dependent additions in a round of the shorter chain.
pub const CHAIN: usize = 64;

/// Makes the functions of a block.
pub fn code(block: &Block, kind: Kind) -> Result<Code, Failure> {
    make(block, kind).map_err(|error| Failure::Encoding(error.to_string()))
}

fn make(block: &Block, kind: Kind) -> Result<Code, IcedError> {
    let mut a = CodeAssembler::new(64)?;
    a.add(rax, rbx)?;
    let addition = Block::new(a.instructions()).expect("an addition can be repeated");
    let mut a = CodeAssembler::new(64)?;
    window::emit(&mut a, Chain::Own)?;
    let overlapping = Block::new(a.instructions()).expect("a chain can be repeated");
    let copies = copies(block);
    let mut bytes = Vec::new();
    let mut add = |block, copies| {
        let at = layout::CODE + bytes.len() as u64;
        let mut function = function(block, copies, kind, at)?;
        function.resize(function.len().next_multiple_of(LINE), 0xcc);
        bytes.extend(function);
        Ok::<_, IcedError>(at)
    };
    let (once, twice) = (add(block, copies)?, add(block, 2 * copies)?);
    let chain = [add(&addition, CHAIN)?, add(&addition, 2 * CHAIN)?];
    let window = add(&overlapping, window::CHAINS)?;
    Ok(Code { bytes, once, twice, copies, chain, window })
}

/// Returns a function that lies at this address, with the calling convention of System V. The loop begins a line.
fn function(block: &Block, copies: usize, kind: Kind, at: u64) -> Result<Vec<u8>, IcedError> {
    let assemble = |padding: usize| {
        let mut a = CodeAssembler::new(64)?;
        let top = emit(&mut a, block, copies, kind, padding)?;
        let result = a.assemble_options(at, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)?;
        let top = result.label_ip(&top)?;
        Ok::<_, IcedError>((result.inner.code_buffer, top as usize))
    };
    let (_, top) = assemble(0)?;
    Ok(assemble(top.next_multiple_of(LINE) - top)?.0)
}

/// A place in the page of slots.
fn slot(slot: Slot) -> AsmMemoryOperand {
    qword_ptr(slot.address())
}

/// Stores the time stamp; changes RAX and RDX.
fn stamp(a: &mut CodeAssembler, to: Slot) -> Result<(), IcedError> {
    a.lfence()?;
    a.rdtsc()?;
    a.lfence()?;
    a.shl(rdx, 32)?;
    a.or(rax, rdx)?;
    a.mov(slot(to), rax)
}

/// Emits a function, and returns the label of its loop.
fn emit(
    a: &mut CodeAssembler,
    block: &Block,
    copies: usize,
    kind: Kind,
    padding: usize,
) -> Result<CodeLabel, IcedError> {
    let saved = [rbx, rbp, r12, r13, r14, r15];
    for register in saved {
        a.push(register)?;
    }
    a.mov(slot(Slot::Stack), rsp)?;
    a.stmxcsr(dword_ptr(Slot::Mxcsr.address()))?;
    a.ldmxcsr(dword_ptr(Slot::Mxcsr.address() + 4))?;
    a.fninit()?;
    if kind.avx {
        a.vzeroupper()?;
    }
    let vector = xmmword_ptr(Slot::Vector.address());
    for register in
        [xmm0, xmm1, xmm2, xmm3, xmm4, xmm5, xmm6, xmm7, xmm8, xmm9, xmm10, xmm11, xmm12, xmm13, xmm14, xmm15]
    {
        a.movaps(register, vector)?;
    }
    stamp(a, Slot::Start)?;
    let free = block.free_register().and_then(get_gpr64);
    a.mov(rax, slot(Slot::Rounds))?;
    a.mov(slot(Slot::Left), rax)?;
    let all = [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15];
    for (register, number) in all.into_iter().zip(0..) {
        a.mov(register, layout::register(number, kind.aligned))?;
    }
    if let Some(register) = free {
        a.mov(register, slot(Slot::Rounds))?;
    }
    a.nops_with_size(padding)?;
    let mut top = a.create_label();
    a.set_label(&mut top)?;
    for _ in 0..copies {
        for instruction in block.instructions() {
            a.add_instruction(*instruction)?;
        }
    }
    match free {
        Some(register) => a.dec(register)?,
        None => a.dec(slot(Slot::Left))?,
    }
    a.jne(top)?;
    stamp(a, Slot::End)?;
    a.cld()?;
    a.mov(rsp, slot(Slot::Stack))?;
    a.ldmxcsr(dword_ptr(Slot::Mxcsr.address()))?;
    a.fninit()?;
    if kind.avx {
        a.vzeroupper()?;
    }
    for register in saved.into_iter().rev() {
        a.pop(register)?;
    }
    a.ret()?;
    Ok(top)
}

//! Golden files with the host code of representative blocks, which make changes of the translator's output visible in
//! review.
//!
//! With `UPDATE_GOLDEN=1` in the environment the files are rewritten.

use cpu::{Model, Tier};
use iced_x86::code_asm::*;
use iced_x86::{Decoder, DecoderOptions, Formatter, GasFormatter, IcedError};
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use testkit::{CODE, DATA, Machine, assemble};

type Assemble = fn(&mut CodeAssembler) -> Result<(), IcedError>;

/// Blocks of code at CPL 0.
const SYSTEM: &[(&str, Assemble)] = &[
    ("read-base", |a| {
        a.rdfsbase(rdx)?;
        a.rdgsbase(r10d)
    }),
    ("read-control", |a| a.mov(rax, cr3)),
    ("read-rights", |a| a.rdpkru()),
    ("swap-bases", |a| a.swapgs()),
    ("write-base", |a| {
        a.wrgsbase(rdx)?;
        a.wrfsbase(r10d)
    }),
    ("write-msr", |a| a.wrmsr()),
];

/// Blocks of user code.
const BLOCKS: &[(&str, Assemble)] = &[
    ("add", |a| a.add(rax, rcx)),
    ("bit-test", |a| {
        a.bt(rdi, 5)?;
        a.sbb(eax, eax)?;
        a.test(eax, eax)
    }),
    ("bsf", |a| a.bsf(rax, rdi)),
    ("bsr-to-memory-register", |a| a.bsr(r9, rdi)),
    ("call", |a| a.call(0x10_0800)),
    ("call-indirect", |a| a.call(rax)),
    ("call-memory", |a| a.call(qword_ptr(rbx + 0x18))),
    ("cmov", |a| {
        a.cmp(rax, rdx)?;
        a.cmovl(r9, rdx)?;
        a.cmovae(eax, dword_ptr(rsi))
    }),
    ("compare-and-branch", |a| {
        a.cmp(dword_ptr(rdi + 0x10), 3)?;
        a.je(0x10_0040)
    }),
    ("compare-exchange-16", |a| a.lock().cmpxchg16b(xmmword_ptr(rdi))),
    ("compare-exchange", |a| {
        a.lock().cmpxchg(qword_ptr(rdi), rdx)?;
        a.jne(0x10_0040)
    }),
    ("divide", |a| a.div(rcx)),
    ("divide-signed", |a| {
        a.cqo()?;
        a.idiv(qword_ptr(rsi))?;
        a.test(rax, rax)
    }),
    ("epilogue", |a| {
        a.add(rsp, 8)?;
        a.pop(rbx)?;
        a.pop(rbp)?;
        a.pop(r12)?;
        a.pop(r14)?;
        a.ret()
    }),
    ("high-byte", |a| {
        a.movzx(eax, ah)?;
        a.mov(bh, al)?;
        a.mov(ch, al)
    }),
    ("high-byte-of-rcx", |a| {
        a.test(ch, 2)?;
        a.and(ch, byte_ptr(rdi))?;
        a.mov(dl, ch)
    }),
    ("imul", |a| {
        a.imul_3(rax, rdi, 24)?;
        a.add(rax, rsi)
    }),
    ("imul-flags-live", |a| {
        a.imul_2(rax, rdi)?;
        a.jo(0x10_0040)
    }),
    ("jump-indirect-table", |a| a.jmp(qword_ptr(rax * 8 + DATA))),
    ("lea", |a| {
        a.lea(rax, rdi + rsi * 4 + 8)?;
        a.lea(r9d, ptr(r10 + r11))?;
        a.lea(rdx, ptr(0x10_1234))
    }),
    ("leave", |a| {
        a.leave()?;
        a.ret()
    }),
    ("load", |a| a.mov(rax, qword_ptr(rbx + 8))),
    ("load-32-bit-address", |a| a.mov(eax, dword_ptr(ebx + 8))),
    ("load-absolute", |a| a.mov(rax, qword_ptr(DATA + 0x18))),
    ("load-at-register", |a| a.mov(rax, qword_ptr(rbx))),
    ("load-indexed", |a| a.mov(r9, qword_ptr(r10 + r11 * 8 + 0x40))),
    ("locked-add", |a| a.lock().add(dword_ptr(rdi), 1)),
    ("movzx", |a| {
        a.movzx(eax, byte_ptr(rdi))?;
        a.movsx(rcx, word_ptr(rdi + 2))?;
        a.movsxd(rdx, eax)
    }),
    ("multiply", |a| {
        a.mul(rcx)?;
        a.add(rdx, r9)
    }),
    ("nop", |a| {
        a.nop()?;
        a.endbr64()
    }),
    ("nop-hints", |a| {
        // RDSSPQ RAX, CLDEMOTE [RAX], PREFETCHIT0 and PREFETCHIT1 [RIP + 0].
        a.db(&[0xf3, 0x48, 0x0f, 0x1e, 0xc8, 0x0f, 0x1c, 0x00])?;
        a.db(&[0x0f, 0x18, 0x3d, 0, 0, 0, 0, 0x0f, 0x18, 0x35, 0, 0, 0, 0])
    }),
    ("pause", |a| a.pause()),
    ("per-cpu", |a| {
        a.mov(rax, qword_ptr(0x1_8040).gs())?;
        a.add(rax, qword_ptr(rdi).gs())?;
        a.inc(dword_ptr(0x28).fs())
    }),
    ("prologue", |a| {
        a.push(r14)?;
        a.push(r12)?;
        a.push(rbp)?;
        a.push(rbx)?;
        a.sub(rsp, 8)?;
        a.push(0x1234)
    }),
    ("read-modify-write", |a| {
        a.add(qword_ptr(rdi + 0x20), rax)?;
        a.not(byte_ptr(rdi))?;
        a.xadd(qword_ptr(rsi), r10)
    }),
    ("read-time", |a| a.rdtsc()),
    ("read-time-and-processor", |a| a.rdtscp()),
    ("registers-in-memory", |a| {
        a.mov(r9, r10)?;
        a.add(r11, r14)?;
        a.xor(r15d, r15d)?;
        a.mov(r9b, 1)
    }),
    ("return", |a| a.ret()),
    ("rotate-flags-live", |a| {
        a.rol(rdx, 7)?;
        a.jo(0x10_0040)
    }),
    ("segment-register", |a| {
        a.mov(eax, ds)?;
        a.mov(word_ptr(rdi), fs)
    }),
    ("setcc", |a| {
        a.test(rdi, rdi)?;
        a.sete(al)?;
        a.setg(byte_ptr(rsi))
    }),
    ("shift-by-cl", |a| {
        a.shl(rax, cl)?;
        a.add(rax, rdx)?;
        a.shrx(rax, rdi, rsi)
    }),
    ("shift-by-cl-flags-live", |a| {
        a.shl(eax, cl)?;
        a.jc(0x10_0040)
    }),
    ("shift-by-constant", |a| {
        a.shl(rax, 3)?;
        a.shr(edx, 4)?;
        a.sar(rdi, 63)?;
        a.add(rax, rdx)
    }),
    ("shift-flags-live", |a| {
        a.shr(rax, 4)?;
        a.jb(0x10_0040)
    }),
    ("shift-of-part-flags-live", |a| {
        a.shr(dl, 4)?;
        a.je(0x10_0040)
    }),
    ("store", |a| {
        a.mov(qword_ptr(rbx + 8), rax)?;
        a.mov(dword_ptr(rbx + 0x10), 7)?;
        a.mov(byte_ptr(rbx), r9b)
    }),
    ("string-move", |a| a.rep().movsb()),
    ("string-store", |a| a.rep().stosq()),
    ("string-store-once", |a| a.stosb()),
    ("sum-loop", |a| {
        a.add(rax, qword_ptr(rdi + rcx * 8))?;
        a.inc(rcx)?;
        a.cmp(rcx, rsi)?;
        a.jb(0x10_0000)
    }),
    ("vector-arithmetic", |a| {
        a.movsd_2(xmm0, qword_ptr(rdi))?;
        a.mulsd(xmm0, xmm1)?;
        a.vaddpd(ymm2, ymm3, ymmword_ptr(rsi))
    }),
    ("x87-arithmetic", |a| {
        a.fld(qword_ptr(rdi))?;
        a.fmul(qword_ptr(rsi + 8))?;
        a.fadd_2(st0, st1)?;
        a.fxch(st0, st1)?;
        a.fstp(tbyte_ptr(rdi + 16))
    }),
    ("x87-control", |a| {
        a.fnstcw(word_ptr(rdi))?;
        a.fldcw(word_ptr(rdi + 2))?;
        a.fistp(dword_ptr(rdi + 4))?;
        a.fucomip(st0, st1)?;
        a.fnstsw(ax)
    }),
    ("vector-copy", |a| {
        a.movdqu(xmm0, xmmword_ptr(rsi))?;
        a.movaps(xmmword_ptr(rdi), xmm0)?;
        a.vmovdqu(ymm1, ymmword_ptr(rsi))?;
        a.vmovdqu(ymmword_ptr(rdi), ymm1)
    }),
    ("xchg", |a| {
        a.xchg(qword_ptr(rdi), rax)?;
        a.xchg(rax, r9)
    }),
];

/// Environment of a loop.
#[derive(Clone, Copy)]
enum As {
    /// At CPL 3.
    User,
    /// At CPL 0.
    Kernel,
    /// In compatibility mode.
    Narrow,
    /// At CPL 3 without recording.
    Unrecorded,
}

/// Loops of several blocks.
const TRACES: &[(As, &str, Assemble)] = &[
    (As::User, "trace-loop", |a| {
        let mut top = a.create_label();
        a.set_label(&mut top)?;
        a.add(rax, qword_ptr(rdi))?;
        a.dec(rdx)?;
        a.jne(top)
    }),
    (As::Narrow, "trace-32-bit", |a| {
        let mut top = a.create_label();
        a.set_label(&mut top)?;
        a.mov(eax, dword_ptr(edi))?;
        a.push(eax)?;
        a.add(edi, 4)?;
        a.add(ecx, dword_ptr(edi + 8))?;
        a.pop(ebx)?;
        a.dec(edx)?;
        a.jne(top)
    }),
    (As::Unrecorded, "trace-call", |a| {
        let (mut top, mut function) = (a.create_label(), a.create_label());
        a.set_label(&mut top)?;
        a.call(function)?;
        a.dec(rdx)?;
        a.jne(top)?;
        a.set_label(&mut function)?;
        a.push(rbx)?;
        a.add(rax, qword_ptr(rdi))?;
        a.pop(rbx)?;
        a.ret()
    }),
    (As::Kernel, "trace-enable-interrupts", |a| {
        let mut top = a.create_label();
        a.set_label(&mut top)?;
        a.cli()?;
        a.add(rax, rbx)?;
        a.sti()?;
        a.nop()?;
        a.dec(rdx)?;
        a.jne(top)
    }),
    (As::User, "trace-fields", |a| {
        let mut top = a.create_label();
        a.set_label(&mut top)?;
        a.mov(rax, qword_ptr(rdi))?;
        a.add(rax, qword_ptr(rdi + 8))?;
        a.mov(qword_ptr(rdi + 0x10), rax)?;
        a.add(rdi, 0x18)?;
        a.dec(rdx)?;
        a.jne(top)
    }),
    (As::User, "trace-of-blocks", |a| {
        let (mut top, mut other) = (a.create_label(), a.create_label());
        a.set_label(&mut top)?;
        a.mov(rax, qword_ptr(rdi))?;
        a.test(rax, rax)?;
        a.je(other)?;
        a.mov(qword_ptr(rsi), rax)?;
        a.set_label(&mut other)?;
        a.add(rbx, qword_ptr(rdi + 8))?;
        a.jmp(top)
    }),
];

/// Returns the translation of a loop that has mostly been executed before.
fn trace(kind: As, assemble_loop: Assemble) -> String {
    let mut machine = match kind {
        As::User | As::Unrecorded => Machine::long64(3),
        As::Kernel => Machine::long64(0),
        As::Narrow => Machine::compatibility32(3),
    };
    if let As::Unrecorded = kind {
        machine.cpu.wiring.model = Arc::new(Model { recorded: false, ..(*machine.cpu.wiring.model).clone() });
    }
    let bits = if let As::Narrow = kind { 32 } else { 64 };
    machine.cache.code.tier = Tier::Auto;
    machine.cache.code.threshold = 4;
    let code = assemble(bits, CODE, assemble_loop);
    machine.poke(CODE, &code);
    machine.cpu.arch.rip = CODE;
    for register in [3, 6, 7] {
        machine.cpu.arch.gpr[register] = DATA;
    }
    machine.run(1_000_000);
    listing(&machine, bits, &code, CODE)
}

fn golden(cpl: u8, assemble_block: Assemble) -> String {
    let mut machine = Machine::long64(cpl);
    machine.cache.code.tier = Tier::Translator;
    machine.cpu.wiring.fdp_on_exception = true;
    // Blocks end at the end of their page at the latest.
    let end = CODE + 0x1000;
    let (mut at, mut code) = (CODE, Vec::new());
    while at + code.len() as u64 != end {
        at = end - code.len() as u64;
        code = assemble(64, at, assemble_block);
    }
    machine.poke(at, &code);
    machine.cpu.arch.rip = at;
    for register in [3, 6, 7] {
        machine.cpu.arch.gpr[register] = DATA;
    }
    machine.run(1);
    listing(&machine, 64, &code, at)
}

fn listing(machine: &Machine, bits: u32, code: &[u8], at: u64) -> String {
    let mut text = String::from("guest:\n");
    let mut formatter = GasFormatter::new();
    for i in Decoder::with_ip(bits, code, at, DecoderOptions::NONE) {
        let mut line = String::new();
        formatter.format(&i, &mut line);
        let _ = writeln!(text, "       {line}");
    }
    let listings = machine.cache.listings(at, at);
    let [listing] = &listings[..] else { panic!("{} translations", listings.len()) };
    let _ = writeln!(text, "host: {} instructions, {} more aside", listing.straight, listing.aside);
    text + &listing.text
}

#[test]
fn translated_code_is_as_in_the_files() {
    cpu::native::decide_by_loop(false);
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/translate");
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let mut different = Vec::new();
    let user = BLOCKS.iter().map(|(name, block)| (3, name, block));
    let blocks = user.chain(SYSTEM.iter().map(|(name, block)| (0, name, block)));
    let blocks = blocks.map(|(cpl, name, block)| (name, golden(cpl, *block)));
    for (name, text) in blocks.chain(TRACES.iter().map(|(kind, name, block)| (name, trace(*kind, *block)))) {
        let path = directory.join(format!("{name}.txt"));
        if update {
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(&path, &text).unwrap();
        } else if std::fs::read_to_string(&path).ok().as_ref() != Some(&text) {
            different.push(format!("{name} is now\n{text}"));
        }
    }
    let files = std::fs::read_dir(&directory).unwrap().count();
    assert!(different.is_empty(), "{}\nUPDATE_GOLDEN=1 accepts this", different.join("\n"));
    assert_eq!(files, BLOCKS.len() + SYSTEM.len() + TRACES.len(), "a file without a block");
}

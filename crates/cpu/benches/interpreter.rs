//! Benchmarks of the interpreter's hot paths, in guest instructions per second.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use iced_x86::code_asm::*;
use ledger::TICKS_PER_CYCLE;
use testkit::{DATA, Machine};

/// Instructions per iteration of a benchmark; each costs one cycle in the test model.
const INSTRUCTIONS: u64 = 1_000_000;

/// Runs `body` as an endless loop.
fn bench(c: &mut Criterion, name: &str, body: fn(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>) {
    let mut machine = Machine::long64(0);
    machine.code(|a| {
        let mut top = a.create_label();
        a.mov(rbx, DATA)?;
        a.set_label(&mut top)?;
        body(a)?;
        a.dec(rcx)?;
        a.jmp(top)
    });
    let mut group = c.benchmark_group("interpreter");
    group.throughput(Throughput::Elements(INSTRUCTIONS));
    group.bench_function(name, |b| b.iter(|| machine.run(INSTRUCTIONS * TICKS_PER_CYCLE)));
    group.finish();
}

fn interpreter(c: &mut Criterion) {
    bench(c, "arithmetic", |a| {
        a.add(rax, rcx)?;
        a.xor(rdx, rax)?;
        a.lea(rsi, rax + rcx * 4 + 8)?;
        a.shr(rsi, 3)?;
        a.sub(rdx, rsi)?;
        a.and(edx, 0xffff)?;
        a.mov(rdi, rdx)?;
        a.cmp(rdi, 17)
    });
    bench(c, "memory", |a| {
        a.mov(rax, qword_ptr(rbx + 8))?;
        a.add(rax, rcx)?;
        a.mov(qword_ptr(rbx + 8), rax)?;
        a.add(dword_ptr(rbx + 64), eax)?;
        a.movzx(edx, byte_ptr(rbx + 65))?;
        a.cmp(byte_ptr(rbx + 66), dl)
    });
    bench(c, "vector", |a| {
        a.movdqu(xmm0, xmmword_ptr(rbx + 8))?;
        a.pcmpeqb(xmm0, xmm1)?;
        a.pmovmskb(eax, xmm0)?;
        a.vmovdqu(ymm2, ymmword_ptr(rbx + 32))?;
        a.vpcmpeqb(ymm3, ymm2, ymmword_ptr(rbx + 64))?;
        a.vpor(ymm4, ymm3, ymm2)?;
        a.vpmovmskb(edx, ymm4)?;
        a.vmovdqa(ymmword_ptr(rbx + 128), ymm4)?;
        a.vzeroupper()
    });
    bench(c, "float", |a| {
        a.movsd_2(xmm0, qword_ptr(rbx + 8))?;
        a.addsd(xmm1, xmm0)?;
        a.mulsd(xmm1, xmm0)?;
        a.cvttsd2si(rax, xmm1)?;
        a.pxor(xmm2, xmm2)?;
        a.cvtsi2sd(xmm2, rcx)?;
        a.comisd(xmm1, xmm2)
    });
    bench(c, "x87", |a| {
        a.fld(qword_ptr(rbx + 8))?;
        a.fmul(qword_ptr(rbx + 16))?;
        a.fadd(dword_ptr(rbx + 24))?;
        a.fild(dword_ptr(rbx + 32))?;
        a.fxch(st0, st1)?;
        a.fucomi(st0, st1)?;
        a.faddp(st1, st0)?;
        a.fstp(tbyte_ptr(rbx + 48))
    });
    // A handler executes RCL, so the x87 state is stored and reloaded.
    bench(c, "x87 and handlers", |a| {
        a.fld(qword_ptr(rbx + 8))?;
        a.fstp(tbyte_ptr(rbx + 48))?;
        a.rcl(rax, 1)
    });
    bench(c, "branches", |a| {
        let mut odd = a.create_label();
        let mut join = a.create_label();
        a.test(ecx, 1)?;
        a.jnz(odd)?;
        a.inc(rax)?;
        a.set_label(&mut odd)?;
        a.cmp(rax, rcx)?;
        a.ja(join)?;
        a.dec(rdx)?;
        a.set_label(&mut join)?;
        a.nop()
    });
}

criterion_group!(benches, interpreter);
criterion_main!(benches);

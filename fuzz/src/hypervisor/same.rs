//! The properties that two runs must have in common.

use super::guest::RAM;
use super::{CYCLES, End, Run, Scenario};
use cpu::arch::{TableRegister, attention};
use cpu::bus::lock;
use cpu::{Cpu, Exit};
use iced_x86::{Code, Instruction, Mnemonic, Register};
use ledger::TICKS_PER_CYCLE;
use x86::control::*;
use x86::{flags, reg};

/// Returns the processor state that a guest can see.
fn registers(run: &Run) -> Vec<(&'static str, String)> {
    let cpu = &run.cpu;
    let visible = run.vcpu.visible(cpu);
    let hex = |value: &dyn std::fmt::Debug| format!("{value:x?}");
    let mut msr = cpu.arch.msr;
    // EFER is among the visible registers; the offset is the hypervisor's.
    (msr.efer, msr.tsc_offset) = (0, 0);
    let table = |table: &TableRegister| format!("{:#x} {:#x}", table.base, table.limit);
    vec![
        ("general registers", hex(&&cpu.arch.gpr[..16])),
        ("rip", hex(&cpu.arch.rip)),
        ("flags", hex(&(cpu.rflags() & !flags::RF))),
        ("segments", hex(&&cpu.arch.seg[..6])),
        ("level", hex(&cpu.arch.cpl)),
        ("cr0", hex(&visible.cr0)),
        ("cr2", hex(&cpu.arch.cr2)),
        ("cr3", hex(&visible.cr3)),
        ("cr4", hex(&visible.cr4)),
        ("efer", hex(&visible.efer)),
        ("pdptes", if visible.pae() { hex(&visible.pdpte) } else { String::new() }),
        ("debug registers", hex(&cpu.arch.dr)),
        (
            "tables",
            format!("{} {} {:x?} {:x?}", table(&cpu.arch.gdtr), table(&cpu.arch.idtr), cpu.arch.ldtr, cpu.arch.tr),
        ),
        ("xcr0", hex(&cpu.arch.xcr0)),
        ("msrs", hex(&msr)),
        ("x87", hex(&cpu.arch.x87)),
        ("vectors", hex(&(cpu.arch.vector.ymm, cpu.arch.vector.mxcsr))),
        ("cr8", hex(&lock(&run.board).cr8)),
        ("devices", hex(&lock(&run.board).accesses)),
    ]
}

/// Returns the first difference between two guests: registers, then memory.
fn difference(one: &Run, other: &Run) -> Option<String> {
    for ((name, a), (_, b)) in registers(one).into_iter().zip(registers(other)) {
        if a != b {
            return Some(format!("{name}:\n  {a}\n  {b}"));
        }
    }
    let page = |run: &Run, at: u64| {
        let mut bytes = [0u8; 4096];
        assert!(run.cpu.wiring.ram.read_bytes(at, &mut bytes));
        bytes
    };
    let at = (0..RAM).step_by(4096).find(|&at| page(one, at) != page(other, at))?;
    let (a, b) = (page(one, at), page(other, at));
    let offset = (0..4096).find(|&i| a[i] != b[i]).unwrap_or(0) & !7;
    Some(format!(
        "memory at {:#x}:\n  {:02x?}\n  {:02x?}",
        at + offset as u64,
        &a[offset..offset + 8],
        &b[offset..offset + 8]
    ))
}

/// Checks that a run was repeated to the last event.
pub fn repeated(first: &Run, second: &Run) {
    if let Some(difference) = difference(first, second) {
        panic!("a repeated run differs in {difference}");
    }
    let (a, b) = (&first.cpu.wiring.recorder, &second.cpu.wiring.recorder);
    assert!(a.events().eq(b.events()), "events differ when the run is repeated");
    assert!(a.blocks().eq(b.blocks()), "blocks differ when the run is repeated");
}

/// Checks that a guest computed the same under the hypervisor as on bare hardware, if it is expected to.
pub fn as_bare(scenario: &Scenario, bare: &Run, expected: End, guest: &Run, end: End) {
    if !matches!(expected, End::Exit(Exit::Halt | Exit::Shutdown)) {
        return;
    }
    let difference = if expected != end {
        if scenario.priced && end == End::Exit(Exit::Deadline) {
            // The guest is slower and did not finish.
            return;
        }
        Some(format!("the end: {expected:?}, {end:?}"))
    } else if expected == End::Exit(Exit::Shutdown) {
        // The registers of a processor that has shut down are not compared.
        None
    } else {
        difference(bare, guest)
    };
    if let Some(difference) = difference
        && comparable(scenario, bare)
    {
        panic!("bare hardware and the hypervisor differ in {difference}");
    }
}

/// Returns true if the guest's result follows from the architecture alone. The guest is run again, one instruction at a
/// time, and its translations are dropped after each instruction.
fn comparable(scenario: &Scenario, bare: &Run) -> bool {
    let mut run = Run::new(scenario, false);
    let mut trace = Vec::new();
    let deadline = CYCLES * TICKS_PER_CYCLE;
    while run.cpu.micro.clock < deadline {
        let instruction = next(&run.cpu);
        if instruction.is_some_and(|instruction| !architectural(&run.cpu, &instruction)) {
            return false;
        }
        trace.push((run.cpu.arch.rip, instruction));
        run.cpu.micro.tlb.flush_all();
        run.cpu.mapping_changed();
        run.cpu.attend(attention::STEP);
        let next = run.cpu.micro.clock + 1;
        match run.step(next) {
            End::Exit(Exit::Deadline | Exit::Bus) => {}
            _ => break,
        }
    }
    let same = difference(bare, &run).is_none();
    if same && std::env::var_os("TRACE").is_some() {
        for (rip, instruction) in trace {
            eprintln!("{rip:#x} {:?}", instruction.map(|i| (i.code(), i.next_ip())));
        }
    }
    same
}

/// Returns the instruction at RIP, if it can be read.
fn next(cpu: &Cpu) -> Option<Instruction> {
    let linear = cpu.code_linear();
    let mut bytes = [0u8; 15];
    for (i, byte) in bytes.iter_mut().enumerate() {
        let Some(address) = cpu.look_up(linear.wrapping_add(i as u64)) else { break };
        let mut read = [0];
        if !cpu.wiring.ram.read_bytes(address, &mut read) {
            break;
        }
        *byte = read[0];
    }
    Cpu::decode_one(&bytes, cpu.arch.rip, cpu.decode_mode()).ok()
}

/// Returns true if an instruction has the same effect on every processor.
fn architectural(cpu: &Cpu, instruction: &Instruction) -> bool {
    use Mnemonic::*;
    match instruction.mnemonic() {
        // These depend on time, identification, randomness, or sleep that others end.
        Rdtsc | Rdtscp | Rdpmc | Cpuid | Rdrand | Rdseed | Monitor | Mwait | Monitorx | Mwaitx | Umwait | Tpause
        | Umonitor => false,
        // These call the hypervisor.
        Vmcall | Vmmcall | Vmlaunch | Vmresume | Vmxon | Vmxoff | Vmread | Vmwrite | Vmptrld | Vmptrst | Vmclear
        | Vmfunc | Invept | Invvpid | Getsec | Vmrun | Vmload | Vmsave | Stgi | Clgi | Skinit | Invlpga => false,
        Rdmsr | Wrmsr => matches!(
            cpu.get::<u32>(reg::RCX),
            0x174..=0x176 | 0x277 | 0xc000_0080..=0xc000_0084 | 0xc000_0100..=0xc000_0102
        ),
        // These registers control features that are not passed on.
        Mov if instruction.code() == Code::Mov_cr_r64 || instruction.code() == Code::Mov_cr_r32 => {
            let value = cpu.arch.gpr[instruction.op1_register().number()];
            instruction.op0_register() != Register::CR4 || value & (CR4_VMXE | CR4_PKE | CR4_PKS) == 0
        }
        _ => true,
    }
}

//! VMX of guest software: a malicious hypervisor, with VMCS regions, fields, lists of MSRs and bitmaps of its choice.
//! Every run must end in a named way, leave a state that can be saved, and repeat exactly, to the tick.

use arbitrary::{Result, Unstructured};
use cpu::Exit;
use cpu::vmx::VmxCapabilities;
use ledger::profile::Profile;
use std::sync::Arc;
use testkit::machine::{CODE, DATA, Machine, STACK};
use x86::control::{CR0_ET, CR0_NE, CR4_VMXE};
use x86::reg;
use x86::vmx::{entry, exit, vmcs};

/// Longest run, in ticks.
const TICKS: u64 = 20_000_000;
/// Number of pieces of a run, between which external events happen.
const SLICES: u64 = 4;
/// The VMXON region; VMCS regions follow it.
const REGIONS: u64 = DATA;
/// Profiles whose capabilities are used.
const PROFILES: [&str; 3] = ["skx", "core2", "max"];
/// Places that fields may point to.
const PLACES: [u64; 8] = [0, CODE, DATA, DATA + 0x1000, DATA + 0x2000, DATA + 0x3000, STACK - 0x1000, 0xfee0_0000];

/// Reads a field's value: one that such fields hold, or any.
fn value(u: &mut Unstructured) -> Result<u64> {
    Ok(match u.int_in_range(0..=4)? {
        0 => *u.choose(&PLACES)?,
        1 => u64::from(u.arbitrary::<u16>()?),
        2 => u64::from(u.arbitrary::<u32>()?),
        3 => 1 << u.int_in_range(0..=63)?,
        _ => u.arbitrary()?,
    })
}

/// Instructions of host and guest, besides random bytes.
const KNOWN: &[&[u8]] = &[
    b"\x0f\xa2",
    b"\xf4",
    b"\x0f\x01\xc1",
    b"\x0f\x01\xc2",
    b"\x0f\x01\xc3",
    b"\x0f\x01\xc4",
    b"\x0f\x01\xd4",
    b"\x0f\x32",
    b"\x0f\x30",
    b"\x0f\x20\xc0",
    b"\x0f\x22\xc0",
    b"\x0f\x22\xd8",
    b"\x0f\x22\xe0",
    b"\x44\x0f\x22\xc0",
    b"\x44\x0f\x20\xc0",
    b"\x0f\x01\x38",
    b"\x48\x89\x18",
    b"\x48\x8b\x18",
    b"\xe6\x80",
    b"\xcc",
    b"\xcd\x20",
    b"\x48\xcf",
    b"\x0f\x0b",
    b"\x0f\x78\xd0",
    b"\x0f\x79\xd0",
    b"\x66\x0f\x38\x80\x00",
    b"\x66\x0f\x38\x81\x00",
    b"\xeb\xf0",
    b"\x9d",
    b"\xfb",
    b"\xf3\x90",
    b"\xf3\xaa",
    b"\x0f\xc7\x30",
    b"\x66\x0f\xc7\x30",
    b"\x0f\xc7\x38",
    b"\xf3\x0f\xc7\x30",
    b"\x0f\x31",
    b"\x0f\x01\xf9",
    b"\x0f\x09",
    b"\x8e\xd0",
];

fn code_of(u: &mut Unstructured) -> Result<Vec<u8>> {
    let mut code = Vec::new();
    for _ in 0..u.int_in_range(0..=40)? {
        match u.ratio(1, 8)? {
            true => code.push(u.arbitrary()?),
            false => code.extend_from_slice(u.choose(KNOWN)?),
        }
    }
    code.push(0xf4);
    Ok(code)
}

/// Returns fields with which a guest like the host can be entered, so that not every entry fails at its first check.
fn plausible(m: &Machine) -> Vec<(u32, u64)> {
    let arch = &m.cpu.arch;
    let mut fields = vec![
        (vmcs::EXIT_CONTROLS, u64::from(exit::HOST_64) | 0x36dff),
        (vmcs::ENTRY_CONTROLS, u64::from(entry::IA32E_GUEST) | 0x11ff),
        (vmcs::PIN_BASED_CONTROLS, 0x16),
        (vmcs::PRIMARY_CONTROLS, 0x0401_e172),
        (vmcs::VMCS_LINK_POINTER, u64::MAX),
        (vmcs::GUEST_LDTR_RIGHTS, 1 << 16),
        (vmcs::GUEST_TR_RIGHTS, 0x8b),
        (vmcs::GUEST_TR_LIMIT, 0x67),
        (vmcs::GUEST_DR7, 0x400),
        (vmcs::GUEST_RIP, CODE + 0x1000),
        (vmcs::HOST_RIP, CODE + 0x2000),
        (vmcs::GUEST_RFLAGS, 2),
        (vmcs::HOST_CS_SELECTOR, 8),
        (vmcs::HOST_TR_SELECTOR, 24),
    ];
    for (guest, host, value) in [
        (vmcs::GUEST_CR0, vmcs::HOST_CR0, arch.cr0),
        (vmcs::GUEST_CR3, vmcs::HOST_CR3, arch.cr3),
        (vmcs::GUEST_CR4, vmcs::HOST_CR4, arch.cr4),
        (vmcs::GUEST_RSP, vmcs::HOST_RSP, STACK),
    ] {
        fields.extend([(guest, value), (host, value)]);
    }
    for number in 0..6u32 {
        let segment = &arch.seg[number as usize];
        fields.extend([
            (vmcs::GUEST_ES_SELECTOR + 2 * number, u64::from(segment.selector)),
            (vmcs::GUEST_ES_BASE + 2 * number, segment.base),
            (vmcs::GUEST_ES_LIMIT + 2 * number, u64::from(segment.limit)),
            (vmcs::GUEST_ES_RIGHTS + 2 * number, u64::from(segment.rights)),
        ]);
    }
    fields
}

/// Creates a machine in VMX operation from the input.
fn build(u: &mut Unstructured) -> Result<Machine> {
    let name = u.choose(&PROFILES)?;
    let vmx = Profile::named(name).ok().and_then(|profile| profile.vmx).map(|vmx| VmxCapabilities::of(&vmx));
    let revision = vmx.map_or(0, |vmx| vmx.revision);
    let mut m = Machine::long64(0);
    Arc::make_mut(&mut m.cpu.wiring.model).vmx = vmx;
    m.cpu.arch.cr0 |= CR0_NE | CR0_ET;
    m.cpu.arch.cr4 |= CR4_VMXE;
    m.cpu.arch.msr.feature_control = 5;
    for _ in 0..u.int_in_range(0..=64)? {
        let at = DATA + u64::from(u.arbitrary::<u16>()? % 0x4000);
        m.poke(at, &u.arbitrary::<u64>()?.to_le_bytes());
    }
    for region in 0..4 {
        m.poke(REGIONS + (region << 12), &revision.to_le_bytes());
        m.poke(DATA + 0x7000 + 8 * region, &(REGIONS + (region << 12)).to_le_bytes());
    }
    let mut fields = plausible(&m);
    for _ in 0..u.int_in_range(0..=24)? {
        let (encoding, _) = *u.choose(vmcs::NAMES)?;
        fields.push((encoding, value(u)?));
    }
    // The host's code writes the fields one by one.
    let code = testkit::assemble(64, CODE, |a| {
        use iced_x86::code_asm::*;
        a.vmxon(qword_ptr(DATA + 0x7000))?;
        a.vmclear(qword_ptr(DATA + 0x7008))?;
        a.vmptrld(qword_ptr(DATA + 0x7008))?;
        for (encoding, value) in &fields {
            a.mov(edx, *encoding)?;
            a.mov(rax, *value)?;
            a.vmwrite(rdx, rax)?;
        }
        a.vmlaunch()
    });
    m.poke(CODE, &code);
    for place in [CODE + code.len() as u64, CODE + 0x1000, CODE + 0x2000] {
        m.poke(place, &code_of(u)?);
    }
    for register in 0..16u8 {
        if register != reg::RSP {
            m.cpu.arch.gpr[usize::from(register)] = value(u)?;
        }
    }
    Ok(m)
}

fn drive(data: &[u8]) -> Option<(Machine, Vec<Exit>)> {
    let mut u = Unstructured::new(data);
    let mut m = build(&mut u).ok()?;
    let mut exits = Vec::new();
    for slice in 1..=SLICES {
        exits.push(m.run(TICKS / SLICES * slice));
        match u.int_in_range(0..=3).unwrap_or(0) {
            0 => m.cpu.attend(cpu::arch::attention::INTR),
            1 => m.cpu.attend(cpu::arch::attention::NMI),
            2 => m.cpu.attend(cpu::arch::attention::INIT),
            _ => {}
        }
        let _ = m.cpu.guest_startup(slice as u8);
    }
    Some((m, exits))
}

/// Runs an input twice.
pub fn run(data: &[u8]) {
    let (Some((mut first, exits)), Some((second, again))) = (drive(data), drive(data)) else { return };
    assert_eq!(exits, again, "the same ends");
    assert!(first.cpu.arch == second.cpu.arch && first.cpu.micro.clock == second.cpu.micro.clock, "the same state");
    let (arch, micro) = (first.cpu.arch.clone(), first.cpu.micro.clone());
    assert_eq!(first.cpu.restore(arch, micro), Ok(()), "a state that can be saved can be restored");
}

/// Returns inputs of random bytes, whose meaning the fuzzer finds.
pub fn seeds() -> Vec<Vec<u8>> {
    let input = |seed| {
        let mut random = testkit::Random::new(seed);
        (0..4096).map(|_| (random.next() >> 24) as u8).collect()
    };
    (0..24).map(input).collect()
}

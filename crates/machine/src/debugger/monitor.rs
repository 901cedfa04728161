//! The `monitor` commands.

use super::registers::{self, REGISTERS, What};
use super::session::Session;
use crate::guest_memory::GuestMemory;
use crate::kernel_symbols;
use ledger::summary::By;
use ledger::symbols::ImageFunctions;
use ledger::{Family, Ledger, TICKS_PER_CYCLE};
use std::fmt::Write;

const HELP: &str = "\
help              this list
walk ADDRESS      the page-table entries on the way to a linear address
exits             VM exits so far, by reason
ledger [N]        the N functions that were charged most so far (10 if not said)
kernel            where a Linux kernel is, and what gdb needs to know if it has moved itself (KASLR)
regs              system registers of the current processor
time              virtual time and each processor's clock
vmcs              the virtual-machine control structure: the controls under --platform hvm, or the current one of the guest's own hypervisor
physical on|off   memory commands take physical addresses, as after `maintenance packet Qqemu.PhyMemMode:1`
";

/// Default number of ledger lines.
const LINES: usize = 10;

/// Executes a command, and returns its output.
pub fn answer(session: &mut Session, command: &str) -> String {
    let mut words = command.split_ascii_whitespace();
    let (name, argument) = (words.next().unwrap_or("help"), words.next());
    match (name, argument) {
        ("help", None) => HELP.to_owned(),
        ("walk", Some(address)) => match address_of(address) {
            Some(address) => walk(session, address),
            None => format!("walk: {address} is not an address\n"),
        },
        ("exits", None) => exits(&so_far(session)),
        ("ledger", None) => lines(&so_far(session), LINES),
        ("ledger", Some(most)) => match most.parse() {
            Ok(most) => lines(&so_far(session), most),
            Err(_) => format!("ledger: {most} is not a number\n"),
        },
        ("kernel", None) => kernel(session),
        ("regs", None) => system_registers(session),
        ("time", None) => time(session),
        ("vmcs", None) => controls(session),
        ("physical", Some("on")) => physical(session, true),
        ("physical", Some("off")) => physical(session, false),
        _ => format!("there is no such command: {command}; the commands are:\n{HELP}"),
    }
}

fn address_of(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn physical(session: &mut Session, on: bool) -> String {
    session.physical = on;
    format!("memory commands take {} addresses\n", if on { "physical" } else { "linear" })
}

/// Names of the low flags of a page-table entry, from bit 0 on.
const FLAGS: [&str; 9] = ["P", "RW", "US", "PWT", "PCD", "A", "D", "PS", "G"];

fn walk(session: &Session, address: u64) -> String {
    let cpu = &session.machine.vcpus.all[session.current].cpu;
    if cpu.long_mode() && !cpu.canonical(address) {
        return format!("{address:#x} is not canonical: no table leads to it\n");
    }
    let mut text = String::new();
    let found = cpu.look_up_path(address, &mut |shift, at, value| {
        let mut flags: Vec<&str> =
            FLAGS.iter().enumerate().filter(|(bit, _)| value >> bit & 1 != 0).map(|(_, name)| *name).collect();
        if value >> 63 != 0 {
            flags.push("NX");
        }
        let _ = writeln!(text, "bits {shift:2} and up: entry at {at:#x} is {value:#018x} {}", flags.join(" "));
    });
    let _ = match found {
        Some(physical) => match cpu.on_board(physical) {
            Some(place) if place == physical => writeln!(text, "{address:#x} is at physical address {physical:#x}"),
            Some(place) => {
                writeln!(
                    text,
                    "{address:#x} is at guest-physical address {physical:#x}, by EPT at {place:#x} of the machine"
                )
            }
            None => writeln!(text, "{address:#x} is at guest-physical address {physical:#x}, which EPT does not map"),
        },
        None => writeln!(text, "{address:#x} is not mapped"),
    };
    text
}

/// Returns the ledger of the charges so far.
fn so_far(session: &mut Session) -> Ledger {
    let machine = &mut *session.machine;
    let vcpus = &mut machine.vcpus;
    vcpus.all.iter_mut().for_each(|vcpu| vcpu.cpu.count_held(&mut vcpus.cache, false));
    vcpus.gather();
    vcpus.all.iter_mut().for_each(|vcpu| vcpu.cpu.count_held(&mut vcpus.cache, true));
    let symbols = machine.symbols(Vec::new());
    machine.ledger(&symbols)
}

fn exits(ledger: &Ledger) -> String {
    let kinds = ledger.all().kinds();
    let mut found: Vec<_> = kinds.into_iter().filter(|(kind, _)| kind.family == Family::VmExit).collect();
    if found.is_empty() {
        return "no VM exits so far\n".to_owned();
    }
    found.sort_by_key(|(kind, amount)| (std::cmp::Reverse(amount.count), *kind));
    let mut text = String::new();
    for (kind, amount) in found {
        let _ = writeln!(text, "{:>12} {}", amount.count, ledger.describe(kind));
    }
    text
}

fn lines(ledger: &Ledger, most: usize) -> String {
    let mut text = String::from("      cycles  function\n");
    for (name, row) in ledger.all().top(By::Symbol, most).rows {
        let _ = writeln!(text, "{:>12}  {name}", row.ticks / TICKS_PER_CYCLE);
    }
    text
}

/// Returns the location of the kernel that the current processor runs.
fn kernel(session: &Session) -> String {
    let machine = &*session.machine;
    let cpu = &machine.vcpus.all[session.current].cpu;
    let running = match cpu.guest_of_software() {
        Some(_) => GuestMemory::around(cpu, cpu.arch.rip).and_then(|memory| memory.kernel().ok()),
        None => kernel_symbols::running(cpu, &machine.ram),
    };
    let Some(kernel) = running.filter(|kernel| !kernel.functions.is_empty()) else {
        return "no Linux kernel is in memory where this processor's page tables have one\n".to_owned();
    };
    let first = kernel.functions[0].start;
    match ImageFunctions::of(&machine.image).slide_to(&kernel.functions) {
        Some(0) => format!("its first function is at {first:#x}, where the image has it\n"),
        Some(slide) => format!(
            "its first function is at {first:#x}, moved by {slide:#x}; for gdb: symbol-file -o {slide:#x} vmlinux\n"
        ),
        None => format!("its first function is at {first:#x}; it is not the image that was booted\n"),
    }
}

fn system_registers(session: &Session) -> String {
    let machine = &*session.machine;
    let cpu = &machine.vcpus.all[session.current].cpu;
    let mut text = String::new();
    let wanted =
        |what| matches!(what, What::Control(_) | What::Efer | What::Base(_) | What::KernelGsBase | What::Flags);
    for register in REGISTERS.iter().filter(|register| wanted(register.what)) {
        let value = registers::read(machine, session.current, register.what);
        let _ = writeln!(text, "{:<10} {value:#018x}", register.name);
    }
    let msr = &cpu.arch.msr;
    let others = [
        ("star", msr.star),
        ("lstar", msr.lstar),
        ("fmask", msr.fmask),
        ("pat", msr.pat),
        ("xcr0", cpu.arch.xcr0),
        ("dr6", cpu.arch.dr[6]),
        ("dr7", cpu.arch.dr[7]),
    ];
    for (name, value) in others {
        let _ = writeln!(text, "{name:<10} {value:#018x}");
    }
    for (name, table) in [("gdtr", cpu.arch.gdtr), ("idtr", cpu.arch.idtr)] {
        let _ = writeln!(text, "{name:<10} {:#018x} limit {:#x}", table.base, table.limit);
    }
    for (name, segment) in [("ldtr", cpu.arch.ldtr), ("tr", cpu.arch.tr)] {
        let _ = writeln!(
            text,
            "{name:<10} {:#018x} limit {:#x} selector {:#x} rights {:#x}",
            segment.base, segment.limit, segment.selector, segment.rights
        );
    }
    let _ = writeln!(text, "{:<10} {}", "cpl", cpu.arch.cpl);
    text
}

fn time(session: &Session) -> String {
    let mut text = format!("{:.9} s of virtual time\n", session.machine.seconds());
    for (number, vcpu) in session.machine.vcpus.all.iter().enumerate() {
        let _ = writeln!(text, "cpu {number}: {} cycles", vcpu.cpu.micro.clock / TICKS_PER_CYCLE);
    }
    text
}

/// Lists the nonzero fields of a guest's current VMCS. While a nested guest runs, the fields of the guest-state area
/// have the values of the last exit.
fn fields(cpu: &cpu::Cpu, address: u64, current: &cpu::vmx::Vmcs) -> String {
    let mode = if cpu.non_root() { "non-root" } else { "root" };
    let state = if current.launched { "launched" } else { "clear" };
    let mut text = format!("VMCS at {address:#x}, {state}; the processor is in VMX {mode} operation\n");
    for (encoding, name) in x86::vmx::vmcs::NAMES {
        let value = current.get(*encoding);
        if value != 0 {
            let _ = writeln!(text, "{encoding:#06x} {name:<34} {value:#x}");
        }
    }
    text
}

fn controls(session: &Session) -> String {
    let vcpu = &session.machine.vcpus.all[session.current];
    if let Some((address, current)) = vcpu.cpu.arch.vmx.operation.current() {
        return fields(&vcpu.cpu, address, current);
    }
    if vcpu.guest.is_none() {
        return "there is no virtual-machine control structure: the guest neither runs under a hypervisor nor is one\n"
            .to_owned();
    }
    let vmx = &vcpu.cpu.arch.vmx;
    let c = &vmx.controls;
    let values = [
        ("pin-based controls", u64::from(c.pin)),
        ("primary controls", u64::from(c.primary)),
        ("secondary controls", u64::from(c.secondary)),
        ("exit controls", u64::from(c.exit)),
        ("entry controls", u64::from(c.entry)),
        ("exception bitmap", u64::from(c.exception_bitmap)),
        ("page-fault mask", u64::from(c.pf_error_mask)),
        ("page-fault match", u64::from(c.pf_error_match)),
        ("CR0 mask", c.cr0_mask),
        ("CR0 shadow", c.cr0_shadow),
        ("CR4 mask", c.cr4_mask),
        ("CR4 shadow", c.cr4_shadow),
        ("TSC offset", c.tsc_offset),
        ("EPT pointer", c.eptp),
        ("VPID", u64::from(c.vpid)),
        ("entry interruption", u64::from(c.entry_interruption)),
        ("interruptibility", u64::from(c.interruptibility)),
        ("activity", u64::from(c.activity)),
        ("pending debug", c.pending_debug),
        ("last exit reason", u64::from(vcpu.cpu.arch.vm_exit.reason)),
    ];
    let mut text = String::new();
    for (name, value) in values {
        let _ = writeln!(text, "{name:<20} {value:#x}");
    }
    text
}

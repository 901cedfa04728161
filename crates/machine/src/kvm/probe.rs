//! Measures how fast this host's KVM executes a kernel.
//!
//! A KVM without hardware virtualization behind it, such as PVM (module `kvm_pvm`) on a rented machine, lets programs of the guest
//! run on the processor and emulates every instruction of ring 0. The device looks like any other, and a guest's kernel
//! executes a thousandth of the usual number of instructions, if KVM's emulator knows them. A loop in ring 0 shows the
//! difference, whatever the module is called.

use super::host;
use crate::memory::GuestRam;
use kvm_bindings::{kvm_dtable, kvm_segment};
use kvm_ioctls::{VcpuExit, VcpuFd, VmFd};
use std::path::Path;
use std::time::{Duration, Instant};
use x86::control::{CR0_ET, CR0_PE, CR0_PG, CR4_PAE, EFER_LMA, EFER_LME};
use x86::flags;

/// Repetitions of the loop, and its number of instructions.
const REPETITIONS: u32 = 20_000;
const INSTRUCTIONS: u32 = 2;
/// Measurements; the best one counts, because a host that is busy disturbs some.
const MEASUREMENTS: usize = 3;
/// Instructions per second below which KVM emulates: processors execute billions, KVM's emulator a few million.
const EMULATED_BELOW: f64 = 50e6;
/// Modules of KVM that do without hardware virtualization.
const MODULES: [(&str, &str); 1] = [("/sys/module/kvm_pvm", "kvm_pvm")];

const CODE_AT: u64 = 0x1000;
const PML4_AT: u64 = 0x2000;
const PDPT_AT: u64 = 0x3000;
const DIRECTORY_AT: u64 = 0x4000;
/// Entry of an upper table, and of a 2 MiB page: present and writable.
const TABLE: u64 = 3;
const LARGE_PAGE: u64 = 0x83;

/// The reason to expect a slow guest.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "this host's KVM{} emulates what a guest's kernel executes: {:.1} million instructions per second were measured in ring 0, and a processor executes \
     thousands of millions. Linux takes minutes to boot, and kernels fail that use instructions which the emulator lacks, system calls by SYSCALL, or paging \
     in 32-bit mode (docs/guides/kvm-backend.md)",
    self.module.map(|name| format!(" ({name})")).unwrap_or_default(),
    self.rate / 1e6
)]
pub struct Emulated {
    /// Instructions per second in ring 0.
    rate: f64,
    /// Name of the module, if it is known.
    module: Option<&'static str>,
}

/// Measures with a new virtual machine. A KVM that cannot execute the loop gives no measurement; the guest's run then shows the
/// reason.
pub fn emulated(kvm: &kvm_ioctls::Kvm, prepare: impl Fn(&VmFd) -> Option<()>) -> Option<Emulated> {
    let ram = GuestRam::new(crate::memory::MIN_SIZE).ok()?;
    write_guest(&ram)?;
    let vm = kvm.create_vm().ok()?;
    prepare(&vm)?;
    host::set_memory(&vm, &ram).ok()?;
    let mut vcpu = vm.create_vcpu(0).ok()?;
    enter(&vcpu)?;
    let times: Option<Vec<Duration>> = (0..MEASUREMENTS).map(|_| measure(&mut vcpu)).collect();
    let module = MODULES.into_iter().find(|(path, _)| Path::new(path).exists()).map(|(_, name)| name);
    judge(times?.into_iter().min()?, module)
}

/// Decides by the time that the loop took.
fn judge(time: Duration, module: Option<&'static str>) -> Option<Emulated> {
    let rate = f64::from(REPETITIONS * INSTRUCTIONS) / time.as_secs_f64().max(1e-9);
    (rate < EMULATED_BELOW).then_some(Emulated { rate, module })
}

/// Runs the loop once, to its HLT.
fn measure(vcpu: &mut VcpuFd) -> Option<Duration> {
    let start = Instant::now();
    matches!(vcpu.run(), Ok(VcpuExit::Hlt)).then(|| start.elapsed())
}

/// Writes the loop and its page tables.
fn write_guest(ram: &GuestRam) -> Option<()> {
    // MOV ECX, REPETITIONS; DEC ECX; JNZ to it; HLT; JMP to the start.
    let mut code = vec![0xb9];
    code.extend(REPETITIONS.to_le_bytes());
    code.extend([0xff, 0xc9, 0x75, 0xfc, 0xf4, 0xeb, 0xf4]);
    let tables = [(PML4_AT, PDPT_AT | TABLE), (PDPT_AT, DIRECTORY_AT | TABLE), (DIRECTORY_AT, LARGE_PAGE)];
    let written = tables.into_iter().all(|(at, entry)| ram.write(at, &entry.to_le_bytes()));
    (written && ram.write(CODE_AT, &code)).then_some(())
}

/// Sets the registers for 64-bit mode in ring 0.
fn enter(vcpu: &VcpuFd) -> Option<()> {
    let flat = |selector, type_, l, db| kvm_segment {
        selector,
        type_,
        l,
        db,
        limit: u32::MAX,
        present: 1,
        s: 1,
        g: 1,
        ..kvm_segment::default()
    };
    let mut sregs = vcpu.get_sregs().ok()?;
    sregs.cs = flat(0x10, 0xb, 1, 0);
    let data = flat(0x18, 3, 0, 1);
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    sregs.idt = kvm_dtable::default();
    sregs.cr0 = CR0_PE | CR0_ET | CR0_PG;
    sregs.cr3 = PML4_AT;
    sregs.cr4 = CR4_PAE;
    sregs.efer = EFER_LME | EFER_LMA;
    vcpu.set_sregs(&sregs).ok()?;
    let mut regs = vcpu.get_regs().ok()?;
    (regs.rip, regs.rflags) = (CODE_AT, flags::FIXED);
    vcpu.set_regs(&regs).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_is_emulated_is_told_from_one_that_the_processor_executes() {
        // A processor at 1 GHz that takes four cycles for two instructions, disturbed by 100 us.
        assert_eq!(judge(Duration::from_micros(80 + 100), None), None);
        assert_eq!(judge(Duration::ZERO, None), None);
        // 4 million instructions per second.
        let slow = judge(Duration::from_millis(10), Some("kvm_pvm")).unwrap().to_string();
        assert!(slow.starts_with("this host's KVM (kvm_pvm) emulates") && slow.contains(" 4.0 million"), "{slow}");
        assert!(!slow.contains('\n') && !slow.contains("  "), "{slow}");
        let other = judge(Duration::from_millis(10), None).unwrap().to_string();
        assert!(other.starts_with("this host's KVM emulates"), "{other}");
    }

    #[test]
    fn the_loop_ends_at_its_hlt_and_begins_again() {
        let ram = GuestRam::new(crate::memory::MIN_SIZE).unwrap();
        write_guest(&ram).unwrap();
        let mut code = [0; 12];
        assert!(ram.read(CODE_AT, &mut code));
        let mut decoder = iced_x86::Decoder::with_ip(64, &code, CODE_AT, iced_x86::DecoderOptions::NONE);
        let listing: Vec<String> = decoder.iter().map(|instruction| instruction.to_string()).collect();
        assert_eq!(
            listing,
            ["mov $0x4E20,%ecx", "dec %ecx", "jne 0x0000000000001005", "hlt", "jmp 0x0000000000001000"]
        );
    }
}

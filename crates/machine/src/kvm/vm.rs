//! A virtual machine of KVM: check for support, memory, and processors.

use super::cpuid;
use super::host::{self, Runner, io_error};
use super::probe::{self, Emulated};
use crate::memory::GuestRam;
use kvm_bindings::{CpuId, KVM_MAX_CPUID_ENTRIES, Msrs, kvm_cpuid_entry2, kvm_msr_entry};
use kvm_ioctls::{Cap, VcpuFd, VmFd};
use ledger::Profile;
use std::collections::BTreeMap;
use std::io;

/// Version of KVM's stable interface.
const API_VERSION: i32 = 12;
/// Address of three pages, and one before them, that KVM uses if the processor cannot run real mode: an unused range
/// below 4 GiB.
const TASK_STATE: usize = 0xfffb_d000;
const IDENTITY_MAP: u64 = 0xfffb_c000;
const IA32_MISC_ENABLE: u32 = 0x1a0;
/// Value of IA32_MISC_ENABLE: fast string instructions, as enabled by firmware.
const FAST_STRINGS: u64 = 1;

/// Required capabilities of KVM, with their names.
const NEEDED: [(Cap, &str); 7] = [
    (Cap::UserMemory, "KVM_CAP_USER_MEMORY"),
    (Cap::SetTssAddr, "KVM_CAP_SET_TSS_ADDR"),
    (Cap::SetIdentityMapAddr, "KVM_CAP_SET_IDENTITY_MAP_ADDR"),
    (Cap::ExtCpuid, "KVM_CAP_EXT_CPUID"),
    (Cap::GetTscKhz, "KVM_CAP_GET_TSC_KHZ"),
    (Cap::UserNmi, "KVM_CAP_USER_NMI"),
    (Cap::ImmediateExit, "KVM_CAP_IMMEDIATE_EXIT"),
];

/// Reason for which KVM can't be used.
#[derive(Debug, thiserror::Error)]
pub enum KvmError {
    /// There is no device file.
    #[error(
        "there is no /dev/kvm: this host's kernel has no KVM, or its module (kvm-intel, kvm-amd) is not loaded, which needs a processor \
         with VMX or SVM that firmware has switched on"
    )]
    NoDevice,
    /// There is no hardware virtualization.
    #[error("/dev/kvm is there, but this host has no hardware virtualization behind it: {0}")]
    NoHardware(io::Error),
    /// The user may not open the device.
    #[error("/dev/kvm may not be used: {0} (only members of its group, usually kvm, have access)")]
    Permission(io::Error),
    /// KVM has another interface version.
    #[error("this host's KVM has version {0} of the interface, and version {API_VERSION} is needed")]
    Version(i32),
    /// KVM lacks a capability.
    #[error("this host's KVM lacks {0}")]
    Capability(&'static str),
    /// KVM supports fewer processors.
    #[error("--cpus {0} is too much for this host's KVM: its maximum is {1}")]
    Cpus(usize, usize),
    /// A call failed.
    #[error("KVM: {0} fails: {1}")]
    Call(&'static str, io::Error),
}

/// Adds the name of a call to its error.
pub(super) fn call<T>(name: &'static str, result: Result<T, kvm_ioctls::Error>) -> Result<T, KvmError> {
    result.map_err(|error| KvmError::Call(name, io_error(error)))
}

/// KVM with a virtual machine that has its first processor, and no memory yet.
pub struct Kvm {
    vm: VmFd,
    first: VcpuFd,
    supported: Vec<kvm_cpuid_entry2>,
    tsc_khz: u32,
    most: usize,
    shows_registers: bool,
    emulated: Option<Emulated>,
}

/// Sets the addresses that KVM needs if the processor cannot run real mode.
fn set_addresses(vm: &VmFd) -> Result<(), KvmError> {
    call("KVM_SET_IDENTITY_MAP_ADDR", vm.set_identity_map_address(IDENTITY_MAP))?;
    call("KVM_SET_TSS_ADDR", vm.set_tss_address(TASK_STATE))
}

impl Kvm {
    /// Creates a virtual machine, or returns the reason for which that is impossible.
    pub fn open() -> Result<Self, KvmError> {
        let kvm = kvm_ioctls::Kvm::new().map_err(|error| {
            let error = io_error(error);
            match error.raw_os_error() {
                Some(libc::ENOENT) => KvmError::NoDevice,
                Some(libc::EACCES | libc::EPERM) => KvmError::Permission(error),
                _ => KvmError::NoHardware(error),
            }
        })?;
        let version = kvm.get_api_version();
        if version < 0 {
            return Err(KvmError::NoHardware(io::Error::last_os_error()));
        }
        if version != API_VERSION {
            return Err(KvmError::Version(version));
        }
        if let Some((_, name)) = NEEDED.iter().find(|(cap, _)| !kvm.check_extension(*cap)) {
            return Err(KvmError::Capability(name));
        }
        let vm = kvm.create_vm().map_err(|error| KvmError::NoHardware(io_error(error)))?;
        set_addresses(&vm)?;
        let first = call("KVM_CREATE_VCPU", vm.create_vcpu(0))?;
        let tsc_khz = call("KVM_GET_TSC_KHZ", first.get_tsc_khz())?;
        let supported = call("KVM_GET_SUPPORTED_CPUID", kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES))?;
        Ok(Self {
            vm,
            first,
            supported: supported.as_slice().to_vec(),
            tsc_khz,
            most: kvm.get_max_vcpus(),
            shows_registers: kvm.check_extension(Cap::SyncRegs),
            emulated: probe::emulated(&kvm, |vm| set_addresses(vm).ok()),
        })
    }

    /// Returns what was measured if KVM emulates what a guest's kernel executes.
    pub fn emulated(&self) -> Option<Emulated> {
        self.emulated
    }

    /// Returns a profile of the host's processor in this machine: name, prices and other fields that do not matter here
    /// are those of `base`.
    pub fn profile(&self, base: Profile) -> Profile {
        base.of_host(cpuid::rows(&cpuid::of_processor(&self.supported, 0)), u64::from(self.tsc_khz) * 1000)
    }

    /// Adds memory and processors to the machine, in their reset state.
    pub(super) fn build(self, ram: &GuestRam, cpus: usize, counted: bool) -> Result<Vm, KvmError> {
        if cpus > self.most {
            return Err(KvmError::Cpus(cpus, self.most));
        }
        if counted && !self.shows_registers {
            return Err(KvmError::Capability("KVM_CAP_SYNC_REGS, which --ledger needs"));
        }
        host::set_memory(&self.vm, ram).map_err(|error| KvmError::Call("KVM_SET_USER_MEMORY_REGION", error))?;
        let mut fds = vec![self.first];
        for id in 1..cpus as u64 {
            fds.push(call("KVM_CREATE_VCPU", self.vm.create_vcpu(id))?);
        }
        let mut runners = Vec::new();
        for (id, fd) in (0..).zip(fds) {
            set_up(&fd, &self.supported, id)?;
            let mut runner = Runner::new(fd);
            if counted {
                runner.show_registers();
            }
            runners.push(runner);
        }
        Ok(Vm { runners, vm: self.vm, _ram: ram.clone() })
    }
}

/// Sets the CPUID and the registers that depend on the processor model.
fn set_up(fd: &VcpuFd, supported: &[kvm_cpuid_entry2], id: u32) -> Result<(), KvmError> {
    let none = |_| KvmError::Call("KVM_SET_CPUID2", io::ErrorKind::InvalidInput.into());
    let leaves = CpuId::from_entries(&cpuid::of_processor(supported, id)).map_err(none)?;
    call("KVM_SET_CPUID2", fd.set_cpuid2(&leaves))?;
    let entry = kvm_msr_entry { index: IA32_MISC_ENABLE, ..kvm_msr_entry::default() };
    let none = |_| KvmError::Call("KVM_SET_MSRS", io::ErrorKind::InvalidInput.into());
    let mut msrs = Msrs::from_entries(&[entry]).map_err(none)?;
    // AMD processors do not have this register, and nothing has to be set.
    if fd.get_msrs(&mut msrs).is_ok_and(|count| count == 1) {
        msrs.as_mut_slice()[0].data |= FAST_STRINGS;
        call("KVM_SET_MSRS", fd.set_msrs(&msrs))?;
    }
    Ok(())
}

/// A virtual machine that is ready to run.
pub(super) struct Vm {
    /// Processors.
    pub runners: Vec<Runner>,
    vm: VmFd,
    /// Keeps the guest memory mapped that KVM uses.
    _ram: GuestRam,
}

impl Vm {
    /// Returns KVM's counters: those of the machine, and the sums of the processors'.
    pub fn statistics(&self) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        super::stats::collect(&self.vm, &mut sums);
        for runner in &self.runners {
            super::stats::collect(runner.fd(), &mut sums);
        }
        sums
    }
}

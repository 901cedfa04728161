//! Updates of the parts of CPUID that depend on the guest's registers (KVM's `kvm_update_cpuid_runtime`).
//!
//! KVM updates them when a register changes, which happens twice in each nested transition, or when CPUID is executed
//! ([`CpuidUpdate`]). The sizes need each component's sub-leaf of leaf 0xD, which KVM either caches when it is loaded
//! or reads from the processor each time (`cpuid_cache`).

use crate::config::CpuidUpdate;
use crate::cpuid::runtime::{Inputs, RuntimeCpuid, XSTATE, extended};
use crate::exit_context::ExitContext;
use cpu::Cpu;
use ledger::{Kind, Operation};
use x86::control::{CR4_OSXSAVE, CR4_PKE};
use x86::msr::{APIC_BASE, APIC_BASE_ENABLE};

/// Size of the legacy region and the header, which every XSAVE area has.
const FIXED: u32 = 512 + 64;
/// ECX of a sub-leaf: the component is aligned to 64 bytes in the compacted format.
const ALIGNED: u32 = 2;
/// EAX of sub-leaf 1: XSAVEC and XSAVES.
const COMPACTS: u32 = 0b1010;

/// Returns the size of the XSAVE area for `states` (KVM's `xstate_required_size`), from the sub-leaves of the host's
/// leaf 0xD.
fn xstate_required_size(cpu: &mut Cpu, states: u64, compacted: bool) -> u32 {
    let mut size = FIXED;
    for component in extended(states) {
        let leaf = cpu.cpuid(XSTATE, component);
        let aligned = if leaf.ecx & ALIGNED != 0 { size.next_multiple_of(64) } else { size };
        let offset = if compacted { aligned } else { leaf.ebx };
        size = size.max(offset.saturating_add(leaf.eax));
    }
    size
}

impl ExitContext<'_> {
    fn cpuid_inputs(&mut self) -> Inputs {
        let who = self.cpu.ident();
        let apic = self.cpu.wiring.bus().msr_read(who, APIC_BASE);
        Inputs {
            cr4: self.vcpu.visible.cr4 & (CR4_OSXSAVE | CR4_PKE),
            xcr0: self.cpu.arch.xcr0,
            xss: self.cpu.arch.msr.xss,
            apic: apic.is_none_or(|base| base & APIC_BASE_ENABLE != 0),
        }
    }

    /// Handles a possible change of a register that affects CPUID.
    pub fn cpuid_may_have_changed(&mut self) {
        let inputs = self.cpuid_inputs();
        if inputs.relevant() != self.vcpu.runtime_cpuid.inputs.relevant() {
            self.cpuid_changed();
        }
    }

    /// Handles a write to a register that affects CPUID.
    pub fn cpuid_changed(&mut self) {
        match self.vm.config.cpuid_update {
            CpuidUpdate::Eager => self.update_cpuid(true),
            CpuidUpdate::Deferred => self.vcpu.runtime_cpuid.stale = true,
        }
    }

    /// Handles the execution of CPUID by the guest.
    pub fn cpuid_wanted(&mut self) {
        if self.vcpu.runtime_cpuid.stale {
            self.update_cpuid(true);
        }
    }

    /// Updates the values. `charged` is true if the update is caused by the guest.
    pub fn update_cpuid(&mut self, charged: bool) {
        let inputs = self.cpuid_inputs();
        let compacts = self.cpu.cpuid(XSTATE, 1).eax & COMPACTS != 0;
        let areas = [Some((inputs.xcr0, false)), compacts.then_some((inputs.xcr0 | inputs.xss, true))];
        let has = self.cpu.cpuid(XSTATE, 0).eax != 0;
        let [standard, compacted] = areas.map(|area| {
            area.filter(|_| has).map_or(0, |(states, compacted)| {
                if charged {
                    self.charge_xstate_size(states);
                }
                xstate_required_size(self.cpu, states, compacted)
            })
        });
        if charged {
            self.charge(Operation::CpuidUpdate, 1);
        }
        self.vcpu.runtime_cpuid = RuntimeCpuid { inputs, standard, compacted, stale: false };
    }

    fn charge_xstate_size(&mut self, states: u64) {
        self.charge(Operation::XstateSize, 1);
        if !self.vm.config.cpuid_cache {
            for component in extended(states) {
                self.cpu.charge_host_kind(Kind::cpuid(XSTATE, component), 1);
            }
        }
    }
}

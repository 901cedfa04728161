//! A guest comes from another hypervisor, whose processor may be of another model or maker.
//!
//! The guest's state comes along: its registers, its pending events, the offset of its time-stamp counter, and the pages that it has registered. The
//! hypervisor's state is made anew: tables, tags and controls. Pages that both share are written again for this processor.

mod features;
mod foreign;

pub use features::{Destination, Lack};

use crate::controls;
use crate::exit_context::ExitContext;
use crate::failure::Failure;
use crate::mmu::{Flushes, RestoreError};
use crate::nested::Nested;
use crate::paravirt::hypercall_page;
use crate::paravirt::page::{ENTRIES, GuestMemory};
use crate::vcpu::Vcpu;
use crate::vm::Hypervisor;
use cpu::Cpu;
use cpu::arch::Arch;
use cpu::vmx::{Controls, GuestVmx};
use x86::page::PAGE;

/// Guest memory of a machine that has not run: no code has been decoded, and no table is shadowed.
struct Memory<'a> {
    vm: &'a Hypervisor,
    cpu: &'a Cpu,
}

impl Memory<'_> {
    fn write(&self, address: u64, bytes: &[u8]) {
        if let Some(host) = self.vm.memory.host(address) {
            self.cpu.wiring.ram.write_bytes(host, bytes);
        }
    }
}

impl GuestMemory for Memory<'_> {
    fn read32(&self, address: u64) -> Option<u32> {
        self.cpu.wiring.ram.read(self.vm.memory.host(address)?)
    }

    fn write32(&mut self, address: u64, value: u32) {
        self.write(address, &value.to_le_bytes());
    }
}

impl Hypervisor {
    /// Returns the reason for which the saved virtual CPU `number` cannot go on here, if there is one.
    pub fn rejects(&self, number: usize, vcpu: &Vcpu) -> Option<RestoreError> {
        let nested = self.offer.is_some() || vcpu.nested.vmx != GuestVmx::default() || vcpu.nested.outer.is_some();
        let table = [
            (nested, "it is a hypervisor itself, which stays on its processor"),
            // With two-dimensional paging, a load of a root that the guest has looked up would not exit.
            (
                self.config.mmu.is_tdp() && vcpu.paravirt.cr3.was_used(),
                "its guest uses the CR3 cache of the paravirtual interface, which needs --mmu shadow",
            ),
        ];
        let wrong = table.into_iter().find_map(|(wrong, what)| wrong.then_some(what));
        let what = vcpu.wrong(u64::MAX).or(wrong)?;
        Some(RestoreError::Vcpu { vcpu: number, what })
    }

    /// Takes over a virtual CPU that [`Self::rejects`] accepts: `cpu` has taken over its processor, whose registers were `saved`. Memory
    /// must have been restored, and nothing may have run.
    pub fn take_over(&self, vcpu: &mut Vcpu, cpu: &mut Cpu, saved: &Arch) {
        if !vcpu.adopted {
            // The processor's registers are the guest's.
            *vcpu = Vcpu { paravirt: vcpu.paravirt.clone(), tsc_offset: vcpu.tsc_offset, ..Vcpu::new() };
            return;
        }
        if saved.vmx.active {
            vcpu.follow_unseen_load(saved.cr3);
        }
        vcpu.visible.swap(cpu);
        cpu.mode_changed();
        cpu.attend(vcpu.held.take().unwrap_or(0));
        vcpu.mmu = None;
        vcpu.events.entered = None;
        *vcpu.nested = Nested::default();
        (vcpu.debug_registers, vcpu.spec_ctrl, vcpu.kicked, vcpu.followed) = (false, false, false, 0);
        vcpu.moved = true;
        self.renew_pages(vcpu, cpu);
    }

    /// Writes the pages that the guest shares with the hypervisor.
    fn renew_pages(&self, vcpu: &mut Vcpu, cpu: &Cpu) {
        let mut memory = Memory { vm: self, cpu };
        if self.config.paravirt && vcpu.paravirt.hypercall_page != 0 {
            let address = vcpu.paravirt.hypercall_page & !(PAGE - 1);
            memory.write(address, &hypercall_page(cpu.wiring.capabilities.amd));
        }
        for index in 0..ENTRIES {
            vcpu.paravirt.cr3.update(index, None);
        }
        if let Some(page) = vcpu.paravirt.state {
            page.renew(&mut memory, self.cr3_slots());
        }
    }
}

impl Vcpu {
    /// Follows a load of CR3 from the CR3 cache that caused no exit. `loaded` is the processor's CR3.
    fn follow_unseen_load(&mut self, loaded: u64) {
        let Some(pair) = self.paravirt.cr3.pairs().find(|pair| pair.host == loaded) else { return };
        if let Some(pdpte) = self.mmu.as_ref().and_then(|mmu| mmu.cached_pdptes(pair.guest)) {
            (self.visible.cr3, self.visible.pdpte) = (pair.guest, pdpte);
        }
    }
}

impl ExitContext<'_> {
    /// Makes the guest that has come from another hypervisor ready to be entered.
    pub(crate) fn settle(&mut self) -> Result<(), Failure> {
        self.vcpu.moved = false;
        let &Controls { interruptibility, pending_debug, .. } = self.cpu.controls();
        let fixed = controls::fixed(&self.vm.config, &self.vm.shared, &self.vm.ownership, self.cpu);
        *self.cpu.controls_mut() = Controls { interruptibility, pending_debug, ..fixed };
        self.vcpu.due = Flushes::RESET;
        if self.cpu.arch.msr.spec_ctrl != 0 {
            self.give_spec_ctrl();
        }
        self.update_cpuid(false);
        self.reset_mmu()?;
        self.size_cr3_cache()
    }
}

//! The guest's use of the interface, and the hypervisor's accesses to guest memory for it.

use super::cr3_cache::Pair;
use super::hypercall::{self, EINVAL, ENOSYS, EPERM, OK};
use super::page::{ENTRIES, GuestMemory, Registration, StatePage};
use super::rom::hypercall_page;
use crate::exit_context::ExitContext;
use crate::failure::Failure;
use cpu::Cpu;
use ledger::Operation;
use x86::control::CR4_PCIDE;
use x86::page::{ADDRESS, PAGE};
use x86::reg;

/// Bit of the MSRs that enables the feature.
const ENABLE: u64 = 1;

/// Guest memory, through the machine's slots.
struct Memory<'a, 'b> {
    context: &'a mut ExitContext<'b>,
    written: Vec<u64>,
}

impl GuestMemory for Memory<'_, '_> {
    fn read32(&self, address: u64) -> Option<u32> {
        let host = self.context.host_address(address)?;
        self.context.cpu.wiring.ram.read(host)
    }

    fn write32(&mut self, address: u64, value: u32) {
        write_guest(self.context, address, &value.to_le_bytes());
        self.written.push(address);
    }
}

/// Writes guest memory as a device would, and informs decoded code and shadow pages.
fn write_guest(context: &mut ExitContext, address: u64, bytes: &[u8]) {
    let Some(host) = context.host_address(address) else { return };
    let cpu: &mut Cpu = context.cpu;
    cpu.code_written(host, bytes.len() as u64);
    cpu.wiring.ram.write_bytes(host, bytes);
}

impl<'b> ExitContext<'b> {
    /// Performs operations on guest memory, and informs shadow pages of tables there.
    fn with_memory<T>(&mut self, work: impl FnOnce(&mut Memory<'_, 'b>) -> T) -> T {
        let mut memory = Memory { context: self, written: Vec::new() };
        let result = work(&mut memory);
        let written = std::mem::take(&mut memory.written);
        for address in written {
            self.page_written(address, 4);
        }
        self.cpu.drop_written_code(self.cache);
        result
    }

    /// Returns the page in an MSR value, if it is visible RAM. The inner `None` means that the feature is disabled.
    fn named_page(&self, value: u64) -> Option<Option<u64>> {
        if value == 0 {
            return Some(None);
        }
        let address = value & !(PAGE - 1);
        let good = value & (PAGE - 1) == ENABLE && self.host_address(address).is_some();
        good.then_some(Some(address))
    }

    /// Handles WRMSR of the hypercall page, which is filled with code for this processor. Returns false for #GP.
    pub fn write_hypercall_page(&mut self, value: u64) -> bool {
        let Some(page) = self.named_page(value) else { return false };
        if let Some(address) = page {
            write_guest(self, address, &hypercall_page(self.cpu.wiring.capabilities.amd));
            self.page_written(address, PAGE);
            self.cpu.drop_written_code(self.cache);
        }
        self.vcpu.paravirt.hypercall_page = value;
        true
    }

    /// Handles WRMSR of the state page. Returns false for #GP. A page of another version is refused, and the register
    /// then reads as 0.
    pub fn write_state_page(&mut self, value: u64) -> Result<bool, Failure> {
        let Some(page) = self.named_page(value) else { return Ok(false) };
        self.unregister()?;
        let Some(address) = page else { return Ok(true) };
        self.charge(Operation::ProfileMove, 1);
        let slots = self.vm.cr3_slots();
        let registration = self.with_memory(|memory| StatePage::register(memory, address, slots));
        if let Registration::Accepted(page) = registration {
            self.vcpu.paravirt.state = Some(page);
            self.size_cr3_cache()?;
        }
        Ok(true)
    }

    /// Unregisters the state page.
    pub fn unregister(&mut self) -> Result<(), Failure> {
        if let Some(old) = self.vcpu.paravirt.state.take() {
            self.with_memory(|memory| old.retire(memory));
        }
        self.size_cr3_cache()
    }

    /// Sets the number of roots that the MMU pins to the number that the guest can know: none without a state page, nor
    /// with PCIDs, which are part of the loaded value.
    pub fn size_cr3_cache(&mut self) -> Result<(), Failure> {
        if !self.vm.caches_cr3() {
            return Ok(());
        }
        let usable = self.vcpu.paravirt.state.is_some() && self.vcpu.visible.cr4 & CR4_PCIDE == 0;
        let entries = if usable { self.vm.shared.cr3_targets } else { 0 };
        self.with_mmu(|mmu, vcpu, _| mmu.set_cr3_cache(vcpu, entries))?;
        self.publish_roots()
    }

    /// Publishes changes of the pinned roots to the guest.
    pub fn publish_roots(&mut self) -> Result<(), Failure> {
        if !self.vm.caches_cr3() {
            return Ok(());
        }
        let roots = self.with_mmu(|mmu, vcpu, _| vcpu.take_cr3_cache_changed().then(|| mmu.cr3_cache(vcpu)))?;
        let Some(roots) = roots else { return Ok(()) };
        for index in 0..ENTRIES {
            let root = roots.get(index).copied().flatten();
            let pair = root.map(|(guest, host)| Pair { guest, host });
            if !self.vcpu.paravirt.cr3.update(index, pair) {
                continue;
            }
            let Some(state) = self.vcpu.paravirt.state else { continue };
            let (guest, host) = root.unwrap_or((0, 0));
            self.charge(Operation::ProfileMove, 1);
            self.with_memory(|memory| state.publish(memory, index, guest, host));
        }
        Ok(())
    }

    /// Sets the CR3-target values for the next entry.
    pub fn program_targets(&mut self) {
        let controls = self.cpu.controls_mut();
        controls.cr3_target_count = 0;
        for (index, pair) in self.vcpu.paravirt.cr3.pairs().enumerate() {
            controls.cr3_targets[index] = pair.host;
            controls.target_spaces[index] = Some(pair.guest & ADDRESS);
            controls.cr3_target_count += 1;
        }
    }

    /// Handles a cached root that the guest may have loaded without an exit.
    pub fn follow_cached_root(&mut self) -> Result<(), Failure> {
        if self.vcpu.paravirt.cr3.pairs().next().is_none() {
            return Ok(());
        }
        self.charge(Operation::Vmread, 1);
        let loaded = self.cpu.arch.cr3;
        if !self.vcpu.paravirt.cr3.has_host(loaded) {
            return Ok(());
        }
        if let Some(adopted) = self.with_mmu(|mmu, vcpu, _| mmu.adopt_cr3(vcpu, loaded))? {
            self.vcpu.visible.cr3 = adopted.cr3;
            self.vcpu.visible.pdpte = adopted.pdpte;
        }
        Ok(())
    }

    /// Handles VMCALL.
    pub fn hypercall(&mut self) -> Result<(), Failure> {
        self.charge(Operation::Hypercall, 1);
        let argument = |context: &ExitContext, number: u8| {
            let value = context.cpu.arch.gpr[usize::from(number)];
            if context.cpu.engine.long64 { value } else { value & 0xffff_ffff }
        };
        let number = argument(self, reg::RAX);
        let first = argument(self, reg::RBX);
        let result = match number {
            _ if self.cpu.arch.cpl != 0 => EPERM,
            hypercall::FREE_PGD if self.vm.config.paravirt => self.free_pgd(first)?,
            hypercall::FLUSH_TLB if self.vm.config.paravirt => {
                self.flush_guest()?;
                OK
            }
            _ => ENOSYS,
        };
        if self.cpu.engine.long64 {
            self.cpu.set::<u64>(reg::RAX, result as u64);
        } else {
            self.cpu.set::<u32>(reg::RAX, result as u32);
        }
        Ok(())
    }

    /// Handles the announcement that a page directory will be freed.
    fn free_pgd(&mut self, address: u64) -> Result<i64, Failure> {
        if self.host_address(address).is_none() {
            return Ok(EINVAL);
        }
        self.vm.announced.announce(address);
        self.follow_announcements()?;
        Ok(OK)
    }

    /// Releases the roots of page directories that any virtual CPU has announced.
    pub fn follow_announcements(&mut self) -> Result<(), Failure> {
        let announced = self.vm.announced;
        let missed = announced.count - std::mem::replace(&mut self.vcpu.followed, announced.count);
        let remembered = announced.latest.len() as u64;
        if missed > remembered {
            // There are more announcements than the list holds: none of the roots can be trusted.
            self.with_mmu(|mmu, vcpu, _| mmu.unload(vcpu))?;
        }
        for back in 1..=missed.min(remembered) {
            let address = announced.latest[((announced.count - back) % remembered) as usize];
            self.with_mmu(|mmu, vcpu, _| mmu.page_directory_freed(vcpu, address))?;
        }
        self.publish_roots()
    }
}

//! Interface between the virtual CPU and its MMU: roots and flushes before an entry, faults after an exit, and the
//! guest's changes to its paging in between.

use crate::exit_context::{ExitContext, Step};
use crate::failure::Failure;
use crate::mmu::{Fault, Flushes, Guest, MmuError, Resolution, Root, VcpuMmu};
use cpu::vmx::{Invept, Invvpid};
use ledger::Operation;
use x86::control::*;
use x86::ept;
use x86::page::PAGE;

impl ExitContext<'_> {
    /// Returns the guest's registers for the MMU.
    fn guest(&self) -> Guest {
        let (visible, cpu) = (&self.vcpu.visible, &*self.cpu);
        Guest {
            cr0: visible.cr0,
            cr3: visible.cr3,
            cr4: visible.cr4,
            efer: visible.efer,
            pdpte: visible.pdpte,
            rflags: cpu.rflags(),
            cpl: cpu.arch.cpl,
            pkru: cpu.arch.pkru,
            pkrs: cpu.arch.msr.pkrs as u32,
            nested: self.nested_paging(),
        }
    }

    /// Performs an operation on the MMU, and charges for it.
    pub fn with_mmu<T>(
        &mut self,
        work: impl FnOnce(&mut crate::mmu::Mmu, &mut VcpuMmu, &Guest) -> T,
    ) -> Result<T, Failure> {
        let guest = self.guest();
        if self.vcpu.mmu.is_none() {
            self.vcpu.mmu = Some(self.vm.mmu.add_vcpu().map_err(|error| self.mmu_failure(error))?);
        }
        let result = match &mut self.vcpu.mmu {
            Some(mmu) => work(&mut self.vm.mmu, mmu, &guest),
            None => return Err(self.mmu_failure(MmuError::Limit("mmu-pages"))),
        };
        self.account_for_mmu();
        let logged = self.vm.mmu.take_logged();
        self.follow_log(logged);
        Ok(result)
    }

    fn mmu_failure(&mut self, error: MmuError) -> Failure {
        Failure::Limit { limit: error.to_string(), place: self.place() }
    }

    /// Charges the MMU's operations, and informs decoded code of flags that were set in guest tables.
    fn account_for_mmu(&mut self) {
        let cpu = &mut *self.cpu;
        self.vm.mmu.tolls.drain(|operation, count| cpu.charge_host(operation, count));
        let written = self.vm.mmu.take_written();
        if !written.is_empty() {
            for (address, len) in written {
                cpu.code_written(address, len);
            }
            cpu.drop_written_code(self.cache);
        }
    }

    /// Translates a guest-physical address to a host-physical one.
    pub fn host_address(&self, address: u64) -> Option<u64> {
        self.vm.mmu.slots().translate(address).filter(|host| self.cpu.wiring.ram.visible_page(*host).is_some())
    }

    /// Finds or creates the guest's root, and flushes stale translations.
    pub fn load_root(&mut self) -> Result<Root, Failure> {
        if self.vcpu.followed != self.vm.announced.count {
            self.follow_announcements()?;
        }
        let loaded = self.with_mmu(|mmu, vcpu, guest| mmu.prepare(vcpu, guest))?;
        let root = loaded.map_err(|error| self.mmu_failure(error))?;
        self.publish_roots()?;
        let asked = self.with_mmu(|mmu, vcpu, _| mmu.take_flushes(vcpu))?;
        let due = std::mem::take(&mut self.vcpu.due).and(asked);
        self.flush_processor(due, root);
        Ok(root)
    }

    /// Flushes the guest's translations, each kind with its own instruction as listed in [`Flushes`].
    fn flush_processor(&mut self, due: Flushes, root: Root) {
        let pointer = self.vm.config.mmu.is_tdp().then(|| self.ept_pointer(root));
        let vpid = self.cpu.controls().vpid;
        if due.all {
            self.charge(Operation::TlbFlush, 1);
            match pointer {
                Some(_) => self.invept(Invept::Global),
                None => self.invvpid(Invvpid::All),
            }
        }
        if due.of_current() {
            self.charge(Operation::TlbFlush, 1);
            match pointer {
                Some(pointer) => self.invept(Invept::Single(pointer)),
                None => self.invvpid(Invvpid::Single(vpid)),
            }
        }
        if due.guest {
            self.charge(Operation::TlbFlush, 1);
            self.invvpid(Invvpid::Single(vpid));
        }
    }

    fn invept(&mut self, what: Invept) {
        self.charge(Operation::Invept, 1);
        self.cpu.invept(what);
    }

    /// Executes INVVPID if translations are tagged; otherwise each entry flushes them.
    pub fn invvpid(&mut self, what: Invvpid) {
        if self.vm.config.vpid {
            self.charge(Operation::Invvpid, 1);
            self.cpu.invvpid(what);
        }
    }

    fn ept_pointer(&self, root: Root) -> u64 {
        let flags = if root.flags { ept::EPTP_ACCESSED_DIRTY } else { 0 };
        root.hpa | u64::from(root.levels - 1) << ept::EPTP_LENGTH_SHIFT | ept::WRITE_BACK | flags
    }

    /// Loads the root into CR3 or the EPT pointer.
    pub fn program_root(&mut self, root: Root) {
        let visible = self.vcpu.visible;
        if self.vm.config.mmu.is_tdp() {
            let pointer = self.ept_pointer(root);
            self.cpu.arch.cr3 = visible.cr3;
            self.cpu.arch.pdpte = visible.pdpte;
            self.cpu.controls_mut().eptp = pointer;
            return;
        }
        let pcid = if visible.cr4 & CR4_PCIDE != 0 && visible.long() { visible.cr3 & (PAGE - 1) } else { 0 };
        self.cpu.arch.cr3 = root.hpa | pcid;
        if root.levels == 3 {
            let ram = self.cpu.wiring.ram.clone();
            self.cpu.arch.pdpte = std::array::from_fn(|i| ram.read(root.hpa + 8 * i as u64).unwrap_or(0));
        }
        self.cpu.micro.charged_space = Some(visible.space());
        self.program_targets();
    }

    /// Handles a page fault of a guest with shadow tables.
    pub fn shadow_fault(&mut self, linear: u64, code: u32) -> Result<Step, Failure> {
        self.fault(Fault::Page { linear, code })
    }

    /// Handles an EPT violation.
    pub fn ept_fault(&mut self, gpa: u64, qualification: u64) -> Result<Step, Failure> {
        self.fault(Fault::Violation { gpa, linear: self.exit.guest_linear, qualification })
    }

    /// Handles an EPT misconfiguration.
    pub fn ept_misconfiguration(&mut self, gpa: u64) -> Result<Step, Failure> {
        self.fault(Fault::Misconfiguration { gpa })
    }

    fn fault(&mut self, fault: Fault) -> Result<Step, Failure> {
        match self.with_mmu(|mmu, vcpu, guest| mmu.fault(vcpu, guest, fault))? {
            Resolution::Fixed => {
                self.forget_fault();
                Ok(Step::Resume)
            }
            Resolution::Inject(fault) => {
                self.raise_page_fault(fault.linear, fault.code);
                Ok(Step::Resume)
            }
            // The unmapped address may be the stack of an event's delivery.
            Resolution::Emulate { .. } => match self.vcpu.events.next.take() {
                Some(event) => self.emulate_event(event),
                None => self.emulate(),
            },
            Resolution::Reflect(exit) => {
                self.reflect_ept(exit);
                Ok(Step::Resume)
            }
            Resolution::Limit(name) => Err(self.mmu_failure(MmuError::Limit(name))),
        }
    }

    /// Handles a write to the guest's memory on its behalf.
    pub fn page_written(&mut self, address: u64, len: u64) {
        self.vm.mmu.page_written(address, len);
        self.account_for_mmu();
    }

    /// Unloads the roots and updates the role.
    pub fn reset_mmu(&mut self) -> Result<(), Failure> {
        self.with_mmu(|mmu, vcpu, guest| mmu.reset_context(vcpu, guest))
    }

    /// Handles a change of CR0.
    pub fn mmu_cr0_changed(&mut self, before: u64) -> Result<(), Failure> {
        self.with_mmu(|mmu, vcpu, guest| mmu.cr0_changed(vcpu, guest, before))
    }

    /// Handles a change of CR4.
    pub fn mmu_cr4_changed(&mut self, before: u64) -> Result<(), Failure> {
        self.with_mmu(|mmu, vcpu, guest| mmu.cr4_changed(vcpu, guest, before))
    }

    /// Handles a change of EFER.
    pub fn mmu_efer_changed(&mut self, before: u64) -> Result<(), Failure> {
        self.with_mmu(|mmu, vcpu, guest| mmu.efer_changed(vcpu, guest, before))
    }

    /// Handles a load of CR3.
    pub fn mmu_new_cr3(&mut self, flush: bool) -> Result<(), Failure> {
        self.with_mmu(|mmu, vcpu, guest| mmu.new_cr3(vcpu, guest, flush))
    }

    /// Handles a flush of the guest's whole TLB.
    pub fn flush_guest(&mut self) -> Result<(), Failure> {
        self.with_mmu(|mmu, vcpu, _| mmu.flush_guest(vcpu))
    }

    /// Handles an invalidation of a PCID, or of everything.
    pub fn invalidate_pcid(&mut self, pcid: Option<u16>) -> Result<(), Failure> {
        self.with_mmu(|mmu, vcpu, guest| mmu.invpcid(vcpu, guest, pcid))
    }

    /// Handles an invalidation of a page.
    pub fn invalidate_page(&mut self, linear: u64) -> Result<(), Failure> {
        self.with_mmu(|mmu, vcpu, _| mmu.invlpg(vcpu, linear))?;
        let vpid = self.cpu.controls().vpid;
        self.invvpid(Invvpid::Address { vpid, linear });
        Ok(())
    }
}

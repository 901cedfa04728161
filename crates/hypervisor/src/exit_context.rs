//! Context of exit handlers.

use crate::failure::GuestPosition;
use crate::vcpu::Vcpu;
use crate::vm::Hypervisor;
use cpu::vmx::VmExit;
use cpu::{BlockCache, Cpu, Exit};
use ledger::{Family, Kind, Operation};
use x86::control::CR4_OSXSAVE;
use x86::msr::XSS;

/// Step after a handled exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Enter the guest again.
    Resume,
    /// Return to the board.
    Board(Exit),
}

/// Context of the hypervisor's work for one virtual CPU.
pub(crate) struct ExitContext<'a> {
    /// The virtual CPU.
    pub vcpu: &'a mut Vcpu,
    /// The virtual machine.
    pub vm: &'a mut Hypervisor,
    /// The processor that runs the virtual CPU.
    pub cpu: &'a mut Cpu,
    /// Cache of decoded code.
    pub cache: &'a mut BlockCache,
    /// The exit that is handled.
    pub exit: VmExit,
}

impl ExitContext<'_> {
    /// Charges operations of the hypervisor's software.
    pub fn charge(&mut self, operation: Operation, count: u64) {
        if count != 0 {
            self.cpu.charge_host(operation, count);
        }
    }

    /// Charges the loads of XCR0 and IA32_XSS: the guest's before an entry, and the host's after an exit, if they
    /// differ (KVM's `kvm_load_guest_xsave_state` and `kvm_load_host_xsave_state`). The host has no supervisor states.
    pub fn charge_xsave_state(&mut self) {
        if self.vcpu.visible.cr4 & CR4_OSXSAVE == 0 {
            return;
        }
        if self.vm.host_xcr0.is_some_and(|host| host != self.cpu.arch.xcr0) {
            self.cpu.charge_host_kind(Kind::new(Family::Xsetbv, 0), 1);
        }
        if self.cpu.arch.msr.xss != 0 {
            self.cpu.charge_host_kind(Kind::new(Family::Wrmsr, XSS), 1);
        }
    }

    /// Returns the guest's position, for the report of a failure.
    pub fn place(&mut self) -> GuestPosition {
        let mut place = GuestPosition { rip: self.cpu.arch.rip, bytes: [0; 15], length: 0 };
        let linear = self.cpu.code_linear();
        for (i, byte) in place.bytes.iter_mut().enumerate() {
            let Some(read) = self.peek(linear.wrapping_add(i as u64)) else { break };
            *byte = read;
            place.length = i + 1;
        }
        place
    }

    /// Reads a byte of the guest at a linear address, regardless of permissions.
    fn peek(&mut self, linear: u64) -> Option<u8> {
        let address = self.cpu.look_up_in(&self.vcpu.visible.view(self.cpu.arch.xcr0), linear);
        let mut byte = [0];
        (self.cpu.wiring.ram.read_bytes(self.host_address(address?)?, &mut byte)).then_some(byte[0])
    }
}

//! What every handler of an exit has at hand.

use crate::failure::GuestPosition;
use crate::vcpu::Vcpu;
use crate::vm::Hypervisor;
use cpu::vmx::VmExit;
use cpu::{BlockCache, Cpu, Exit};
use ledger::{Family, Kind, Operation};
use x86::control::CR4_OSXSAVE;
use x86::msr::XSS;

/// What follows a handled exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Back into the guest.
    Resume,
    /// The board is to know.
    Board(Exit),
}

/// Everything at hand while the hypervisor works for one virtual CPU.
pub(crate) struct ExitContext<'a> {
    /// The virtual CPU.
    pub vcpu: &'a mut Vcpu,
    /// Its machine.
    pub vm: &'a mut Hypervisor,
    /// The processor that it runs on.
    pub cpu: &'a mut Cpu,
    /// Decoded code.
    pub cache: &'a mut BlockCache,
    /// The exit that is handled.
    pub exit: VmExit,
}

impl ExitContext<'_> {
    /// Charges steps of the hypervisor's software.
    pub fn charge(&mut self, operation: Operation, count: u64) {
        if count != 0 {
            self.cpu.charge_host(operation, count);
        }
    }

    /// Charges what loads XCR0 and IA32_XSS of the guest before an entry, and of the host after an exit, where they differ (KVM's
    /// `kvm_load_guest_xsave_state` and `kvm_load_host_xsave_state`). The host has no supervisor states.
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

    /// Where the guest is, for a failure.
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

    /// A byte of the guest at a linear address, whatever its permissions.
    fn peek(&mut self, linear: u64) -> Option<u8> {
        let address = self.cpu.look_up_in(&self.vcpu.visible.view(self.cpu.arch.xcr0), linear);
        let mut byte = [0];
        (self.cpu.wiring.ram.read_bytes(self.host_address(address?)?, &mut byte)).then_some(byte[0])
    }
}

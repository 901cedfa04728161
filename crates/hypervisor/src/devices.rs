//! Location of device models: in the kernel part of the hypervisor, or in the user-space VMM. The cost of an access
//! depends on it.

use crate::config::Irqchip;
use ledger::Operation;
use std::ops::RangeInclusive;

/// Ports of the interrupt controllers, their edge/level registers, the timer and its gate.
const KERNEL_PORTS: &[RangeInclusive<u16>] = &[0x20..=0x21, 0x40..=0x43, 0x61..=0x61, 0xa0..=0xa1, 0x4d0..=0x4d1];
/// Memory ranges of I/O and local APICs.
const KERNEL_MEMORY: &[RangeInclusive<u64>] = &[0xfec0_0000..=0xfec0_0fff, 0xfee0_0000..=0xfee0_0fff];

/// Address of a device access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceAddress {
    /// IN or OUT.
    Port(u16),
    /// Memory-mapped, by guest-physical address.
    Memory(u64),
    /// A register of the local APIC, accessed by RDMSR, WRMSR or CR8.
    ApicRegister,
}

/// Returns the operation that is charged for an access.
pub fn operation(irqchip: Irqchip, access: DeviceAddress) -> Operation {
    let kernel = match access {
        DeviceAddress::Port(port) => KERNEL_PORTS.iter().any(|ports| ports.contains(&port)),
        DeviceAddress::Memory(address) => KERNEL_MEMORY.iter().any(|range| range.contains(&address)),
        DeviceAddress::ApicRegister => true,
    };
    if kernel && irqchip == Irqchip::Kernel { Operation::DeviceKernel } else { Operation::DeviceUser }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_interrupt_controllers_are_in_the_kernel() {
        use Operation::*;
        let table = [
            (DeviceAddress::Port(0x20), DeviceKernel, DeviceUser),
            (DeviceAddress::Port(0x43), DeviceKernel, DeviceUser),
            (DeviceAddress::Port(0x3f8), DeviceUser, DeviceUser),
            (DeviceAddress::Port(0x80), DeviceUser, DeviceUser),
            (DeviceAddress::Memory(0xfee0_00b0), DeviceKernel, DeviceUser),
            (DeviceAddress::Memory(0xfe00_0000), DeviceUser, DeviceUser),
            (DeviceAddress::ApicRegister, DeviceKernel, DeviceUser),
        ];
        for (access, kernel, user) in table {
            assert_eq!(operation(Irqchip::Kernel, access), kernel, "{access:?}");
            assert_eq!(operation(Irqchip::User, access), user, "{access:?}");
        }
    }
}

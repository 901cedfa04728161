//! The processor of a guest that was moved: it costs what it costs on one processor, and shows the guest another one.

use super::{Profile, Vendor};

/// The processor that CPUID names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name of its profile.
    pub name: String,
    /// Its maker.
    pub vendor: Vendor,
}

impl Profile {
    /// Returns this processor as a hypervisor shows it to a guest that was started on `first`: prices, sizes and virtualization are this
    /// processor's. CPUID, MAXPHYADDR, the registers that CPUID announces, and the frequency of the time-stamp counter are those of `first`.
    pub fn for_guest_of(mut self, first: &Self) -> Self {
        let first = first.clone();
        let itself = self.moved_to.take().unwrap_or_else(|| Box::new(self.clone()));
        self.moved_to = Some(itself);
        self.title = format!("{}, for a guest of {}", self.title, first.title);
        self.identity = first.identity;
        self.raw_cpuid = first.raw_cpuid;
        self.cpuid_from = first.cpuid_from;
        self.physical_bits = first.physical_bits;
        self.arch_capabilities = first.arch_capabilities;
        self.microcode = first.microcode;
        self.vmx = first.vmx;
        self.tsc_hz = first.tsc_hz;
        self.boost_hz = None;
        self.options.unpatched = first.options.unpatched;
        self
    }

    /// Describes all that a guest can know of the processor. Profiles with equal descriptions differ in nothing but what they cost.
    pub fn shown(&self) -> String {
        let capabilities = self.arch_capabilities.as_ref().map(|capabilities| capabilities.value);
        let numbers = (self.tsc_hz.value, self.physical_bits.value, capabilities, self.microcode_revision());
        format!("{:?} {:?} {:?} {:?}", self.identity, self.cpuid(), numbers, self.vmx)
    }
}

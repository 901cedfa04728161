//! VMX features for L1: those of the processor, without those that are not virtualized.

use crate::config::VmConfig;
use cpu::vmx::{Offer, VmxCapabilities};
use ledger::Profile;

/// Returns the offer of a machine on the processor of a profile, or `None` if its guest has no VMX.
pub(crate) fn offer(config: &VmConfig, profile: &Profile) -> Option<Offer> {
    let own = VmxCapabilities::of(profile.vmx.as_ref().filter(|_| config.nested)?);
    let vmx = own.for_guests(config.nested_ept, config.vpid);
    Some(Offer { vmx, hidden_cr4: crate::cpuid::hidden_cr4(config) })
}

//! The memory management units: guest-physical or guest-linear addresses to host-physical ones, in each of the ways that KVM
//! has had.

//! The board on `/dev/kvm`: the host's processor executes the guest, and the devices, loaders and tables are those of every other machine.
//!
//! KVM's interrupt controllers are not used: those of the board are active, and a pending vector is injected when the
//! guest can take it (docs/decisions/0018-kvm-backend.md gives the reasons). Each virtual processor has a thread, which
//! locks the board when its processor leaves the guest. One more thread advances the board's time, which is the host's.
//!
//! `vm` creates the virtual machine, `probe` measures whether KVM emulates kernels, `cpuid` defines its processors, `registers` converts registers between KVM and
//! [`cpu::Cpu`], `run` is the loop of each thread on the state that `hub` shares between them, `count` and `stats`
//! collect the data for a ledger. `host` contains every call that the compiler cannot check.

mod count;
mod cpuid;
#[allow(unsafe_code, reason = "KVM is given host addresses, and shares a page with the program")]
mod host;
mod hub;
mod probe;
mod registers;
mod run;
mod stats;
mod vm;

pub use count::Report;
pub use probe::Emulated;
pub use vm::{Kvm, KvmError};

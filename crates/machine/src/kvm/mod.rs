//! The board on `/dev/kvm`: the host's processor executes the guest, and the devices, loaders and tables are those of every other machine.
//!
//! KVM has no interrupt controllers here: those of the board work, and a vector that is due is injected when the guest can take it
//! (docs/decisions/0018-kvm-backend.md says why). Each virtual processor has a thread, which takes the board when its processor leaves
//! the guest; a further thread lets the board's time pass, which is the host's.
//!
//! `vm` makes the virtual machine, `cpuid` says what its processors are, `registers` carries registers between KVM and [`cpu::Cpu`],
//! `run` is the loop of each thread over what `hub` shares between them, `count` and `stats` are what a ledger gets.
//! `host` has every call that the compiler cannot check.

mod count;
mod cpuid;
#[allow(unsafe_code, reason = "KVM is given host addresses, and shares a page with the program")]
mod host;
mod hub;
mod registers;
mod run;
mod stats;
mod vm;

pub use count::Report;
pub use vm::{Kvm, KvmError};

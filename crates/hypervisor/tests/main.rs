//! Whole guests under the hypervisor, and the same on bare hardware. One program, so that what they share is made once.

mod common;
mod cpuid;
mod exits;
mod guests;
mod hostile;
mod nested;
mod paravirt;
mod stress;

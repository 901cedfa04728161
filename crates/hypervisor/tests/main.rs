//! Tests of whole guests under the hypervisor and on bare hardware, in one program so that common parts are built once.

mod common;
mod cpuid;
mod exits;
mod foreign;
mod guests;
mod hostile;
mod nested;
mod paravirt;
mod stress;

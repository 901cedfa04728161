//! See `tollgate_fuzz::hypervisor`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tollgate_fuzz::hypervisor::run(data));

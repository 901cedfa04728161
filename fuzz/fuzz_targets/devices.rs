//! See `tollgate_fuzz::devices`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tollgate_fuzz::devices::run(data));

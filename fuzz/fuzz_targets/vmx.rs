//! See `tollgate_fuzz::vmx`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tollgate_fuzz::vmx::run(data));

//! See `tollgate_fuzz::restore`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tollgate_fuzz::restore::run(data));

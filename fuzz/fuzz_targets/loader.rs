//! See `tollgate_fuzz::loader`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tollgate_fuzz::loader::run(data));

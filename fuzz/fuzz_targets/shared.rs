//! See `tollgate_fuzz::shared`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tollgate_fuzz::shared::run(data));

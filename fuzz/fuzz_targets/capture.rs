//! See `tollgate_fuzz::capture`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tollgate_fuzz::capture::run(data));

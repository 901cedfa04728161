//! See `tollgate_fuzz::nested`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tollgate_fuzz::nested::run(data));

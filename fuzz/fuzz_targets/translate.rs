//! See `tollgate_fuzz::translate`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tollgate_fuzz::translate::run(data));

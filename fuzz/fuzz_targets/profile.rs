//! See `tollgate_fuzz::profile`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tollgate_fuzz::profile::run(data));

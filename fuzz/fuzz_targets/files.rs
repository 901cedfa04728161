//! See `tollgate_fuzz::files`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tollgate_fuzz::files::run(data));

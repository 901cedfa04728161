//! See `tollgate_fuzz::passt`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tollgate_fuzz::passt::run(data));

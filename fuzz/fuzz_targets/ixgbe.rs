//! See `tollgate_fuzz::ixgbe`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tollgate_fuzz::ixgbe::run(data));

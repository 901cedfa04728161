//! See `tollgate_fuzz::ledger`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tollgate_fuzz::ledger::run(data));

//! See `tollgate_fuzz::virtio`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tollgate_fuzz::virtio::run(data));

//! Tests of copy on write, against a copy of the disk that is written at once.

use super::*;
use crate::state::StateError;
use crate::virtio::overlay::Overlay;
use serde_bytes::ByteBuf;

/// Two blocks of 4096 bytes, and one of 1000.
const LEN: usize = 2 * 4096 + 1000;

fn backing() -> Memory {
    let bytes = (0..LEN).map(|at| (at / 3) as u8).collect();
    Memory { bytes: Arc::new(Mutex::new(bytes)), ..disk() }
}

/// Offsets and lengths that begin and end at a block's edges, beside them, and within blocks.
fn ranges() -> Vec<(usize, usize)> {
    let edges = [0, 1, 100, 4095, 4096, 4097, 8191, 8192, 8193, LEN - 1, LEN];
    let pairs = edges.iter().flat_map(|from| edges.iter().map(move |to| (*from, *to)));
    pairs.filter(|(from, to)| from <= to).map(|(from, to)| (from, to - from)).collect()
}

#[test]
fn reads_see_every_write_and_the_disk_sees_none() {
    let disk = backing();
    let before = disk.bytes.lock().unwrap().clone();
    for (number, (at, len)) in ranges().into_iter().enumerate() {
        let (mut overlay, mut model) = (Overlay::default(), before.clone());
        // A second write of one byte changes a block that is there already.
        for (at, bytes) in [(at, vec![number as u8 ^ 0x5a; len]), (at.min(LEN - 1), vec![1])] {
            overlay.write(&disk, at as u64, &bytes).unwrap();
            model[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        for (from, count) in ranges() {
            let mut got = vec![0; count];
            overlay.read(&disk, from as u64, &mut got).unwrap();
            assert!(got == model[from..from + count], "{at} {len}, read from {from} on, {count} bytes");
        }
        let again = Overlay::of_blocks(overlay.blocks(), LEN as u64).unwrap();
        assert_eq!(again, overlay);
    }
    assert!(*disk.bytes.lock().unwrap() == before);
}

#[test]
fn an_overlay_has_the_blocks_that_were_written() {
    let disk = backing();
    let mut overlay = Overlay::default();
    overlay.write(&disk, 4095, &[1, 2]).unwrap();
    overlay.write(&disk, LEN as u64 - 1, &[3]).unwrap();
    let lengths: Vec<_> = overlay.blocks().iter().map(|(number, block)| (*number, block.len())).collect();
    assert_eq!(lengths, [(0, 4096), (1, 4096), (2, 1000)]);
    let broken = Memory { broken: true, ..disk };
    assert!(Overlay::default().write(&broken, 0, &[1]).is_err());
    assert!(overlay.read(&broken, 0, &mut [0]).is_err());
}

#[test]
fn forged_blocks_are_refused() {
    let block = |number: u64, len: usize| (number, ByteBuf::from(vec![1; len]));
    let restored = |blocks: &[(u64, ByteBuf)]| Overlay::of_blocks(blocks.to_vec(), LEN as u64);
    assert!(restored(&[]).is_ok() && restored(&[block(0, 4096), block(2, 1000)]).is_ok());
    for blocks in [
        vec![block(0, 4095)],
        vec![block(2, 4096)],
        vec![block(3, 0)],
        vec![block(3, 1)],
        vec![block(u64::MAX, 0)],
        vec![block(1, 4096), block(0, 4096)],
        vec![block(0, 4096), block(0, 4096)],
    ] {
        assert_eq!(restored(&blocks), Err(StateError::Impossible("blocks of a disk")), "{blocks:?}");
    }
}

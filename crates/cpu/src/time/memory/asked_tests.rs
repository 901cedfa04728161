use super::tests::{CACHES, access_to};
use super::*;

const LINE: u64 = 0x10_0000;

fn load(memory: &mut Memory, line: u64, now: Ticks) -> Miss {
    memory.miss(&CACHES, access_to(line, false, now), &|_| None)
}

fn level(kind: Kind) -> u32 {
    kind.param & !Kind::PREFETCHED
}

#[test]
fn a_load_waits_for_the_rest_of_what_was_asked_for() {
    // Time from the instruction that asks to the load, and how long the load waits.
    let wait = |early: Ticks| {
        let mut memory = Memory::new(&CACHES, 0);
        let (kind, ticks) = memory.ask(&CACHES, LINE, false, 1_000_000).unwrap();
        assert_eq!((level(kind), ticks), (Kind::MEMORY, 0));
        let miss = load(&mut memory, LINE, 1_000_000 + early);
        assert_ne!(miss.kind.param & Kind::PREFETCHED, 0);
        miss.ticks
    };
    let all = CACHES.memory_latency - CACHES.window;
    assert_eq!([wait(0), wait(100_000), wait(all), wait(10 * all)], [all, all - 100_000, 0, 0]);
}

#[test]
fn a_line_is_asked_for_once() {
    let mut memory = Memory::new(&CACHES, 0);
    assert!(memory.ask(&CACHES, LINE, false, 0).is_some());
    assert!(memory.ask(&CACHES, LINE, false, 0).is_none());
    load(&mut memory, LINE, 1_000_000);
    assert!(memory.ask(&CACHES, LINE, false, 2_000_000).is_none(), "the first level has it");
    assert!(memory.fits(&CACHES, 2_000_000, 0, 1));
}

#[test]
fn too_many_requests_wait_for_fill_buffers() {
    let mut memory = Memory::new(&CACHES, 0);
    let waits: Vec<Ticks> = (0..64).map(|n| memory.ask(&CACHES, LINE + n, false, 0).unwrap().1).collect();
    assert!(waits[..8].iter().all(|wait| *wait == 0), "{waits:?}");
    assert!(waits.is_sorted() && waits[63] > CACHES.memory_latency, "{waits:?}");
}

#[test]
fn a_flushed_line_is_in_memory() {
    for keep in [false, true] {
        let mut memory = Memory::new(&CACHES, 0);
        let slot = load(&mut memory, LINE, 0).slot;
        memory.change(&CACHES, LINE, slot, 0);
        assert_eq!(memory.flush(&CACHES, LINE, keep, 1_000_000), (Some(slot), 0));
        assert_eq!(memory.back, 1_000_000 + CACHES.memory_transfer, "it is written");
        assert_eq!(memory.find(LINE).is_some(), keep);
        assert!(!memory.is_changed(slot));
        assert_eq!(memory.flush(&CACHES, LINE, keep, 2_000_000).0.is_some(), keep);
        assert_eq!(memory.back, 1_000_000 + CACHES.memory_transfer, "once");
        if !keep {
            assert_eq!(level(load(&mut memory, LINE, 3_000_000).kind), Kind::MEMORY);
        }
    }
}

#[test]
fn what_a_device_has_written_is_where_the_platform_puts_it() {
    for (writes, from) in [(DeviceWrites::L3, 3), (DeviceWrites::Memory, Kind::MEMORY)] {
        let caches = Caches { device_writes: writes, ..CACHES };
        let mut memory = Memory::new(&caches, 0);
        load(&mut memory, LINE, 0);
        memory.device_write(&caches, LINE);
        let mut hidden = 0;
        memory.take_notice(|_| hidden += 1);
        assert_eq!((hidden, memory.find(LINE)), (1, None));
        assert_eq!(level(load(&mut memory, LINE, 1_000_000).kind), from);
        assert!(memory.fits(&caches, 2_000_000, 0, 1));
    }
}

#[test]
fn the_core_waits_if_it_flushes_more_changed_lines_than_the_way_to_memory_carries() {
    let mut memory = Memory::new(&CACHES, 0);
    let mut now = 1_000_000;
    for n in 0..200 {
        let Miss { slot, ticks, .. } = load(&mut memory, LINE + n, now);
        now += ticks;
        memory.change(&CACHES, LINE + n, slot, now);
    }
    let mut waited = 0;
    for n in 0..200 {
        let (_, ticks) = memory.flush(&CACHES, LINE + n, false, now);
        now += 1_000 + ticks;
        waited += ticks;
        assert!(memory.fits(&CACHES, now, 0, 1));
    }
    assert!(waited > 100 * CACHES.memory_transfer, "{waited}");
}

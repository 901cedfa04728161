//! Tests that save devices while a driver uses them and restore them beside the original; disks with an overlay.

use super::*;
use crate::state::{Saved, StateError};

/// The function of the device.
pub(super) fn function(driver: &mut Driver) -> &mut dyn Saved {
    &mut **driver.bus.bus.function(1).expect("it was added")
}

/// Creates a machine with a copy of the memory, and a device with the state of the original.
pub(super) fn copy<D: Device + 'static>(original: &mut Driver, device: D) -> Result<Driver, StateError> {
    let mut copy = Driver::with(device);
    let mut memory = vec![0; original.ram.size() as usize];
    assert!(original.ram.read(0, &mut memory) && copy.ram.write(0, &memory));
    let state = function(original).save()?;
    function(&mut copy).restore(&state)?;
    assert_eq!(function(&mut copy).save(), Ok(state));
    copy.available = original.available;
    copy.bus.take_on(&original.bus);
    Ok(copy)
}

fn device(kind: usize, disk: &Memory) -> Box<dyn FnOnce() -> Driver + '_> {
    match kind {
        0 => Box::new(|| Driver::with(Ports::console())),
        1 => Box::new(|| Driver::with(Block::new(Box::new(disk.clone()), "x").with_overlay())),
        _ => Box::new(|| Driver::with(Entropy::new(1))),
    }
}

fn copy_of(kind: usize, original: &mut Driver, disk: &Memory) -> Result<Driver, StateError> {
    match kind {
        0 => copy(original, Ports::console()),
        1 => copy(original, Block::new(Box::new(disk.clone()), "x").with_overlay()),
        _ => copy(original, Entropy::new(1)),
    }
}

/// An action of a driver.
#[derive(Clone, Debug)]
enum Step {
    /// A request with a chain of buffers of these lengths, which the device writes from the given one on, and a
    /// notification.
    Request(u16, u16, Vec<(u16, bool)>, u64),
    Write(u64, u8, u64),
    ConfigSpace(usize, u32),
    Restart(u64),
    Input(Vec<u8>),
    Msix,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let buffers = prop::collection::vec((prop::sample::select(vec![0u16, 1, 8, 16, 512, 1024]), any::<bool>()), 1..4);
    let features = prop::sample::select(vec![VERSION_1, VERSION_1 | 2, VERSION_1 | EVENT_IDX, 2]);
    let step = prop_oneof![
        8 => (0..4u16, 0..5u16, buffers, 0..80u64).prop_map(|(q, f, b, s)| Step::Request(q, f, b, s)),
        2 => (0..0x8000u64, prop::sample::select(vec![1u8, 2, 4, 8]), any::<u64>()).prop_map(|(a, s, v)| Step::Write(a, s, v)),
        1 => (0..64usize, any::<u32>()).prop_map(|(at, value)| Step::ConfigSpace(4 * at, value)),
        1 => features.prop_map(Step::Restart),
        2 => prop::collection::vec(any::<u8>(), 0..20).prop_map(Step::Input),
        1 => Just(Step::Msix),
    ];
    prop::collection::vec(step, 0..25)
}

/// Executes a step, and returns its visible effects.
fn step(driver: &mut Driver, step: &Step) -> String {
    match step {
        Step::Request(queue, first, buffers, sector) => {
            // A read or a write of a disk, or a message of a console's driver.
            let header = [[(*sector % 2) as u8, 0, 0, 0, *first as u8, 0, 1, 0], sector.to_le_bytes()].concat();
            assert!(driver.ram.write(BUFFERS, &header));
            let at = |i: usize| BUFFERS + 0x1000 * i as u64;
            let chain: Vec<_> = [(BUFFERS, 16, 0)]
                .into_iter()
                .chain(
                    buffers
                        .iter()
                        .enumerate()
                        .map(|(i, (len, write))| (at(i + 1), u32::from(*len), if *write { WRITE } else { 0 })),
                )
                .skip(usize::from(*sector > 70))
                .collect();
            driver.offer(*queue, *first, &chain);
            driver.bus.mmio_write(NOTIFY + 4 * u64::from(*queue), 2, 0);
        }
        Step::Write(at, size, value) => drop(driver.bus.mmio_write(BASE + at, *size, *value)),
        Step::ConfigSpace(at, value) => driver.bus.config_write(1, *at, 4, *value),
        Step::Restart(features) => {
            driver.bus.config_write(1, 0x10, 4, BASE as u32);
            driver.bus.config_write(1, 0x14, 4, (BASE >> 32) as u32);
            driver.bus.config_write(1, 4, 2, 6);
            driver.start(*features);
        }
        Step::Input(bytes) => driver.input(bytes),
        Step::Msix => {
            for vector in 0..3u64 {
                driver.bus.mmio_write(TABLE + 16 * vector, 8, 0xfee0_0000);
                driver.bus.mmio_write(TABLE + 16 * vector + 8, 8, 0x40 + vector);
            }
            let at = driver.capability(0x11, |_, _| true);
            driver.bus.config_write(1, at + 2, 2, 0x8000);
        }
    }
    let registers: Vec<_> = (0..0x38).step_by(4).map(|at| driver.bus.mmio_read(BASE + at, 4)).collect();
    let used: Vec<_> = (0..4).map(|queue| driver.used(queue)).collect();
    let memory: [u8; 0x3000] = driver.bytes(BUFFERS);
    let hash = memory.iter().fold(0u64, |hash, byte| hash.wrapping_mul(0x100_0000_01b3) ^ u64::from(*byte));
    format!("{registers:x?} {used:?} {:?} {:?} {:?} {hash:#x}", driver.bus.lines(), driver.messages(), driver.printed())
}

proptest! {
    #[test]
    fn a_restored_device_goes_on_as_the_original(kind in 0..3usize, before in steps(), after in steps()) {
        let backing = disk();
        let mut original = device(kind, &backing)();
        original.start(VERSION_1);
        before.iter().for_each(|taken| drop(step(&mut original, taken)));
        let mut copy = copy_of(kind, &mut original, &backing).unwrap();
        for taken in &after {
            prop_assert_eq!(step(&mut copy, taken), step(&mut original, taken), "{:?}", taken);
        }
        prop_assert_eq!(function(&mut copy).save(), function(&mut original).save());
    }

    #[test]
    fn no_bytes_do_harm(
        kind in 0..3usize,
        before in steps(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        after in steps(),
    ) {
        let backing = disk();
        let mut original = device(kind, &backing)();
        original.start(VERSION_1);
        before.iter().for_each(|taken| drop(step(&mut original, taken)));
        let mut state = function(&mut original).save().unwrap();
        for (at, value) in changes {
            let at = at.index(state.len());
            state[at] = value;
        }
        let mut copy = device(kind, &backing)();
        if function(&mut copy).restore(&state).is_ok() {
            after.iter().for_each(|taken| drop(step(&mut copy, taken)));
            prop_assert!(function(&mut copy).save().is_ok());
        }
    }
}

#[test]
fn an_overlay_leaves_the_disk_as_it_is() {
    // 9 sectors: the last block of the overlay is shorter than the others.
    let backing = Memory { bytes: Arc::new(Mutex::new((0..9 * 512).map(|i| (i / 512) as u8).collect())), ..disk() };
    let before = backing.bytes.lock().unwrap().clone();
    let overlaid = || Block::new(Box::new(backing.clone()), "x").with_overlay();
    let mut driver = Driver::with(overlaid());
    driver.start(VERSION_1);
    assert!(driver.ram.write(BUFFERS + 0x1000, &[0xab; 1024]));
    assert_eq!(request(&mut driver, 1, 7, (1024, 0)), (0, 1));
    // A flush has nothing to do with the disk.
    let broken = Memory { broken: true, ..backing.clone() };
    let mut other = Driver::with(Block::new(Box::new(broken), "x").with_overlay());
    other.start(VERSION_1);
    for driver in [&mut driver, &mut other] {
        assert_eq!(request(driver, 4, 0, (0, 0)), (0, 1));
    }
    let check = |driver: &mut Driver| {
        assert_eq!(request(driver, 0, 5, (2048, WRITE)), (0, 2049));
        let sectors = [0x1000, 0x1200, 0x1400, 0x1600].map(|at| driver.bytes::<512>(BUFFERS + at));
        assert_eq!(sectors, [[5; 512], [6; 512], [0xab; 512], [0xab; 512]]);
        assert_eq!(request(driver, 0, 0, (512, WRITE)), (0, 513));
        assert_eq!(driver.bytes(BUFFERS + 0x1000), [0; 512]);
    };
    check(&mut driver);
    check(&mut copy(&mut driver, overlaid()).ok().unwrap());
    assert_eq!(*backing.bytes.lock().unwrap(), before);
}

#[test]
fn a_disk_that_is_not_the_same_is_refused() {
    let backing = disk();
    let mut driver = Driver::with(Block::new(Box::new(backing.clone()), "x").with_overlay());
    driver.start(VERSION_1);
    assert_eq!(request(&mut driver, 1, 3, (512, 0)), (0, 1));
    let mut refused = |change: fn(&mut Memory), overlay: bool| {
        let mut other =
            Memory { bytes: Arc::new(Mutex::new(backing.bytes.lock().unwrap().clone())), ..backing.clone() };
        change(&mut other);
        let block = Block::new(Box::new(other), "x");
        copy(&mut driver, if overlay { block.with_overlay() } else { block }).err()
    };
    assert_eq!(refused(|_| (), true), None);
    assert_eq!(refused(|other| other.bytes.lock().unwrap()[5000] ^= 1, true), Some(StateError::Other("disk")));
    assert_eq!(refused(|other| other.bytes.lock().unwrap().truncate(63 * 512), true), Some(StateError::Other("disk")));
    assert_eq!(refused(|other| other.read_only = true, true), Some(StateError::Other("disk")));
    assert_eq!(refused(|other| other.broken = true, true), Some(StateError::Disk("broken".to_owned())));
    assert_eq!(refused(|_| (), false), Some(StateError::NoOverlay));
    assert_eq!(function(&mut block(&backing)).save(), Err(StateError::NoOverlay));
    // A read-only disk is never written and needs no overlay.
    let read_only = Memory { read_only: true, ..disk() };
    let mut driver = block(&read_only);
    assert!(copy(&mut driver, Block::new(Box::new(read_only.clone()), "x")).is_ok());
}

#[test]
fn a_disk_is_identified_by_all_of_its_bytes() {
    // Two pieces of what is read at a time, and a part.
    let image = |changed: usize| {
        let mut bytes = vec![7; 2 * (128 << 10) + 700];
        bytes[changed] ^= 1;
        Memory { bytes: Arc::new(Mutex::new(bytes)), read_only: true, ..disk() }
    };
    let end = 2 * (128 << 10) + 699;
    for changed in [0, (128 << 10) - 1, 128 << 10, end] {
        let mut driver = block(&image(changed));
        assert!(copy(&mut driver, Block::new(Box::new(image(changed)), "x")).is_ok(), "{changed}");
        let other = copy(&mut driver, Block::new(Box::new(image(end / 2)), "x")).err();
        assert_eq!(other, Some(StateError::Other("disk")), "{changed}");
    }
}

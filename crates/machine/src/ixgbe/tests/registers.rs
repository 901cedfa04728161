//! Registers, EEPROM, resets, interrupts.

use super::*;

#[test]
fn the_driver_finds_what_it_looks_for() {
    let mut bench = Bench::new("user");
    assert_eq!(bench.rig.config_read(1, 0, 4), 0x10fb_8086);
    assert_eq!(bench.rig.config_read(1, 0x70, 1), 0x11);
    assert_eq!(bench.rig.config_read(1, 0x72, 2) & 0x7ff, 63);
    assert_eq!(bench.rig.config_read(1, 0xb2, 2), 0x82, "eight lanes at 5 GT/s");
    assert_eq!((bench.read(reg::RAL), bench.read(reg::RAL + 4)), (0x0067_7402, 0x8000_0100));
    assert_eq!(bench.read(reg::LINKS), 0x7000_0000);
    assert_eq!(Bench::new("user:rate=1G").read(reg::LINKS), 0x6000_0000);
    // The words of the EEPROM, read through EERD, have the required sum.
    let mut word = |at: u32| {
        bench.write(reg::EERD, at << 2 | 1);
        let value = bench.read(reg::EERD);
        assert_eq!(value & 2, 2);
        value >> 16
    };
    let fixed: u32 = (0..0x40).map(&mut word).sum();
    let section: u32 = (0x81..=0x83).map(&mut word).sum();
    assert_eq!((fixed + section) & 0xffff, 0xbaba);
    assert_eq!((word(0x81), word(0x0fff), word(0x3fff)), (0x7402, 0xffff, 0xffff));
}

#[test]
fn registers_keep_what_can_be_written() {
    let mut bench = Bench::new("user");
    for (at, written, expected) in [
        (file::rx(70, reg::RDBAL), u32::MAX, 0xffff_ff80),
        (file::rx(0, reg::RDLEN), u32::MAX, 0x000f_ff80),
        (reg::RAL + 12, u32::MAX, 0x8000_ffff),
        (0x3220, u32::MAX, 0x8007_fff0),
        (reg::CTRL, 4, 4),
        (reg::STATUS, u32::MAX, 0),
        (0x1_fff0, u32::MAX, 0),
        (reg::ESDP, 0, 4),
    ] {
        bench.write(at, written);
        assert_eq!(bench.read(at), expected, "{at:#x}");
    }
    // The first 16 registers of some arrays have two addresses.
    bench.write(0x2100, 0x55);
    assert_eq!(bench.read(file::rx(0, reg::SRRCTL)), 0x55);
    bench.write(reg::RAL_LOW + 8, 0x77);
    assert_eq!(bench.read(reg::RAL + 8), 0x77);
    // A read takes the semaphore.
    assert_eq!((bench.read(reg::SWSM), bench.read(reg::SWSM)), (0, 1));
    // The bus to external PHYs is empty, and a command completes at once.
    bench.write(reg::MSCA, bit::MSCA_COMMAND | 0x0c00_0000);
    assert_eq!((bench.read(reg::MSCA), bench.read(reg::MSRWD) >> 16), (0x0c00_0000, 0xffff));
    assert_eq!(bench.rig.mmio_read(BASE + 0x0a, 2), Some(0));
    assert_eq!(bench.rig.mmio_read(BASE + u64::from(reg::RAL), 8), Some(0x8000_0100_0067_7402));
}

#[test]
fn a_reset_leaves_nothing() {
    let mut bench = Bench::started("user");
    bench.write(reg::RAL, 0);
    bench.write(reg::FDIRCTRL, 1);
    bench.write(reg::CTRL, bit::CTRL_RESET);
    assert_eq!(bench.read(reg::CTRL) & bit::CTRL_RESET, 0);
    assert_eq!((bench.read(reg::RXCTRL), bench.read(reg::RAL), bench.read(reg::FDIRCTRL)), (0, 0x0067_7402, 0));
    bench.host_sends(&udp(MAC, 1, 20));
    bench.run(SECOND);
    assert_eq!(bench.read(reg::GPRC), 0);
    // A function-level reset does the same, and so does the return from D3hot, in which the device does not respond.
    for (at, value) in [(0xa8, 0x8000), (0x44, 3), (0x44, 0)] {
        bench.write(reg::RXCTRL, 1);
        bench.rig.config_write(1, at, 2, value);
        assert_eq!(bench.read(reg::RXCTRL), if value == 3 { u32::MAX } else { 0 });
        bench.rig.config_write(1, 4, 2, 6);
    }
    assert_eq!(bench.rig.config_read(1, 0xa8, 2) & 0x8000, 0);
}

#[test]
fn an_idle_device_has_no_events() {
    let bench = Bench::started("generator:start=request");
    assert_eq!(crate::device::Device::next_event(&bench.rig.bus), None);
    // Traffic for which there are no descriptors does not wake the device.
    let mut bench = Bench::started("generator:rate=1M");
    bench.write(file::rx(0, reg::RDT), 0);
    assert_eq!(crate::device::Device::next_event(&bench.rig.bus), None);
    bench.run(SECOND / 100);
    bench.write(file::rx(0, reg::RDT), 10);
    assert_eq!(bench.read(file::rx(0, reg::RDH)), 10);
    // 8192 frames of 64 bytes fit in the packet buffer; the others are missed.
    let (missed, good) = (bench.read(reg::MPC), bench.read(reg::GPRC));
    assert_eq!((good, (1780..1820).contains(&missed)), (8192, true), "{missed}");
}

#[test]
fn interrupts_are_throttled_and_masked() {
    let mut bench = Bench::started("user");
    // At least 10 us between two interrupts.
    bench.write(reg::EITR, 5 << 3);
    let at = |bench: &mut Bench| {
        bench.host_sends(&udp(MAC, 1, 20));
        bench.run(SECOND / 500_000);
        let came = bench.interrupts();
        bench.write(reg::EIMS_EX, 1);
        came.len()
    };
    assert_eq!([at(&mut bench), at(&mut bench), at(&mut bench)], [1, 0, 0]);
    let event = crate::device::Device::next_event(&bench.rig.bus).unwrap();
    assert!((9_000_000..12_000_000).contains(&event), "{event}");
    bench.run(SECOND / 100_000);
    assert_eq!(bench.interrupts(), [0x40]);
    // The message has set the mask.
    assert_eq!(bench.read(reg::EIMS_EX), 2);
    bench.run(SECOND);
    bench.host_sends(&udp(MAC, 1, 20));
    bench.run(SECOND);
    assert!(bench.interrupts().is_empty());
    bench.write(reg::EIMS_EX, 1);
    assert_eq!(bench.interrupts(), [0x40]);
    // A cause other than a queue's is sent to the other vector, once.
    bench.write(reg::EIMS, bit::EICR_LINK);
    bench.write(reg::AUTOC, bit::AUTOC_RESTART | 3 << 13);
    assert_eq!((bench.interrupts(), bench.read(reg::EICS)), (vec![0x41], bit::EICR_LINK));
    bench.write(reg::EICR, bit::EICR_LINK);
    assert_eq!((bench.read(reg::EICS), bench.interrupts()), (0, vec![]));
    bench.write(reg::EICS_EX, 3);
    assert_eq!(bench.read(reg::EICR), 1, "masked");
    assert_eq!(bench.interrupts(), [0x41]);
}

#[test]
fn the_pin_follows_causes_and_masks() {
    let mut bench = Bench::started("user");
    bench.rig.config_write(1, 0x72, 2, 0);
    let high = |bench: &Bench| bench.rig.lines().iter().any(|(_, level)| *level);
    bench.write(reg::EIAM, 0xffff);
    bench.write(reg::EIMS, 1);
    assert!(!high(&bench));
    bench.host_sends(&udp(MAC, 1, 20));
    bench.run(SECOND);
    assert!(high(&bench) && bench.interrupts().is_empty());
    assert_eq!(bench.read(reg::EICR), 1);
    assert!(!high(&bench));
    // The read has masked the cause.
    assert_eq!(bench.read(reg::EIMS) & 1, 0);
    bench.write(reg::EICS, 1);
    assert!(!high(&bench));
    bench.write(reg::EIMS, 1);
    assert!(high(&bench));
}

#[test]
fn the_clock_for_time_stamps_runs() {
    let mut bench = Bench::new("user");
    bench.write(reg::TIMINCA, 2 << 24 | 10);
    bench.run(12_800 * 100);
    assert_eq!(bench.read(reg::SYSTIML), 1000);
    bench.write(reg::SYSTIMH, 5);
    bench.run(12_800);
    assert_eq!((bench.read(reg::SYSTIML), bench.read(reg::SYSTIMH)), (1010, 5));
}

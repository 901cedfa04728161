//! Save and restore of a device.

use super::*;
use crate::pci::Function;

/// Returns a busy device: frames wait in both directions, an interrupt is throttled, a packet is incomplete.
fn busy() -> Bench {
    let mut bench = Bench::started("user");
    bench.write(reg::EITR, 50 << 3);
    bench.queue(0, 2);
    for port in 0..5 {
        bench.host_sends(&udp(MAC, port, 30));
        bench.run(SECOND / 1_000_000);
    }
    let frame = tcp(9000);
    assert!(bench.rig.ram.write(SENT, &frame));
    bench.context(14, 20, 20, 0, 1000, 3);
    for number in 0..30 {
        let end = u32::from(number != 29) << 24;
        bench.describe([SENT as u32, 0, 9054 | 3 << 20 | 10 << 24 & !(1 << 24) | end | 1 << 29, 0]);
    }
    bench.write(file::tx(0, reg::TDT), bench.tail);
    bench.write(reg::FDIRCTRL, 0x4a06_0001);
    bench.rig.mmio_write(BASE + u64::from(reg::FDIRHASH), 8, 0x0002_8849_38fe_2c19);
    bench
}

#[test]
fn a_saved_device_goes_on() {
    let mut bench = busy();
    let state = bench.rig.bus.function(1).unwrap().save().unwrap();
    let network = bench.network.lock().unwrap().save();
    let mut other = Bench::new("user");
    other.network.lock().unwrap().restore(network);
    other.rig.take_on(&bench.rig);
    other.rig.bus.function(1).unwrap().restore(&state).unwrap();
    assert_eq!(other.rig.bus.function(1).unwrap().save().unwrap(), state);
    let memory = bench.bytes(0, 4 << 20);
    assert!(other.rig.ram.write(0, &memory));
    let finish = |bench: &mut Bench| {
        bench.write(file::rx(0, reg::RDT), 40);
        bench.write(reg::EIMS_EX, 3);
        bench.run(SECOND / 100);
        let counts = [reg::GPRC, reg::GPTC, reg::FDIRFREE, file::tx(0, reg::TDH), file::rx(0, reg::RDH)];
        let counts = counts.map(|at| bench.read(at));
        (counts, bench.interrupts(), bench.to_host(), bench.bytes(0, 4 << 20))
    };
    bench.interrupts();
    assert!(finish(&mut bench) == finish(&mut other));
    assert_eq!(other.read(file::rx(0, reg::RDH)), 5);
}

#[test]
fn damaged_states_change_nothing() {
    let mut bench = busy();
    let function: &mut Box<dyn Function> = bench.rig.bus.function(1).unwrap();
    let state = function.save().unwrap();
    for at in 0..state.len() {
        let mut damaged = state.clone();
        damaged[at] ^= 0x55;
        if function.restore(&damaged).is_err() {
            assert_eq!(function.save().unwrap(), state, "{at}");
        } else {
            function.restore(&state).unwrap();
        }
    }
    assert!(function.restore(&state[..state.len() - 1]).is_err());
}

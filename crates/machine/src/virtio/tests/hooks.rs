//! Tests of the calls from transport to device: features, start and stop of queues, time and input.

use std::sync::{Arc, Mutex};

use super::*;
use crate::device::DeviceContext;
use crate::pci::Inbox;
use crate::state::{Saved, StateError, decode, encode};

#[derive(Clone, Debug, PartialEq, Eq)]
enum Told {
    Features(u64),
    Started(u16),
    Stopped(u16),
    Reset,
}

/// A device that writes the time to a buffer of queue 0 whenever its alarm expires, and logs the calls it receives.
#[derive(Clone, Default)]
struct Listener {
    told: Arc<Mutex<Vec<Told>>>,
    alarm: Option<u64>,
    rang: Option<u64>,
}

impl Saved for Listener {
    fn version(&self) -> u32 {
        7
    }

    fn save(&self) -> Result<Vec<u8>, StateError> {
        encode(&(self.alarm, self.rang))
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        (self.alarm, self.rang) = decode(bytes)?;
        Ok(())
    }
}

impl Device for Listener {
    fn name(&self) -> &'static str {
        "listener"
    }
    fn kind(&self) -> u16 {
        30
    }
    fn class(&self) -> u32 {
        0xff_0000
    }
    fn features(&self) -> u64 {
        5
    }
    fn queues(&self) -> &[u16] {
        &[8; 2]
    }
    fn config(&self) -> &[u8] {
        &[]
    }
    fn negotiated(&mut self, features: u64) {
        self.told.lock().unwrap().push(Told::Features(features));
    }
    fn started(&mut self, queue: u16, _now: u64) {
        self.told.lock().unwrap().push(Told::Started(queue));
    }
    fn stopped(&mut self, queue: u16, _now: u64) {
        self.told.lock().unwrap().push(Told::Stopped(queue));
    }
    fn process(&mut self, _queue: u16, ring: &mut Ring, ctx: &mut DeviceContext) -> Result<(), Broken> {
        if let (Some(_), Some(mut chain)) = (self.rang, ring.pop()?) {
            self.rang = None;
            let written = chain.write(&ctx.now.to_le_bytes());
            ring.push(chain, written as u32)?;
        }
        Ok(())
    }
    fn has_input(&self, queue: u16) -> bool {
        queue == 0 && self.rang.is_some()
    }
    fn input(&mut self, bytes: &[u8]) {
        self.alarm = bytes.first().map(|&at| at.into());
    }
    fn inbox(&self) -> Inbox {
        Inbox { open: true, unread: usize::from(self.alarm.is_some()) }
    }
    fn next_event(&self) -> Option<u64> {
        self.alarm
    }
    fn advance(&mut self, now: u64) {
        self.rang = self.alarm.take_if(|at| *at <= now).or(self.rang);
    }
    fn reset(&mut self) {
        self.told.lock().unwrap().push(Told::Reset);
    }
}

#[test]
fn a_device_is_told_of_features_and_queues() {
    use Told::{Features, Reset, Started, Stopped};
    let listener = Listener::default();
    let told = || std::mem::take(&mut *listener.told.lock().unwrap());
    let mut driver = Driver::with(listener.clone());
    driver.start(VERSION_1 | 4);
    assert_eq!(told(), [Reset, Features(VERSION_1 | 4), Started(0), Started(1)]);
    // A queue outside of memory breaks the device; its queues stop before it reports that.
    driver.write(0x14, 1, 0);
    assert_eq!(told(), [Stopped(0), Stopped(1), Reset]);
    driver.write(0x14, 1, 3);
    driver.write(0x08, 4, 1);
    driver.write(0x0c, 4, 1);
    driver.write(0x14, 1, 0xf);
    driver.set_up(1, rings(1));
    assert_eq!(told(), [Features(VERSION_1), Started(1)]);
    driver.write(0x16, 2, 0);
    driver.write(0x20, 8, 0xffff_ffff_0000);
    driver.write(0x1c, 2, 1);
    assert_eq!((driver.status(), told()), (0x4f, vec![Stopped(1)]));
    driver.start(4);
    assert_eq!(told(), [Reset], "features without version 1 are not accepted, and nothing starts");
}

#[test]
fn a_device_acts_at_its_time() {
    let mut driver = Driver::with(Listener::default());
    driver.start(VERSION_1);
    driver.enable_msix();
    driver.offer(0, 0, &[(BUFFERS, 8, WRITE)]);
    let next = |driver: &Driver| crate::device::Device::next_event(&driver.bus.bus);
    assert_eq!((next(&driver), driver.bus.bus.function(1).unwrap().version()), (None, 7));
    driver.input(&[100]);
    assert_eq!((next(&driver), driver.bus.bus.inbox(1).unread), (Some(100), 1));
    driver.bus.advance(99);
    assert_eq!((driver.used(0).0, next(&driver)), (0, Some(100)));
    driver.bus.advance(101);
    assert_eq!((driver.used(0), next(&driver), driver.messages()), ((1, 0, 8), None, vec![0x41]));
    assert_eq!(u64::from_le_bytes(driver.bytes(BUFFERS)), 101);
}

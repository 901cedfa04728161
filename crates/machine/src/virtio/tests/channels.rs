//! Channels between programs of the guest and the host.

use super::states::{copy, function};
use super::*;
use crate::host::Piece;
use crate::state::Saved;
use crate::virtio::control::{event, message};
use serde::Serialize;
use std::ops::{Deref, DerefMut};

/// Queues of the first port, for control messages, and of the second port.
const INPUT: u16 = 0;
const OUTPUT: u16 = 1;
const CONTROL_INPUT: u16 = 2;
const CONTROL_OUTPUT: u16 = 3;
const SECOND_INPUT: u16 = 4;
const SECOND_OUTPUT: u16 = 5;
const MULTIPORT: u64 = 1 << 1;
/// Addresses of received control messages and of input.
const MESSAGES: u64 = BUFFERS + 0x1_0000;
const TEXT: u64 = BUFFERS + 0x2_0000;
const BUFFER: u32 = 64;

fn two() -> Ports {
    Ports::channels(vec!["control".into(), "stdin".into()])
}

/// A driver, and how many used buffers of each queue it has looked at.
struct Guest {
    driver: Driver,
    seen: [u16; 8],
}

impl Deref for Guest {
    type Target = Driver;

    fn deref(&self) -> &Driver {
        &self.driver
    }
}

impl DerefMut for Guest {
    fn deref_mut(&mut self) -> &mut Driver {
        &mut self.driver
    }
}

fn driver() -> Guest {
    let mut guest = Guest { driver: Driver::with(two()), seen: [0; 8] };
    guest.begin();
    guest
}

impl Guest {
    fn begin(&mut self) {
        self.start(VERSION_1 | MULTIPORT);
        self.seen = [0; 8];
    }

    /// Sends a control message.
    fn say(&mut self, bytes: &[u8]) {
        assert!(self.ram.write(BUFFERS, bytes));
        self.offer(CONTROL_OUTPUT, 0, &[(BUFFERS, bytes.len() as u32, 0)]);
        self.notify(CONTROL_OUTPUT);
    }

    fn says(&mut self, port: u32, event: u16, value: u16) {
        self.say(&message(port, event, value));
    }

    /// Receives from a queue, a buffer at a time, until nothing arrives.
    fn takes(&mut self, queue: u16, at: u64) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        let number = usize::from(queue);
        loop {
            // A buffer that was not used is still there. One that was may have been used before this call.
            if self.used(queue).0 == self.seen[number] {
                if self.available[number] == self.seen[number] {
                    self.offer(queue, 0, &[(at, BUFFER, WRITE)]);
                }
                self.notify(queue);
            }
            let (index, _, len) = self.used(queue);
            if index == self.seen[number] {
                return all;
            }
            self.seen[number] = index;
            let mut bytes = vec![0; len as usize];
            assert!(self.ram.read(at, &mut bytes));
            all.push(bytes);
        }
    }

    fn told(&mut self) -> Vec<Vec<u8>> {
        self.takes(CONTROL_INPUT, MESSAGES)
    }

    fn gives(&mut self, channel: u8, bytes: &[u8], last: bool) {
        self.bus.piece(1, &Piece { channel, bytes: bytes.to_vec(), last });
    }

    fn is_open(&self, channel: u8) -> bool {
        self.bus.bus.channel_inbox(1, channel).open
    }

    fn unread(&self, channel: u8) -> usize {
        self.bus.bus.channel_inbox(1, channel).unread
    }

    /// Returns the guest's output since the last call.
    fn wrote(&mut self) -> Vec<(u8, Vec<u8>)> {
        std::mem::take(&mut self.bus.out.channels)
    }
}

fn list(messages: &[(u32, u16, u16)]) -> Vec<Vec<u8>> {
    messages.iter().map(|(port, event, value)| message(*port, *event, *value).to_vec()).collect()
}

#[test]
fn a_driver_learns_of_each_port_its_name_and_that_it_is_open() {
    let mut driver = driver();
    assert_eq!((driver.read(0x12, 2), driver.bus.mmio_read(DEVICE + 4, 4)), (6, Some(2)));
    assert_eq!(driver.told(), list(&[]));
    driver.says(0, event::DEVICE_READY, 0);
    assert_eq!(driver.told(), list(&[]), "the driver has failed");
    driver.says(0, event::DEVICE_READY, 1);
    assert_eq!(driver.told(), list(&[(0, event::PORT_ADD, 1), (1, event::PORT_ADD, 1)]));
    driver.says(1, event::PORT_READY, 1);
    let name = [&message(1, event::PORT_NAME, 1)[..], b"stdin"].concat();
    assert_eq!(driver.told(), [name, message(1, event::PORT_OPEN, 1).to_vec()]);
}

#[test]
fn messages_that_make_no_sense_are_dropped() {
    let mut driver = driver();
    for (port, event, value) in [
        (2, event::PORT_READY, 1),
        (u32::MAX, event::PORT_READY, 1),
        (0, event::PORT_READY, 0),
        (2, event::PORT_OPEN, 1),
        (u32::MAX, event::PORT_OPEN, 1),
        (0, event::PORT_ADD, 1),
        (0, event::CONSOLE_PORT, 1),
        (0, 0xffff, 1),
    ] {
        driver.says(port, event, value);
    }
    driver.say(&message(0, event::DEVICE_READY, 1)[..7]);
    driver.say(&[]);
    assert_eq!(driver.told(), list(&[]));
    assert!(!driver.is_open(0) && !driver.is_open(1));
    // A message may be longer than its structure.
    driver.say(&[&message(1, event::PORT_OPEN, 1)[..], b"more"].concat());
    assert!(driver.is_open(1));
}

#[test]
fn messages_that_nobody_takes_are_lost_beyond_a_limit() {
    let mut driver = driver();
    (0..200).for_each(|_| driver.says(0, event::DEVICE_READY, 1));
    assert_eq!(driver.told().len(), 256);
    driver.says(0, event::DEVICE_READY, 1);
    assert_eq!(driver.told().len(), 2, "later ones are not");
}

#[test]
fn what_programs_write_comes_out_with_the_number_of_the_port() {
    let mut driver = driver();
    assert!(driver.ram.write(TEXT, b"first second"));
    driver.offer(OUTPUT, 0, &[(TEXT, 3, 0), (TEXT + 3, 2, 0)]);
    driver.notify(OUTPUT);
    driver.offer(SECOND_OUTPUT, 0, &[(TEXT + 6, 6, 0)]);
    driver.offer(SECOND_OUTPUT, 1, &[(TEXT, 0, 0)]);
    driver.notify(SECOND_OUTPUT);
    assert_eq!(driver.wrote(), [(0, b"first".to_vec()), (1, b"second".to_vec())]);
    assert_eq!((driver.used(OUTPUT).0, driver.used(SECOND_OUTPUT).0), (1, 2));
}

#[test]
fn a_request_may_be_so_long_and_no_longer() {
    let mut driver = driver();
    // The same two megabytes, a byte more than the device takes of one request.
    driver.offer(OUTPUT, 0, &[(BUFFERS, 1 << 20, 0), (BUFFERS, 1, 0)]);
    driver.notify(OUTPUT);
    let wrote = driver.wrote();
    assert_eq!(wrote.iter().map(|(port, bytes)| (*port, bytes.len())).collect::<Vec<_>>(), [(0, 1 << 20)]);
}

#[test]
fn input_waits_until_a_program_opens_the_port() {
    let mut driver = driver();
    assert!(driver.takes(SECOND_INPUT, TEXT).is_empty());
    driver.gives(1, b"typed ahead", false);
    assert_eq!((driver.unread(1), driver.unread(0), driver.is_open(1)), (11, 0, false));
    assert!(driver.takes(SECOND_INPUT, TEXT).is_empty());
    driver.says(1, event::PORT_OPEN, 1);
    assert_eq!(driver.takes(SECOND_INPUT, TEXT), [b"typed ahead"]);
    assert_eq!((driver.unread(1), driver.is_open(1)), (0, true));
    // Input goes at once to the buffer that waits.
    driver.gives(1, b"now", false);
    assert_eq!(driver.unread(1), 0);
    assert_eq!(driver.takes(SECOND_INPUT, TEXT), [b"now"]);
    assert!(driver.takes(INPUT, TEXT).is_empty(), "the other port has none");
    driver.says(1, event::PORT_OPEN, 0);
    driver.gives(1, b"later", false);
    assert_eq!((driver.unread(1), driver.is_open(1)), (5, false));
    // This port does not exist.
    driver.gives(2, b"nobody", true);
    assert_eq!((driver.unread(2), driver.is_open(2)), (0, false));
}

#[test]
fn long_input_comes_in_the_guests_buffers() {
    let mut driver = driver();
    driver.says(0, event::PORT_OPEN, 1);
    let text: Vec<u8> = (0..200u8).collect();
    driver.gives(0, &text[..150], false);
    driver.gives(0, &text[150..], false);
    let pieces = driver.takes(INPUT, TEXT);
    assert_eq!(pieces.iter().map(Vec::len).collect::<Vec<_>>(), [64, 64, 64, 8]);
    assert_eq!(pieces.concat(), text);
}

#[test]
fn the_end_is_told_once_when_all_is_read() {
    let mut driver = driver();
    let end = list(&[(1, event::PORT_OPEN, 0)]);
    driver.gives(1, b"last words", true);
    assert_eq!(driver.told(), list(&[]), "nobody has opened the port");
    driver.says(1, event::PORT_OPEN, 1);
    assert_eq!(driver.told(), list(&[]), "there is something to read");
    assert!(!driver.is_open(1), "no more may come");
    assert_eq!(driver.takes(SECOND_INPUT, TEXT), [b"last words"]);
    assert_eq!(driver.told(), end);
    driver.takes(SECOND_INPUT, TEXT);
    driver.says(1, event::PORT_OPEN, 1);
    assert_eq!(driver.told(), list(&[]));
    // The end of an empty stream is also reported at once.
    driver.says(0, event::PORT_OPEN, 1);
    driver.gives(0, b"", true);
    assert_eq!(driver.told(), list(&[(0, event::PORT_OPEN, 0)]));
}

#[test]
fn a_driver_that_begins_anew_is_told_the_end_again() {
    let mut driver = driver();
    driver.says(0, event::PORT_OPEN, 1);
    driver.says(1, event::PORT_OPEN, 1);
    driver.gives(1, b"", true);
    driver.says(0, event::DEVICE_READY, 1);
    assert!(driver.is_open(0));
    driver.begin();
    assert_eq!(driver.told(), list(&[]), "what was for the driver before is gone");
    assert!(!driver.is_open(0) && !driver.is_open(1));
    driver.says(1, event::PORT_OPEN, 1);
    assert_eq!(driver.told(), list(&[(1, event::PORT_OPEN, 0)]));
}

#[test]
fn a_saved_device_goes_on_where_it_was() {
    let mut driver = driver();
    driver.says(1, event::PORT_OPEN, 1);
    driver.says(0, event::DEVICE_READY, 1);
    driver.gives(1, b"not read", true);
    let copied = copy(&mut driver, two()).unwrap();
    let mut other = Guest { driver: copied, seen: driver.seen };
    for driver in [&mut driver, &mut other] {
        assert_eq!(driver.told(), list(&[(0, event::PORT_ADD, 1), (1, event::PORT_ADD, 1)]));
        assert_eq!(driver.takes(SECOND_INPUT, TEXT), [b"not read"]);
        assert_eq!(driver.told(), list(&[(1, event::PORT_OPEN, 0)]));
    }
    // The state of another set of channels is refused.
    let state = function(&mut driver).save().unwrap();
    let mut names = Driver::with(Ports::channels(vec!["control".into(), "other".into()]));
    assert!(function(&mut names).restore(&state).is_err());
    let mut one = Driver::with(Ports::channels(vec!["control".into()]));
    assert!(function(&mut one).restore(&state).is_err());
}

#[test]
fn there_are_so_many_ports_and_no_more() {
    let names = |count: usize| (0..count).map(|number| number.to_string()).collect::<Vec<_>>();
    for (asked, made) in [(0, 0), (1, 1), (16, 16), (17, 16)] {
        let device = Ports::channels(names(asked));
        assert_eq!(device.queues().len(), 2 * (made + 1), "{asked}");
        assert_eq!(device.config()[4..8], (made as u32).to_le_bytes(), "{asked}");
    }
}

#[test]
fn a_message_goes_to_the_buffer_that_waits_and_output_waits_for_its_notification() {
    let mut driver = driver();
    driver.offer(CONTROL_INPUT, 0, &[(MESSAGES, BUFFER, WRITE)]);
    driver.notify(CONTROL_INPUT);
    assert!(driver.ram.write(TEXT, b"text"));
    driver.offer(OUTPUT, 0, &[(TEXT, 4, 0)]);
    driver.says(1, event::DEVICE_READY, 1);
    assert_eq!((driver.used(CONTROL_INPUT), driver.bytes(MESSAGES)), ((1, 0, 8), message(0, event::PORT_ADD, 1)));
    assert!(driver.wrote().is_empty());
    driver.notify(OUTPUT);
    assert_eq!(driver.wrote(), [(0, b"text".to_vec())]);
}

#[test]
fn so_many_messages_are_restored_and_no_more() {
    let device = two();
    #[derive(Serialize)]
    enum Purpose {
        #[expect(dead_code, reason = "the first purpose of a port, which has no channel")]
        Console,
        Channel(&'static str),
    }
    let purposes = vec![Purpose::Channel("control"), Purpose::Channel("stdin")];
    for (count, accepted) in [(256, true), (257, false)] {
        // Purposes; the ports, without input and flags; control messages are used; the messages.
        let port = (Vec::<u8>::new(), false, false, false);
        let state = (&purposes, (vec![port.clone(), port], true, vec![vec![0u8; 8]; count]));
        assert_eq!(device.clone().restore(&crate::state::encode(&state).unwrap()).is_ok(), accepted, "{count}");
    }
    let state = (&purposes, (vec![(Vec::<u8>::new(), false, false, false)], true, Vec::<Vec<u8>>::new()));
    assert!(device.clone().restore(&crate::state::encode(&state).unwrap()).is_err(), "a port is missing");
}

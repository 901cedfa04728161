//! Tests of channels: a driver announces itself, opens ports, reads and writes, as Linux's virtio_console does.

use super::*;
use crate::host::Piece;
use crate::state::Saved;

/// VIRTIO_CONSOLE_F_MULTIPORT.
const MULTIPORT: u64 = 1 << 1;
/// Queues of port 0, of control messages, and of port 1.
const INPUT: [u16; 2] = [0, 4];
const OUTPUT: [u16; 2] = [1, 5];
const CONTROL: u16 = 2;
const SAY: u16 = 3;
const READY: u16 = 0;
const PORT_READY: u16 = 3;
const OPEN: u16 = 6;

fn names() -> Vec<String> {
    vec!["first".into(), "second".into()]
}

fn driver() -> Driver {
    let mut driver = Driver::with(Channels::new(names()));
    driver.start(VERSION_1 | MULTIPORT);
    driver
}

fn encoded(port: u32, event: u16, value: u16) -> Vec<u8> {
    [&port.to_le_bytes()[..], &event.to_le_bytes(), &value.to_le_bytes()].concat()
}

impl Driver {
    /// Sends bytes to the device on a queue.
    fn put(&mut self, queue: u16, bytes: &[u8]) {
        assert!(self.ram.write(BUFFERS, bytes));
        self.offer(queue, 0, &[(BUFFERS, bytes.len() as u32, 0)]);
        self.notify(queue);
    }

    /// Says something about a port.
    fn say(&mut self, port: u32, event: u16, value: u16) {
        self.put(SAY, &encoded(port, event, value));
    }

    /// Offers a buffer for what the device has on a queue. Returns the content that the device wrote, if it used the buffer.
    fn get(&mut self, queue: u16, len: u32) -> Option<Vec<u8>> {
        let at = BUFFERS + 0x1000 * (1 + u64::from(queue));
        let before = self.used(queue).0;
        self.offer(queue, 0, &[(at, len, WRITE)]);
        self.notify(queue);
        let (index, _, written) = self.used(queue);
        let mut bytes = vec![0; written as usize];
        (index != before && self.ram.read(at, &mut bytes)).then_some(bytes)
    }

    /// The control messages that wait, one per buffer. The last buffer stays with the device.
    fn heard(&mut self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.get(CONTROL, 64)).collect()
    }

    fn piece(&mut self, channel: u8, bytes: &[u8], last: bool) {
        let piece = Piece { channel, bytes: bytes.to_vec(), last };
        self.bus.with(|bus, ctx| bus.piece(1, &piece, ctx));
    }

    fn inbox(&self, channel: u8) -> (bool, usize) {
        let inbox = self.bus.bus.channel_inbox(1, channel);
        (inbox.open, inbox.unread)
    }
}

#[test]
fn ports_are_announced_by_number_and_name() {
    let mut driver = driver();
    assert_eq!(driver.bus.mmio_read(DEVICE + 4, 4), Some(2));
    driver.say(0, READY, 1);
    assert_eq!([driver.get(CONTROL, 64), driver.get(CONTROL, 64)], [Some(encoded(0, 1, 1)), Some(encoded(1, 1, 1))]);
    driver.say(1, PORT_READY, 1);
    let name = [encoded(1, 7, 1), b"second".to_vec()].concat();
    assert_eq!([driver.get(CONTROL, 64), driver.get(CONTROL, 64)], [Some(name), Some(encoded(1, OPEN, 1))]);
    // A port that is not there is not described.
    driver.say(2, PORT_READY, 1);
    driver.say(u32::MAX, OPEN, 1);
    assert_eq!(driver.heard(), Vec::<Vec<u8>>::new());
}

#[test]
fn output_has_the_number_of_its_port() {
    let mut driver = driver();
    driver.put(OUTPUT[1], b"from the second");
    driver.put(OUTPUT[0], b"from the first");
    driver.put(OUTPUT[0], b"");
    let written = std::mem::take(&mut driver.bus.out.channels);
    assert_eq!(written, [(1, b"from the second".to_vec()), (0, b"from the first".to_vec())]);
}

#[test]
fn input_waits_until_the_port_is_open_and_then_ends() {
    let mut driver = driver();
    driver.piece(1, b"early", false);
    assert_eq!((driver.inbox(0), driver.inbox(1)), ((false, 0), (false, 5)));
    assert_eq!(driver.get(INPUT[1], 3), None);
    driver.say(1, OPEN, 1);
    // The buffer that was offered before is used now.
    driver.notify(INPUT[1]);
    assert_eq!((driver.used(INPUT[1]).0, driver.inbox(1)), (1, (true, 2)));
    driver.piece(1, b"!", true);
    // The end is told after everything before it was taken.
    assert_eq!(driver.heard(), Vec::<Vec<u8>>::new());
    assert_eq!(driver.inbox(1), (false, 3));
    assert_eq!(driver.get(INPUT[1], 64), Some(b"ly!".to_vec()));
    driver.notify(CONTROL);
    let at = BUFFERS + 0x1000 * (1 + u64::from(CONTROL));
    assert_eq!((driver.used(CONTROL).0, driver.bytes::<8>(at).to_vec()), (1, encoded(1, OPEN, 0)));
    // It is told once.
    driver.piece(1, b"", true);
    assert_eq!(driver.heard(), Vec::<Vec<u8>>::new());
}

#[test]
fn a_closed_port_keeps_its_input() {
    let mut driver = driver();
    driver.say(0, OPEN, 1);
    driver.say(0, OPEN, 0);
    driver.piece(0, b"kept", false);
    assert_eq!((driver.get(INPUT[0], 64), driver.inbox(0)), (None, (false, 4)));
    driver.say(0, OPEN, 1);
    driver.notify(INPUT[0]);
    assert_eq!((driver.used(INPUT[0]).2, driver.inbox(0)), (4, (true, 0)));
    // Input for a channel that is not there is nobody's.
    driver.piece(9, b"lost", true);
    assert_eq!(driver.inbox(9), (false, 0));
}

#[test]
fn nonsense_does_no_harm() {
    let mut driver = driver();
    for bytes in [&b""[..], b"short", &[0xff; 8], &[0xff; 64]] {
        driver.put(SAY, bytes);
    }
    (0..1000).for_each(|_| driver.say(0, READY, 1));
    // Messages beyond the limit are dropped.
    assert_eq!(driver.heard().len(), 256);
    assert_eq!(driver.status(), 0xf);
}

#[test]
fn a_saved_state_is_that_of_the_same_ports() {
    let mut channels = Channels::new(names());
    channels.piece(&Piece { channel: 0, bytes: b"text".to_vec(), last: true });
    let state = channels.save().unwrap();
    let mut same = Channels::new(names());
    same.restore(&state).unwrap();
    assert_eq!(same.save().unwrap(), state);
    assert_eq!(same.channel_inbox(0).unread, 4);
    assert!(Channels::new(vec!["first".into()]).restore(&state).is_err());
    for len in 0..state.len() {
        assert!(Channels::new(names()).restore(&state[..len]).is_err(), "{len}");
    }
    let many = Channels::new((0..40).map(|n| n.to_string()).collect());
    assert_eq!(many.queues().len(), 2 * 17);
}

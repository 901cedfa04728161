//! Tests of the file system device: requests and answers, and when it can be saved.

use super::states::function;
use super::*;
use crate::state::{Saved, StateError};
use guestfs::Server;

const INIT: u32 = 26;
const FORGET: u32 = 2;
const LOOKUP: u32 = 1;
const REQUEST: u64 = BUFFERS;
const ANSWER: u64 = BUFFERS + 0x20_0000;

fn driver() -> Driver {
    let mut driver = Driver::with(Files::new(Server::new()));
    driver.start(VERSION_1);
    driver
}

/// Returns a request of the FUSE protocol for node 1: length, operation, unique number, node, user, group, process.
fn request(operation: u32, unique: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = (40 + body.len() as u32).to_le_bytes().to_vec();
    bytes.extend(operation.to_le_bytes());
    bytes.extend(unique.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    bytes.extend([0; 16]);
    bytes.extend(body);
    bytes
}

/// Version 7.38, and no wishes.
fn init() -> Vec<u8> {
    [7u32, 38, 0, 0].iter().flat_map(|word| word.to_le_bytes()).chain([0; 48]).collect()
}

/// Sends a request in two buffers to a queue. Returns the answer, in a buffer of `room` bytes.
fn ask(driver: &mut Driver, queue: u16, request: &[u8], room: u32) -> Vec<u8> {
    assert!(driver.ram.write(REQUEST, request));
    let before = driver.used(queue).0;
    driver.offer(queue, 0, &[(REQUEST, 40, 0), (REQUEST + 40, request.len() as u32 - 40, 0), (ANSWER, room, WRITE)]);
    driver.notify(queue);
    let (index, _, len) = driver.used(queue);
    assert_eq!(index, before.wrapping_add(1), "each request is returned");
    let mut answer = vec![0; len as usize];
    assert!(driver.ram.read(ANSWER, &mut answer));
    answer
}

/// Returns length, error and unique number of an answer.
fn head(answer: &[u8]) -> (u32, i32, u64) {
    let word = |at: usize| answer[at..at + 4].try_into().unwrap();
    (u32::from_le_bytes(word(0)), i32::from_le_bytes(word(4)), u64::from_le_bytes(answer[8..16].try_into().unwrap()))
}

#[test]
fn the_configuration_has_the_tag_and_one_queue_of_requests() {
    let mut driver = driver();
    let bytes: Vec<u8> = (0..40).map(|at| driver.bus.mmio_read(DEVICE + at, 1).unwrap() as u8).collect();
    assert_eq!(bytes, [&b"tollgate"[..], &[0; 28], &[1, 0, 0, 0]].concat());
}

#[test]
fn requests_of_each_queue_are_answered() {
    let mut driver = driver();
    for queue in [0, 1] {
        let answer = ask(&mut driver, queue, &request(INIT, 7, &init()), 4096);
        assert_eq!(head(&answer), (answer.len() as u32, 0, 7), "queue {queue}");
        let missing = ask(&mut driver, queue, &request(LOOKUP, 8, b"nothing\0"), 4096);
        assert_eq!(head(&missing), (16, -2, 8), "there is no such file");
        assert!(ask(&mut driver, queue, &request(FORGET, 9, &[0; 8]), 4096).is_empty(), "it has no answer");
        assert!(ask(&mut driver, queue, &request(LOOKUP, 8, b"nothing\0"), 15).is_empty(), "there is no room");
    }
}

#[test]
fn a_request_may_have_a_transfer_and_its_names_and_no_more() {
    let mut driver = driver();
    let longest = (1 << 20) + (64 << 10);
    for (len, error) in [(longest, -2), (longest + 1, -22)] {
        let name = [&vec![b'a'; len - 41][..], &[0]].concat();
        let answer = ask(&mut driver, 1, &request(LOOKUP, 3, &name), 64);
        let (_, got, unique) = head(&answer);
        assert_eq!((got == -22, unique), (error == -22, 3), "{len}: {got}");
    }
}

#[test]
fn a_device_whose_files_are_mounted_is_not_saved() {
    let mut driver = driver();
    assert_eq!(function(&mut driver).save().map(|_| ()), Ok(()));
    let mut device = Files::new(Server::new());
    assert_eq!((device.save(), device.restore(&[])), (Ok(vec![]), Ok(())));
    assert_eq!(device.restore(&[0, 1]), Err(StateError::Trailing(2)));
    ask(&mut driver, 1, &request(INIT, 1, &init()), 4096);
    assert_eq!(function(&mut driver).save(), Err(StateError::Mounted));
    let mut server = Server::new();
    server.answer(&request(INIT, 1, &init()), 4096);
    let mut mounted = Files::new(server);
    assert_eq!((mounted.save(), mounted.restore(&[])), (Err(StateError::Mounted), Err(StateError::Mounted)));
}

//! The side of the guest: commands that join connect to a socket, and their records go to process 1 of the guest and back. The machine's thread serves
//! them between two slices of the guest's time, and never waits for them.

use super::place::Socket;
use super::wire::{LONGEST_ORDER, Order, PIECE, Received, WINDOW, kind, number, record};
use crate::exec_cmd::control::Records;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Largest number of commands that join at a time, as process 1 of the guest has it.
const MOST: usize = 8;
/// Largest number of connections whose command has not come. A further one ends the oldest of them.
const MOST_WAITING: usize = 16;
/// Time in which the command of a connection must come.
const TIME_TO_ORDER: Duration = Duration::from_secs(10);
/// Largest number of connections that are told of the end of the guest before they are accepted: the longest queue of Linux, by default.
const MOST_QUEUED: usize = 4096;
/// Kind of the records about joined commands on the control channel.
const JOINED: u8 = b'j';

/// A command that joins.
struct Join {
    stream: UnixStream,
    /// Time of the connection.
    since: Instant,
    /// Number of the command, once the guest knows of it.
    number: Option<u8>,
    received: Received,
    order: Order,
    /// The records of the order, until the guest gets them. It gets them all at once, so that an order that does not come takes no place in the guest.
    ordered: Vec<(u8, Vec<u8>)>,
    /// Bytes of input that the guest has not passed on.
    input: usize,
    /// Bytes of output that the command's user has not passed on.
    output: usize,
    /// Bytes for the socket.
    pending: Vec<u8>,
    /// True if nothing but the pending bytes is left.
    over: bool,
    /// True once the socket is of no use any more.
    gone: bool,
}

impl Join {
    fn new(stream: UnixStream, since: Instant) -> Self {
        Self {
            stream,
            since,
            number: None,
            received: Received::default(),
            order: Order::default(),
            ordered: Vec::new(),
            input: 0,
            output: 0,
            pending: Vec::new(),
            over: false,
            gone: false,
        }
    }

    /// Ends the join with a record that says why.
    fn end(&mut self, last: u8, text: &str) {
        if !self.over {
            self.pending.extend(record(last, text.as_bytes()));
            self.over = true;
        }
    }

    /// Ends the join and hangs up the command in the guest.
    fn refuse(&mut self, text: &str, records: &mut Records) {
        self.hang_up(records);
        self.end(kind::FAILED, text);
    }

    fn hang_up(&mut self, records: &mut Records) {
        if !self.over {
            self.tell(records, kind::HANG_UP, b"");
        }
    }

    /// Tells the guest something, if it knows of the command.
    fn tell(&self, records: &mut Records, kind: u8, text: &[u8]) {
        if let Some(number) = self.number {
            records.add(JOINED, [&[number, kind], text].concat());
        }
    }

    /// Reads what has come. Before the command has begun that is all of it: a command whose user has gone away meanwhile is not started.
    fn read(&mut self) {
        let mut buffer = [0; PIECE];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.gone = true,
                Ok(read) if !self.over => self.received.add(&buffer[..read]),
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return,
                Err(_) => self.gone = true,
            }
            if self.gone || self.over || self.number.is_some() || self.received.len() > LONGEST_ORDER {
                return;
            }
        }
    }

    /// Returns true if the order has come and the guest does not know of it.
    fn is_ordered(&self) -> bool {
        self.order.complete && self.number.is_none() && !self.over && !self.gone
    }

    /// Passes the order on to the guest.
    fn begin(&mut self, number: u8, records: &mut Records) {
        self.number = Some(number);
        for (kind, text) in std::mem::take(&mut self.ordered) {
            self.tell(records, kind, &text);
        }
    }

    /// Passes on to the guest what has come.
    fn hear(&mut self, records: &mut Records) {
        while !self.over && !self.is_ordered() && (!self.gone || self.number.is_some()) {
            match self.received.next() {
                Ok(None) => break,
                Ok(Some((kind, text))) => self.pass(kind, text, records),
                Err(wrong) => self.refuse(&wrong.to_string(), records),
            }
        }
        if self.gone {
            self.hang_up(records);
            self.over = true;
        }
    }

    fn pass(&mut self, kind: u8, text: Vec<u8>, records: &mut Records) {
        match self.order.check(kind, &text) {
            Ok(false) => return,
            Ok(true) => {}
            Err(wrong) => return self.refuse(&wrong.to_string(), records),
        }
        if self.number.is_none() {
            self.ordered.push((kind, text));
            return;
        }
        match kind {
            kind::INPUT if text.len() > PIECE || self.input + text.len() > WINDOW => {
                return self.refuse("more input has come than there is room for", records);
            }
            kind::INPUT => self.input += text.len(),
            kind::PASSED_ON => match number::<usize>(&text).filter(|passed| *passed <= self.output) {
                Some(passed) => self.output -= passed,
                None => return self.refuse("more output was passed on than there was", records),
            },
            _ => {}
        }
        self.tell(records, kind, &text);
    }

    /// Ends a connection whose command has not come in time.
    fn look_at_time(&mut self, now: Instant) {
        if !self.order.complete && now.saturating_duration_since(self.since) >= TIME_TO_ORDER {
            self.end(kind::FAILED, &format!("no command has come for {} seconds", TIME_TO_ORDER.as_secs()));
        }
    }

    /// Takes a record of the guest. A program in the guest that runs as root can send any.
    fn heard(&mut self, kind: u8, text: &[u8], records: &mut Records) {
        match kind {
            kind::OUTPUT | kind::ERRORS => {
                if self.output + text.len() > WINDOW {
                    return self.refuse("the guest sends more output than there is room for", records);
                }
                self.output += text.len();
                self.pending.extend(record(kind, text));
            }
            kind::PASSED_ON => {
                let passed = number::<usize>(text).unwrap_or_default().min(self.input);
                if passed > 0 {
                    self.input -= passed;
                    self.pending.extend(record(kind, passed.to_string().as_bytes()));
                }
            }
            kind::BEGAN if self.pending.len() <= WINDOW => self.pending.extend(record(kind, b"")),
            kind::ENDED if number::<u8>(text).is_some() => self.end(kind, &String::from_utf8_lossy(text)),
            kind::FAILED => self.end(kind, &String::from_utf8_lossy(text)),
            _ => {}
        }
    }

    /// Writes as much of the pending bytes as the socket takes now.
    fn flush(&mut self) {
        while !self.pending.is_empty() && !self.gone {
            match self.stream.write(&self.pending) {
                Ok(written) => drop(self.pending.drain(..written)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.gone = true,
            }
        }
    }
}

/// The commands that have joined a guest, and the socket to which others connect.
#[derive(Default)]
pub struct Joins {
    socket: Option<Socket>,
    all: Vec<Join>,
    next: u8,
    /// Number of commands that have been started in the guest.
    pub count: u64,
}

impl Joins {
    /// Lets commands join by a socket.
    pub fn listen(socket: Socket) -> Self {
        Self { socket: Some(socket), all: Vec::new(), next: 0, count: 0 }
    }

    /// Returns true if commands may join.
    pub fn may_come(&self) -> bool {
        self.socket.is_some()
    }

    /// Accepts one connection; returns false if there is none.
    fn accept(&mut self, now: Instant) -> bool {
        use rustix::net::{SocketFlags, accept_with};
        let Some(socket) = &self.socket else { return false };
        // No connection now, or one that is gone already.
        let accepted = accept_with(&socket.listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC);
        let is_one = accepted.is_ok();
        self.all.extend(accepted.map(|stream| Join::new(stream.into(), now)));
        is_one
    }

    /// Ends the oldest connection whose command has not come, if there are too many of them. A command that comes at once always finds room.
    fn make_room(&mut self) {
        let waits = |join: &Join| !join.order.complete && !join.over;
        if self.all.iter().filter(|join| waits(join)).count() > MOST_WAITING
            && let Some(oldest) = self.all.iter_mut().find(|join| waits(join))
        {
            oldest.end(kind::FAILED, "too many connections have come after this one, and no command by it");
        }
    }

    /// Returns a number for another command, if one more may join. What the guest has sent about a command that is over has an earlier number.
    fn number(&mut self) -> Option<u8> {
        let used = || self.all.iter().filter_map(|join| join.number);
        if used().count() >= MOST {
            return None;
        }
        let mut number = self.next;
        while used().any(|used| used == number) {
            number = number.wrapping_add(1);
        }
        self.next = number.wrapping_add(1);
        Some(number)
    }

    /// Passes on what has come for the guest by time `now` of the host, and what the guest has sent.
    pub fn serve(&mut self, now: Instant, records: &mut Records) {
        if self.accept(now) {
            self.make_room();
        }
        for at in 0..self.all.len() {
            self.all[at].read();
            self.all[at].hear(records);
            if self.all[at].is_ordered() {
                let number = self.number();
                let join = &mut self.all[at];
                match number {
                    Some(number) => join.begin(number, records),
                    None => join.refuse(&format!("{MOST} commands have joined the guest already"), records),
                }
                join.hear(records);
            }
            let join = &mut self.all[at];
            join.look_at_time(now);
            join.flush();
        }
        self.all.retain(|join| !(join.gone || join.over && join.pending.is_empty()));
    }

    /// Takes a record of the guest about the command with a number.
    pub fn heard(&mut self, number: u8, kind: u8, text: &[u8], records: &mut Records) {
        self.count += u64::from(kind == kind::BEGAN);
        if let Some(join) = self.all.iter_mut().find(|join| join.number == Some(number) && !join.over) {
            join.heard(kind, text, records);
            join.flush();
        }
    }

    /// Ends all joins, because the guest ends.
    pub fn finish(&mut self, why: &str) {
        // Commands that have just connected are told, too.
        let now = Instant::now();
        let _ = (0..MOST_QUEUED).find(|_| !self.accept(now));
        self.socket = None;
        for join in &mut self.all {
            join.end(kind::LOST, why);
            join.flush();
        }
        self.all.clear();
    }
}

impl Drop for Joins {
    fn drop(&mut self) {
        self.finish("the guest has ended");
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::VERSION;
    use super::*;
    use crate::exec_cmd::control::{Hearing, Said};

    /// A command that joins, and the guest.
    struct Bench {
        joins: Joins,
        records: Records,
        user: UnixStream,
        now: Instant,
    }

    impl Bench {
        fn new() -> Self {
            let (joins, records) = (Joins::default(), Records::default());
            let mut bench = Self { joins, records, user: UnixStream::pair().unwrap().0, now: Instant::now() };
            bench.user = bench.connect();
            bench
        }

        fn connect(&mut self) -> UnixStream {
            let (user, other) = UnixStream::pair().unwrap();
            [&user, &other].into_iter().for_each(|end| end.set_nonblocking(true).unwrap());
            self.joins.all.push(Join::new(other, self.now));
            self.joins.make_room();
            user
        }

        fn send(&mut self, kind: u8, text: &[u8]) {
            self.user.write_all(&record(kind, text)).unwrap();
            self.serve();
        }

        fn serve(&mut self) {
            self.joins.serve(self.now, &mut self.records);
        }

        fn order(&mut self) {
            self.send(kind::VERSION, VERSION.as_bytes());
            self.send(kind::ARGUMENT, b"ls");
            self.send(kind::GO, b"");
        }

        /// Connects a further user, whose order comes at once.
        fn order_more(&mut self) -> UnixStream {
            let user = std::mem::replace(&mut self.user, UnixStream::pair().unwrap().0);
            let more = self.connect();
            self.user = more;
            self.order();
            std::mem::replace(&mut self.user, user)
        }

        /// Returns the records that the guest has received: numbers, kinds and texts.
        fn guest(&mut self) -> Vec<(u8, u8, String)> {
            let said = Hearing::default().hear(&self.records.take());
            let said = said.into_iter().map(|said| match said {
                Said::Joined(number, kind, text) => (number, kind, String::from_utf8_lossy(&text).into_owned()),
                other => panic!("{other:?}"),
            });
            said.collect()
        }

        /// Returns the records that the user has received.
        fn got(&mut self) -> Vec<(u8, String)> {
            Self::got_by(&mut self.user)
        }

        /// The user goes away. A program that another test starts meanwhile has a copy of the socket until it executes, so that to close it is not enough.
        fn leave(&mut self) {
            self.user.shutdown(std::net::Shutdown::Both).unwrap();
        }

        fn got_by(user: &mut UnixStream) -> Vec<(u8, String)> {
            let mut bytes = Vec::new();
            let _ = user.read_to_end(&mut bytes);
            let mut received = Received::default();
            received.add(&bytes);
            std::iter::from_fn(|| received.next().unwrap())
                .map(|(kind, text)| (kind, String::from_utf8_lossy(&text).into_owned()))
                .collect()
        }
    }

    fn text(kind: u8, text: &str) -> (u8, String) {
        (kind, text.to_owned())
    }

    #[test]
    fn an_order_input_and_output_are_passed_on() {
        let mut bench = Bench::new();
        bench.order();
        bench.send(kind::INPUT, b"typed");
        bench.send(kind::SIGNAL, b"2");
        let expected = [(b'a', "ls"), (b'g', ""), (b'i', "typed"), (b's', "2")];
        assert_eq!(bench.guest(), expected.map(|(kind, text)| (0, kind, text.to_owned())));
        let mut records = Records::default();
        for (kind, text) in
            [(kind::BEGAN, &b""[..]), (kind::PASSED_ON, b"5"), (kind::OUTPUT, b"out"), (kind::ENDED, b"3")]
        {
            bench.joins.heard(0, kind, text, &mut records);
        }
        assert_eq!(bench.joins.count, 1);
        let expected = [text(b'b', ""), text(b'k', "5"), text(b'o', "out"), text(b'z', "3")];
        assert_eq!(bench.got(), expected);
        bench.joins.serve(bench.now, &mut records);
        assert!(bench.joins.all.is_empty() && records.is_empty(), "the guest knows that the command is over");
    }

    #[test]
    fn a_user_who_goes_away_hangs_up() {
        let mut bench = Bench::new();
        bench.order();
        bench.guest();
        bench.leave();
        bench.serve();
        assert_eq!(bench.guest(), [(0, kind::HANG_UP, String::new())]);
        assert!(bench.joins.all.is_empty());
    }

    #[test]
    fn connections_without_a_command_take_no_place_of_one() {
        let mut bench = Bench::new();
        let mut idle: Vec<UnixStream> = (0..40).map(|_| bench.connect()).collect();
        // Half an order is none, and the guest hears nothing of it.
        idle[39].write_all(&record(kind::VERSION, VERSION.as_bytes())).unwrap();
        idle[39].write_all(&record(kind::ARGUMENT, b"ls")).unwrap();
        bench.serve();
        assert!(bench.records.is_empty());
        let mut users: Vec<UnixStream> = (0..MOST).map(|_| bench.order_more()).collect();
        let begun: Vec<u8> = bench.guest().iter().filter(|said| said.1 == kind::GO).map(|said| said.0).collect();
        assert_eq!(begun, (0..MOST as u8).collect::<Vec<_>>());
        assert!(users.iter_mut().all(|user| Bench::got_by(user).is_empty()));
        let evicted = Bench::got_by(&mut idle[0]);
        assert!(
            matches!(&evicted[..], [(kind::FAILED, why)] if why.starts_with("too many connections")),
            "{evicted:?}"
        );
        let late = Bench::got_by(&mut bench.order_more());
        assert_eq!(late, [text(kind::FAILED, "8 commands have joined the guest already")]);
        bench.now += TIME_TO_ORDER;
        bench.serve();
        let slow = Bench::got_by(&mut idle[39]);
        assert_eq!(slow, [text(kind::FAILED, "no command has come for 10 seconds")]);
        assert_eq!(bench.joins.all.len(), MOST, "a command that has joined may be silent");
    }

    #[test]
    fn a_command_whose_user_has_gone_away_is_not_started() {
        let mut bench = Bench::new();
        let order = [record(kind::VERSION, VERSION.as_bytes()), record(kind::ARGUMENT, b"ls"), record(kind::GO, b"")];
        bench.user.write_all(&order.concat()).unwrap();
        bench.leave();
        bench.serve();
        assert!(bench.joins.all.is_empty() && bench.records.is_empty());
    }

    #[test]
    fn hostile_records_end_their_own_join_only() {
        let too_much = record(kind::INPUT, &vec![0; PIECE + 1]);
        let passed = record(kind::PASSED_ON, b"1");
        let hostile = [&b"a\xff\xff\xff\xff"[..], &record(kind::GO, b""), &record(b'?', b""), &too_much, &passed];
        for bytes in hostile {
            let mut bench = Bench::new();
            bench.order();
            let good = bench.order_more();
            bench.guest();
            bench.user.write_all(bytes).unwrap();
            for _ in 0..4 {
                bench.serve();
            }
            assert_eq!(bench.guest(), [(0, kind::HANG_UP, String::new())]);
            assert!(matches!(&bench.got()[..], [(kind::FAILED, _)]));
            assert_eq!(bench.joins.all.iter().map(|join| join.number).collect::<Vec<_>>(), [Some(1)]);
            drop(good);
        }
    }

    #[test]
    fn nothing_is_held_beyond_the_window() {
        let mut bench = Bench::new();
        bench.order();
        let mut records = Records::default();
        for _ in 0..WINDOW / PIECE {
            bench.send(kind::INPUT, &vec![b'x'; PIECE]);
            bench.joins.heard(0, kind::OUTPUT, &vec![b'y'; PIECE], &mut records);
        }
        assert!(!bench.joins.all[0].over && records.is_empty());
        bench.joins.heard(0, kind::OUTPUT, b"z", &mut records);
        assert!(bench.joins.all[0].over && !records.is_empty(), "a guest that sends more ends the join");
        let mut bench = Bench::new();
        bench.order();
        for _ in 0..=WINDOW / PIECE {
            bench.send(kind::INPUT, &vec![b'x'; PIECE]);
        }
        bench.serve();
        assert!(bench.joins.all.is_empty(), "a user who sends more ends the join");
    }

    #[test]
    fn random_bytes_are_no_danger() {
        let mut state = 1u64;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        for _ in 0..200 {
            let mut bench = Bench::new();
            if byte() % 2 == 0 {
                bench.order();
            }
            let letters = b"vaecutwgiqxskz";
            for _ in 0..byte() {
                let (kind, length) = (letters[usize::from(byte()) % letters.len()], byte() % 8);
                let bytes: Vec<u8> = (0..length).map(|_| byte()).collect();
                // The join may be over.
                let _ = bench.user.write_all(&record(kind, &bytes));
                bench.serve();
                bench.joins.heard(0, kind, &bytes, &mut bench.records);
            }
            assert!(bench.joins.all.len() <= 1);
        }
    }

    #[test]
    fn the_end_of_the_guest_is_told() {
        let mut bench = Bench::new();
        bench.order();
        bench.joins.finish("the first command has ended");
        assert_eq!(bench.got(), [text(kind::LOST, "the first command has ended")]);
    }
}

//! The control queue (virtio 1.2, 5.1.6.5): commands that change settings while the device runs.

use super::features;
use super::{Net, State, is_receive};
use network::Time;
use network::headers::Mac;

/// Status of a command.
pub const OK: u8 = 0;
pub const ERROR: u8 = 1;

/// Classes of commands.
mod class {
    pub const RX: u8 = 0;
    pub const MAC: u8 = 1;
    pub const VLAN: u8 = 2;
    pub const MQ: u8 = 4;
    pub const GUEST_OFFLOADS: u8 = 5;
    pub const NOTF_COAL: u8 = 6;
}

/// Parser for a command's data.
struct Data<'a>(&'a [u8]);

impl<'a> Data<'a> {
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self, len: usize) -> Option<u64> {
        Some(self.bytes(len)?.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    }

    fn u8(&mut self) -> Option<u8> {
        self.number(1).map(|value| value as u8)
    }

    fn u16(&mut self) -> Option<u16> {
        self.number(2).map(|value| value as u16)
    }

    fn u32(&mut self) -> Option<u32> {
        self.number(4).map(|value| value as u32)
    }

    fn macs(&mut self) -> Option<Vec<Mac>> {
        let count = self.u32()? as usize;
        let bytes = self.bytes(count.checked_mul(6)?)?;
        Some(bytes.chunks_exact(6).filter_map(|mac| mac.try_into().ok()).collect())
    }
}

impl Net {
    /// Executes a command. Returns its status, and the data that it requested.
    pub(super) fn command(&mut self, bytes: &[u8], now: Time) -> (u8, Vec<u8>) {
        let mut data = Data(bytes);
        let done = data.u8().zip(data.u8()).and_then(|(class, command)| {
            if (class, command) == (class::NOTF_COAL, 3) {
                return self.coalescing_of(&mut data);
            }
            self.carry_out(class, command, &mut data, now)?.then(Vec::new)
        });
        done.map_or((ERROR, Vec::new()), |answer| (OK, answer))
    }

    /// Executes a command without an answer. Returns `None` or false if the command is unknown or invalid.
    fn carry_out(&mut self, class: u8, command: u8, data: &mut Data, now: Time) -> Option<bool> {
        let state = &mut self.state;
        let has = |feature: u64| state.features & feature != 0;
        match class {
            class::RX => {
                let needed = if command < 2 { features::CTRL_RX } else { features::CTRL_RX_EXTRA };
                Some(has(needed) && state.filter.set_mode(command, data.u8()? != 0))
            }
            class::MAC if command == 0 && has(features::CTRL_RX) => {
                let (stations, groups) = (data.macs()?, data.macs()?);
                state.filter.set_others(&stations, &groups);
                Some(true)
            }
            class::MAC if command == 1 && has(features::CTRL_MAC_ADDR) => {
                let mac: Mac = data.bytes(6)?.try_into().ok()?;
                state.filter.mac = mac;
                self.config[..6].copy_from_slice(&mac);
                Some(true)
            }
            class::VLAN if command < 2 && has(features::CTRL_VLAN) => {
                Some(state.filter.set_vlan(data.u16()?, command == 0))
            }
            class::MQ => self.queues_command(command, data),
            class::GUEST_OFFLOADS if command == 0 && has(features::CTRL_GUEST_OFFLOADS) => {
                let wanted = data.number(8)?;
                // Linux counts GUEST_HDRLEN among the offloads. It is not one that a device switches: the length is always given.
                let may = features::GUEST_OFFLOADS | features::GUEST_HDRLEN;
                let known = wanted & !(state.features & may) == 0;
                if known {
                    state.guest_offloads = features::effective(wanted | features::CTRL_VQ) & features::GUEST_OFFLOADS;
                    self.listen(now);
                }
                Some(known)
            }
            class::NOTF_COAL => self.coalesce(command, data),
            _ => None,
        }
    }

    /// Sets the number of queue pairs in use, and the steering of frames to queues.
    fn queues_command(&mut self, command: u8, data: &mut Data) -> Option<bool> {
        let pairs = self.pairs;
        let State { features, steering, pairs: used, .. } = &mut self.state;
        let has = |feature: u64| *features & feature != 0;
        match command {
            0 if has(features::MQ) => {
                let wanted = data.u16()?;
                let known = (1..=pairs).contains(&wanted);
                if known {
                    *used = wanted;
                }
                Some(known)
            }
            1 if has(features::RSS) => {
                let (types, mask, unclassified) = (data.u32()?, data.u16()?, data.u16()?);
                let len = usize::from(mask) + 1;
                let table = (0..len).map(|_| data.u16()).collect::<Option<Vec<_>>>()?;
                let (senders, key) = (data.u16()?, data.u8()?);
                let key = data.bytes(key.into())?;
                let mut changed = steering.clone();
                let good = (1..=pairs).contains(&senders)
                    && changed.set_hash(types, key)
                    && changed.set_table(table, unclassified, pairs);
                if good {
                    (*steering, *used) = (changed, senders);
                }
                Some(good)
            }
            2 if has(features::HASH_REPORT) => {
                let (types, _, key) = (data.u32()?, data.bytes(8)?, data.u8()?);
                Some(steering.set_hash(types, data.bytes(key.into())?))
            }
            _ => None,
        }
    }

    fn coalesce(&mut self, command: u8, data: &mut Data) -> Option<bool> {
        let needed = if command < 2 { features::NOTF_COAL } else { features::VQ_NOTF_COAL };
        if self.state.features & needed == 0 {
            return None;
        }
        if command > 2 {
            return None;
        }
        let one = if command == 2 { Some((data.u16()?, data.u16()?).0) } else { None };
        let (packets, usecs) = (data.u32()?, data.u32()?);
        let queues = self.state.coalescing.iter_mut().zip(0u16..);
        let mut found = false;
        for (coalescing, number) in queues {
            if one.map_or(is_receive(number) == (command == 1), |one| one == number) {
                coalescing.set(packets, usecs);
                found = true;
            }
        }
        Some(found)
    }

    fn coalescing_of(&mut self, data: &mut Data) -> Option<Vec<u8>> {
        let (queue, _reserved) = (data.u16()?, data.u16()?);
        let coalescing = self.state.coalescing.get(usize::from(queue))?;
        let known = self.state.features & features::VQ_NOTF_COAL != 0;
        let mut answer = queue.to_le_bytes().to_vec();
        answer.extend([0; 2]);
        answer.extend(coalescing.packets.to_le_bytes());
        answer.extend(coalescing.usecs.to_le_bytes());
        known.then_some(answer)
    }
}

//! The register file: the registers' addresses, reset values, writable bits and side effects (82599 datasheet, 8.2).

use super::eeprom;
use super::reg::{self, bit};
use crate::state::{StateError, require};
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

/// Size of the register space in bytes.
pub const SIZE: u64 = 0x2_0000;
const WORDS: usize = SIZE as usize / 4;
/// Registers that [`File::save`] compares at once.
const BLOCK: usize = 64;

/// Number of receive queues, and of transmit queues.
pub const QUEUES: usize = 128;

/// Effect of an access to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A read returns the last value written.
    Store,
    /// A read clears the register; writes are ignored.
    Count,
    Ctrl,
    Status,
    I2c,
    Timer,
    Eerd,
    Swsm,
    Msca,
    Autoc,
    Links,
    Eicr,
    Eics,
    Eims,
    Eimc,
    EicsEx,
    EimsEx,
    EimcEx,
    Eitr,
    /// An access may change whether an interrupt is due.
    Interrupts,
    RxCtrl,
    RxQueue,
    RxTail,
    TxControl,
    TxQueue,
    TxTail,
    DirectorControl,
    DirectorCommand,
    Clock,
}

/// An array of registers with common properties.
struct Row {
    first: u32,
    count: u32,
    stride: u32,
    writable: u32,
    reset: u32,
    kind: Kind,
}

/// Describes registers that keep the written value.
const fn store(first: u32, count: u32) -> Row {
    Row { first, count, stride: 4, writable: !0, reset: 0, kind: Kind::Store }
}

/// Describes a read-only register.
const fn fixed(first: u32, value: u32) -> Row {
    Row { writable: 0, reset: value, ..store(first, 1) }
}

/// Describes statistics registers.
const fn count(first: u32, count: u32) -> Row {
    Row { writable: 0, kind: Kind::Count, ..store(first, count) }
}

const fn special(first: u32, count: u32, kind: Kind) -> Row {
    Row { kind, ..store(first, count) }
}

/// Describes a register of 64 receive queues.
const fn receive(first: u32, offset: u32, writable: u32) -> Row {
    Row { stride: 0x40, writable, ..store(first + offset, 64) }
}

/// Describes a register of all transmit queues.
const fn transmit(offset: u32, writable: u32) -> Row {
    Row { stride: 0x40, writable, ..store(reg::TX_QUEUES + offset, QUEUES as u32) }
}

/// Writable bits of ring addresses and lengths, which are multiples of 128 bytes.
const RING_ADDRESS: u32 = !0x7f;
const RING_LENGTH: u32 = 0xf_ff80;
const RAH_WRITABLE: u32 = bit::RAH_VALID | 0xffff;
const CTRL_WRITABLE: u32 = bit::CTRL_MASTER_DISABLE;
/// A 10 Gb/s serial link over SFI.
const AUTOC: u32 = 3 << 13;
const AUTOC2: u32 = 2 << 16;
/// The security engine is ready, and disabled by a fuse.
const NO_SECURITY: u32 = 3;
/// The firmware runs, and passes no packets through.
const FIRMWARE: u32 = 1 << 15;
/// The EEPROM is present and has been loaded; its size.
const EEC: u32 = 1 << 8 | 1 << 9 | 1 << 10 | eeprom::SIZE_CODE << 11;

const ROWS: &[Row] = &[
    Row { writable: CTRL_WRITABLE, ..special(reg::CTRL, 1, Kind::Ctrl) },
    Row { writable: 0, ..special(reg::STATUS, 1, Kind::Status) },
    store(reg::CTRL_EXT, 1),
    Row { writable: !bit::ESDP_MODULE, reset: bit::ESDP_MODULE, ..store(reg::ESDP, 1) },
    Row { reset: 0xf, ..special(reg::I2CCTL, 1, Kind::I2c) },
    Row { writable: 0, ..special(reg::FRTIMER, 1, Kind::Timer) },
    store(reg::LEDCTL, 1),
    // Mailboxes of virtual functions.
    store(0x710, 4),
    store(0x720, 4),
    special(reg::EICR, 1, Kind::Eicr),
    special(reg::EICS, 1, Kind::Eics),
    store(reg::EIAC, 1),
    special(reg::EITR, 24, Kind::Eitr),
    special(reg::EITR_HIGH, 104, Kind::Eitr),
    special(reg::EIMS, 1, Kind::Eims),
    special(reg::EIMC, 1, Kind::Eimc),
    store(reg::EIAM, 1),
    store(reg::EITRSEL, 1),
    special(reg::GPIE, 1, Kind::Interrupts),
    special(reg::IVAR, 64, Kind::Interrupts),
    special(reg::IVAR_MISC, 1, Kind::Interrupts),
    special(reg::EICS_EX, 2, Kind::EicsEx),
    special(reg::EIMS_EX, 2, Kind::EimsEx),
    special(reg::EIMC_EX, 2, Kind::EimcEx),
    store(reg::EIAM_EX, 2),
    receive(reg::RX_QUEUES, reg::RDBAL, RING_ADDRESS),
    receive(reg::RX_QUEUES, reg::RDBAH, !0),
    receive(reg::RX_QUEUES, reg::RDLEN, RING_LENGTH),
    receive(reg::RX_QUEUES, reg::DCA_RXCTRL, !0),
    receive(reg::RX_QUEUES, reg::RDH, 0xffff),
    receive(reg::RX_QUEUES, reg::SRRCTL, !0),
    Row { kind: Kind::RxTail, ..receive(reg::RX_QUEUES, reg::RDT, 0xffff) },
    Row { kind: Kind::RxQueue, ..receive(reg::RX_QUEUES, reg::RXDCTL, !bit::QUEUE_FLUSH) },
    receive(reg::RX_QUEUES, reg::RSCCTL, !0),
    receive(reg::RX_QUEUES_HIGH, reg::RDBAL, RING_ADDRESS),
    receive(reg::RX_QUEUES_HIGH, reg::RDBAH, !0),
    receive(reg::RX_QUEUES_HIGH, reg::RDLEN, RING_LENGTH),
    receive(reg::RX_QUEUES_HIGH, reg::DCA_RXCTRL, !0),
    receive(reg::RX_QUEUES_HIGH, reg::RDH, 0xffff),
    receive(reg::RX_QUEUES_HIGH, reg::SRRCTL, !0),
    Row { kind: Kind::RxTail, ..receive(reg::RX_QUEUES_HIGH, reg::RDT, 0xffff) },
    Row { kind: Kind::RxQueue, ..receive(reg::RX_QUEUES_HIGH, reg::RXDCTL, !bit::QUEUE_FLUSH) },
    receive(reg::RX_QUEUES_HIGH, reg::RSCCTL, !0),
    Row { stride: 0x40, ..count(reg::QPRC, 16) },
    Row { stride: 0x40, ..count(reg::QBRC, 16) },
    Row { stride: 0x40, ..count(reg::QBRC + 4, 16) },
    Row { stride: 0x40, ..count(reg::QPRDC, 16) },
    // Weights and credits of traffic classes.
    store(0x0_2140, 8),
    store(0x0_2160, 8),
    store(reg::RQSMR, 32),
    store(reg::RTRPCS, 1),
    Row { writable: !8, reset: 8, ..store(reg::RDRXCTL, 1) },
    store(0x0_2f20, 1),
    special(reg::RXCTRL, 1, Kind::RxCtrl),
    store(0x0_3008, 1),
    store(reg::RTRUP2TC, 1),
    store(0x0_3028, 1),
    // Flow control: timers, thresholds.
    store(0x0_3200, 4),
    Row { writable: 0x8007_fff0, ..store(0x0_3220, 8) },
    Row { writable: 0x8007_fff0, ..store(0x0_3260, 8) },
    store(0x0_32a0, 1),
    Row { reset: 0x8_0000, ..store(reg::RXPBSIZE, 1) },
    store(reg::RXPBSIZE + 4, 7),
    store(reg::FCCFG, 1),
    // Pause frames by priority, and other statistics of events that never occur here.
    count(0x0_3f00, 16),
    count(0x0_3f60, 1),
    count(0x0_3f68, 1),
    count(reg::MPC, 8),
    count(0x0_4000, 5),
    count(0x0_4034, 2),
    count(reg::RLEC, 1),
    count(reg::PRC64, 13),
    count(reg::GOTCL, 2),
    count(reg::RUC, 6),
    count(reg::TORL, 2),
    count(reg::TPR, 10),
    count(0x0_4120, 1),
    count(0x0_4140, 16),
    count(reg::LXONRXCNT, 2),
    store(0x0_4200, 3),
    fixed(0x0_420c, 0),
    store(0x0_4210, 6),
    Row { reset: 1 << 10 | bit::HLREG0_STRIP_CRC | 1, ..special(reg::HLREG0, 1, Kind::RxCtrl) },
    store(0x0_4244, 2),
    special(reg::MSCA, 1, Kind::Msca),
    Row { writable: 0xffff, reset: 0xffff_0000, ..store(reg::MSRWD, 1) },
    Row { writable: 0xffff_0000, reset: 0x05ee_0000, ..store(reg::MHADD, 1) },
    store(reg::MFLCN, 1),
    store(0x0_429c, 1),
    Row { writable: !bit::AUTOC_RESTART, reset: AUTOC, ..special(reg::AUTOC, 1, Kind::Autoc) },
    Row { writable: 0, ..special(reg::LINKS, 1, Kind::Links) },
    Row { reset: AUTOC2, ..store(0x0_42a8, 1) },
    store(0x0_42ac, 1),
    // Auto-negotiation has passed its first state.
    fixed(0x0_42b0, 3 << 16),
    fixed(0x0_4324, 0),
    store(0x0_4330, 1),
    // Transmit schedulers.
    store(0x0_4900, 4),
    store(0x0_4910, 16),
    store(0x0_4950, 8),
    store(0x0_4980, 5),
    Row { reset: 0x8100_0000, ..special(reg::DMATXCTL, 1, Kind::TxControl) },
    Row { reset: 0x0f76_0ff6, ..store(0x0_4a88, 1) },
    Row { reset: 0x0000_0f7f, ..store(0x0_4a8c, 1) },
    store(reg::RXCSUM, 1),
    store(0x0_5008, 1),
    store(0x0_5078, 1),
    store(reg::FCTRL, 1),
    Row { reset: 0x8100, ..store(reg::VLNCTRL, 1) },
    store(reg::MCSTCTRL, 1),
    // Priority flow control of frames by address.
    store(0x0_50b0, 2),
    store(0x0_5120, 1),
    store(reg::ETQF, 8),
    store(0x0_5180, 3),
    store(0x0_51b0, 1),
    store(0x0_51e0, 2),
    store(reg::MTA, 128),
    // Wake-up.
    store(0x0_5800, 1),
    store(0x0_5808, 1),
    fixed(0x0_5810, 0),
    store(reg::MRQC, 1),
    store(0x0_5820, 1),
    store(0x0_5838, 1),
    store(reg::RETA, 32),
    store(reg::RSSRK, 10),
    transmit(reg::TDBAL, RING_ADDRESS),
    transmit(reg::TDBAH, !0),
    transmit(reg::TDLEN, RING_LENGTH),
    transmit(reg::DCA_TXCTRL, !0),
    transmit(reg::TDH, 0xffff),
    Row { kind: Kind::TxTail, ..transmit(reg::TDT, 0xffff) },
    Row { kind: Kind::TxQueue, ..transmit(reg::TXDCTL, !bit::QUEUE_FLUSH) },
    transmit(reg::TDWBAL, !2),
    transmit(reg::TDWBAH, !0),
    Row { stride: 0x40, ..count(reg::QPTC, 16) },
    store(0x0_8000, 64),
    store(0x0_8100, 1),
    store(0x0_8110, 2),
    special(0x0_8120, 1, Kind::TxControl),
    store(0x0_8220, 1),
    store(reg::TQSMR, 32),
    count(reg::QBTC, 32),
    store(0x0_8800, 1),
    fixed(0x0_8804, NO_SECURITY),
    store(0x0_8808, 1),
    store(0x0_8810, 1),
    store(0x0_8b00, 1),
    store(0x0_8c00, 1),
    fixed(0x0_8c04, 0),
    fixed(0x0_8c08, 0),
    special(reg::SYSTIML, 3, Kind::Clock),
    store(0x0_8c18, 7),
    store(0x0_8d00, 1),
    fixed(0x0_8d04, NO_SECURITY),
    store(reg::VFTA, 128),
    Row { stride: 8, ..store(reg::RAL, 128) },
    Row { stride: 8, writable: RAH_WRITABLE, ..store(reg::RAL + 4, 128) },
    // Pools of receive addresses.
    store(0x0_a600, 256),
    store(0x0_c800, 1),
    store(0x0_cb00, 1),
    Row { reset: 0x2_8000, ..store(reg::TXPBSIZE, 1) },
    store(reg::TXPBSIZE + 4, 7),
    store(0x0_cd00, 1),
    store(0x0_cd20, 16),
    store(0x0_ce00, 1),
    store(reg::PSRTYPE, 64),
    store(reg::ETQS, 8),
    special(reg::FDIRCTRL, 1, Kind::DirectorControl),
    store(reg::FDIRSIPV6, 7),
    store(reg::FDIRHASH, 1),
    special(reg::FDIRCMD, 1, Kind::DirectorCommand),
    fixed(reg::FDIRFREE, 0),
    store(reg::FDIRDIP4M, 4),
    count(reg::FDIRLEN, 5),
    Row { reset: 0x3dad_14e2, ..store(reg::FDIRHKEY, 1) },
    Row { reset: 0x174d_3614, ..store(reg::FDIRSKEY, 1) },
    store(reg::FDIRM, 3),
    // Pools: offloads, VLANs.
    store(0x0_f000, 64),
    store(0x0_f100, 64),
    store(0x0_f200, 128),
    store(reg::UTA, 128),
    fixed(reg::EEC, EEC),
    special(reg::EERD, 1, Kind::Eerd),
    store(0x1_001c, 1),
    fixed(0x1_0110, 3 << 18),
    special(reg::SWSM, 1, Kind::Swsm),
    fixed(reg::FWSM, FIRMWARE),
    fixed(0x1_0150, 0),
    store(reg::GSSR, 1),
    store(0x1_0200, 1),
    store(0x1_1000, 1),
    store(0x1_1050, 1),
    fixed(0x1_1064, 1),
    fixed(0x1_1070, 0),
    store(0x1_1074, 1),
    store(0x1_4f00, 1),
];

/// Row number of each word, counted from 1; 0 if there is no register.
static ROW_OF: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut rows = vec![0; WORDS];
    for (row, number) in ROWS.iter().zip(1u8..) {
        for index in 0..row.count {
            rows[(row.first + index * row.stride) as usize / 4] = number;
        }
    }
    rows
});

/// Returns the address under which a register is stored: some registers have two addresses.
fn canonical(at: u32) -> u32 {
    const LOW: u32 = 16;
    let block = |first: u32, offset: u32| reg::RX_QUEUES + (at - first) / 4 * 0x40 + offset;
    match at {
        reg::SRRCTL_LOW.. if at < reg::SRRCTL_LOW + 4 * LOW => block(reg::SRRCTL_LOW, reg::SRRCTL),
        reg::DCA_RXCTRL_LOW.. if at < reg::DCA_RXCTRL_LOW + 4 * LOW => block(reg::DCA_RXCTRL_LOW, reg::DCA_RXCTRL),
        reg::RAL_LOW.. if at < reg::RAL_LOW + 8 * LOW => reg::RAL + (at - reg::RAL_LOW),
        reg::PSRTYPE_LOW.. if at < reg::PSRTYPE_LOW + 4 * LOW => reg::PSRTYPE + (at - reg::PSRTYPE_LOW),
        _ => at,
    }
}

/// Returns the canonical address and the kind of the register at an address, or `None` if there is no register.
pub fn look_up(at: u32) -> Option<(u32, Kind)> {
    let at = canonical(at);
    let number = usize::from(*ROW_OF.get(at as usize / 4)?);
    ROWS.get(number.checked_sub(1)?).map(|row| (at, row.kind))
}

/// Returns the queue to which a register in the receive or transmit blocks belongs.
pub fn queue_of(at: u32) -> usize {
    match at {
        reg::RX_QUEUES_HIGH.. => 64 + (at - reg::RX_QUEUES_HIGH) as usize / 0x40,
        reg::TX_QUEUES.. => (at - reg::TX_QUEUES) as usize / 0x40,
        _ => at.saturating_sub(reg::RX_QUEUES) as usize / 0x40,
    }
}

/// Returns the address of a register of a receive queue.
pub fn rx(queue: usize, register: u32) -> u32 {
    let block = if queue < 64 { reg::RX_QUEUES } else { reg::RX_QUEUES_HIGH };
    block + queue as u32 % 64 * 0x40 + register
}

/// Returns the address of a register of a transmit queue.
pub fn tx(queue: usize, register: u32) -> u32 {
    reg::TX_QUEUES + queue as u32 % QUEUES as u32 * 0x40 + register
}

/// Values of all registers.
#[derive(Clone, Debug, PartialEq)]
pub struct File(Vec<u32>);

/// Saved registers: the index and value of every word that differs from its reset value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedFile(Vec<(u16, u32)>);

/// Reset values of all registers.
static RESET: LazyLock<File> = LazyLock::new(|| {
    let mut words = vec![0; WORDS];
    for row in ROWS {
        for index in 0..row.count {
            words[(row.first + index * row.stride) as usize / 4] = row.reset;
        }
    }
    File(words)
});

impl Default for File {
    fn default() -> Self {
        RESET.clone()
    }
}

impl File {
    /// Reads a register by its canonical address.
    pub fn get(&self, at: u32) -> u32 {
        self.0.get(at as usize / 4).copied().unwrap_or(0)
    }

    /// Sets a register, including bits that are read-only to the driver.
    pub fn set(&mut self, at: u32, value: u32) {
        if let Some(word) = self.0.get_mut(at as usize / 4) {
            *word = value;
        }
    }

    /// Writes the bits that the driver may change.
    pub fn write(&mut self, at: u32, value: u32) {
        let number = usize::from(ROW_OF.get(at as usize / 4).copied().unwrap_or(0));
        let writable = number.checked_sub(1).and_then(|row| ROWS.get(row)).map_or(0, |row| row.writable);
        self.set(at, self.get(at) & !writable | value & writable);
    }

    /// Returns true if any of these bits is set.
    pub fn has(&self, at: u32, bits: u32) -> bool {
        self.get(at) & bits != 0
    }

    /// Returns the 64-bit value of two registers: the lower half at `at`, the upper half at `high`.
    pub fn wide(&self, at: u32, high: u32) -> u64 {
        u64::from(self.get(at)) | u64::from(self.get(high)) << 32
    }

    /// Adds to a 32-bit statistic, which saturates.
    pub fn add(&mut self, at: u32, more: u64) {
        let sum = u64::from(self.get(at)).saturating_add(more);
        self.set(at, u32::try_from(sum).unwrap_or(u32::MAX));
    }

    /// Adds to a statistic of two registers, of which the second contains the upper half.
    pub fn add_wide(&mut self, at: u32, more: u64) {
        let sum = self.wide(at, at + 4).wrapping_add(more);
        self.set(at, sum as u32);
        self.set(at + 4, (sum >> 32) as u32);
    }

    /// Returns the registers in their saved form.
    pub fn save(&self) -> SavedFile {
        let mut saved = Vec::new();
        // Most registers have their reset values: blocks of them are compared at once.
        let blocks = self.0.chunks(BLOCK).zip(RESET.0.chunks(BLOCK)).enumerate();
        for (block, (words, reset)) in blocks.filter(|(_, (words, reset))| words != reset) {
            let differs = words.iter().zip(reset).enumerate().filter(|(_, (value, reset))| value != reset);
            saved.extend(differs.map(|(word, (value, _))| ((block * BLOCK + word) as u16, *value)));
        }
        SavedFile(saved)
    }
}

impl SavedFile {
    /// Rebuilds the register file, if all saved registers exist.
    pub fn restore(self) -> Result<File, StateError> {
        let mut file = File::default();
        for (word, value) in self.0 {
            let known = ROW_OF.get(usize::from(word)).is_some_and(|row| *row != 0);
            require(known, "a register of a network device")?;
            file.0[usize::from(word)] = value;
        }
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_rows_have_a_register_in_common() {
        assert!(ROWS.len() < 256);
        let mut owners = vec![None; WORDS];
        for row in ROWS {
            for index in 0..row.count {
                let at = row.first + index * row.stride;
                assert!(at.is_multiple_of(4) && canonical(at) == at, "{at:#x}");
                let owner = owners[at as usize / 4].replace(row.first);
                assert_eq!(owner, None, "{at:#x} of {:#x}", row.first);
            }
        }
    }

    #[test]
    fn registers_with_two_addresses_are_one() {
        assert_eq!(look_up(0x2104), Some((0x1054, Kind::Store)));
        assert_eq!(look_up(0x5408), Some((0xa208, Kind::Store)));
        assert_eq!(look_up(0x2140), Some((0x2140, Kind::Store)));
        assert_eq!(look_up(0x1_fffc), None);
        assert_eq!((queue_of(0x1018 + 0x40 * 63), queue_of(0xd018), queue_of(0x7fd8)), (63, 64, 127));
        assert_eq!((rx(63, reg::RDT), rx(64, reg::RDT), tx(127, reg::TDT)), (0x1fd8, 0xd018, 0x7fd8));
    }

    #[test]
    fn a_file_is_restored() {
        let mut file = File::default();
        file.write(reg::RDBAL + reg::RX_QUEUES, 0x1234_56ff);
        assert_eq!(file.get(reg::RX_QUEUES), 0x1234_5680);
        file.add_wide(reg::GORCL, u64::from(u32::MAX) + 7);
        assert_eq!((file.get(reg::GORCL), file.get(reg::GORCL + 4)), (6, 1));
        file.add(reg::GPRC, u64::MAX);
        assert_eq!(file.get(reg::GPRC), u32::MAX);
        assert_eq!(file.save().restore(), Ok(file));
        assert!(SavedFile(vec![(0x7fff, 1)]).restore().is_err());
    }
}

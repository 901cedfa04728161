//! The EEPROM (82599 datasheet, 6): words that the driver reads with EERD. It is read-only.

use network::headers::Mac;

/// Size field of EEC: the EEPROM has 2^(6 + this) words.
pub const SIZE_CODE: u32 = 6;
const WORDS: usize = 1 << (SIZE_CODE + 6);

/// Offsets of pointers and fixed values.
const LAN_CORE: usize = 0x09;
const FIRMWARE: usize = 0x0f;
const BOARD_NUMBER: usize = 0x15;
const MODULES: usize = 0x2b;
const CAPABILITIES: usize = 0x2c;
const IMAGE_ID: usize = 0x2d;
const CHECKSUM: usize = 0x3f;
/// Required sum of the words from 0 to the checksum and of all sections except the firmware's.
const SUM: u16 = 0xbaba;

/// Marks a board number that is stored as a string elsewhere.
const BOARD_NUMBER_IS_STRING: u16 = 0xfafa;
/// Device capabilities: any SFP+ module is allowed, FCoE is absent, and a missing module is never reported as present.
const ANY_MODULE: u16 = 1 << 0;
const NO_FCOE: u16 = 1 << 1;
const NO_CROSSTALK: u16 = 1 << 7;
/// Type of the only module that has an initialization sequence: a direct attach cable at port 0.
const DIRECT_ATTACH: u16 = 3;

/// Contents of an EEPROM.
#[derive(Clone, Debug)]
pub struct Eeprom(Vec<u16>);

impl Eeprom {
    /// Creates the EEPROM of a board with this MAC address.
    pub fn new(mac: Mac) -> Self {
        let mut words = vec![0xffff; WORDS];
        let mut put = |at: usize, values: &[u16]| words[at..at + values.len()].copy_from_slice(values);
        let pair = |at: usize| u16::from_le_bytes([mac[at], mac[at + 1]]);
        put(LAN_CORE, &[0x80]);
        put(0x80, &[3, pair(0), pair(2), pair(4)]);
        // The firmware block: no link management, and the pass-through version that drivers expect.
        put(FIRMWARE, &[0x40]);
        put(0x44, &[0x60]);
        put(0x67, &[0x000b]);
        put(BOARD_NUMBER, &[BOARD_NUMBER_IS_STRING, 0x50]);
        let number: Vec<u16> = b"TOLLGATE-1".chunks(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect();
        put(0x50, &[number.len() as u16 + 1]);
        put(0x51, &number);
        // Modules with empty initialization sequences.
        put(MODULES, &[0x70]);
        put(0x70, &[3, DIRECT_ATTACH, 0x78, 0xffff]);
        put(CAPABILITIES, &[ANY_MODULE | NO_FCOE | NO_CROSSTALK]);
        put(IMAGE_ID, &[1, 0x8000]);
        let section = words[0x81..=0x83].iter().fold(0u16, |sum, word| sum.wrapping_add(*word));
        let fixed = words[..CHECKSUM].iter().fold(section, |sum, word| sum.wrapping_add(*word));
        words[CHECKSUM] = SUM.wrapping_sub(fixed);
        Self(words)
    }

    /// Reads a word.
    pub fn word(&self, at: usize) -> u16 {
        self.0.get(at).copied().unwrap_or(0xffff)
    }
}

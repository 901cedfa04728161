//! Cyclic redundancy checks: of Ethernet frames (IEEE 802.3, 3.2.9) and of SCTP packets (RFC 9260, appendix A).

const fn table(polynomial: u32) -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 != 0 { value >> 1 ^ polynomial } else { value >> 1 };
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
}

/// Bit-reversed polynomials.
static ETHERNET: [u32; 256] = table(0xedb8_8320);
static CASTAGNOLI: [u32; 256] = table(0x82f6_3b78);

fn crc(table: &[u32; 256], bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| crc >> 8 ^ table[(crc as u8 ^ byte) as usize])
}

/// Returns the frame check sequence, in the byte order of the wire.
pub fn ethernet(frame: &[u8]) -> [u8; 4] {
    crc(&ETHERNET, frame).to_le_bytes()
}

/// Returns the checksum of an SCTP packet, computed with a checksum field of zero.
pub fn sctp(packet: &[u8]) -> Option<[u8; 4]> {
    const AT: usize = 8;
    let mut bytes = packet.to_vec();
    bytes.get_mut(AT..AT + 4)?.fill(0);
    Some(crc(&CASTAGNOLI, &bytes).to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checks_are_the_published_ones() {
        assert_eq!(crc(&ETHERNET, b"123456789"), 0xcbf4_3926);
        assert_eq!(crc(&CASTAGNOLI, b"123456789"), 0xe306_9283);
        assert_eq!(sctp(&[0; 11]), None);
    }
}

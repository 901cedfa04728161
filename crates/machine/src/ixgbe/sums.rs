//! Internet checksums (RFC 1071).

/// The sum of 16-bit words, not folded yet. The last byte of an odd number is followed by a zero.
pub fn sum(bytes: &[u8]) -> u64 {
    let word = |pair: &[u8]| u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0));
    bytes.chunks(2).map(word).sum()
}

/// A sum in 16 bits.
pub fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The sum of a pseudo header: addresses, protocol, length of what follows the IP header.
pub fn pseudo(addresses: &[u8], protocol: u8, len: usize) -> u64 {
    sum(addresses) + u64::from(protocol) + (len as u64 & 0xffff) + (len as u64 >> 16)
}

/// Whether the header of an IPv4 packet has the checksum that it should have.
pub fn ip_header_is_right(header: &[u8]) -> bool {
    fold(sum(header)) == 0xffff
}

/// Computes the checksum of the header of an IPv4 packet.
pub fn set_ip_header(header: &mut [u8]) {
    if let Some(field) = header.get_mut(10..12) {
        field.fill(0);
        let checksum = !fold(sum(header));
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
}

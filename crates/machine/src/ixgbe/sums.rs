//! Internet checksums (RFC 1071).

/// Returns the unfolded sum of 16-bit words. An odd last byte is padded with a zero.
pub fn sum(bytes: &[u8]) -> u64 {
    let word = |pair: &[u8]| u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0));
    bytes.chunks(2).map(word).sum()
}

/// Folds a sum to 16 bits.
pub fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Returns the sum of a pseudo-header: addresses, protocol, and the length of the data after the IP header.
pub fn pseudo(addresses: &[u8], protocol: u8, len: usize) -> u64 {
    sum(addresses) + u64::from(protocol) + (len as u64 & 0xffff) + (len as u64 >> 16)
}

/// Returns true if the header of an IPv4 packet has a correct checksum.
pub fn ip_header_is_right(header: &[u8]) -> bool {
    fold(sum(header)) == 0xffff
}

/// Computes the checksum of an IPv4 header.
pub fn set_ip_header(header: &mut [u8]) {
    if let Some(field) = header.get_mut(10..12) {
        field.fill(0);
        let checksum = !fold(sum(header));
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
}

//! Numbers and strings as the ledger's file holds them, and their reader, which trusts nothing.
//!
//! Numbers are LEB128: seven bits per byte, least significant first, the high bit set on all bytes but the last. A string is
//! its length in bytes and its UTF-8.

use crate::unreadable::LedgerError;
use std::hash::Hasher;

/// Appends a number.
pub(crate) fn put(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Appends a string.
pub(crate) fn put_str(out: &mut Vec<u8>, s: &str) {
    put(out, s.len() as u64);
    out.extend_from_slice(s.as_bytes());
}

/// Appends a string, or as much of it as a reader takes.
pub(crate) fn put_cut(out: &mut Vec<u8>, s: &str, longest: usize) {
    let end = (0..=longest.min(s.len())).rev().find(|&end| s.is_char_boundary(end)).unwrap_or(0);
    put_str(out, &s[..end]);
}

/// Returns the 64-bit FNV-1a hash of bytes. It is a part of files; tables in memory have the faster hasher of `rustc_hash`.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    let mut hasher = fnv::FnvHasher::default();
    hasher.write(bytes);
    hasher.finish()
}

/// Reads what [`put`] and [`put_str`] wrote.
#[derive(Clone)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    /// The object that is read, for errors.
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, what: "header" }
    }

    /// Names what is read next, for errors.
    pub(crate) fn section(&mut self, what: &'static str) {
        self.what = what;
    }

    pub(crate) fn malformed(&self, reason: &'static str) -> LedgerError {
        LedgerError::Malformed { section: self.what, reason }
    }

    pub(crate) fn number(&mut self) -> Result<u64, LedgerError> {
        let mut n = 0u64;
        for i in 0..10 {
            let Some((&byte, rest)) = self.rest.split_first() else { return Err(self.malformed("ends too early")) };
            self.rest = rest;
            if i == 9 && byte > 1 {
                break;
            }
            n |= u64::from(byte & 0x7f) << (7 * i);
            if byte & 0x80 == 0 {
                return Ok(n);
            }
        }
        Err(self.malformed("a number is longer than 64 bits"))
    }

    /// A number of at most `most`.
    pub(crate) fn up_to(&mut self, most: u64) -> Result<u64, LedgerError> {
        let n = self.number()?;
        if n <= most { Ok(n) } else { Err(self.malformed("a number is out of range")) }
    }

    /// The number of items that follow, each of at least `bytes` bytes: never more than there is room for.
    pub(crate) fn count(&mut self, bytes: usize) -> Result<usize, LedgerError> {
        let n = self.number()?;
        if n <= (self.rest.len() / bytes) as u64 { Ok(n as usize) } else { Err(self.malformed("ends too early")) }
    }

    pub(crate) fn string(&mut self, longest: usize) -> Result<String, LedgerError> {
        let length = self.count(1)?;
        if length > longest {
            return Err(self.malformed("a string is too long"));
        }
        let (bytes, rest) = self.rest.split_at(length);
        self.rest = rest;
        match std::str::from_utf8(bytes) {
            Ok(s) => Ok(s.to_owned()),
            Err(_) => Err(self.malformed("a string is not UTF-8")),
        }
    }

    pub(crate) fn finish(self) -> Result<(), LedgerError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(LedgerError::Malformed { section: "end", reason: "is followed by more" })
        }
    }
}

//! Reads from an image with bounds checks.

use super::LoadError;

/// An image, with checked little-endian access.
#[derive(Clone, Copy)]
pub(super) struct Image<'a>(pub &'a [u8]);

impl<'a> Image<'a> {
    pub fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// Returns `len` bytes at `offset`. The error names them `what` if they are outside of the file.
    pub fn slice(&self, offset: u64, len: u64, what: &'static str) -> Result<&'a [u8], LoadError> {
        let end = offset.saturating_add(len);
        if end > self.len() || end == u64::MAX {
            return Err(LoadError::Truncated { what, end, len: self.len() });
        }
        Ok(&self.0[offset as usize..end as usize])
    }

    fn array<const N: usize>(&self, offset: u64, what: &'static str) -> Result<[u8; N], LoadError> {
        let mut out = [0; N];
        out.copy_from_slice(self.slice(offset, N as u64, what)?);
        Ok(out)
    }

    pub fn u8(&self, offset: u64, what: &'static str) -> Result<u8, LoadError> {
        Ok(u8::from_le_bytes(self.array(offset, what)?))
    }

    pub fn u16(&self, offset: u64, what: &'static str) -> Result<u16, LoadError> {
        Ok(u16::from_le_bytes(self.array(offset, what)?))
    }

    pub fn u32(&self, offset: u64, what: &'static str) -> Result<u32, LoadError> {
        Ok(u32::from_le_bytes(self.array(offset, what)?))
    }

    pub fn u64(&self, offset: u64, what: &'static str) -> Result<u64, LoadError> {
        Ok(u64::from_le_bytes(self.array(offset, what)?))
    }
}

/// Replaces the bytes at `offset` of a structure under construction.
pub(super) fn put(block: &mut [u8], offset: usize, value: &[u8]) {
    block[offset..offset + value.len()].copy_from_slice(value);
}

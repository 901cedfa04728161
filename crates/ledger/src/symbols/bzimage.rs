//! The kernel inside a bzImage.

use std::io::Read;

/// Why there is no kernel in an image.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// It has no Linux boot header.
    #[error("is not a bzImage")]
    NotABzImage,
    /// Its boot protocol is older than 2.08.
    #[error("uses boot protocol {0:#x}, which does not say where the kernel is (2.08 does)")]
    TooOld(u16),
    /// The compressed kernel reaches beyond the end.
    #[error("is truncated")]
    Truncated,
    /// It is compressed by a method that is not known here.
    #[error("is compressed by an unknown method (it begins with {0:02x?})")]
    UnknownMethod([u8; 4]),
    /// It can't be decompressed.
    #[error("can't be decompressed ({method}): {reason}")]
    Damaged {
        /// The method.
        method: &'static str,
        /// The reason.
        reason: String,
    },
}

/// The largest kernel.
const LARGEST: u64 = 512 << 20;
/// The size of the pieces that LZ4's legacy format decompresses.
const LZ4_CHUNK: usize = 8 << 20;

/// The decompressed kernel (an ELF file) that is in a bzImage.
pub fn vmlinux_from_bzimage(image: &[u8]) -> Result<Vec<u8>, ImageError> {
    if image.get(0x202..0x206) != Some(b"HdrS") {
        return Err(ImageError::NotABzImage);
    }
    let byte = |at: usize| image.get(at).copied().ok_or(ImageError::Truncated);
    let word = |at: usize| -> Result<usize, ImageError> {
        Ok(u32::from_le_bytes([byte(at)?, byte(at + 1)?, byte(at + 2)?, byte(at + 3)?]) as usize)
    };
    let version = u16::from_le_bytes([byte(0x206)?, byte(0x207)?]);
    if version < 0x208 {
        return Err(ImageError::TooOld(version));
    }
    let setup_sectors = match byte(0x1f1)? {
        0 => 4,
        n => usize::from(n),
    };
    let start = (setup_sectors + 1) * 512 + word(0x248)?;
    let end = start.checked_add(word(0x24c)?).ok_or(ImageError::Truncated)?;
    decompress(image.get(start..end).ok_or(ImageError::Truncated)?)
}

fn decompress(payload: &[u8]) -> Result<Vec<u8>, ImageError> {
    let damaged = |method| move |error: std::io::Error| ImageError::Damaged { method, reason: error.to_string() };
    match payload {
        [0x1f, 0x8b, ..] => limited(flate2::read::GzDecoder::new(payload)).map_err(damaged("gzip")),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => {
            limited(lzma_rust2::XzReader::new(payload, false)).map_err(damaged("xz"))
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => match ruzstd::decoding::StreamingDecoder::new(payload) {
            Ok(decoder) => limited(decoder).map_err(damaged("zstd")),
            Err(error) => Err(ImageError::Damaged { method: "zstd", reason: error.to_string() }),
        },
        [0x02, 0x21, 0x4c, 0x18, rest @ ..] => lz4(rest),
        [0x7f, b'E', b'L', b'F', ..] => Ok(payload.to_vec()),
        _ => {
            let mut first = [0; 4];
            first.iter_mut().zip(payload).for_each(|(to, from)| *to = *from);
            Err(ImageError::UnknownMethod(first))
        }
    }
}

fn limited(reader: impl Read) -> std::io::Result<Vec<u8>> {
    let mut out = Vec::new();
    reader.take(LARGEST).read_to_end(&mut out)?;
    Ok(out)
}

/// Chunks of a length and a block each; the kernel's build appends the length of the whole, which looks like one more.
fn lz4(mut rest: &[u8]) -> Result<Vec<u8>, ImageError> {
    let damaged = |reason: String| ImageError::Damaged { method: "lz4", reason };
    let mut out = Vec::new();
    while let Some((length, after)) = rest.split_at_checked(4) {
        let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize;
        let Some((block, after)) = after.split_at_checked(length) else {
            if after.is_empty() && length == out.len() {
                break;
            }
            return Err(damaged("a block is truncated".to_owned()));
        };
        out.extend(lz4_flex::block::decompress(block, LZ4_CHUNK).map_err(|error| damaged(error.to_string()))?);
        if out.len() as u64 > LARGEST {
            return Err(damaged("the kernel is too large".to_owned()));
        }
        rest = after;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bzImage around a payload.
    fn image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 5 * 512 + 64];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x208].copy_from_slice(&0x20fu16.to_le_bytes());
        image[0x1f1] = 4;
        image[0x248..0x24c].copy_from_slice(&64u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        image.extend_from_slice(payload);
        image
    }

    #[test]
    fn a_gzip_payload_is_decompressed() {
        use std::io::Write;
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(b"\x7fELF and so on").expect("fits in memory");
        let payload = encoder.finish().expect("fits in memory");
        assert_eq!(vmlinux_from_bzimage(&image(&payload)).unwrap(), b"\x7fELF and so on");
    }

    #[test]
    fn an_lz4_payload_is_decompressed() {
        let kernel = b"\x7fELF and so on and so on and so on".repeat(100);
        let block = lz4_flex::block::compress(&kernel);
        let mut payload = vec![0x02, 0x21, 0x4c, 0x18];
        payload.extend_from_slice(&(block.len() as u32).to_le_bytes());
        payload.extend_from_slice(&block);
        payload.extend_from_slice(&(kernel.len() as u32).to_le_bytes());
        assert_eq!(vmlinux_from_bzimage(&image(&payload)).unwrap(), kernel);
        payload.truncate(40);
        assert!(matches!(vmlinux_from_bzimage(&image(&payload)), Err(ImageError::Damaged { method: "lz4", .. })));
    }

    #[test]
    fn what_is_no_image_is_refused() {
        assert!(matches!(vmlinux_from_bzimage(b"\xff\xd8\xff\xe0"), Err(ImageError::NotABzImage)));
        assert!(matches!(vmlinux_from_bzimage(&[0; 4096]), Err(ImageError::NotABzImage)));
        assert!(matches!(vmlinux_from_bzimage(&image(b"what?")), Err(ImageError::UnknownMethod(_))));
        let whole = image(b"\x1f\x8b and some");
        assert!(matches!(vmlinux_from_bzimage(&whole), Err(ImageError::Damaged { method: "gzip", .. })));
        for length in 0..whole.len() {
            assert!(vmlinux_from_bzimage(&whole[..length]).is_err());
        }
    }
}

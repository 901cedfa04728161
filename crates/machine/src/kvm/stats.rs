//! KVM's binary statistics: counters of the virtual machine and of each processor, with the names that the host's
//! kernel defines.

use super::host;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// Size of the header, and of a descriptor without its name, in bytes.
const HEADER: usize = 24;
const DESCRIPTOR: usize = 16;
/// Maximum number of counters, and maximum length of names, that are accepted.
const MOST: usize = 4096;
/// The type of cumulative counters, in the low bits of a descriptor's flags; other types are states and histograms.
const CUMULATIVE: u32 = 0;

/// Adds the counters of a virtual machine, or of a processor, to sums by name. A kernel without statistics adds none.
pub fn collect(of: &impl AsRawFd, sums: &mut BTreeMap<String, u64>) {
    if let Ok(found) = host::statistics(of).and_then(|file| read(&file)) {
        for (name, value) in found {
            *sums.entry(name).or_default() += value;
        }
    }
}

/// Reads the counters in a file.
fn read(file: &File) -> io::Result<Vec<(String, u64)>> {
    let mut header = [0; HEADER];
    file.read_exact_at(&mut header, 0)?;
    let [_, name_size, count, _, descriptors, data] = std::array::from_fn(|i| word(&header, 4 * i));
    let size = DESCRIPTOR + name_size as usize;
    if count as usize > MOST || size > MOST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut table = vec![0; size * count as usize];
    file.read_exact_at(&mut table, descriptors.into())?;
    let mut found = Vec::new();
    for descriptor in table.chunks_exact(size) {
        let (flags, offset) = (word(descriptor, 0), word(descriptor, 8));
        let values = u16::from_le_bytes([descriptor[6], descriptor[7]]);
        if flags & 0xf != CUMULATIVE || values != 1 {
            continue;
        }
        let name = descriptor[DESCRIPTOR..].split(|byte| *byte == 0).next().unwrap_or_default();
        let mut value = [0; 8];
        file.read_exact_at(&mut value, u64::from(data) + u64::from(offset))?;
        found.push((String::from_utf8_lossy(name).into_owned(), u64::from_le_bytes(value)));
    }
    Ok(found)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn descriptor(flags: u32, values: u16, offset: u32, name: &str) -> Vec<u8> {
        let mut bytes = flags.to_le_bytes().to_vec();
        bytes.extend([0; 2]);
        bytes.extend(values.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(name.bytes().chain([0; 16]).take(16));
        bytes
    }

    #[test]
    fn counters_are_read_by_name_and_histograms_are_not() {
        let mut bytes: Vec<u8> = [0u32, 16, 3, 24, 24, 24 + 96].iter().flat_map(|w| w.to_le_bytes()).collect();
        bytes.extend(descriptor(CUMULATIVE, 1, 0, "exits"));
        bytes.extend(descriptor(3, 2, 8, "histogram"));
        bytes.extend(descriptor(CUMULATIVE, 1, 24, "io_exits"));
        for value in [7u64, 1, 2, 5] {
            bytes.extend(value.to_le_bytes());
        }
        let path = std::env::temp_dir().join(format!("tollgate-statistics-{}", std::process::id()));
        File::create(&path).unwrap().write_all(&bytes).unwrap();
        let found = read(&File::open(&path).unwrap()).unwrap();
        assert_eq!(found, [("exits".to_owned(), 7), ("io_exits".to_owned(), 5)]);
        File::options().write(true).open(&path).unwrap().set_len(60).unwrap();
        assert!(read(&File::open(&path).unwrap()).is_err(), "a file that ends too soon");
        std::fs::remove_file(&path).unwrap();
    }
}

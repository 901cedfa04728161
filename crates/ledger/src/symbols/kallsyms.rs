//! The kernel's own symbols, from the tables that CONFIG_KALLSYMS puts into its read-only data.
//!
//! Nothing points to the tables, so they are found by their structure. Names are compressed with a table of 256 tokens, in
//! which the ten digits always stand for themselves: that finds the table of tokens. The index of tokens follows it and says
//! where it begins. The number of symbols, their names and markers (the place of each 256th name) come before it, and
//! the markers tell whether the names were read correctly. Addresses are 32-bit offsets from a base. Up to Linux 6.4 they
//! and the base lie in front of the number of symbols, later behind the index of tokens. Linux 7 has no base: an offset counts
//! from its own place in the table, and tables begin at multiples of 4 bytes where earlier kernels align them to 8.

use super::{Raw, Symbol, functions, mark_data};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The reason why an image has no symbols.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, thiserror::Error)]
pub enum KallsymsError {
    /// There is no table of tokens.
    #[error("no kallsyms table in the kernel (CONFIG_KALLSYMS is off, or the image is still compressed)")]
    NoTokens,
    /// There is no list of names that fits the tokens.
    #[error("the kallsyms names in the kernel can't be found")]
    NoNames,
    /// There are no addresses that fit the names.
    #[error("the kallsyms addresses in the kernel can't be found")]
    NoAddresses,
}

/// Bytes that tables are aligned to: up to Linux 6 and since 7.
const ALIGNMENTS: [usize; 2] = [8, 4];
/// Between two symbols of a marker.
const PER_MARKER: usize = 256;
/// Numbers of symbols that a kernel can have.
const SYMBOLS: std::ops::RangeInclusive<u64> = 64..=4_000_000;
/// Largest distance from the start of the names to the tokens.
const FURTHEST: usize = 64 << 20;
/// Maximum length of a token and of a name.
const LONGEST_NAME: usize = 2048;
/// Bounds on the search, which may be in the memory of a guest that wants it to last for ever: tables of tokens tried, and
/// names read.
const MOST_CANDIDATES: usize = 256;
const PATIENCE: usize = 64_000_000;
/// Largest BTF of a kernel.
const LARGEST_BTF: u64 = 64 << 20;
/// The tokens of the digits.
const DIGITS: &[u8; 20] = b"0\x001\x002\x003\x004\x005\x006\x007\x008\x009\0";
/// First address of the half of linear memory in which kernels are linked.
const KERNEL_HALF: u64 = 0xffff_8000_0000_0000;

/// The contents of a kernel's tables. Clones share the functions, of which a kernel has some hundred thousand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kallsyms {
    /// Functions by address, one for each.
    pub functions: Arc<[Symbol]>,
    /// Data that leads to the kernel's modules.
    pub landmarks: Landmarks,
}

/// Addresses of data in a kernel; those of CONFIG_KALLSYMS_ALL, so that each may be missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Landmarks {
    /// The head of the list of modules.
    pub modules: Option<u64>,
    /// Start and end of the kernel's BTF.
    pub btf: Option<(u64, u64)>,
    /// The idle task of the first processor.
    pub init_task: Option<u64>,
    /// Start and end of the addresses that its ORC tables are about, and of their entries.
    pub orc: Option<[(u64, u64); 2]>,
}

impl Landmarks {
    fn new(raw: &[Raw]) -> Self {
        let data = |wanted: &str| {
            // A global symbol (its letter is upper-case) before a local one of that name.
            let named = raw.iter().filter(|(_, letter, name)| name == wanted && !matches!(letter, 'T' | 't'));
            named.min_by_key(|(_, letter, _)| letter.is_lowercase()).map(|symbol| symbol.0)
        };
        let orc = data("__start_orc_unwind_ip").zip(data("__stop_orc_unwind_ip"));
        let entries = data("__start_orc_unwind").zip(data("__stop_orc_unwind"));
        Self {
            modules: data("modules"),
            btf: data("__start_BTF").zip(data("__stop_BTF")),
            init_task: data("init_task"),
            orc: orc.zip(entries).map(|(addresses, entries)| [addresses, entries]),
        }
    }

    /// The kernel's BTF. `read` reads linear memory: all of the bytes, or it returns `false`.
    pub(super) fn btf_bytes(&self, read: impl Fn(u64, &mut [u8]) -> bool) -> Option<Vec<u8>> {
        let (start, stop) = self.btf?;
        let size = stop.checked_sub(start).filter(|size| *size <= LARGEST_BTF)?;
        let mut bytes = vec![0; size as usize];
        read(start, &mut bytes).then_some(bytes)
    }
}

/// Symbols of the kernel in whose memory `image` is. The image begins where a page does, at the linear address `linear`;
/// without it the tables of Linux 7, which count from their own place, can't be read.
pub fn kallsyms(image: &[u8], linear: Option<u64>) -> Result<Kallsyms, KallsymsError> {
    let raw = raw_kallsyms(image, linear)?;
    let landmarks = Landmarks::new(&raw);
    Ok(Kallsyms { functions: functions(raw).into(), landmarks })
}

/// Likewise, all symbols as they are in the tables.
pub(super) fn raw_kallsyms(image: &[u8], linear: Option<u64>) -> Result<Vec<Raw>, KallsymsError> {
    let mut worst = KallsymsError::NoTokens;
    let mut patience = PATIENCE;
    for digits in memchr::memmem::find_iter(image, DIGITS).take(MOST_CANDIDATES) {
        for alignment in ALIGNMENTS {
            let Some(tokens) = Tokens::around(image, digits, alignment) else { continue };
            worst = worst.max(KallsymsError::NoNames);
            let Some(names) = Names::before(image, &tokens, &mut patience) else { continue };
            worst = KallsymsError::NoAddresses;
            let Some(addresses) = addresses(image, linear, &tokens, &names) else { continue };
            let raw = addresses.into_iter().zip(&names.places).filter_map(|(address, &place)| {
                let (letter, name) = names.name(image, &tokens, place)?;
                Some((address?, letter, name))
            });
            let mut raw: Vec<Raw> = raw.collect();
            mark_data(&mut raw);
            return Ok(raw);
        }
    }
    Err(worst)
}

fn u32_at(image: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(image.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u64_at(image: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(image.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// The 256 strings that codes in names stand for.
struct Tokens<'a> {
    /// The offset of the table in the image.
    start: usize,
    /// The offset of the end of the index of tokens.
    end: usize,
    /// The alignment of this and the other tables.
    alignment: usize,
    strings: Vec<&'a [u8]>,
}

impl<'a> Tokens<'a> {
    /// The table in which the tokens of the digits are at `digits`. The index, of 16 bits for each token, follows it.
    fn around(image: &'a [u8], digits: usize, alignment: usize) -> Option<Self> {
        let mut at = digits;
        for _ in usize::from(b'0')..256 {
            at += image[at..].iter().take(LONGEST_NAME).position(|byte| *byte == 0)? + 1;
        }
        let index = at.next_multiple_of(alignment);
        let offset = |token: usize| {
            let bytes = image.get(index + 2 * token..index + 2 * token + 2)?;
            Some(usize::from(u16::from_le_bytes([bytes[0], bytes[1]])))
        };
        let start = digits.checked_sub(offset(usize::from(b'0'))?)?;
        let mut strings = Vec::with_capacity(256);
        let mut expected = 0;
        for token in 0..256 {
            if offset(token)? != expected {
                return None;
            }
            let string = &image[start + expected..];
            let string = &string[..string.iter().take(LONGEST_NAME).position(|byte| *byte == 0)?];
            expected += string.len() + 1;
            strings.push(string);
        }
        (start + expected == at).then_some(Self { start, end: index + 512, alignment, strings })
    }
}

/// The compressed names.
struct Names {
    /// The offset in the image of the number of symbols, which is just before the names.
    number: usize,
    /// The offset of each symbol's name.
    places: Vec<usize>,
}

impl Names {
    fn before(image: &[u8], tokens: &Tokens, patience: &mut usize) -> Option<Self> {
        let nearest = tokens.start.checked_sub(tokens.alignment)?;
        let furthest = tokens.start.saturating_sub(FURTHEST);
        (furthest..=nearest).rev().step_by(tokens.alignment).find_map(|number| {
            // Padding of zeros makes the older number 64 bits wide.
            let count = match tokens.alignment {
                8 => u64_at(image, number)?,
                _ => u64::from(u32_at(image, number)?),
            };
            let count = Some(count).filter(|count| SYMBOLS.contains(count))? as usize;
            Self::at(image, number, count, tokens, patience)
        })
    }

    /// The names behind `number`, if `count` of them end where markers for them begin.
    fn at(image: &[u8], number: usize, count: usize, tokens: &Tokens, patience: &mut usize) -> Option<Self> {
        let names = number + tokens.alignment;
        if count * 2 > tokens.start - names.min(tokens.start) {
            return None;
        }
        let mut places = Vec::new();
        let mut at = names;
        for _ in 0..count {
            *patience = patience.checked_sub(1)?;
            places.push(at);
            let (length, data) = length(image, at).filter(|(length, _)| *length != 0)?;
            at = data + length;
            if at > tokens.start {
                return None;
            }
        }
        let markers = at.next_multiple_of(tokens.alignment);
        let all_right = (0..count.div_ceil(PER_MARKER))
            .all(|i| u32_at(image, markers + 4 * i) == Some((places[i * PER_MARKER] - names) as u32));
        all_right.then_some(Self { number, places })
    }

    /// The letter of the type and the name of the symbol at `place`.
    fn name(&self, image: &[u8], tokens: &Tokens, place: usize) -> Option<(char, String)> {
        let (length, data) = length(image, place)?;
        let mut name = Vec::with_capacity(32);
        for code in image.get(data..data + length)? {
            name.extend_from_slice(tokens.strings[usize::from(*code)]);
            if name.len() > LONGEST_NAME {
                return None;
            }
        }
        let name = String::from_utf8(name).ok()?;
        let letter = name.chars().next()?;
        Some((letter, name[letter.len_utf8()..].to_owned()))
    }
}

/// Returns the number of a name's codes and their offset. The number has seven bits in one byte, or since Linux 6.1 fourteen in two.
fn length(image: &[u8], at: usize) -> Option<(usize, usize)> {
    let first = usize::from(*image.get(at)?);
    if first < 0x80 {
        return Some((first, at + 1));
    }
    let second = usize::from(*image.get(at + 1)?);
    (second < 0x80).then_some((first & 0x7f | second << 7, at + 2))
}

/// The address of each symbol, in the order of the names; `None` for those that are not in the kernel's memory.
fn addresses(image: &[u8], linear: Option<u64>, tokens: &Tokens, names: &Names) -> Option<Vec<Option<u64>>> {
    let count = names.places.len();
    let size = (4 * count).next_multiple_of(8);
    let in_front = names.number.checked_sub(8).and_then(|base| Some((base.checked_sub(size)?, base)));
    let behind = Some((tokens.end, tokens.end + size));
    let based = [in_front, behind].into_iter().flatten().find_map(|(offsets, base)| {
        let base = u64_at(image, base).filter(|base| *base >= KERNEL_HALF)?;
        let offsets: Option<Vec<i32>> = (0..count).map(|i| u32_at(image, offsets + 4 * i).map(|n| n as i32)).collect();
        decode(&offsets?, base)
    });
    based.or_else(|| from_their_places(image, linear?, tokens.end, count))
}

/// Addresses of `count` symbols whose offsets begin at `offsets`, each from its own place.
fn from_their_places(image: &[u8], linear: u64, offsets: usize, count: usize) -> Option<Vec<Option<u64>>> {
    let places = (0..count).map(|i| offsets + 4 * i);
    let address =
        |place| Some(linear.wrapping_add(place as u64).wrapping_add_signed((u32_at(image, place)? as i32).into()));
    let addresses: Vec<u64> = places.map(address).collect::<Option<_>>()?;
    let right = addresses.is_sorted() && addresses.first() != addresses.last() && addresses[0] >= KERNEL_HALF;
    right.then(|| addresses.into_iter().map(Some).collect())
}

/// With CONFIG_KALLSYMS_ABSOLUTE_PERCPU, offsets that are not negative are absolute (of per-CPU symbols), and the others count
/// down from one below the base. Without, all are relative to the base. Either way symbols are sorted.
fn decode(offsets: &[i32], base: u64) -> Option<Vec<Option<u64>>> {
    let first_negative = offsets.iter().position(|offset| *offset < 0);
    let Some(first) = first_negative else {
        let sorted = offsets.is_sorted() && offsets.first() != offsets.last();
        return sorted.then(|| offsets.iter().map(|offset| base.checked_add(*offset as u64)).collect());
    };
    let (absolute, relative) = offsets.split_at(first);
    let sorted = absolute.is_sorted() && relative.is_sorted_by(|a, b| a >= b);
    sorted.then(|| {
        let absent = absolute.iter().map(|_| None);
        absent.chain(relative.iter().map(|offset| base.checked_add(u64::from(!*offset as u32)))).collect()
    })
}

#[cfg(test)]
mod tests;

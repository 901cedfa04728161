//! Identification of a processor by CPUID.

use serde::{Deserialize, Serialize};
use std::arch::x86_64::{__cpuid, CpuidResult};

/// What CPUID says about who made a processor and which one it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Processor {
    /// Vendor, such as `AuthenticAMD`.
    pub vendor: String,
    /// Family, with the extended family.
    pub family: u32,
    /// Model, with the extended model.
    pub model: u32,
    /// Stepping.
    pub stepping: u32,
    /// Name, as the processor tells it.
    pub name: String,
}

impl Processor {
    /// Returns this machine's processor.
    pub fn of_host() -> Self {
        Self::of(|leaf| {
            let CpuidResult { eax, ebx, ecx, edx } = __cpuid(leaf);
            [eax, ebx, ecx, edx]
        })
    }

    /// Returns the processor with these answers of CPUID: EAX, EBX, ECX and EDX of a leaf.
    pub fn of(cpuid: impl Fn(u32) -> [u32; 4]) -> Self {
        let text = |words: &[u32]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).filter(|byte| *byte != 0).collect();
            String::from_utf8_lossy(&bytes).trim().to_string()
        };
        let [_, b, c, d] = cpuid(0);
        let version = cpuid(1)[0];
        let (family, model) = (version >> 8 & 0xf, version >> 4 & 0xf);
        let name = if cpuid(0x8000_0000)[0] >= 0x8000_0004 {
            text(&[0x8000_0002, 0x8000_0003, 0x8000_0004].map(&cpuid).concat())
        } else {
            String::new()
        };
        Self {
            vendor: text(&[b, d, c]),
            family: if family == 0xf { family + (version >> 20 & 0xff) } else { family },
            model: if matches!(family, 6 | 0xf) { model | version >> 12 & 0xf0 } else { model },
            stepping: version & 0xf,
            name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extended_families_and_models_are_added() {
        let cpuid = |version: u32| {
            move |leaf: u32| match leaf {
                0 => [16, u32::from_le_bytes(*b"Auth"), u32::from_le_bytes(*b"cAMD"), u32::from_le_bytes(*b"enti")],
                1 => [version, 0, 0, 0],
                0x8000_0000 => [0x8000_0004, 0, 0, 0],
                0x8000_0002 => [u32::from_le_bytes(*b"Some"), u32::from_le_bytes(*b" one"), 0, 0],
                _ => [0; 4],
            }
        };
        let milan = Processor::of(cpuid(0x00a0_0f11));
        assert_eq!((milan.vendor.as_str(), milan.family, milan.model, milan.stepping), ("AuthenticAMD", 0x19, 1, 1));
        assert_eq!(milan.name, "Some one");
        let sapphire_rapids = Processor::of(cpuid(0x0008_06f8));
        assert_eq!((sapphire_rapids.family, sapphire_rapids.model, sapphire_rapids.stepping), (6, 0x8f, 8));
    }
}

//! Contents of the state components in the extended region, one row per component. CPUID gives the components of a
//! model and their offsets.

use super::legacy;
use crate::arch::{TILE, TILES, TileConfig};
use crate::state::Cpu;
use crate::xstate::KNOWN;

/// Number of bytes moved between a save area and a component at a time.
pub const PIECE: usize = 1024;

/// Operations on the contents of a component.
pub struct Contents {
    /// Number of the component.
    pub number: u32,
    /// Returns the number of bytes that are used in the current mode.
    pub len: fn(&Cpu) -> usize,
    /// Saves the part that begins at an offset, a multiple of [`PIECE`].
    pub save: fn(&Cpu, usize, &mut [u8]),
    /// Loads the part that begins at an offset, a multiple of [`PIECE`].
    pub load: fn(&mut Cpu, usize, &[u8]),
    /// Resets the component to its initial configuration.
    pub init: fn(&mut Cpu),
    /// Returns true if the component is in its initial configuration.
    pub is_init: fn(&Cpu) -> bool,
    /// Returns true if the contents of an area can be loaded; otherwise the load raises #GP.
    pub check: Option<fn(&Cpu, &[u8]) -> bool>,
}

/// The components, in the order of [`KNOWN`].
pub static CONTENTS: [Contents; KNOWN.len()] = [
    // AVX: the upper halves of the YMM registers.
    Contents {
        number: 2,
        len: |cpu| 16 * legacy::registers(cpu),
        save: |cpu, _, area| legacy::save_halves(cpu, area, 2),
        load: |cpu, _, area| legacy::restore_halves(cpu, area, 2),
        init: |cpu| legacy::init_halves(cpu, 2),
        is_init: |cpu| legacy::halves_are_init(cpu, 2),
        check: None,
    },
    // Opmask registers.
    Contents {
        number: 5,
        len: |_| 64,
        save: |cpu, _, area| store(area, &cpu.arch.vector.k),
        load: |cpu, _, area| fetch(area, &mut cpu.arch.vector.k),
        init: |cpu| cpu.arch.vector.k = [0; 8],
        is_init: |cpu| cpu.arch.vector.k == [0; 8],
        check: None,
    },
    // ZMM_Hi256: the upper halves of ZMM0 to ZMM15.
    Contents {
        number: 6,
        len: |cpu| 32 * legacy::registers(cpu),
        save: |cpu, _, area| store(area, cpu.arch.vector.upper[..legacy::registers(cpu)].as_flattened()),
        load: |cpu, _, area| {
            let count = legacy::registers(cpu);
            fetch(area, cpu.arch.vector.upper_mut()[..count].as_flattened_mut());
        },
        init: |cpu| {
            let count = legacy::registers(cpu);
            cpu.arch.vector.upper[..count].fill([0; 4]);
        },
        is_init: |cpu| cpu.arch.vector.upper[..legacy::registers(cpu)].iter().all(|r| *r == [0; 4]),
        check: None,
    },
    // Hi16_ZMM: ZMM16 to ZMM31, which exist only in 64-bit mode.
    Contents {
        number: 7,
        len: |cpu| if cpu.engine.long64 { 1024 } else { 0 },
        save: |cpu, _, area| store(area, cpu.arch.vector.high.as_flattened()),
        load: |cpu, _, area| {
            if cpu.engine.long64 {
                fetch(area, cpu.arch.vector.high.as_flattened_mut());
            }
        },
        init: |cpu| {
            if cpu.engine.long64 {
                cpu.arch.vector.high = [[0; 8]; 16];
            }
        },
        is_init: |cpu| !cpu.engine.long64 || cpu.arch.vector.high == [[0; 8]; 16],
        check: None,
    },
    // PKRU.
    Contents {
        number: 9,
        len: |_| 8,
        save: |cpu, _, area| store(area, &[u64::from(cpu.arch.pkru)]),
        load: |cpu, _, area| {
            let mut word = [0];
            fetch(area, &mut word);
            super::set_pkru(cpu, word[0] as u32);
        },
        init: |cpu| super::set_pkru(cpu, 0),
        is_init: |cpu| cpu.arch.pkru == 0,
        check: None,
    },
    // CET_U: IA32_U_CET and IA32_PL3_SSP.
    Contents {
        number: 11,
        len: |_| 16,
        save: |cpu, _, area| store(area, &[cpu.arch.msr.u_cet, cpu.arch.msr.pl_ssp[3]]),
        load: |cpu, _, area| {
            let mut words = [0; 2];
            fetch(area, &mut words);
            [cpu.arch.msr.u_cet, cpu.arch.msr.pl_ssp[3]] = words;
        },
        init: |cpu| [cpu.arch.msr.u_cet, cpu.arch.msr.pl_ssp[3]] = [0; 2],
        is_init: |cpu| [cpu.arch.msr.u_cet, cpu.arch.msr.pl_ssp[3]] == [0; 2],
        check: Some(|cpu, area| {
            let mut words = [0; 2];
            fetch(area, &mut words);
            cpu.good_cet_control(words[0]) && good_ssp(cpu, words[1])
        }),
    },
    // CET_S: IA32_PL0_SSP to IA32_PL2_SSP.
    Contents {
        number: 12,
        len: |_| 24,
        save: |cpu, _, area| store(area, &cpu.arch.msr.pl_ssp[..3]),
        load: |cpu, _, area| fetch(area, &mut cpu.arch.msr.pl_ssp[..3]),
        init: |cpu| cpu.arch.msr.pl_ssp[..3].fill(0),
        is_init: |cpu| cpu.arch.msr.pl_ssp[..3] == [0; 3],
        check: Some(|cpu, area| {
            let mut words = [0; 3];
            fetch(area, &mut words);
            words.into_iter().all(|ssp| good_ssp(cpu, ssp))
        }),
    },
    // TILECFG.
    Contents {
        number: 17,
        len: |_| 64,
        save: |cpu, _, area| area.copy_from_slice(&cpu.arch.tiles.config.image()),
        load: |cpu, _, area| {
            // Contents that LDTILECFG would reject leave the tiles without a configuration.
            let config = area.first_chunk().and_then(TileConfig::from_image);
            cpu.arch.tiles.config = config.unwrap_or_default();
        },
        init: |cpu| cpu.arch.tiles.config = TileConfig::default(),
        is_init: |cpu| cpu.arch.tiles.config == TileConfig::default(),
        check: None,
    },
    // TILEDATA.
    Contents {
        number: 18,
        len: |_| TILES * TILE,
        save: |cpu, from, area| area.copy_from_slice(cpu.arch.tiles.tile(from / TILE)),
        load: |cpu, from, area| cpu.arch.tiles.tile_mut(from / TILE).copy_from_slice(area),
        init: |cpu| cpu.arch.tiles.clear(),
        is_init: |cpu| !cpu.arch.tiles.are_in_use(),
        check: None,
    },
];

const _: () = {
    let mut index = 0;
    while index < KNOWN.len() {
        assert!(KNOWN[index].number == CONTENTS[index].number, "both tables have the components in one order");
        index += 1;
    }
};

// A piece is one tile.
const _: () = assert!(TILE == PIECE);

/// Returns true if a value is valid for a shadow-stack pointer register.
fn good_ssp(cpu: &Cpu, value: u64) -> bool {
    value & 3 == 0 && cpu.canonical_base(value)
}

/// Writes words to an area.
pub(super) fn store(area: &mut [u8], words: &[u64]) {
    for (bytes, word) in area.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
}

/// Reads words from an area.
pub(super) fn fetch(area: &[u8], words: &mut [u64]) {
    for (word, bytes) in words.iter_mut().zip(area.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
}

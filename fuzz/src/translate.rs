//! Any bytes as a program, under the interpreter and the translator, which must not differ.

use cpu::{Exit, Tier};
use std::cell::RefCell;
use testkit::tiers::{CODE_PAGES, STACK, Start, Tiers, Width};
use testkit::{CODE, DATA, Random};

/// Virtual time of a program in ticks, and largest number of stretches.
const LONGEST: u64 = 2_000_000;
const MOST_STOPS: u64 = 200;
/// Number of bytes in front of the code.
const HEADER: usize = 12;

thread_local! {
    static TIERS: RefCell<Tiers> = RefCell::new(Tiers::new());
}

/// Runs the input.
pub fn run(data: &[u8]) {
    let Some((header, code)) = data.split_at_checked(HEADER) else { return };
    let code = &code[..code.len().min((CODE_PAGES * 4096) as usize)];
    let seed =
        u64::from_le_bytes([header[0], header[1], header[2], header[3], header[4], header[5], header[6], header[7]]);
    let mut random = Random::new(seed);
    let mut gpr = [0; 16];
    gpr.fill_with(|| if random.one_in(3) { random.next() } else { DATA + random.below(0x2000) });
    gpr[4] = STACK;
    let cpl = if header[8] & 1 == 0 { 3 } else { 0 };
    // The code follows INT3s, so that another page may follow it.
    let offset = u64::from(header[9]) << 4;
    let mut bytes = vec![0xcc; offset as usize];
    bytes.extend_from_slice(code);
    bytes.truncate((CODE_PAGES * 4096) as usize);
    // Probes are near the beginning, so that some are at first bytes of instructions.
    let probes = match header[10] & 2 {
        0 => Vec::new(),
        _ => code.iter().take(4).map(|near| CODE + offset + u64::from(near & 0x3f)).collect(),
    };
    let width = [Width::Long, Width::Compatibility, Width::Protected, Width::Long][usize::from(header[8] >> 5 & 3)];
    let start = Start {
        probes,
        width,
        cpl,
        smap: cpl == 0 && header[8] & 2 != 0,
        rip: CODE + offset,
        code: bytes,
        gpr,
        flags: u64::from(header[10]) & 0xd5 | u64::from(header[11] & 4) << 7 | u64::from(header[8] & 4) << 16,
        bases: [DATA, DATA + 0x800],
        pointers: header[8] & 16 != 0,
        recorded: header[8] & 0x80 == 0,
        seed,
        tier: if header[8] & 8 == 0 { Tier::Translator } else { Tier::Auto },
        threshold: 1 + u16::from(header[11] >> 4),
    };
    let stretch = [1, 3_000, 100_000, LONGEST][usize::from(header[11] & 3)];
    TIERS.with_borrow_mut(|tiers| {
        tiers.start(&start);
        let mut compared = Ok(());
        for _ in 0..MOST_STOPS {
            if header[11] & 8 != 0 {
                tiers.interrupt();
            }
            match tiers.run(1 + random.below(2 * stretch)) {
                Ok(Exit::Deadline | Exit::Bus | Exit::Probe) if tiers.reference().cpu.micro.clock <= LONGEST => {}
                Ok(_) => break,
                Err(difference) => {
                    compared = Err(difference);
                    break;
                }
            }
        }
        let compared = compared.and_then(|()| tiers.charges());
        if let Err(difference) = compared {
            panic!("{difference}");
        }
    });
}

/// Returns some code of each kind.
pub fn seeds() -> Vec<Vec<u8>> {
    let codes: [&[u8]; 9] = [
        // This is a loop over memory.
        &[0x48, 0x03, 0x04, 0xcf, 0x48, 0xff, 0xc1, 0x48, 0x83, 0xf9, 0x10, 0x72, 0xf3, 0xf4],
        // Push, call, return.
        &[0x53, 0x55, 0xe8, 0x02, 0, 0, 0, 0xeb, 0xf7, 0x48, 0x83, 0xc0, 0x01, 0xc3],
        // Shifts and multiplications with their flags.
        &[0x48, 0xc1, 0xe0, 0x03, 0x9c, 0x58, 0x48, 0x0f, 0xaf, 0xc1, 0x9c, 0x5a, 0xd3, 0xe0, 0xeb, 0xf0],
        // String operations, vectors.
        &[0xf3, 0xa4, 0x0f, 0x10, 0x06, 0x0f, 0x58, 0xc1, 0x0f, 0x29, 0x07, 0xc5, 0xfd, 0x6f, 0x06, 0xeb, 0xef],
        // This code is written.
        &[0xc6, 0x05, 0x02, 0, 0, 0, 0x90, 0xff, 0xc0, 0xeb, 0xf5],
        // x87: loads, arithmetic, a control word, a comparison, stores.
        &[
            0xdd, 0x06, 0xdc, 0x4e, 0x08, 0xd9, 0x6e, 0x10, 0xd8, 0xc1, 0xdb, 0xf1, 0xdf, 0xe0, 0xdd, 0x1f, 0xdb, 0x7f,
            0x20, 0xeb, 0xea,
        ],
        // Interrupts off and on.
        &[0xfa, 0xff, 0x06, 0xfb, 0x90, 0xff, 0x07, 0xeb, 0xf7],
        // 32-bit code: push, call, memory by 32- and 16-bit addresses.
        &[0x53, 0x40, 0xe8, 0x02, 0, 0, 0, 0xeb, 0xf7, 0x01, 0x06, 0x67, 0x8b, 0x1c, 0xc3],
        // Indirect jumps.
        &[0x48, 0x8d, 0x05, 0x02, 0, 0, 0, 0xff, 0xe0, 0x48, 0xff, 0xc3, 0xeb, 0xf2],
    ];
    let header = |n: u8| [n, 1, 2, 3, 4, 5, 6, 7, n, 0xff - n, 0x45, n];
    // Each runs in 64-bit, compatibility and protected mode.
    codes
        .iter()
        .zip(0..)
        .flat_map(|(code, n)| [n, n + 8, n + 32, n + 64].map(|n| [&header(n)[..], code].concat()))
        .collect()
}

use super::*;
use proptest::prelude::*;

/// The place of the offsets.
#[derive(Clone, Copy, PartialEq)]
enum Layout {
    InFront,
    Behind,
    /// Behind, and each counts from its own place; tables are aligned to 4 bytes.
    Placed,
}

const BASE: u64 = 0xffff_ffff_8100_0000;
/// The linear address of an image.
const LINEAR: u64 = BASE + 0x400_0000;

/// Symbols of a made-up kernel: percpu, functions, data.
fn symbols(count: usize) -> Vec<(u64, String)> {
    let functions = (0..count).map(|i| {
        let long = if i % 100 == 7 { "_very_long_name".repeat(12) } else { String::new() };
        (BASE + 64 * i as u64, format!("Tfunction_{i}{long}"))
    });
    let data = (0..50).map(|i| (BASE + 64 * (count + i) as u64, format!("dtable_{i}")));
    let end = BASE + 64 * (count + 50) as u64;
    let names = ["dmodules", "Dmodules", "R__start_BTF", "R__stop_BTF", "Dinit_task"];
    let landmarks = names.iter().enumerate().map(|(i, name)| (end + 8 * i as u64, (*name).to_owned()));
    functions.chain(data).chain(landmarks.collect::<Vec<_>>()).collect()
}

/// The memory of a kernel with tables of `symbols`, and of per-CPU symbols if their offsets are absolute.
fn image(symbols: &[(u64, String)], absolute_percpu: bool, layout: Layout) -> Vec<u8> {
    let percpu: Vec<(u64, String)> = match absolute_percpu {
        true => (0..20).map(|i| (i * 8, format!("Apercpu_{i}"))).collect(),
        false => Vec::new(),
    };
    let all: Vec<&(u64, String)> = percpu.iter().chain(symbols).collect();
    // Every character stands for itself; two codes that no name needs stand for more.
    let mut tokens: Vec<String> = (0..256u32)
        .map(|c| char::from_u32(c).filter(|c| c.is_ascii_graphic()).map_or(String::new(), String::from))
        .collect();
    tokens[1] = "function_".to_owned();
    tokens[0xf0] = "_very_long_name".to_owned();
    let code = |name: &str| {
        let mut codes = Vec::new();
        let mut rest = name;
        while let Some(c) = rest.chars().next() {
            let code = [1usize, 0xf0].into_iter().find(|&t| rest.starts_with(&tokens[t])).unwrap_or(c as usize);
            codes.push(code as u8);
            rest = &rest[tokens[code].len()..];
        }
        codes
    };
    let alignment = if layout == Layout::Placed { 4 } else { 8 };
    let pad = |out: &mut Vec<u8>| out.resize(out.len().next_multiple_of(alignment), 0);
    let (mut names, mut markers) = (Vec::new(), Vec::new());
    for (i, symbol) in all.iter().enumerate() {
        if i % PER_MARKER == 0 {
            markers.extend_from_slice(&(names.len() as u32).to_le_bytes());
        }
        let codes = code(&symbol.1);
        if codes.len() < 0x80 {
            names.push(codes.len() as u8);
        } else {
            names.extend_from_slice(&[codes.len() as u8 & 0x7f | 0x80, (codes.len() >> 7) as u8]);
        }
        names.extend_from_slice(&codes);
    }
    let mut addresses = Vec::new();
    for (address, _) in &all {
        let offset = match absolute_percpu {
            true if *address < BASE => *address as u32,
            true => !((*address - BASE) as u32),
            false => (*address - BASE) as u32,
        };
        addresses.extend_from_slice(&offset.to_le_bytes());
    }
    pad(&mut addresses);
    addresses.extend_from_slice(&BASE.to_le_bytes());

    let mut out = vec![0xcc; 4096];
    if layout == Layout::InFront {
        out.extend_from_slice(&addresses);
    }
    out.extend_from_slice(&(all.len() as u64).to_le_bytes()[..alignment]);
    out.extend_from_slice(&names);
    pad(&mut out);
    out.extend_from_slice(&markers);
    pad(&mut out);
    let mut index = Vec::new();
    let table = out.len();
    for token in &tokens {
        index.extend_from_slice(&((out.len() - table) as u16).to_le_bytes());
        out.extend_from_slice(token.as_bytes());
        out.push(0);
    }
    pad(&mut out);
    out.extend_from_slice(&index);
    match layout {
        Layout::InFront => {}
        Layout::Behind => out.extend_from_slice(&addresses),
        Layout::Placed => {
            for (address, _) in &all {
                let place = LINEAR + out.len() as u64;
                out.extend_from_slice(&(address.wrapping_sub(place) as u32).to_le_bytes());
            }
        }
    }
    out.extend_from_slice(&[0xcc; 4096]);
    out
}

#[test]
fn symbols_are_found_in_every_layout() {
    let layouts = [
        (Layout::InFront, false),
        (Layout::InFront, true),
        (Layout::Behind, false),
        (Layout::Behind, true),
        (Layout::Placed, false),
    ];
    // Tables of different lengths: some end at a multiple of 8 bytes by chance.
    for count in [300, 301, 302, 303, 1000] {
        for (layout, absolute) in layouts {
            let found = kallsyms(&image(&symbols(count), absolute, layout), Some(LINEAR)).expect("is there");
            let end = BASE + 64 * (count as u64 + 50);
            let landmarks = Landmarks {
                modules: Some(end + 8),
                btf: Some((end + 16, end + 24)),
                init_task: Some(end + 32),
                orc: None,
            };
            assert_eq!(found.landmarks, landmarks);
            let found = found.functions;
            assert_eq!(found.len(), count, "functions only");
            assert_eq!(found[3], Symbol::new(BASE + 192, 64, "function_3"));
            assert!(found[7].name.ends_with("_very_long_name") && found[7].name.len() > 180);
        }
    }
}

#[test]
fn data_in_a_section_that_is_marked_as_code_lead_to_the_modules() {
    let mut symbols = symbols(300);
    let data = symbols.iter().position(|symbol| symbol.1 == "dtable_0").unwrap();
    let end = symbols.last().unwrap().0 + 8;
    for (_, name) in &mut symbols[data..] {
        let letter = if name.starts_with('d') { "t" } else { "T" };
        name.replace_range(..1, letter);
    }
    symbols.insert(data, (symbols[data].0, "T_sdata".to_owned()));
    symbols.push((end, "T_edata".to_owned()));
    symbols.push((end + 64, "Tstart_kernel".to_owned()));
    symbols.push((end + 128, "T_einittext".to_owned()));
    let found = kallsyms(&image(&symbols, false, Layout::Placed), Some(LINEAR)).expect("is there");
    let first = BASE + 64 * 350;
    assert_eq!((found.landmarks.modules, found.landmarks.init_task), (Some(first + 8), Some(first + 32)));
    let names: Vec<_> = found.functions[299..].iter().map(|function| function.name.as_str()).collect();
    assert_eq!(names, ["function_299", "start_kernel", "_einittext"]);
}

#[test]
fn offsets_from_their_own_places_need_the_place_of_the_image() {
    let image = image(&symbols(300), false, Layout::Placed);
    assert_eq!(kallsyms(&image, None), Err(KallsymsError::NoAddresses));
    assert_eq!(kallsyms(&image, Some(0x10_0000_0000)), Err(KallsymsError::NoAddresses), "no kernel is linked there");
}

#[test]
fn an_image_without_tables_is_refused() {
    assert_eq!(kallsyms(&[], None), Err(KallsymsError::NoTokens));
    assert_eq!(kallsyms(&DIGITS.repeat(300), None), Err(KallsymsError::NoTokens));
    let mut no_base = image(&symbols(300), true, Layout::Behind);
    let end = no_base.len();
    no_base[end - 4096 - 8..].fill(0);
    assert_eq!(kallsyms(&no_base, None), Err(KallsymsError::NoAddresses));
    let mut no_number = image(&symbols(300), true, Layout::Behind);
    no_number[4096..4104].fill(0);
    assert_eq!(kallsyms(&no_number, None), Err(KallsymsError::NoNames));
}

proptest! {
    #[test]
    fn no_damage_makes_it_panic(placed: bool, changes in prop::collection::vec((0usize..20_000, any::<u8>()), 1..40), cut in 0usize..20_000) {
        let mut image = match placed {
            false => image(&symbols(300), true, Layout::InFront),
            true => image(&symbols(300), false, Layout::Placed),
        };
        for (at, byte) in changes {
            let at = at % image.len();
            image[at] = byte;
        }
        image.truncate(image.len().saturating_sub(cut / 4 * 3));
        let _ = kallsyms(&image, Some(LINEAR));
    }
}

//! The price of runs.

use iced_x86::{Decoder, DecoderOptions, Instruction, InstructionInfoFactory};
use uarch::{CoreTable, State, step};

fn decode(bytes: &[u8]) -> Vec<Instruction> {
    Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).into_iter().collect()
}

/// Marginal prices in ticks, and what the chain adds if the code is repeated.
fn price(core: &str, bytes: &[u8]) -> (Vec<u32>, u32) {
    let core = CoreTable::named(core).unwrap();
    let (mut info, mut state) = (InstructionInfoFactory::new(), State::new());
    let prices = decode(bytes).iter().map(|i| step(core, &mut state, &core.step(&mut info, i, 1000))).collect();
    (prices, state.close(true))
}

fn ticks(core: &str, bytes: &[u8]) -> u32 {
    let (prices, chain) = price(core, bytes);
    prices.iter().sum::<u32>() + chain
}

/// Random code of common instructions.
fn random(seed: u64) -> Vec<u8> {
    let pieces: [&[u8]; 16] = [
        &[0x48, 0x01, 0xc3],             // add rbx, rax
        &[0x48, 0x8b, 0x06],             // mov rax, [rsi]
        &[0x48, 0x89, 0x44, 0x24, 0x08], // mov [rsp+8], rax
        &[0x48, 0x8b, 0x4c, 0x24, 0x08], // mov rcx, [rsp+8]
        &[0x48, 0x0f, 0xaf, 0xc1],       // imul rax, rcx
        &[0x31, 0xd2],                   // xor edx, edx
        &[0x48, 0xf7, 0xf1],             // div rcx
        &[0x50],                         // push rax
        &[0x5b],                         // pop rbx
        &[0x0f, 0x58, 0xc1],             // addps xmm0, xmm1
        &[0xc5, 0xf4, 0x59, 0xc2],       // vmulps ymm0, ymm1, ymm2
        &[0x48, 0x39, 0xc3],             // cmp rbx, rax
        &[0x0f, 0x94, 0xc0],             // sete al
        &[0xf0, 0x48, 0x01, 0x06],       // lock add [rsi], rax
        &[0x0f, 0xae, 0xe8],             // lfence
        &[0xd9, 0xe8],                   // fld1: in no table
    ];
    let mut state = seed | 1;
    let mut code = Vec::new();
    for _ in 0..40 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        code.extend_from_slice(pieces[(state % 16) as usize]);
    }
    code
}

#[test]
fn known_blocks_take_what_is_known_of_them() {
    for core in CoreTable::names() {
        // A chain of additions: a cycle each. Multiplication: three cycles. A load from the address that it loaded: four or five.
        assert_eq!(ticks(core, &[0x48, 0x01, 0xc0]), 1000, "{core}");
        assert_eq!(ticks(core, &[0x48, 0x0f, 0xaf, 0xc0]), 3000, "{core}");
        let chase = ticks(core, &[0x48, 0x8b, 0x00]);
        assert!((4000..=5000).contains(&chase), "{core}: {chase}");
        // An idiom of zero breaks a chain.
        assert!(ticks(core, &[0x31, 0xc0, 0x48, 0x0f, 0xaf, 0xc0, 0x48, 0x0f, 0xaf, 0xc0]) <= 2000, "{core}");
    }
    // Twelve independent additions: four a cycle.
    let independent: Vec<u8> =
        [0xc3, 0xc1, 0xc2, 0xc6, 0xc7, 0xc5].iter().flat_map(|modrm| [0x48, 0x01, *modrm]).collect();
    assert_eq!(ticks("skylakex", &independent), 1500);
    assert_eq!(ticks("zen3", &independent), 1500);
    assert_eq!(ticks("goldencove", &independent), 1200);
}

#[test]
fn marginal_prices_do_not_depend_on_where_the_state_is_encoded() {
    for core in CoreTable::names() {
        let table = CoreTable::named(core).unwrap();
        let mut info = InstructionInfoFactory::new();
        for seed in 1..40 {
            let code = random(seed * 7919);
            let (mut state, mut kept) = (State::new(), Vec::new());
            for i in decode(&code) {
                let described = table.step(&mut info, &i, 1000);
                let mut other = State::decode(&kept).unwrap();
                let price = step(table, &mut state, &described);
                assert_eq!(step(table, &mut other, &described), price, "{core}, seed {seed}: {i}");
                kept = other.encode();
                assert_eq!(kept, state.encode(), "{core}, seed {seed}: {i}");
            }
            assert_eq!(State::decode(&kept).unwrap().close(true), state.close(true));
        }
    }
}

#[test]
fn damaged_contexts_are_refused() {
    let core = CoreTable::named("zen3").unwrap();
    let (mut info, mut state) = (InstructionInfoFactory::new(), State::new());
    for i in decode(&random(3)) {
        step(core, &mut state, &core.step(&mut info, &i, 1000));
    }
    let bytes = state.encode();
    assert!((1..bytes.len()).all(|len| State::decode(&bytes[..len]).is_none()));
    assert!(State::decode(&[0xff; 300]).is_none());
}

#[test]
fn a_branch_to_the_begin_of_its_run_pays_for_the_chain() {
    let core = CoreTable::named("zen3").unwrap();
    let (mut info, mut state) = (InstructionInfoFactory::new(), State::new());
    // imul rax, rax; dec ecx; jne to the imul
    let prices: Vec<u32> = decode(&[0x48, 0x0f, 0xaf, 0xc0, 0xff, 0xc9, 0x75, 0xf8])
        .iter()
        .map(|i| step(core, &mut state, &core.step(&mut info, i, 1000)))
        .collect();
    assert_eq!(prices.iter().sum::<u32>(), 3000);
    assert!(prices[2] > prices[1]);
}

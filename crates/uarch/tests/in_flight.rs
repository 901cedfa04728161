//! When the condition of a branch is known behind several runs.

use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory};
use uarch::{CoreTable, InFlight, Lead, State, Step, step};

fn steps(core: &CoreTable, bytes: &[u8]) -> Vec<Step> {
    let mut info = InstructionInfoFactory::new();
    Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE)
        .into_iter()
        .map(|i| core.step(&mut info, &i, 1000))
        .collect()
}

/// Returns how late the condition of the branch at the end of the last run is known.
fn late(core: &CoreTable, runs: &[(&[u8], Lead)]) -> u32 {
    let (mut all, mut late) = (InFlight::default(), 0);
    for (bytes, lead) in runs {
        let steps = steps(core, bytes);
        let (branch, before) = steps.split_last().unwrap();
        before.iter().for_each(|next| _ = all.step(core, next));
        late = all.branch(core, branch);
        all.begin(core, branch, *lead);
    }
    late
}

/// mov rdx, rax; four times imul rdx, rdx; and a jump.
const MULTIPLIES: &[u8] = &[
    0x48, 0x89, 0xc2, 0x48, 0x0f, 0xaf, 0xd2, 0x48, 0x0f, 0xaf, 0xd2, 0x48, 0x0f, 0xaf, 0xd2, 0x48, 0x0f, 0xaf, 0xd2,
    0xeb, 0x10,
];
/// Other work: add rsi, rdi; add r8, r9; and a jump.
const OTHER: &[u8] = &[0x48, 0x01, 0xfe, 0x4d, 0x01, 0xc8, 0xeb, 0x10];
/// test rdx, rdx; je.
const DECIDES: &[u8] = &[0x48, 0x85, 0xd2, 0x74, 0x10];

#[test]
fn a_branch_alone_is_as_late_as_in_its_run() {
    for core in CoreTable::names().map(|name| CoreTable::named(name).unwrap()) {
        let own: Vec<u8> = [&MULTIPLIES[..MULTIPLIES.len() - 2], DECIDES].concat();
        let steps = steps(core, &own);
        let mut state = State::new();
        let (branch, before) = steps.split_last().unwrap();
        before.iter().for_each(|next| _ = step(core, &mut state, next));
        let (known, time) = (state.known_at(core, branch), state.time());
        let ticks = step(core, &mut state, branch);
        assert_eq!(late(core, &[(&own, Lead::Taken)]), State::late(known, time, ticks));
    }
}

#[test]
fn what_earlier_runs_have_begun_delays_a_branch_less_their_prices() {
    for core in CoreTable::names().map(|name| CoreTable::named(name).unwrap()) {
        let behind = |others: usize| {
            let mut runs = vec![(MULTIPLIES, Lead::Taken)];
            runs.extend(std::iter::repeat_n((OTHER, Lead::Taken), others));
            runs.push((DECIDES, Lead::Through));
            late(core, &runs)
        };
        let [none, one, many] = [0, 1, 9].map(behind);
        // Twelve cycles, of which the runs take a few.
        assert!((6000..=12_000).contains(&none), "{none}");
        assert!(one < none && many < one, "{none} {one} {many}");
        let alone = late(core, &[(DECIDES, Lead::Through)]);
        assert_eq!(late(core, &[(OTHER, Lead::Taken), (DECIDES, Lead::Through)]), alone);
    }
}

#[test]
fn a_branch_waits_no_longer_than_the_core_holds_instructions() {
    for core in CoreTable::names().map(|name| CoreTable::named(name).unwrap()) {
        // imul rdx, rdx, again and again: each run begins where the one before it has not ended.
        let chain = [&[0x48, 0x0f, 0xaf, 0xd2].repeat(9)[..], &[0xe8, 0, 0, 0, 0]].concat();
        let mut runs = vec![(&chain[..], Lead::Called); 40];
        runs.push((DECIDES, Lead::Taken));
        let window = core.parameters.window.reorder * 1000 / core.parameters.front.issue;
        assert!(late(core, &runs) <= window);
        let mut all = InFlight::default();
        steps(core, &chain).iter().for_each(|next| _ = all.step(core, next));
        all.complete();
        assert_eq!(all.branch(core, &steps(core, DECIDES)[1]), 0);
    }
}

#[test]
fn a_chain_that_a_loop_carries_is_not_waited_for_twice() {
    for core in CoreTable::names().map(|name| CoreTable::named(name).unwrap()) {
        // imul rdx, rdx; imul rdx, rdx; test rdx, rdx; je to the begin: six cycles a turn, at the end of which the condition is known.
        let turn = [0x48, 0x0f, 0xaf, 0xd2, 0x48, 0x0f, 0xaf, 0xd2, 0x48, 0x85, 0xd2, 0x74, 0xf3];
        assert!(late(core, &[(&turn, Lead::Taken)]) <= 2000);
        assert!(late(core, &[(&turn, Lead::Taken), (&turn, Lead::Taken)]) <= 2000);
        // A chain that begins with another register is in no price.
        let own = [&MULTIPLIES[..MULTIPLIES.len() - 2], DECIDES].concat();
        assert!(late(core, &[(&own, Lead::Taken)]) >= 6000);
    }
}

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// What a step would compute, without a model: every slot of the pool remembers the tokens that led to it.
struct Machine {
    scheduler: Scheduler,
    budget: Budget,
    /// By slot: a hash of all tokens up to the position that was written there.
    memory: HashMap<usize, u64>,
    /// By state slot: a hash of all tokens that led to the state in it.
    states: HashMap<u32, u64>,
    /// By sequence: the length at which it ends.
    ends: HashMap<SeqId, usize>,
    finished: Vec<SeqId>,
    preemptions: usize,
    computed_tokens: usize,
}

fn prefix_hashes(tokens: &[u32]) -> Vec<u64> {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let step = |token: &u32| {
        hash = (hash ^ u64::from(*token)).wrapping_mul(0x0100_0000_01b3);
        hash
    };
    tokens.iter().map(step).collect()
}

impl Machine {
    fn new(num_blocks: usize, max_num_seqs: usize, tokens: usize) -> Self {
        Self::recurrent(num_blocks, max_num_seqs, tokens, None)
    }

    /// With so many state slots, and a copy of a state every so many blocks.
    fn recurrent(
        num_blocks: usize,
        max_num_seqs: usize,
        tokens: usize,
        states: Option<(usize, usize)>,
    ) -> Self {
        Self {
            scheduler: Scheduler::new(Limits {
                num_blocks,
                max_num_seqs,
                states: states.map(|(num_slots, interval)| StateLimits {
                    num_slots,
                    interval,
                }),
            }),
            budget: Budget {
                tokens,
                beside_decodes: tokens.div_ceil(4),
            },
            memory: HashMap::new(),
            states: HashMap::new(),
            ends: HashMap::new(),
            finished: Vec::new(),
            preemptions: 0,
            computed_tokens: 0,
        }
    }

    fn add(&mut self, id: SeqId, tokens: Vec<u32>, more: usize) {
        self.ends.insert(id, tokens.len() + more);
        self.scheduler.add(id, tokens);
    }

    fn slot(&self, id: SeqId, position: usize) -> usize {
        let block = self.scheduler.block_table(id)[position / BLOCK_TOKENS];
        block as usize * BLOCK_TOKENS + position % BLOCK_TOKENS
    }

    /// Computes a step and checks that every part reads what its sequence wrote, or somebody with the same tokens.
    fn step(&mut self) -> Step {
        let step = self.scheduler.schedule(self.budget);
        self.preemptions += step.preempted.len();
        for part in &step.parts {
            let hashes = prefix_hashes(self.scheduler.tokens(part.id));
            for (position, hash) in hashes.iter().enumerate().take(part.first) {
                let found = self.memory.get(&self.slot(part.id, position));
                assert_eq!(
                    found,
                    Some(hash),
                    "sequence {} position {position}",
                    part.id
                );
            }
        }
        // All parts of a step are written at once: none may write where another reads or writes.
        let mut written = HashMap::new();
        for part in &step.parts {
            let hashes = prefix_hashes(self.scheduler.tokens(part.id));
            for (position, hash) in hashes.iter().enumerate().skip(part.first).take(part.count) {
                let slot = self.slot(part.id, position);
                assert_eq!(written.insert(slot, part.id), None, "two write slot {slot}");
                self.memory.insert(slot, *hash);
            }
            self.computed_tokens += part.count;
        }
        for part in &step.parts {
            for position in 0..part.first {
                let slot = self.slot(part.id, position);
                assert!(
                    !written.contains_key(&slot),
                    "slot {slot} is read and written"
                );
            }
        }
        if self.scheduler.states().is_some() {
            self.step_states(&step);
        }
        self.scheduler.commit(&step);
        for part in step.parts.iter().filter(|part| part.samples) {
            let length = self.scheduler.tokens(part.id).len();
            if length >= self.ends[&part.id] {
                self.scheduler.remove(part.id);
                self.finished.push(part.id);
            } else {
                // Depends on the sequence alone, as a model's answer does.
                let last = *prefix_hashes(self.scheduler.tokens(part.id))
                    .last()
                    .unwrap();
                self.scheduler.push_token(part.id, (last % 3) as u32);
            }
        }
        step
    }

    /// Checks that every part begins with the state behind its own past, and writes states where nobody else does.
    fn step_states(&mut self, step: &Step) {
        let mut written = HashMap::new();
        let mut read = Vec::new();
        for part in &step.parts {
            let hashes = prefix_hashes(self.scheduler.tokens(part.id));
            let state = self.scheduler.state_use(part);
            match state.from {
                None => assert_eq!(part.first, 0, "sequence {} has lost its state", part.id),
                Some(from) => {
                    let found = self.states.get(&from);
                    assert_eq!(found, Some(&hashes[part.first - 1]), "{part:?} {state:?}");
                    read.push((from, state.to));
                }
            }
            for (count, slot) in state.saves.iter().copied().chain([(part.count, state.to)]) {
                let hash = hashes[part.first + count - 1];
                assert_eq!(written.insert(slot, hash), None, "two write {slot}");
            }
        }
        for (from, to) in read {
            assert!(
                from == to || !written.contains_key(&from),
                "{from} is read and written"
            );
        }
        self.states.extend(written);
    }

    fn run_to_end(&mut self) {
        let mut steps = 0;
        while !self.scheduler.is_idle() {
            let step = self.step();
            assert!(!step.parts.is_empty(), "a step without work");
            steps += 1;
            assert!(steps < 20_000, "no end");
        }
        assert_eq!(self.scheduler.pool().num_used(), 0, "blocks are lost");
        if let Some(states) = self.scheduler.states() {
            assert_eq!(states.num_used(), 0, "state slots are lost");
            assert_eq!(
                states.num_available(),
                states.num_slots(),
                "state slots are lost"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn every_sequence_ends_reads_only_its_own_past_and_gives_all_blocks_back(
        num_blocks in 6_usize..30,
        max_num_seqs in 1_usize..9,
        tokens in 1_usize..70,
        // (slots, interval) of recurrent states, for most.
        states in proptest::option::weighted(0.7, (1_usize..12, 1_usize..5)),
        // Tokens 0..3 make common prefixes likely. (prompt length, answer length, shared prefix length, arrival, cancel)
        requests in proptest::collection::vec((1_usize..60, 1_usize..36, 0_usize..60, 0_usize..6, 0_u8..8), 1..25),
    ) {
        let mut machine = Machine::recurrent(num_blocks, max_num_seqs, tokens, states);
        let mut cancelled = 0;
        for (id, (length, more, shared, pause, fate)) in requests.iter().copied().enumerate() {
            let id = id as SeqId + 1;
            let prompt: Vec<u32> = (0..length).map(|i| if i < shared { 1 } else { (i as u32 * 7 + id as u32) % 3 }).collect();
            machine.add(id, prompt, more);
            for _ in 0..pause {
                machine.step();
            }
            if fate == 0 && machine.scheduler.sequences.contains_key(&id) {
                machine.scheduler.remove(id);
                cancelled += 1;
            }
        }
        machine.run_to_end();
        prop_assert_eq!(machine.finished.len() + cancelled, requests.len());
    }
}

fn numbers(length: usize, seed: u32) -> Vec<u32> {
    (0..length as u32).map(|i| i * 31 + seed * 1000).collect()
}

#[test]
fn a_prompt_longer_than_the_budget_is_computed_in_chunks() {
    let mut machine = Machine::new(20, 4, 64);
    machine.add(1, numbers(200, 1), 1);
    let parts: Vec<Part> = (0..4).map(|_| machine.step().parts[0]).collect();
    let chunks: Vec<(usize, usize, bool)> = parts
        .iter()
        .map(|p| (p.first, p.count, p.samples))
        .collect();
    assert_eq!(
        chunks,
        [
            (0, 64, false),
            (64, 64, false),
            (128, 64, false),
            (192, 8, true)
        ]
    );
}

#[test]
fn decodes_go_on_while_a_long_prompt_is_computed() {
    let mut machine = Machine::new(60, 4, 64);
    machine.add(1, numbers(10, 1), 100);
    machine.step();
    machine.add(2, numbers(500, 2), 1);
    for _ in 0..10 {
        let step = machine.step();
        assert_eq!(step.parts.len(), 2);
        assert_eq!((step.parts[0].id, step.parts[0].count), (1, 1));
        assert_eq!((step.parts[1].id, step.parts[1].count), (2, 16));
    }
}

#[test]
fn the_oldest_prompt_gets_half_of_a_step_and_the_shortest_the_rest() {
    let mut machine = Machine::new(100, 8, 64);
    machine.add(1, numbers(500, 1), 1);
    machine.add(2, numbers(400, 2), 1);
    machine.add(3, numbers(10, 3), 5);
    let step = machine.step();
    let counts: Vec<(SeqId, usize)> = step.parts.iter().map(|p| (p.id, p.count)).collect();
    assert_eq!(counts, [(1, 32), (2, 22), (3, 10)]);
}

#[test]
fn the_youngest_is_preempted_and_continues_where_it_was() {
    // 6 blocks hold 96 tokens: two sequences of 40 fit, not their growth to 80 each.
    let mut machine = Machine::new(6, 4, 256);
    machine.add(1, numbers(30, 1), 50);
    machine.add(2, numbers(30, 2), 50);
    machine.run_to_end();
    assert!(machine.preemptions > 0);
    assert_eq!(machine.finished, [1, 2]);
}

#[test]
fn a_second_turn_finds_prompt_and_answer_of_the_first_in_the_cache() {
    let mut machine = Machine::new(40, 4, 256);
    machine.add(1, numbers(40, 1), 40);
    while machine.scheduler.tokens(1).len() < 80 {
        machine.step();
    }
    let mut conversation = machine.scheduler.tokens(1).to_vec();
    machine.run_to_end();
    conversation.extend(numbers(20, 9));
    machine.add(2, conversation, 0);
    machine.step();
    assert_eq!(machine.finished, [1, 2]);
    // The first turn left five full blocks, half of them of its answer.
    assert_eq!(machine.computed_tokens, 80 + 20);
}

#[test]
fn equal_prompts_that_arrive_together_are_computed_once() {
    let mut machine = Machine::new(100, 8, 64);
    for id in 1..=4 {
        machine.add(id, numbers(100, 1), 1);
    }
    machine.run_to_end();
    // Six full blocks once, the rest of four tokens by each.
    assert_eq!(machine.computed_tokens, 96 + 4 * 4 + 4);
}

#[test]
fn cached_blocks_make_room_for_a_large_prompt() {
    let mut machine = Machine::new(10, 4, 256);
    machine.add(1, numbers(150, 1), 1);
    machine.run_to_end();
    assert_eq!(machine.scheduler.pool().num_cached(), 9);
    machine.add(2, numbers(155, 2), 1);
    machine.run_to_end();
    assert_eq!(machine.finished, [1, 2]);
    assert_eq!(machine.preemptions, 0);
}

#[test]
fn a_large_prompt_is_passed_by_a_few_small_ones_and_then_has_right_of_way() {
    let mut machine = Machine::new(20, 64, 512);
    // Holds half of the pool for long.
    machine.add(1, numbers(150, 1), 150);
    machine.step();
    machine.add(2, numbers(200, 2), 1);
    for id in 3..60 {
        machine.add(id, numbers(4, id as u32), 1);
    }
    while !machine.finished.contains(&1) {
        machine.step();
    }
    let passed = machine.finished.iter().filter(|id| **id > 2).count();
    assert_eq!(passed, MAX_BYPASS);
    machine.run_to_end();
    let at = |id: SeqId| machine.finished.iter().position(|f| *f == id).unwrap();
    assert!(at(2) < at(59));
}

#[test]
fn no_more_than_the_limit_run_at_once() {
    let mut machine = Machine::new(100, 3, 512);
    for id in 1..=10 {
        machine.add(id, numbers(8, id as u32), 20);
    }
    while !machine.scheduler.is_idle() {
        machine.step();
        assert!(machine.scheduler.num_running() <= 3);
    }
}

#[test]
fn a_recurrent_sequence_goes_on_from_the_end_of_an_equal_prompt() {
    let mut machine = Machine::recurrent(40, 4, 64, Some((6, 100)));
    machine.add(1, numbers(150, 1), 5);
    machine.run_to_end();
    machine.computed_tokens = 0;
    machine.add(2, numbers(150, 1), 1);
    machine.step();
    assert_eq!(machine.scheduler.cached_tokens(2), 144);
    machine.run_to_end();
    assert_eq!(machine.computed_tokens, 6 + 1);
}

#[test]
fn a_recurrent_conversation_goes_on_from_the_end_of_the_answer() {
    let mut machine = Machine::recurrent(40, 4, 256, Some((6, 100)));
    machine.add(1, numbers(40, 1), 40);
    while machine.scheduler.tokens(1).len() < 80 {
        machine.step();
    }
    let mut conversation = machine.scheduler.tokens(1).to_vec();
    machine.run_to_end();
    conversation.extend(numbers(20, 9));
    machine.add(2, conversation, 2);
    machine.step();
    assert_eq!(machine.scheduler.cached_tokens(2), 80);
    // Blocks 4 and 5 of the first, 5 and 6 of the second prompt, and the end of the first; the others gave way.
    let kept = machine.scheduler.states().unwrap().num_kept();
    assert!(kept <= 5, "{kept}");
}

#[test]
fn where_prompts_part_a_state_is_kept_for_the_third() {
    let with_tail = |seed: u32| [numbers(100, 1), numbers(30, seed)].concat();
    let mut machine = Machine::recurrent(60, 4, 256, Some((12, 100)));
    machine.add(1, with_tail(7), 1);
    machine.run_to_end();
    machine.computed_tokens = 0;
    machine.add(2, with_tail(8), 1);
    machine.run_to_end();
    assert_eq!(machine.computed_tokens, 131, "no state was kept in between");
    machine.computed_tokens = 0;
    machine.add(3, with_tail(9), 1);
    machine.run_to_end();
    assert_eq!(machine.computed_tokens, 131 - 96);
}

#[test]
fn recurrent_prompts_that_arrive_together_share_what_they_begin_with() {
    let mut machine = Machine::recurrent(100, 8, 64, Some((20, 100)));
    let with_tail = |seed: u32| [numbers(100, 1), numbers(30, seed)].concat();
    for id in 1..=4 {
        machine.add(id, with_tail(id as u32), 1);
    }
    machine.run_to_end();
    // Six full blocks once: the first one was told where the others part from it.
    assert_eq!(machine.computed_tokens, 96 + 4 * (130 - 96 + 1));
}

#[test]
fn a_preempted_recurrent_sequence_continues_from_the_newest_copy_that_is_left() {
    let mut machine = Machine::recurrent(16, 4, 256, Some((8, 100)));
    machine.add(1, numbers(16, 1), 115);
    machine.add(2, numbers(20, 2), 130);
    machine.run_to_end();
    assert_eq!(machine.preemptions, 1);
    // It had 128 tokens and lost the last block, and with it the copy there. There is another one behind the fourth.
    let once = 16 + 115 + 20 + 130;
    assert_eq!(machine.computed_tokens, once + 128 - 64);
}

#[test]
fn a_single_state_slot_serves_one_sequence_after_the_other() {
    let mut machine = Machine::recurrent(40, 4, 64, Some((1, 1)));
    for id in 1..=5 {
        machine.add(id, numbers(100, 1), 20);
    }
    machine.run_to_end();
    assert_eq!(machine.finished.len(), 5);
}

#[test]
fn sequences_wait_for_a_state_slot_and_copies_give_way_to_them() {
    let mut machine = Machine::recurrent(100, 8, 512, Some((3, 1)));
    for id in 1..=6 {
        machine.add(id, numbers(40, id as u32), 30);
    }
    machine.step();
    assert_eq!(machine.scheduler.num_running(), 3);
    machine.run_to_end();
    assert_eq!(machine.finished.len(), 6);
}

#[test]
fn equal_prompts_of_two_variants_do_not_share_blocks() {
    let mut scheduler = Scheduler::new(Limits {
        num_blocks: 16,
        max_num_seqs: 4,
        states: None,
    });
    let prompt: Vec<u32> = (0..40).collect();
    let budget = Budget {
        tokens: 512,
        beside_decodes: 512,
    };
    for (id, variant, cached) in [(1, 0, 0), (2, 1, 0), (3, 1, 32), (4, 0, 32)] {
        scheduler.add_variant(id, prompt.clone(), variant);
        let step = scheduler.schedule(budget);
        scheduler.commit(&step);
        assert_eq!(scheduler.cached_tokens(id), cached, "sequence {id}");
        assert_eq!(scheduler.variant(id), variant);
        scheduler.remove(id);
    }
}

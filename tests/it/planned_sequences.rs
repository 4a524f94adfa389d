//! How many sequences a plan lets run at once: memory for blocks, states and rows of logits, divided between wish and pool.

use oxydllm::formats::open;
use oxydllm::model::plan::{Plan, Wish, plan};
use oxydllm::model::{ModelConfig, read_config};
use proptest::prelude::*;

use crate::refusals::fixture;

/// A tiny model with a vocabulary and a context of real size: a row of logits weighs as much as some blocks.
fn config(name: &str, vocab_size: usize, max_context: usize) -> ModelConfig {
    let path = fixture(name);
    let mut config = read_config(&open(&path).unwrap(), &path).unwrap();
    (config.vocab_size, config.max_context) = (vocab_size, max_context);
    config
}

const WEIGHTS: usize = 1 << 20;
const MIB: usize = 1 << 20;

fn planned(
    config: &ModelConfig,
    context: Option<usize>,
    max_num_seqs: Option<usize>,
    available: usize,
) -> Option<Plan> {
    let wish = Wish {
        context,
        max_num_seqs,
    };
    plan(config, WEIGHTS, wish, available).ok()
}

#[test]
fn a_wish_for_sequences_has_their_logits_beside_a_pool_that_wants_everything() {
    for name in ["llama_plain", "qwen3_5_plain", "lfm2_plain"] {
        let config = config(name, 50_000, 8192);
        for context in [None, Some(4096)] {
            let sequences = |wish| planned(&config, context, wish, 20 * MIB).unwrap();
            let unasked = sequences(None);
            assert!(unasked.max_num_seqs >= 8, "{name}: {unasked:?}");
            let asked = sequences(Some(16));
            assert_eq!(asked.max_num_seqs, 16, "{name}: {asked:?}");
            assert!(asked.total_bytes() <= 20 * MIB, "{name}: {asked:?}");
            assert_eq!(context.unwrap_or(asked.context), asked.context);
        }
    }
}

#[test]
fn a_context_that_nobody_asked_for_leaves_memory_for_more_than_one_sequence() {
    // 1 MiB for each row of logits, and fewer bytes than the whole context would take.
    let config = config("llama_plain", 1 << 18, 1 << 20);
    for available in [30 * MIB, 60 * MIB] {
        let plan = planned(&config, None, None, available).unwrap();
        assert!(plan.context < config.max_context, "{plan:?}");
        assert!(plan.max_num_seqs >= 8, "{plan:?}");
        let alone = planned(&config, None, Some(1), available).unwrap();
        assert!(alone.context > plan.context, "{alone:?}");
        // Sequences without number leave half of the context that one would have.
        let crowd = planned(&config, None, Some(usize::MAX), available).unwrap();
        assert!(crowd.context * 2 + 32 >= alone.context, "{crowd:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    #[test]
    fn asking_for_more_sequences_never_gives_fewer_and_stays_within_memory(
        name in prop::sample::select(vec!["llama_plain", "qwen3_5_plain", "lfm2_plain"]),
        vocab_size in 100_usize..200_000,
        max_context in 100_usize..40_000,
        context in prop::option::of(1_usize..40_000),
        available in (2 * MIB)..(100 * MIB),
        mut wishes in prop::collection::vec(prop_oneof![1_usize..40, 1_usize..3000, Just(usize::MAX)], 2..6),
    ) {
        let config = config(name, vocab_size, max_context);
        let shape = config.cache_shape();
        let unasked = planned(&config, context, None, available);
        wishes.sort_unstable();
        let mut before = 0;
        for wish in wishes {
            let found = planned(&config, context, Some(wish), available);
            prop_assert_eq!(found.is_some(), unasked.is_some());
            let (Some(found), Some(unasked)) = (found, unasked) else {
                continue;
            };
            let sequences = found.max_num_seqs;
            prop_assert!(sequences <= wish && sequences >= before, "{before} before {wish}: {found:?}");
            prop_assert!(sequences >= wish.min(unasked.max_num_seqs), "{wish}: {found:?} {unasked:?}");
            before = sequences;
            for plan in [&found, &unasked] {
                prop_assert!(plan.total_bytes() <= available, "{plan:?}");
                prop_assert_eq!(plan.kv_bytes, plan.num_blocks * shape.block_bytes() + plan.num_slots * shape.slot_bytes());
                prop_assert!(plan.num_blocks * 16 >= plan.context && plan.num_blocks >= plan.max_num_seqs, "{plan:?}");
                prop_assert!(shape.slot_bytes() == 0 || plan.num_slots >= plan.max_num_seqs.max(2), "{plan:?}");
            }
        }
    }
}

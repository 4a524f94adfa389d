//! Bytes before they are allocated: weights, KV, activations, and what the machine has.

use super::ModelConfig;
use crate::error::{Error, Result};
use crate::kv::{BLOCK_TOKENS, CacheShape};
use crate::units::format_size;

/// Tokens of the largest prefill chunk; activations are planned for it.
pub const CHUNK_TOKENS: usize = 512;

/// Sequences that the KV pool is planned for unless somebody says otherwise; more can run, as hardly any uses the whole
/// context.
const DEFAULT_NUM_SEQS: usize = 8;
/// Most sequences that run at once unless somebody says otherwise.
const MOST_NUM_SEQS: usize = 256;
/// Blocks of the pool for each of the sequences that may run at once: 256 tokens.
const BLOCKS_PER_SEQ: usize = 16;
/// State slots that a model with recurrent layers needs: a running sequence's own, and one for a copy.
const LEAST_SLOTS: usize = 2;
/// Copies of states that are kept at regular distances take at most this part (one in so many) of what the blocks take.
const KEPT_SHARE: usize = 4;
/// Less context than this is of no use to anybody.
const MIN_CONTEXT: usize = 256;

/// What is asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wish {
    /// Tokens that one sequence can hold; the model's own context, as far as memory allows, without.
    pub context: Option<usize>,
    /// Sequences that run at once; decided by the size of the pool without.
    pub max_num_seqs: Option<usize>,
}

/// What a loaded model will take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Resident weights.
    pub weight_bytes: usize,
    /// The KV pool: blocks, and slots for recurrent states.
    pub kv_bytes: usize,
    /// Activations of the largest step.
    pub activation_bytes: usize,
    /// Tokens that a sequence can hold; the pool holds one such sequence at least.
    pub context: usize,
    /// Blocks of the KV pool.
    pub num_blocks: usize,
    /// Slots for recurrent states, of running sequences and of cached prefixes; 0 for a model without.
    pub num_slots: usize,
    /// A copy of a sequence's state is kept every so many blocks.
    pub state_interval: usize,
    /// Sequences that run at once.
    pub max_num_seqs: usize,
}

impl Plan {
    /// All of it.
    pub fn total_bytes(&self) -> usize {
        self.weight_bytes + self.kv_bytes + self.activation_bytes
    }
}

/// Activation bytes of a step of `tokens` tokens: the widest moment of a layer (residual, norm, mixer, feed-forward, all
/// F32, and one 8-bit copy), and `logit_rows` rows of logits.
pub fn activation_bytes(config: &ModelConfig, tokens: usize, logit_rows: usize) -> usize {
    let layers = || config.layers.iter();
    let mixer = layers().map(|l| l.mixer.activation_width()).max();
    let feed_forward = layers()
        .map(|l| l.feed_forward.activation_width(config.hidden_size))
        .max();
    // Kept through all layers, and once more while they are made.
    let inputs = config.per_layer_inputs.map_or(0, |inputs| inputs.size);
    let inputs = 2 * inputs * config.layers.len();
    let widest = mixer.unwrap_or(0) + feed_forward.unwrap_or(0);
    let per_token = 3 * config.hidden_size + inputs + widest;
    let logits = logit_rows * config.vocab_size * size_of::<f32>();
    tokens * per_token * size_of::<f32>() * 5 / 4 + logits
}

/// Plans context, pool and number of sequences for `available` bytes, of which the weights take `weight_bytes`.
///
/// The pool is planned for the sequences that were asked for (8 without a wish) with a full context each, and for two states
/// each where there are recurrent layers; without a wish it takes at most half of what the weights leave, but always holds
/// one sequence.
///
/// # Errors
/// `OutOfMemory`, with the numbers, when an explicit context does not fit, or not even 256 tokens would.
pub fn plan(
    config: &ModelConfig,
    weight_bytes: usize,
    wish: Wish,
    available: usize,
) -> Result<Plan> {
    let shape = config.cache_shape();
    let base_bytes = weight_bytes + activation_bytes(config, CHUNK_TOKENS, 1);
    let free = available.saturating_sub(base_bytes);
    let most_blocks =
        free.saturating_sub(least_slots(&shape) * shape.slot_bytes()) / shape.block_bytes().max(1);
    let own = wish.context.unwrap_or(config.max_context);
    let own = own.min(config.max_context);
    let fits = most_blocks.saturating_mul(BLOCK_TOKENS);
    let context = match wish.context {
        Some(_) => own,
        None => own.min(fits),
    };
    if context > fits || context < MIN_CONTEXT.min(own) {
        return Err(does_not_fit(config, weight_bytes, own, available));
    }
    let per_sequence = context.div_ceil(BLOCK_TOKENS);
    let pool = Pool::plan(&shape, per_sequence, wish, free);
    let most_seqs = match pool.num_slots {
        0 => pool.num_blocks,
        slots => slots.min(pool.num_blocks),
    };
    let max_num_seqs = match wish.max_num_seqs {
        // More than there are blocks or states could never run at once.
        Some(wanted) => wanted.clamp(1, most_seqs),
        None => {
            let seqs = (pool.num_blocks / BLOCKS_PER_SEQ).clamp(1, MOST_NUM_SEQS);
            match pool.num_slots {
                0 => seqs,
                // The other half is for copies, which make up for preemptions and serve the next turn.
                slots => seqs.min(slots / 2),
            }
        }
    };
    // Each of them needs a row of logits, the first of which is counted above.
    let kv_bytes = pool.bytes(&shape);
    let row_bytes = (config.vocab_size * size_of::<f32>()).max(1);
    let rows = 1 + free.saturating_sub(kv_bytes) / row_bytes;
    let max_num_seqs = max_num_seqs.min(rows);
    Ok(Plan {
        weight_bytes,
        kv_bytes,
        activation_bytes: activation_bytes(config, CHUNK_TOKENS, max_num_seqs),
        context,
        num_blocks: pool.num_blocks,
        num_slots: pool.num_slots,
        state_interval: state_interval(&shape),
        max_num_seqs,
    })
}

fn least_slots(shape: &CacheShape) -> usize {
    if shape.slot_bytes() > 0 {
        LEAST_SLOTS
    } else {
        0
    }
}

/// Blocks between two copies of a state.
fn state_interval(shape: &CacheShape) -> usize {
    (KEPT_SHARE * shape.slot_bytes())
        .div_ceil(shape.block_bytes().max(1))
        .max(1)
}

/// How many blocks and state slots there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pool {
    num_blocks: usize,
    num_slots: usize,
}

impl Pool {
    /// For sequences of `per_sequence` blocks, in `free` bytes that hold one of them at least.
    fn plan(shape: &CacheShape, per_sequence: usize, wish: Wish, free: usize) -> Self {
        let seqs = wish.max_num_seqs.unwrap_or(DEFAULT_NUM_SEQS);
        let share = match wish.max_num_seqs {
            Some(_) => free,
            None => free / 2,
        };
        let (block_bytes, slot_bytes) = (shape.block_bytes().max(1), shape.slot_bytes());
        let blocks = per_sequence.saturating_mul(seqs);
        if slot_bytes == 0 {
            return Self {
                num_blocks: blocks.min(share / block_bytes).max(per_sequence),
                num_slots: 0,
            };
        }
        let slots = (seqs.saturating_mul(2)).saturating_add(blocks / state_interval(shape));
        let wanted = blocks as f64 * block_bytes as f64 + slots as f64 * slot_bytes as f64;
        let part = (share as f64 / wanted).min(1.0);
        let num_blocks = ((blocks as f64 * part) as usize).max(per_sequence);
        let room = share.saturating_sub(num_blocks * block_bytes) / slot_bytes;
        Self {
            num_blocks,
            num_slots: slots.min(room).max(LEAST_SLOTS),
        }
    }

    fn bytes(&self, shape: &CacheShape) -> usize {
        self.num_blocks * shape.block_bytes().max(1) + self.num_slots * shape.slot_bytes()
    }
}

fn does_not_fit(
    config: &ModelConfig,
    weight_bytes: usize,
    context: usize,
    available: usize,
) -> Error {
    let shape = config.cache_shape();
    let pool = Pool {
        num_blocks: context.div_ceil(BLOCK_TOKENS),
        num_slots: least_slots(&shape),
    };
    let kv_bytes = pool.bytes(&shape);
    let activations = activation_bytes(config, CHUNK_TOKENS, 1);
    let [weights, kv, activations, memory] =
        [weight_bytes, kv_bytes, activations, available].map(|b| format_size(b as u64));
    Error::out_of_memory(format!(
        "the model does not fit: weights {weights}, KV cache {kv} for {context} tokens, activations {activations}, available {memory}"
    ))
    .with_hint("choose a smaller --max-context-len or a smaller quantisation, or free memory")
}

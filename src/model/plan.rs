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
    /// Sequences that run at once, as far as memory allows; decided by the size of the pool without.
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
/// F32, and a copy of a product's input in the order of its kernel), and `logit_rows` rows of logits.
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
    tokens * per_token * size_of::<f32>() * 3 / 2 + logits
}

/// Plans context, pool and number of sequences for `available` bytes, of which the weights take `weight_bytes`.
///
/// A wish for sequences comes first: each of them has a row of logits, a block, and a state where there are recurrent layers,
/// as far as memory goes beside one whole context. What is left is the pool's, up to a full context and two states for each.
/// Without a wish the pool is planned for 8 sequences and takes at most half of what the weights leave, but always holds one
/// sequence; the number of sequences then follows from it. A context that nobody asked for leaves room for their logits.
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
    let room = Room {
        shape: &shape,
        free: available.saturating_sub(base_bytes),
        row_bytes: (config.vocab_size * size_of::<f32>()).max(1),
    };
    let own = wish.context.unwrap_or(config.max_context);
    let own = own.min(config.max_context);
    let fits = room.most_context();
    let context = match wish.context {
        Some(_) => own,
        None => own.min(room.context_beside_rows(wish)),
    };
    if context > fits || context < MIN_CONTEXT.min(own) {
        return Err(does_not_fit(config, weight_bytes, own, available));
    }
    let per_sequence = context.div_ceil(BLOCK_TOKENS);
    let (pool, max_num_seqs) = match wish.max_num_seqs {
        Some(wanted) => room.divide(per_sequence, wanted),
        None => room.divide_unasked(per_sequence),
    };
    Ok(Plan {
        weight_bytes,
        kv_bytes: pool.bytes(&shape),
        activation_bytes: activation_bytes(config, CHUNK_TOKENS, max_num_seqs),
        context,
        num_blocks: pool.num_blocks,
        num_slots: pool.num_slots,
        state_interval: state_interval(&shape),
        max_num_seqs,
    })
}

/// What is to be divided between the pool and the logits of all sequences but the first.
struct Room<'a> {
    shape: &'a CacheShape,
    /// Bytes that weights and the activations of a single sequence leave.
    free: usize,
    /// Bytes of one sequence's logits.
    row_bytes: usize,
}

impl Room<'_> {
    /// Tokens of the longest context that fits when one sequence has everything.
    fn most_context(&self) -> usize {
        let least = least_slots(self.shape) * self.shape.slot_bytes();
        let blocks = self.free.saturating_sub(least) / self.shape.block_bytes().max(1);
        blocks.saturating_mul(BLOCK_TOKENS)
    }

    /// Tokens of the longest context beside the logits and states of the sequences of `wish`. Those take at most half: a
    /// context that shrinks to nothing is of no use to any number of sequences.
    fn context_beside_rows(&self, wish: Wish) -> usize {
        let others = wish.max_num_seqs.unwrap_or(DEFAULT_NUM_SEQS).max(1) - 1;
        let each = self.row_bytes + self.shape.slot_bytes();
        let reserved = others.saturating_mul(each).min(self.free / 2);
        let beside = Room {
            free: self.free - reserved,
            ..*self
        };
        let least = MIN_CONTEXT.min(self.most_context());
        beside.most_context().max(least)
    }

    /// Most sequences that could run at once beside one of `per_sequence` blocks, which fits.
    ///
    /// So many take their rows but one, a block each or one whole sequence, and a slot each or the least. Whichever of those
    /// is more must fit, so all four combinations must.
    fn most_sequences(&self, per_sequence: usize) -> usize {
        let (block, slot) = (self.shape.block_bytes().max(1), self.shape.slot_bytes());
        let blocks = [(per_sequence * block, 0), (0, block)];
        let slots = [(least_slots(self.shape) * slot, 0), (0, slot)];
        let bytes = self.free + self.row_bytes;
        let mut most = usize::MAX;
        for (blocks, per_block) in blocks {
            for (slots, per_slot) in slots {
                let left = bytes.saturating_sub(blocks + slots);
                most = most.min(left / (self.row_bytes + per_block + per_slot));
            }
        }
        most.max(1)
    }

    /// The pool and the number of sequences where `wanted` are to run at once.
    fn divide(&self, per_sequence: usize, wanted: usize) -> (Pool, usize) {
        let seqs = wanted.clamp(1, self.most_sequences(per_sequence));
        let share = self.free.saturating_sub((seqs - 1) * self.row_bytes);
        let least = Pool::least(self.shape, per_sequence, seqs);
        (
            Pool::plan(self.shape, per_sequence, seqs, least, share),
            seqs,
        )
    }

    /// The pool and the number of sequences where nobody said how many.
    fn divide_unasked(&self, per_sequence: usize) -> (Pool, usize) {
        let least = Pool::least(self.shape, per_sequence, 1);
        let share = (self.free / 2).max(least.bytes(self.shape));
        let pool = Pool::plan(self.shape, per_sequence, DEFAULT_NUM_SEQS, least, share);
        let seqs = (pool.num_blocks / BLOCKS_PER_SEQ).clamp(1, MOST_NUM_SEQS);
        let seqs = match pool.num_slots {
            0 => seqs,
            // The other half is for copies, which make up for preemptions and serve the next turn.
            slots => seqs.min(slots / 2),
        };
        let rows = 1 + self.free.saturating_sub(pool.bytes(self.shape)) / self.row_bytes;
        (pool, seqs.min(rows))
    }
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
    /// Without which `seqs` sequences, one of them of `per_sequence` blocks, could not run at once.
    fn least(shape: &CacheShape, per_sequence: usize, seqs: usize) -> Self {
        let num_slots = match least_slots(shape) {
            0 => 0,
            least => least.max(seqs),
        };
        Self {
            num_blocks: per_sequence.max(seqs),
            num_slots,
        }
    }

    /// For `seqs` sequences of `per_sequence` blocks, in `share` bytes, which hold `least`.
    fn plan(
        shape: &CacheShape,
        per_sequence: usize,
        seqs: usize,
        least: Self,
        share: usize,
    ) -> Self {
        let (block_bytes, slot_bytes) = (shape.block_bytes().max(1), shape.slot_bytes());
        let blocks = per_sequence.saturating_mul(seqs);
        let room = share.saturating_sub(least.num_slots * slot_bytes) / block_bytes;
        if slot_bytes == 0 {
            return Self {
                num_blocks: blocks.min(room).max(least.num_blocks),
                num_slots: 0,
            };
        }
        let slots = (seqs.saturating_mul(2)).saturating_add(blocks / state_interval(shape));
        let wanted = blocks as f64 * block_bytes as f64 + slots as f64 * slot_bytes as f64;
        let part = (share as f64 / wanted).min(1.0);
        let num_blocks = (blocks as f64 * part) as usize;
        let num_blocks = num_blocks.min(room).max(least.num_blocks);
        let room = share.saturating_sub(num_blocks * block_bytes) / slot_bytes;
        Self {
            num_blocks,
            num_slots: slots.min(room).max(least.num_slots),
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

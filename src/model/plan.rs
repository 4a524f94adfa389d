//! Bytes before they are allocated: weights, KV, activations, and what the machine has.

use super::ModelConfig;
use crate::error::{Error, Result};
use crate::kv::{BLOCK_TOKENS, KvCache};
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
    /// The KV pool.
    pub kv_bytes: usize,
    /// Activations of the largest step.
    pub activation_bytes: usize,
    /// Tokens that a sequence can hold; the pool holds one such sequence at least.
    pub context: usize,
    /// Blocks of the KV pool.
    pub num_blocks: usize,
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
    let per_token = 3 * config.hidden_size + mixer.unwrap_or(0) + feed_forward.unwrap_or(0);
    let logits = logit_rows * config.vocab_size * size_of::<f32>();
    tokens * per_token * size_of::<f32>() * 5 / 4 + logits
}

/// Plans context, pool and number of sequences for `available` bytes, of which the weights take `weight_bytes`.
///
/// The pool is planned for the sequences that were asked for (8 without a wish) with a full context each; without a wish
/// it takes at most half of what the weights leave, but always holds one sequence.
///
/// # Errors
/// `OutOfMemory`, with the numbers, when an explicit context does not fit, or not even 256 tokens would.
pub fn plan(
    config: &ModelConfig,
    weight_bytes: usize,
    wish: Wish,
    available: usize,
) -> Result<Plan> {
    let block_bytes = KvCache::block_bytes(&config.page_shapes()).max(1);
    let base_bytes = weight_bytes + activation_bytes(config, CHUNK_TOKENS, 1);
    let most_blocks = available.saturating_sub(base_bytes) / block_bytes;
    let own = wish.context.unwrap_or(config.max_context);
    let own = own.min(config.max_context);
    let fits = most_blocks * BLOCK_TOKENS;
    let context = match wish.context {
        Some(_) => own,
        None => own.min(fits),
    };
    if context > fits || context < MIN_CONTEXT.min(own) {
        return Err(does_not_fit(config, weight_bytes, own, available));
    }
    let per_sequence = context.div_ceil(BLOCK_TOKENS);
    let wanted = per_sequence.saturating_mul(wish.max_num_seqs.unwrap_or(DEFAULT_NUM_SEQS));
    let share = match wish.max_num_seqs {
        Some(_) => most_blocks,
        None => most_blocks / 2,
    };
    let num_blocks = wanted.min(share).max(per_sequence);
    let max_num_seqs = match wish.max_num_seqs {
        // More than there are blocks could never run at once.
        Some(wanted) => wanted.clamp(1, num_blocks),
        None => (num_blocks / BLOCKS_PER_SEQ).clamp(1, MOST_NUM_SEQS),
    };
    // Each of them needs a row of logits, the first of which is counted above.
    let kv_bytes = num_blocks * block_bytes;
    let row_bytes = (config.vocab_size * size_of::<f32>()).max(1);
    let rows = 1 + available.saturating_sub(base_bytes + kv_bytes) / row_bytes;
    let max_num_seqs = max_num_seqs.min(rows);
    Ok(Plan {
        weight_bytes,
        kv_bytes,
        activation_bytes: activation_bytes(config, CHUNK_TOKENS, max_num_seqs),
        context,
        num_blocks,
        max_num_seqs,
    })
}

fn does_not_fit(
    config: &ModelConfig,
    weight_bytes: usize,
    context: usize,
    available: usize,
) -> Error {
    let block_bytes = KvCache::block_bytes(&config.page_shapes());
    let kv_bytes = context.div_ceil(BLOCK_TOKENS) * block_bytes;
    let activations = activation_bytes(config, CHUNK_TOKENS, 1);
    let [weights, kv, activations, memory] =
        [weight_bytes, kv_bytes, activations, available].map(|b| format_size(b as u64));
    Error::out_of_memory(format!(
        "the model does not fit: weights {weights}, KV cache {kv} for {context} tokens, activations {activations}, available {memory}"
    ))
    .with_hint("choose a smaller --max-context-len or a smaller quantisation, or free memory")
}

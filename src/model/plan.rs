//! Bytes before they are allocated: weights, KV, activations, and what the machine has.

use super::ModelConfig;
use crate::error::{Error, Result};
use crate::kv::{BLOCK_TOKENS, KvCache};
use crate::units::format_size;

/// Tokens of the largest prefill chunk; activations are planned for it.
pub const CHUNK_TOKENS: usize = 512;

/// What a loaded model will take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Resident weights.
    pub weight_bytes: usize,
    /// The KV pool.
    pub kv_bytes: usize,
    /// Activations of the largest chunk.
    pub activation_bytes: usize,
    /// Tokens that a sequence can hold.
    pub context: usize,
}

/// Activation bytes of a chunk of `tokens` tokens: the widest moment of a layer (residual, norm, q, k, v, gate, up, all
/// F32, and one 8-bit copy), and one row of logits.
pub fn activation_bytes(config: &ModelConfig, tokens: usize) -> usize {
    let attention = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim;
    let per_token = 3 * config.hidden_size + attention + 2 * config.intermediate_size;
    tokens * per_token * size_of::<f32>() * 5 / 4 + config.vocab_size * size_of::<f32>()
}

/// Plans a context of `requested` tokens, or as much of the model's own context as `available` bytes allow beside
/// `weight_bytes`.
///
/// # Errors
/// `OutOfMemory`, with the numbers, when an explicit request does not fit, or not even 256 tokens would.
pub fn plan(
    config: &ModelConfig,
    weight_bytes: usize,
    requested: Option<usize>,
    available: usize,
) -> Result<Plan> {
    /// Less context than this is of no use to anybody.
    const MIN_CONTEXT: usize = 256;
    let block_bytes = KvCache::block_bytes(&config.page_shapes());
    let activation_bytes = activation_bytes(config, CHUNK_TOKENS);
    let left = available.saturating_sub(weight_bytes + activation_bytes);
    let fits = left / block_bytes.max(1) * BLOCK_TOKENS;
    let own = requested
        .unwrap_or(config.max_context)
        .min(config.max_context);
    let context = if requested.is_some() {
        own
    } else {
        own.min(fits)
    };
    let kv_bytes = context.div_ceil(BLOCK_TOKENS) * block_bytes;
    if context > fits || context < MIN_CONTEXT.min(own) {
        let [weights, kv, activations, memory] =
            [weight_bytes, kv_bytes, activation_bytes, available].map(|b| format_size(b as u64));
        return Err(Error::out_of_memory(format!(
            "the model does not fit: weights {weights}, KV cache {kv} for {own} tokens, activations {activations}, available {memory}"
        ))
        .with_hint("choose a smaller --max-context-len or a smaller quantisation, or free memory"));
    }
    Ok(Plan {
        weight_bytes,
        kv_bytes,
        activation_bytes,
        context,
    })
}

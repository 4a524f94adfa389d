//! From logits to a token: a pure function of the row, the history, the parameters and the position.
//!
//! Order: ids without text masked, repetition penalty, frequency and presence penalty, logit bias, temperature, min-p,
//! top-k, top-p, draw. Log-probabilities come from the row before any of that but the mask. Nothing random but a hash of
//! (seed, choice, position) takes part, sums have a fixed order and `exp` is ours, so the same row gives the same
//! token on every machine. No call allocates by vocabulary size after the first on its thread.
//!
//! Read `candidates.rs` next (how top-k and top-p avoid sorting the vocabulary).

mod candidates;
mod check;
mod exp;
mod logprobs;
#[cfg(test)]
mod oracle;
mod penalties;
mod random;
mod softmax;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::sync::Arc;

use super::request::{SamplingParams, TokenLogprobs};
use crate::error::{Error, Result};
use random::Random;
use softmax::Softmax;

/// The tokens before the one to be chosen.
#[derive(Debug, Clone, Copy)]
pub struct History<'a> {
    /// Prompt, then output.
    pub tokens: &'a [u32],
    /// Index in `tokens` where the output begins.
    pub output_start: usize,
}

impl<'a> History<'a> {
    /// The generated tokens.
    pub fn output(&self) -> &'a [u32] {
        self.tokens.get(self.output_start..).unwrap_or_default()
    }

    /// The last `window` tokens of prompt and output; 0 means all of them.
    pub fn window(&self, window: usize) -> &'a [u32] {
        let skipped = if window == 0 {
            0
        } else {
            self.tokens.len().saturating_sub(window)
        };
        &self.tokens[skipped..]
    }
}

/// A chosen token.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// Its id.
    pub id: u32,
    /// Present when the parameters ask for it.
    pub logprobs: Option<TokenLogprobs>,
}

/// Chooses the tokens of one sequence.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
    vocab_size: usize,
    masked_ids: Arc<[u32]>,
}

/// Buffers that live as long as the thread, shared by all sequences it samples.
#[derive(Debug, Default)]
struct Scratch {
    /// The row as the model gave it, when log-probabilities are wanted. `[vocab]`
    raw: Vec<f32>,
    /// How often a token occurs; all zero between calls. `[vocab]`
    counts: Vec<u32>,
    /// Candidates as sortable numbers. `[<= vocab]`
    keys: Vec<u64>,
    /// Probability mass of each block of the row. `[vocab / block]`
    block_sums: Vec<f64>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Sampler {
    /// A sampler for rows of `vocab_size` logits that never chooses one of `masked_ids` (ids without text, such as the
    /// padding rows of an output matrix).
    ///
    /// # Errors
    /// `Invalid` when a parameter is out of range or a bias names an id outside the vocabulary.
    pub fn new(params: &SamplingParams, vocab_size: usize, masked_ids: Arc<[u32]>) -> Result<Self> {
        params.check(vocab_size)?;
        Ok(Self {
            params: params.clone(),
            vocab_size,
            masked_ids,
        })
    }

    /// Chooses the token at `position` of the sequence. `logits` is used up.
    ///
    /// # Errors
    /// `Internal` when the row has the wrong length, holds NaN or positive infinity, or leaves no token possible.
    pub fn sample(
        &self,
        logits: &mut [f32],
        history: &History<'_>,
        position: u64,
    ) -> Result<Sampled> {
        SCRATCH.with_borrow_mut(|scratch| self.sample_with(scratch, logits, history, position))
    }

    fn sample_with(
        &self,
        scratch: &mut Scratch,
        logits: &mut [f32],
        history: &History<'_>,
        position: u64,
    ) -> Result<Sampled> {
        self.check_row(logits)?;
        for &id in self.masked_ids.iter() {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        if self.params.logprobs.is_some() {
            scratch.raw.clear();
            scratch.raw.extend_from_slice(logits);
        }
        penalties::apply(&self.params, logits, history, &mut scratch.counts);
        let max = softmax::max(logits);
        if max == f32::NEG_INFINITY {
            return Err(Error::internal(
                "no token can be chosen: every logit is negative infinity",
            ));
        }
        let id = if self.params.temperature == 0.0 {
            first_of(logits, max)
        } else {
            self.draw(scratch, logits, max, position)
        };
        let logprobs = self
            .params
            .logprobs
            .map(|n| logprobs::report(&scratch.raw, id, n, &mut scratch.keys));
        Ok(Sampled { id, logprobs })
    }

    fn check_row(&self, logits: &[f32]) -> Result<()> {
        if logits.len() != self.vocab_size {
            return Err(Error::internal(format!(
                "a row of logits has {} entries, the vocabulary {}",
                logits.len(),
                self.vocab_size
            )));
        }
        if softmax::all_below_infinity(logits) {
            return Ok(());
        }
        let id = logits
            .iter()
            .position(|x| x.is_nan() || *x == f32::INFINITY)
            .expect("one was just seen");
        let what = if logits[id].is_nan() {
            "NaN"
        } else {
            "infinity"
        };
        Err(Error::internal(format!(
            "the model's logits hold {what}, first at token id {id}"
        ))
        .with_hint("the weights may be damaged: check them with `oxydllm pull --force`"))
    }

    fn draw(&self, scratch: &mut Scratch, logits: &mut [f32], max: f32, position: u64) -> u32 {
        let params = &self.params;
        let random = Random::new(params.seed, params.choice, position);
        let softmax = Softmax {
            max,
            temperature: params.temperature,
        };
        if params.top_k == 0 && params.min_p <= 0.0 && params.top_p >= 1.0 {
            return softmax.draw_from_row(logits, random.unit(), &mut scratch.block_sums);
        }
        let kept = candidates::filter(params, logits, &softmax, &random, &mut scratch.keys);
        candidates::draw(kept, logits, &softmax, random.unit())
    }
}

/// The lowest id whose logit is `max`.
fn first_of(logits: &[f32], max: f32) -> u32 {
    let index = logits
        .iter()
        .position(|&x| x == max)
        .expect("the maximum is in the row");
    u32::try_from(index).expect("vocabularies have fewer than 2^32 tokens")
}

//! What goes into the engine and what comes out: token ids in, [`Event`]s out. No text on this side of the seam.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::error::Error;

/// How the next token is chosen. `Default` is greedy-free OpenAI behaviour: temperature 1, nothing else active.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 takes the best token.
    pub temperature: f32,
    /// Keep the `top_k` best tokens; 0 switches it off.
    pub top_k: usize,
    /// Keep the smallest set of best tokens whose probability reaches `top_p`; 1 switches it off.
    pub top_p: f32,
    /// Keep tokens at least `min_p` times as probable as the best; 0 switches it off.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in the window, once per distinct token; 1 is off.
    pub repetition_penalty: f32,
    /// How many trailing tokens (prompt and output) the repetition penalty looks at; 0 is all of them.
    pub repetition_window: usize,
    /// Subtracted per occurrence in the output.
    pub frequency_penalty: f32,
    /// Subtracted once for tokens that occur in the output.
    pub presence_penalty: f32,
    /// Added to the logits of single tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Same seed, same text. The engine never draws from anything else.
    pub seed: u64,
    /// Which of the `n` choices of one request this is; hashed with the seed so that choices are independent.
    pub choice: u32,
    /// `Some(n)`: report the log-probability of each token and of the `n` most probable ones, from the raw distribution.
    pub logprobs: Option<usize>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            repetition_window: 0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            choice: 0,
            logprobs: None,
        }
    }
}

/// Cancels a request from any thread; dropping the event receiver does the same. Clones are the same handle.
#[derive(Debug, Clone, Default)]
pub struct Cancel(CancellationToken);

impl Cancel {
    /// Asks the engine to stop this request before its next step.
    pub fn cancel(&self) {
        self.0.cancel();
    }

    /// Whether somebody asked.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits until somebody asks.
    pub async fn cancelled(&self) {
        self.0.cancelled().await;
    }
}

/// One sequence to continue.
#[derive(Debug, Clone)]
pub struct Request {
    /// The prompt, at least one token.
    pub tokens: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// At most this many tokens are generated (at least 1).
    pub max_tokens: usize,
    /// Tokens that end the answer. They are neither output nor counted.
    pub stop_tokens: Arc<[u32]>,
    /// Cancellation handle.
    pub cancel: Cancel,
}

/// The log-probabilities of one position, from the raw distribution (before any filter).
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// Natural log of the chosen token's probability.
    pub chosen: f32,
    /// The most probable tokens, best first, ties by lower id.
    pub top: Vec<(u32, f32)>,
}

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token, or (above the engine) a stop text.
    Stop,
    /// `max_tokens`, or the context is full.
    Length,
}

/// Token counts and times of a finished sequence.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// Prompt tokens.
    pub prompt_tokens: usize,
    /// Of these, how many came from the prefix cache.
    pub cached_tokens: usize,
    /// Generated tokens, without the stop token.
    pub completion_tokens: usize,
    /// Seconds from submission to admission.
    pub queue_s: f64,
    /// Seconds from admission to the first token.
    pub prefill_s: f64,
    /// Seconds from the first token to the last.
    pub decode_s: f64,
}

/// What the engine reports about a sequence, in order.
#[derive(Debug)]
pub enum Event {
    /// The sequence was admitted; at most once, before its first token. Who stops listening early knows these numbers only
    /// from here.
    Started {
        /// How many prompt tokens came from the prefix cache.
        cached_tokens: usize,
        /// Seconds from submission to admission.
        queue_s: f64,
    },
    /// One generated token.
    Token {
        /// Its id.
        id: u32,
        /// Present when asked for.
        logprobs: Option<TokenLogprobs>,
    },
    /// The end; nothing follows.
    Done {
        /// Why.
        reason: FinishReason,
        /// Counts and times.
        usage: Usage,
    },
    /// The end, by failure; nothing follows.
    Failed(Error),
}

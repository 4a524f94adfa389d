//! The worker thread of one model: takes requests from its queue, computes, samples, reports.
//!
//! One sequence at a time for now; the loop already works on [`Batch`]es, block tables and chunks. What the last sequence
//! left in the cache is used again where the next prompt begins with the same tokens, which by the numerical contract
//! cannot change an answer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::Instant;

use super::request::{Event, FinishReason, Request, Usage};
use super::sampler::{History, Sampler};
use super::{Engine, EngineInfo, Submission};
use crate::error::{Error, Result};
use crate::kv::{BLOCK_TOKENS, BlockPool, KvCache};
use crate::model::plan::{CHUNK_TOKENS, Plan};
use crate::model::{Batch, Sequence, Transformer};
use crate::ops::Context;
use tokio::sync::mpsc::UnboundedSender;

/// Requests that may wait for a worker.
const QUEUE_LENGTH: usize = 200;

/// A worker that runs.
#[derive(Debug)]
pub struct Running {
    /// The handle that requests go to.
    pub engine: Engine,
    /// Its thread. It ends when the last clone of the handle is dropped; the model's memory is returned by then.
    pub thread: JoinHandle<()>,
}

/// Starts the worker of a loaded model. It ends when the last clone of the handle is dropped.
///
/// `masked_ids` are token ids that must never be chosen, such as padding rows of the head.
pub fn start(
    ctx: Context,
    transformer: Transformer,
    plan: &Plan,
    masked_ids: Arc<[u32]>,
) -> Running {
    let (queue, submissions) = mpsc::channel();
    let info = EngineInfo {
        vocab_size: transformer.config().vocab_size,
        max_context: plan.context,
        weight_bytes: plan.weight_bytes,
        kv_bytes: plan.kv_bytes,
        max_num_seqs: 1,
        max_queued: QUEUE_LENGTH,
    };
    let num_blocks = plan.context.div_ceil(BLOCK_TOKENS);
    let mut worker = Worker {
        kv: KvCache::new(&transformer.config().page_shapes(), num_blocks),
        pool: BlockPool::new(num_blocks),
        resident: Resident::default(),
        max_context: plan.context,
        ctx,
        transformer,
        masked_ids,
    };
    let thread = std::thread::Builder::new()
        .name("engine".to_owned())
        .spawn(move || worker.serve(&submissions))
        .expect("the system refuses to start a thread");
    Running {
        engine: Engine::from_queue(queue, info, Arc::default()),
        thread,
    }
}

/// The sequence whose keys and values are in the cache.
#[derive(Debug, Default)]
struct Resident {
    /// Tokens whose keys and values are computed.
    tokens: Vec<u32>,
    blocks: Vec<u32>,
}

struct Worker {
    ctx: Context,
    transformer: Transformer,
    kv: KvCache,
    pool: BlockPool,
    resident: Resident,
    max_context: usize,
    masked_ids: Arc<[u32]>,
}

/// Why a sequence was not finished.
enum Stop {
    /// The events' receiver is gone: nobody wants to know.
    Unheard,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Worker {
    fn serve(&mut self, submissions: &Receiver<Submission>) {
        for Submission {
            request, events, ..
        } in submissions
        {
            let outcome = catch_unwind(AssertUnwindSafe(|| self.answer(&request, &events)));
            let failure = match outcome {
                Ok(Ok(()) | Err(Stop::Unheard)) => continue,
                Ok(Err(Stop::Failed(error))) => error,
                Err(_) => {
                    // What the step left behind cannot be trusted.
                    self.forget(0);
                    Error::internal("the engine failed while it computed this answer")
                }
            };
            // A receiver that is gone does not want the error either.
            let _ = events.send(Event::Failed(failure));
        }
    }

    fn answer(&mut self, request: &Request, events: &UnboundedSender<Event>) -> Result<(), Stop> {
        let sampler = Sampler::new(
            &request.sampling,
            self.transformer.config().vocab_size,
            Arc::clone(&self.masked_ids),
        )?;
        let begin = Instant::now();
        let cached = self.reuse(&request.tokens);
        let mut usage = Usage {
            prompt_tokens: request.tokens.len(),
            cached_tokens: cached,
            ..Usage::default()
        };
        let mut tokens = request.tokens.clone();
        let mut logits = self.prefill(request, cached)?;
        usage.prefill_s = begin.elapsed().as_secs_f64();
        let decode_begin = Instant::now();
        let reason = loop {
            let history = History {
                tokens: &tokens,
                output_start: request.tokens.len(),
            };
            let sampled = sampler.sample(logits.as_mut_slice(), &history, tokens.len() as u64)?;
            if request.stop_tokens.contains(&sampled.id) {
                break FinishReason::Stop;
            }
            tokens.push(sampled.id);
            usage.completion_tokens += 1;
            let token = Event::Token {
                id: sampled.id,
                logprobs: sampled.logprobs,
            };
            events.send(token).map_err(|_| Stop::Unheard)?;
            if usage.completion_tokens >= request.max_tokens || tokens.len() >= self.max_context {
                break FinishReason::Length;
            }
            check_cancelled(request)?;
            logits = self.compute(&tokens[tokens.len() - 1..], 1)?;
        };
        usage.decode_s = decode_begin.elapsed().as_secs_f64();
        events
            .send(Event::Done { reason, usage })
            .map_err(|_| Stop::Unheard)
    }

    /// Keeps what the cache shares with the beginning of `prompt` (all but its last token at most) and forgets the rest.
    fn reuse(&mut self, prompt: &[u32]) -> usize {
        let shared = self
            .resident
            .tokens
            .iter()
            .zip(prompt)
            .take_while(|(a, b)| a == b)
            .count();
        let kept = shared.min(prompt.len() - 1);
        self.forget(kept);
        kept
    }

    /// Forgets everything behind the first `kept` tokens.
    fn forget(&mut self, kept: usize) {
        self.resident.tokens.truncate(kept);
        for block in self.resident.blocks.drain(kept.div_ceil(BLOCK_TOKENS)..) {
            self.pool.give_back(block);
        }
    }

    fn prefill(&mut self, request: &Request, cached: usize) -> Result<crate::ops::Tensor, Stop> {
        let rest = &request.tokens[cached..];
        let mut chunks = rest.chunks(CHUNK_TOKENS);
        let last = chunks.next_back().expect("one token is always computed");
        for chunk in chunks {
            check_cancelled(request)?;
            self.compute(chunk, 0)?;
        }
        check_cancelled(request)?;
        Ok(self.compute(last, 1)?)
    }

    /// Computes the next tokens of the resident sequence.
    fn compute(&mut self, tokens: &[u32], num_logits: usize) -> Result<crate::ops::Tensor> {
        let first_position = self.resident.tokens.len();
        while self.resident.blocks.len() * BLOCK_TOKENS < first_position + tokens.len() {
            let block = self
                .pool
                .take()
                .ok_or_else(|| Error::internal("the KV cache has no free block left"))?;
            self.resident.blocks.push(block);
        }
        let sequence = Sequence {
            tokens: tokens.to_vec(),
            first_position,
            block_table: self.resident.blocks.clone(),
            num_logits,
        };
        let logits = self.transformer.forward(
            &self.ctx,
            &Batch {
                sequences: vec![sequence],
            },
            &mut self.kv,
        )?;
        self.resident.tokens.extend_from_slice(tokens);
        Ok(logits)
    }
}

fn check_cancelled(request: &Request) -> Result<()> {
    if request.cancel.is_cancelled() {
        Err(Error::cancelled("the answer was stopped"))
    } else {
        Ok(())
    }
}

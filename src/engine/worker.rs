//! The worker thread of one model: takes requests from its queue, computes steps, samples, reports.
//!
//! A turn of the loop: take what arrived, drop what was cancelled, let the [`Scheduler`] plan a step, compute it, sample, send the
//! events. The thread sleeps when there is nothing to do. A panic or an error in a step fails the sequences of that step and
//! nothing else; an error of one sequence (NaN logits) fails that one.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use super::active::{Active, Verdict};
use super::handle::Submission;
use super::pacer::Pacer;
use super::request::Event;
use super::sampler::{Sampled, Sampler};
use super::scheduler::{Limits, Scheduler, SeqId, StateLimits, Step};
use super::stats::EngineStats;
use super::{Engine, EngineInfo};
use crate::error::{Error, Result};
use crate::kv::KvCache;
use crate::model::plan::{CHUNK_TOKENS, Plan};
use crate::model::{Batch, Sequence, Transformer};
use crate::ops::{Context, Tensor};

/// What computes a step: the model with its KV cache.
pub trait Forward: Send {
    /// Logits of the rows that the batch asks for, `[Σ num_logits, vocab]`.
    ///
    /// # Errors
    /// Those of the model; they fail the sequences of the batch.
    fn forward(&mut self, ctx: &Context, batch: &Batch) -> Result<Tensor>;

    /// Whether a sequence with a prompt of so many tokens is computed as a long one
    /// ([`ModelConfig::is_long`](crate::model::ModelConfig::is_long)).
    fn is_long(&self, _prompt_len: usize) -> bool {
        false
    }
}

/// A transformer with the cache of its worker.
pub struct TransformerForward {
    transformer: Transformer,
    kv: KvCache,
}

impl TransformerForward {
    /// Makes the cache that is planned.
    pub fn new(transformer: Transformer, plan: &Plan) -> Self {
        let shape = transformer.config().cache_shape();
        let kv = KvCache::new(&shape, plan.num_blocks, plan.num_slots);
        Self { transformer, kv }
    }
}

impl Forward for TransformerForward {
    fn forward(&mut self, ctx: &Context, batch: &Batch) -> Result<Tensor> {
        self.transformer.forward(ctx, batch, &mut self.kv)
    }

    fn is_long(&self, prompt_len: usize) -> bool {
        self.transformer.config().is_long(prompt_len)
    }
}

/// How a worker serves.
#[derive(Debug, Clone)]
pub struct WorkerSettings {
    /// Requests that may wait; one more is refused.
    pub max_queued: usize,
    /// Ids that must never be chosen, such as padding rows of the head.
    pub masked_ids: Arc<[u32]>,
    /// Tokens of the largest step.
    pub step_tokens: usize,
}

impl Default for WorkerSettings {
    fn default() -> Self {
        Self {
            max_queued: 200,
            masked_ids: Arc::default(),
            step_tokens: CHUNK_TOKENS,
        }
    }
}

/// A running worker.
#[derive(Debug)]
pub struct Running {
    /// The handle to it. The worker ends when the last clone is dropped and its sequences are over.
    pub engine: Engine,
    /// Ends when the worker has given its memory back.
    pub thread: JoinHandle<()>,
}

/// Starts the worker of a loaded model.
pub fn start(
    ctx: Context,
    transformer: Transformer,
    plan: &Plan,
    settings: WorkerSettings,
) -> Running {
    let vocab_size = transformer.config().vocab_size;
    let forward = TransformerForward::new(transformer, plan);
    start_with(ctx, Box::new(forward), vocab_size, plan, settings)
}

/// Starts a worker around anything that computes steps.
pub fn start_with(
    ctx: Context,
    forward: Box<dyn Forward>,
    vocab_size: usize,
    plan: &Plan,
    settings: WorkerSettings,
) -> Running {
    let (queue, submissions) = mpsc::channel();
    let info = EngineInfo {
        vocab_size,
        max_context: plan.context,
        weight_bytes: plan.weight_bytes,
        kv_bytes: plan.kv_bytes,
        num_blocks: plan.num_blocks,
        max_num_seqs: plan.max_num_seqs,
        max_queued: settings.max_queued,
    };
    let stats = Arc::<EngineStats>::default();
    let worker = Worker {
        ctx,
        forward,
        scheduler: Scheduler::new(Limits {
            num_blocks: plan.num_blocks,
            max_num_seqs: plan.max_num_seqs,
            states: (plan.num_slots > 0).then_some(StateLimits {
                num_slots: plan.num_slots,
                interval: plan.state_interval,
            }),
        }),
        active: BTreeMap::new(),
        next_id: 0,
        pacer: Pacer::new(settings.step_tokens),
        stats: Arc::clone(&stats),
        max_context: plan.context,
        vocab_size,
        masked_ids: settings.masked_ids,
    };
    let thread = std::thread::Builder::new()
        .name("engine".to_owned())
        .spawn(move || worker.serve(&submissions))
        .expect("the system refuses to start a thread");
    Running {
        engine: Engine::from_queue(queue, info, stats),
        thread,
    }
}

struct Worker {
    ctx: Context,
    forward: Box<dyn Forward>,
    scheduler: Scheduler,
    active: BTreeMap<SeqId, Active>,
    next_id: SeqId,
    pacer: Pacer,
    stats: Arc<EngineStats>,
    max_context: usize,
    vocab_size: usize,
    masked_ids: Arc<[u32]>,
}

impl Worker {
    fn serve(mut self, submissions: &Receiver<Submission>) {
        while self.receive(submissions) {
            self.drop_cancelled();
            self.step();
            self.note_stats();
        }
    }

    /// Takes what arrived; sleeps when there is nothing else to do. `false` when all is over.
    fn receive(&mut self, submissions: &Receiver<Submission>) -> bool {
        if self.scheduler.is_idle() {
            match submissions.recv() {
                Ok(submission) => self.add(submission),
                Err(mpsc::RecvError) => return false,
            }
        }
        loop {
            match submissions.try_recv() {
                Ok(submission) => self.add(submission),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return !self.scheduler.is_idle(),
            }
        }
    }

    fn add(&mut self, submission: Submission) {
        let sampling = &submission.request.sampling;
        match Sampler::new(sampling, self.vocab_size, Arc::clone(&self.masked_ids)) {
            Ok(sampler) => {
                self.next_id += 1;
                let (active, tokens) = Active::new(submission, sampler, self.max_context);
                let is_long = self.forward.is_long(tokens.len());
                self.scheduler
                    .add_variant(self.next_id, tokens, u8::from(is_long));
                self.active.insert(self.next_id, active);
            }
            // A receiver that is gone does not want the error either.
            Err(error) => drop(submission.events.send(Event::Failed(error))),
        }
    }

    fn drop_cancelled(&mut self) {
        let cancelled = |active: &Active| active.is_cancelled();
        let ids: Vec<SeqId> = self
            .active
            .iter()
            .filter(|(_, active)| cancelled(active))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            self.fail(id, Error::cancelled("the answer was stopped"));
        }
    }

    fn fail(&mut self, id: SeqId, error: Error) {
        if let Some(active) = self.remove(id) {
            active.fail(error);
        }
    }

    fn remove(&mut self, id: SeqId) -> Option<Active> {
        self.scheduler.remove(id);
        self.active.remove(&id)
    }

    fn step(&mut self) {
        if self.scheduler.is_idle() {
            return;
        }
        let step = self.scheduler.schedule(self.pacer.budget());
        self.note_admissions(&step);
        let begin = Instant::now();
        let batch = self.batch(&step);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let _turn = self.ctx.pool().exclusive();
            self.forward.forward(&self.ctx, &batch)
        }));
        match outcome {
            Ok(Ok(mut logits)) => {
                let (decodes, prompt_tokens) = shape(&step);
                self.pacer.observe(decodes, prompt_tokens, begin.elapsed());
                self.scheduler.commit(&step);
                self.sample(&step, &mut logits);
            }
            Ok(Err(error)) => self.fail_step(&step, &error.chain()),
            Err(panic) => self.fail_step(&step, &panic_text(&*panic)),
        }
    }

    fn fail_step(&mut self, step: &Step, why: &str) {
        tracing::error!(
            sequences = step.parts.len(),
            error = why,
            "engine step failed"
        );
        for part in &step.parts {
            let error = Error::internal(format!(
                "the engine failed while it computed this answer: {why}"
            ));
            self.fail(part.id, error);
        }
    }

    fn note_admissions(&mut self, step: &Step) {
        for id in &step.admitted {
            let cached = self.scheduler.cached_tokens(*id);
            if let Some(active) = self.active.get_mut(id) {
                active.admit(cached);
            }
        }
        if !step.preempted.is_empty() {
            let count = step.preempted.len();
            tracing::info!(
                sequences = count,
                "preempted: the KV cache is full, they are computed again later"
            );
            self.stats
                .preemptions
                .fetch_add(count as u64, Ordering::Relaxed);
        }
    }

    fn batch(&self, step: &Step) -> Batch {
        let sequence = |part: &super::scheduler::Part| Sequence {
            tokens: self.scheduler.tokens(part.id)[part.first..part.first + part.count].to_vec(),
            first_position: part.first,
            block_table: self.scheduler.block_table(part.id).to_vec(),
            state: self.scheduler.state_use(part),
            num_logits: usize::from(part.samples),
            is_long: self.scheduler.variant(part.id) != 0,
        };
        Batch {
            sequences: step.parts.iter().map(sequence).collect(),
        }
    }

    /// Chooses the next token of every sequence that is computed to its end.
    fn sample(&mut self, step: &Step, logits: &mut Tensor) {
        let ids: Vec<SeqId> = step
            .parts
            .iter()
            .filter(|part| part.samples)
            .map(|part| part.id)
            .collect();
        let cols = logits.cols();
        // A task locks its own row only; the locks are there so that tasks may share the list.
        let rows: Vec<_> = logits
            .as_mut_slice()
            .chunks_mut(cols.max(1))
            .map(|row| Mutex::new((row, None)))
            .collect();
        self.ctx.pool().run(ids.len(), |index| {
            let id = ids[index];
            let mut row = rows[index].lock().unwrap_or_else(PoisonError::into_inner);
            let tokens = self.scheduler.tokens(id);
            let sampled = catch_unwind(AssertUnwindSafe(|| self.active[&id].sample(row.0, tokens)));
            row.1 = Some(sampled.unwrap_or_else(|panic| {
                let why = panic_text(&*panic);
                Err(Error::internal(format!("choosing a token failed: {why}")))
            }));
        });
        let sampled: Vec<_> = rows
            .into_iter()
            .map(|row| row.into_inner().unwrap_or_else(PoisonError::into_inner).1)
            .collect();
        for (id, sampled) in ids.into_iter().zip(sampled) {
            match sampled.expect("every row was sampled") {
                Ok(sampled) => self.take(id, sampled),
                Err(error) => self.fail(id, error),
            }
        }
    }

    fn take(&mut self, id: SeqId, sampled: Sampled) {
        let Some(active) = self.active.get_mut(&id) else {
            return;
        };
        let token = sampled.id;
        match active.take(sampled) {
            Verdict::Continue => self.scheduler.push_token(id, token),
            Verdict::Over => drop(self.remove(id)),
        }
    }

    fn note_stats(&self) {
        let (stats, pool) = (&self.stats, self.scheduler.pool());
        stats.steps.fetch_add(1, Ordering::Relaxed);
        stats
            .running
            .store(self.scheduler.num_running(), Ordering::Relaxed);
        stats
            .waiting
            .store(self.scheduler.num_waiting(), Ordering::Relaxed);
        stats.used_blocks.store(pool.num_used(), Ordering::Relaxed);
        stats
            .cached_blocks
            .store(pool.num_cached(), Ordering::Relaxed);
    }
}

/// Decodes and prompt tokens of a step.
fn shape(step: &Step) -> (usize, usize) {
    let is_decode = |part: &&super::scheduler::Part| part.count == 1 && part.samples;
    let decodes = step.parts.iter().filter(is_decode).count();
    let tokens: usize = step.parts.iter().map(|part| part.count).sum();
    (decodes, tokens - decodes)
}

pub(super) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a message".to_owned())
}

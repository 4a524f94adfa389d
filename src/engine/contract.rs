//! The numerical contract, checked on a loaded model: the same logit bits whatever happens around a sequence.
//!
//! [`check`] computes each prompt and a greedy continuation once as plainly as can be, then again under every condition that
//! must not matter (see [`Clause`]), through the same scheduler as the server, and compares every position's logits by their
//! bits. `oxydllm eval MODEL --contract` prints the report; the tests run it on every fixture.

use std::collections::BTreeMap;
use std::fmt;

use sha2::{Digest, Sha256};

use super::scheduler::{Budget, Limits, Part, Scheduler, SeqId, StateLimits, Step};
use crate::error::{Error, Result};
use crate::kv::{BLOCK_TOKENS, KvCache, StateUse};
use crate::model::{Batch, ModelConfig, Sequence, Transformer};
use crate::ops::{Context, Tensor};

/// Greedy tokens behind each prompt.
const CONTINUATION: usize = 24;
/// Tokens that the sequences beside a prompt grow to.
const OTHERS_LENGTH: usize = 60;
/// Tokens of a step where nothing else is said.
const WHOLE: usize = 1 << 20;
/// State slots of a sequence by itself and its copies.
const SLOTS: usize = 16;
/// Blocks between two copies of a recurrent state.
const STATE_INTERVAL: usize = 3;

/// A condition that must not change a bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clause {
    /// The prompt is computed in chunks of so many tokens.
    Chunks(usize),
    /// The KV blocks lie in another order.
    ShuffledBlocks,
    /// Beside so many other sequences.
    Beside(usize),
    /// The whole prompt was computed for an earlier request.
    CachedPrompt,
    /// The first half of the prompt was computed for another prompt.
    CachedHalf,
    /// The sequence loses its blocks to an older one and is computed again.
    Preempted,
}

/// The conditions that are tried with one way to compute.
const CLAUSES: [Clause; 12] = [
    Clause::Chunks(1),
    Clause::Chunks(7),
    Clause::Chunks(64),
    Clause::Chunks(512),
    Clause::ShuffledBlocks,
    Clause::Beside(1),
    Clause::Beside(3),
    Clause::Beside(8),
    Clause::Beside(31),
    Clause::CachedPrompt,
    Clause::CachedHalf,
    Clause::Preempted,
];

impl fmt::Display for Clause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chunks(1) => write!(f, "one token at a time"),
            Self::Chunks(size) => write!(f, "in chunks of {size}"),
            Self::ShuffledBlocks => write!(f, "in shuffled blocks"),
            Self::Beside(1) => write!(f, "beside 1 other"),
            Self::Beside(others) => write!(f, "beside {others} others"),
            Self::CachedPrompt => write!(f, "prompt cached"),
            Self::CachedHalf => write!(f, "half of the prompt cached"),
            Self::Preempted => write!(f, "after a preemption"),
        }
    }
}

/// What computes: a transformer, or in tests one with a planted fault.
pub trait Subject {
    /// The model's configuration.
    fn config(&self) -> &ModelConfig;

    /// As [`Transformer::forward`].
    ///
    /// # Errors
    /// As there.
    fn forward(&self, ctx: &Context, batch: &Batch, kv: &mut KvCache) -> Result<Tensor>;
}

impl Subject for Transformer {
    fn config(&self) -> &ModelConfig {
        Self::config(self)
    }

    fn forward(&self, ctx: &Context, batch: &Batch, kv: &mut KvCache) -> Result<Tensor> {
        Self::forward(self, ctx, batch, kv)
    }
}

/// What came of one condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The condition in words.
    pub condition: String,
    /// Positions that were compared, over all prompts.
    pub compared: usize,
    /// (prompt, position) of those whose bits moved.
    pub moved: Vec<(usize, usize)>,
}

/// Prompts with their plain results, to compare with.
#[derive(Debug)]
pub struct Reference {
    probes: Vec<Probe>,
}

/// One prompt, its continuation and what its logits are.
#[derive(Debug)]
struct Probe {
    prompt: Vec<u32>,
    /// Computed as a long sequence: decided by the whole prompt, also for a part of it.
    is_long: bool,
    /// Tokens that it is continued by at first: [`CONTINUATION`], or as many as the context holds.
    room: usize,
    continuation: Vec<u32>,
    rows: Rows,
}

/// A fingerprint of the logits by position.
type Rows = BTreeMap<usize, [u8; 32]>;

impl Reference {
    /// Computes each prompt alone, whole, and continues it greedily, as far as the context goes.
    ///
    /// # Errors
    /// Those of the model; `Invalid` for no prompt or an empty one, `ContextLength` for one that is too long.
    pub fn compute(subject: &dyn Subject, ctx: &Context, prompts: &[Vec<u32>]) -> Result<Self> {
        let config = subject.config();
        if prompts.is_empty() {
            return Err(Error::invalid(
                "there are no prompts: nothing would be checked",
            ));
        }
        for (index, prompt) in prompts.iter().enumerate() {
            if prompt.is_empty() {
                return Err(Error::invalid(format!("prompt {index} has no tokens")));
            }
            config
                .check_context(format_args!("prompt {index}"), prompt.len())
                .map_err(|e| e.with_hint("give a shorter prompt"))?;
        }
        let probe = |prompt: &Vec<u32>| {
            let mut probe = Probe {
                prompt: prompt.clone(),
                is_long: config.is_long(prompt.len()),
                room: CONTINUATION.min(config.max_context - prompt.len()),
                continuation: Vec::new(),
                rows: Rows::new(),
            };
            let blocks = probe.num_blocks();
            let mut drive = Drive::new(subject, ctx, blocks, SLOTS, WHOLE);
            let (rows, continuation) = drive.run(&probe, &[], &[])?;
            (probe.rows, probe.continuation) = (rows, continuation);
            Ok(probe)
        };
        let probes = prompts.iter().map(probe).collect::<Result<_>>()?;
        Ok(Self { probes })
    }

    /// The same prompts with at most `length` tokens, for conditions that are slow. The rest of a prompt becomes its continuation.
    #[must_use]
    pub fn shortened(&self, length: usize) -> Self {
        let shorten = |probe: &Probe| {
            let prompt = probe.prompt[..probe.prompt.len().min(length)].to_vec();
            let last = prompt.len() - 1;
            let rows = probe.rows.iter().filter(|(position, _)| **position <= last);
            Probe {
                rows: rows.map(|(position, row)| (*position, *row)).collect(),
                continuation: Vec::new(),
                prompt,
                is_long: probe.is_long,
                room: 0,
            }
        };
        Self {
            probes: self.probes.iter().map(shorten).collect(),
        }
    }

    /// Computes the prompts again as plainly, perhaps with other threads or instructions (`condition` says how).
    ///
    /// # Errors
    /// Those of the model.
    pub fn repeat(
        &self,
        subject: &dyn Subject,
        ctx: &Context,
        condition: String,
    ) -> Result<Finding> {
        self.compare(condition, |probe| {
            let mut drive = Drive::new(subject, ctx, probe.num_blocks(), SLOTS, WHOLE);
            Ok(drive.run(probe, &[], &[])?.0)
        })
    }

    /// Computes the prompts again under `clause`.
    ///
    /// # Errors
    /// Those of the model; `Internal` when the condition could not be brought about.
    pub fn check(&self, subject: &dyn Subject, ctx: &Context, clause: Clause) -> Result<Finding> {
        self.compare(clause.to_string(), |probe| {
            probe.run_under(subject, ctx, clause)
        })
    }

    fn compare(
        &self,
        condition: String,
        mut run: impl FnMut(&Probe) -> Result<Rows>,
    ) -> Result<Finding> {
        let mut finding = Finding {
            condition,
            compared: 0,
            moved: Vec::new(),
        };
        for (index, probe) in self.probes.iter().enumerate() {
            for (position, row) in run(probe)? {
                if let Some(expected) = probe.rows.get(&position) {
                    finding.compared += 1;
                    if *expected != row {
                        finding.moved.push((index, position));
                    }
                }
            }
        }
        Ok(finding)
    }
}

/// Runs every clause with one way to compute.
///
/// # Errors
/// Those of the model.
pub fn check(
    subject: &dyn Subject,
    ctx: &Context,
    reference: &Reference,
    mut report: impl FnMut(Finding) -> Result<()>,
) -> Result<()> {
    CLAUSES
        .iter()
        .try_for_each(|clause| report(reference.check(subject, ctx, *clause)?))
}

/// Prompts for any vocabulary and context: a single token, a few, more than two attention tiles. Always the same.
pub fn built_in_prompts(vocab_size: usize, max_context: usize) -> Vec<Vec<u32>> {
    let most = max_context.saturating_sub(CONTINUATION).max(1);
    let of = |(seed, length): (u64, usize)| tokens(seed, length.min(most), vocab_size);
    [(1, 1), (2, 37), (3, 157)].into_iter().map(of).collect()
}

/// Pseudo-random token ids.
fn tokens(seed: u64, length: usize, vocab_size: usize) -> Vec<u32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % vocab_size as u64) as u32
    };
    (0..length).map(|_| next()).collect()
}

impl Probe {
    /// Blocks that prompt and continuation need.
    fn num_blocks(&self) -> usize {
        (self.prompt.len() + CONTINUATION).div_ceil(BLOCK_TOKENS)
    }

    fn run_under(&self, subject: &dyn Subject, ctx: &Context, clause: Clause) -> Result<Rows> {
        let vocab = subject.config().vocab_size;
        let own = self.num_blocks();
        match clause {
            Clause::Chunks(size) => {
                let mut drive = Drive::new(subject, ctx, own, SLOTS, size);
                Ok(drive.run(self, &[], &[])?.0)
            }
            Clause::ShuffledBlocks => {
                let mut drive = Drive::new(subject, ctx, own + 13, SLOTS + 7, WHOLE);
                drive.shuffle();
                Ok(drive.run(self, &[], &[])?.0)
            }
            Clause::Beside(count) => {
                let most = subject.config().max_context;
                let other = |i: usize| tokens(100 + i as u64, (1 + i * 7 % 40).min(most), vocab);
                let others: Vec<Vec<u32>> = (0..count).map(other).collect();
                let (older, younger) = others.split_at(count / 2);
                let mut drive = Drive::new(subject, ctx, own + count * 5, SLOTS + count, WHOLE);
                Ok(drive.run(self, older, younger)?.0)
            }
            Clause::CachedPrompt => {
                let mut drive = Drive::new(subject, ctx, own * 2, SLOTS, WHOLE);
                drive.run(self, &[], &[])?;
                self.run_cached(&mut drive, self.prompt.len())
            }
            Clause::CachedHalf => {
                let half = self.prompt.len() / 2;
                let mut drive = Drive::new(subject, ctx, own * 3, SLOTS, WHOLE);
                // The second finds out where prompts part, and a recurrent state is kept there.
                for seed in [7, 8] {
                    let mut other = self.prompt[..half].to_vec();
                    other.extend(tokens(seed, 5, vocab));
                    drive.run_other(other, self.is_long)?;
                }
                self.run_cached(&mut drive, half)
            }
            Clause::Preempted => self.run_preempted(subject, ctx, vocab),
        }
    }

    /// Runs the probe when the cache has `shared` of its tokens.
    fn run_cached(&self, drive: &mut Drive<'_>, shared: usize) -> Result<Rows> {
        let (rows, _) = drive.run(self, &[], &[])?;
        let cached = shared.min(self.prompt.len() - 1) / BLOCK_TOKENS * BLOCK_TOKENS;
        match rows.first_key_value() {
            Some((first, _)) if *first == cached => Ok(rows),
            found => Err(Error::internal(format!(
                "{cached} tokens are in the cache, but the first that was computed is {found:?}"
            ))),
        }
    }

    /// An older sequence of one block grows until the pool is full, while this one continues: one that ends before cannot be
    /// preempted.
    fn run_preempted(&self, subject: &dyn Subject, ctx: &Context, vocab: usize) -> Result<Rows> {
        if self.continuation.len() < CONTINUATION {
            return Ok(Rows::new());
        }
        let blocks = self.prompt.len().div_ceil(BLOCK_TOKENS) + 2;
        let mut drive = Drive::new(subject, ctx, blocks, 3, WHOLE);
        let older = tokens(9, BLOCK_TOKENS - 1, vocab);
        let (rows, _) = drive.run(self, &[older], &[])?;
        if drive.preemptions == 0 {
            return Err(Error::internal(
                "the sequence was not preempted, so nothing was checked",
            ));
        }
        Ok(rows)
    }
}

/// A model with a cache and a scheduler, driven without a worker.
struct Drive<'a> {
    subject: &'a dyn Subject,
    ctx: &'a Context,
    kv: KvCache,
    scheduler: Scheduler,
    budget: Budget,
    /// Where each block of the scheduler really lies.
    places: Vec<u32>,
    /// The same of its state slots.
    slot_places: Vec<u32>,
    next_id: SeqId,
    preemptions: usize,
}

impl<'a> Drive<'a> {
    /// With blocks and, where the model has recurrent layers, state slots for so many sequences and copies.
    fn new(
        subject: &'a dyn Subject,
        ctx: &'a Context,
        num_blocks: usize,
        num_slots: usize,
        step_tokens: usize,
    ) -> Self {
        let shape = subject.config().cache_shape();
        let num_slots = if shape.states.is_empty() {
            0
        } else {
            num_slots
        };
        Self {
            subject,
            ctx,
            kv: KvCache::new(&shape, num_blocks, num_slots),
            scheduler: Scheduler::new(Limits {
                num_blocks,
                max_num_seqs: 64,
                states: (num_slots > 0).then_some(StateLimits {
                    num_slots,
                    interval: STATE_INTERVAL,
                }),
            }),
            budget: Budget {
                tokens: step_tokens,
                beside_decodes: step_tokens,
            },
            places: (0..num_blocks as u32).collect(),
            slot_places: (0..num_slots as u32).collect(),
            next_id: 1,
            preemptions: 0,
        }
    }

    /// Scatters blocks and slots.
    fn shuffle(&mut self) {
        for places in [&mut self.places, &mut self.slot_places] {
            for i in (1..places.len()).rev() {
                places.swap(i, (i * 7919 + 5) % (i + 1));
            }
        }
    }

    fn add(&mut self, tokens: &[u32], is_long: bool) -> SeqId {
        let id = self.next_id;
        self.next_id += 1;
        self.scheduler
            .add_variant(id, tokens.to_vec(), u8::from(is_long));
        id
    }

    fn add_other(&mut self, tokens: &[u32]) {
        self.add(tokens, self.subject.config().is_long(tokens.len()));
    }

    /// Computes another prompt alone, for what it leaves in the cache.
    fn run_other(&mut self, prompt: Vec<u32>, is_long: bool) -> Result<()> {
        let other = Probe {
            prompt,
            is_long,
            room: 0,
            continuation: Vec::new(),
            rows: Rows::from([(0, [0; 32])]),
        };
        self.run(&other, &[], &[])?;
        Ok(())
    }

    /// Computes the probe (with its continuation, or a greedy one when it has none yet) beside others that arrive before and
    /// after it; its rows and the continuation.
    fn run(
        &mut self,
        probe: &Probe,
        older: &[Vec<u32>],
        younger: &[Vec<u32>],
    ) -> Result<(Rows, Vec<u32>)> {
        for tokens in older {
            self.add_other(tokens);
        }
        let own = self.add(&probe.prompt, probe.is_long);
        for tokens in younger {
            self.add_other(tokens);
        }
        let (mut rows, mut continuation) = (Rows::new(), Vec::new());
        while !self.scheduler.is_idle() {
            let step = self.scheduler.schedule(self.budget);
            if step.parts.is_empty() {
                return Err(Error::internal("the scheduler planned a step without work"));
            }
            self.preemptions += step.preempted.iter().filter(|id| **id == own).count();
            let logits = self
                .subject
                .forward(self.ctx, &self.batch(&step, own), &mut self.kv)?;
            self.scheduler.commit(&step);
            let mut row = 0;
            for part in &step.parts {
                if part.id == own {
                    for offset in 0..part.count {
                        rows.insert(part.first + offset, fingerprint(logits.row(row + offset)));
                    }
                    row += part.count;
                    if part.samples {
                        self.continue_probe(probe, own, &mut continuation, logits.row(row - 1));
                    }
                } else if part.samples {
                    row += 1;
                    self.continue_other(part.id);
                }
            }
        }
        Ok((rows, continuation))
    }

    fn batch(&self, step: &Step, own: SeqId) -> Batch {
        let place = |block: &u32| self.places[*block as usize];
        let sequence = |part: &Part| Sequence {
            tokens: self.scheduler.tokens(part.id)[part.first..part.first + part.count].to_vec(),
            first_position: part.first,
            block_table: self
                .scheduler
                .block_table(part.id)
                .iter()
                .map(place)
                .collect(),
            state: self.state(part),
            num_logits: if part.id == own {
                part.count
            } else {
                usize::from(part.samples)
            },
            is_long: self.scheduler.variant(part.id) != 0,
        };
        Batch {
            sequences: step.parts.iter().map(sequence).collect(),
        }
    }

    fn state(&self, part: &Part) -> StateUse {
        let state = self.scheduler.state_use(part);
        if self.slot_places.is_empty() {
            return state;
        }
        let place = |slot: u32| self.slot_places[slot as usize];
        let saves = state.saves.into_iter();
        StateUse {
            from: state.from.map(place),
            to: place(state.to),
            saves: saves.map(|(count, slot)| (count, place(slot))).collect(),
        }
    }

    fn continue_probe(&mut self, probe: &Probe, own: SeqId, so_far: &mut Vec<u32>, logits: &[f32]) {
        let is_reference = probe.rows.is_empty();
        let wanted = if is_reference {
            probe.room
        } else {
            probe.continuation.len()
        };
        if so_far.len() >= wanted {
            return self.scheduler.remove(own);
        }
        let next = if is_reference {
            best(logits)
        } else {
            probe.continuation[so_far.len()]
        };
        so_far.push(next);
        self.scheduler.push_token(own, next);
    }

    /// Others go on for a while with tokens of their own.
    fn continue_other(&mut self, id: SeqId) {
        let length = self.scheduler.tokens(id).len();
        let pool = self.scheduler.pool().num_blocks() * BLOCK_TOKENS;
        let most = pool.min(self.subject.config().max_context);
        if length < OTHERS_LENGTH.min(most) {
            let vocab = self.subject.config().vocab_size;
            let next = tokens(id * 1000 + length as u64, 1, vocab)[0];
            self.scheduler.push_token(id, next);
        } else {
            self.scheduler.remove(id);
        }
    }
}

/// The lowest id with the largest logit.
fn best(row: &[f32]) -> u32 {
    let better = |best: usize, id: usize| if row[id] > row[best] { id } else { best };
    (1..row.len()).fold(0, better) as u32
}

fn fingerprint(row: &[f32]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for value in row {
        hash.update(value.to_bits().to_le_bytes());
    }
    hash.finalize().into()
}

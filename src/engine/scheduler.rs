//! Who computes what in the next step. Integers only: no tensor, no clock, no channel.
//!
//! A step is any mix of decodes (one token of a sequence) and prompt chunks; by the numerical contract the mix cannot change
//! an answer. Rules, in the order of their weight:
//!
//! - Sequences rank by age. A sequence may take blocks from younger ones (preemption: they are computed again later), never
//!   from older ones, so the oldest always gets on and the rest follow.
//! - Every running sequence that decodes gets its token in every step; prompts share what is left of the token budget. The
//!   oldest prompt gets at least half of it, the shortest the rest, so that neither long nor short ones starve.
//! - Waiting sequences are admitted by age while there is room. A few may pass one that does not fit yet, then it has right of
//!   way. One whose next block is being computed by another sequence waits for that block instead of computing it too.
//! - With recurrent layers a running sequence has a state slot too, and copies of its state are kept on the way (`state.rs`).

use std::collections::{BTreeMap, BTreeSet};

use super::sequence::Sequence;
use crate::kv::{BLOCK_TOKENS, BlockPool, StatePool, StateUse};

/// How many younger sequences may pass one that does not fit.
const MAX_BYPASS: usize = 16;

/// A sequence's number: its age.
pub type SeqId = u64;

/// What bounds the scheduler.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Blocks of the KV pool. A sequence may never need more than all of them.
    pub num_blocks: usize,
    /// Sequences that run at once, at least 1.
    pub max_num_seqs: usize,
    /// For models with recurrent layers.
    pub states: Option<StateLimits>,
}

/// What bounds recurrent states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateLimits {
    /// Slots for states: one for each running sequence, the others for copies that are kept. At least 1.
    pub num_slots: usize,
    /// A copy is kept every so many blocks of a sequence, besides where it is known to be of use. At least 1.
    pub interval: usize,
}

/// How many tokens a step may have.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// In all; at least 1.
    pub tokens: usize,
    /// Prompt tokens in a step that has decodes too; at least 1.
    pub beside_decodes: usize,
}

/// A sequence's part in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Which sequence.
    pub id: SeqId,
    /// Position of the first token.
    pub first: usize,
    /// Number of tokens.
    pub count: usize,
    /// Whether this reaches the sequence's last token, so that the next one can be sampled.
    pub samples: bool,
}

/// One step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Step {
    /// What is computed, oldest sequence first.
    pub parts: Vec<Part>,
    /// Sequences that were admitted for this step.
    pub admitted: Vec<SeqId>,
    /// Sequences that lost their blocks.
    pub preempted: Vec<SeqId>,
}

/// The state of all sequences of a model.
#[derive(Debug)]
pub struct Scheduler {
    pool: BlockPool,
    states: Option<StatePool>,
    /// Blocks between two copies of a state.
    interval: usize,
    max_num_seqs: usize,
    sequences: BTreeMap<SeqId, Sequence>,
    waiting: BTreeSet<SeqId>,
    running: BTreeSet<SeqId>,
    /// The waiting sequence that others have passed, and how many did.
    bypassed: (SeqId, usize),
}

impl Scheduler {
    /// A scheduler without sequences.
    pub fn new(limits: Limits) -> Self {
        Self {
            pool: BlockPool::new(limits.num_blocks),
            states: limits.states.map(|s| StatePool::new(s.num_slots.max(1))),
            interval: limits.states.map_or(1, |s| s.interval.max(1)),
            max_num_seqs: limits.max_num_seqs.max(1),
            sequences: BTreeMap::new(),
            waiting: BTreeSet::new(),
            running: BTreeSet::new(),
            bypassed: (0, 0),
        }
    }

    /// The block pool, to look at.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// The pool of recurrent states, to look at.
    pub fn states(&self) -> Option<&StatePool> {
        self.states.as_ref()
    }

    /// No sequence is left.
    pub fn is_idle(&self) -> bool {
        self.sequences.is_empty()
    }

    /// Sequences that compute.
    pub fn num_running(&self) -> usize {
        self.running.len()
    }

    /// Sequences that do not compute yet, or had to stop.
    pub fn num_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Adds a sequence behind all others. `id` is larger than every earlier one, `tokens` is not empty.
    ///
    /// The caller has made sure that the sequence never grows beyond the pool.
    pub fn add(&mut self, id: SeqId, tokens: Vec<u32>) {
        self.add_variant(id, tokens, 0);
    }

    /// [`Self::add`] for a sequence that is computed in another way: it shares cached blocks with those of its variant only.
    pub fn add_variant(&mut self, id: SeqId, tokens: Vec<u32>, variant: u8) {
        let newest = self.sequences.last_key_value().map(|(id, _)| *id);
        assert!(
            newest.is_none_or(|newest| id > newest),
            "sequence numbers ascend"
        );
        self.sequences.insert(id, Sequence::new(tokens, variant));
        self.waiting.insert(id);
    }

    /// Takes a sequence out, in whatever state it is, and gives its blocks back.
    pub fn remove(&mut self, id: SeqId) {
        if let Some(mut sequence) = self.sequences.remove(&id) {
            sequence.give_back(&mut self.pool, self.states.as_mut());
        }
        self.waiting.remove(&id);
        self.running.remove(&id);
    }

    /// The tokens of a sequence: prompt, then output.
    pub fn tokens(&self, id: SeqId) -> &[u32] {
        &self.sequences[&id].tokens
    }

    /// How a sequence is computed, as it was said when it was added.
    pub fn variant(&self, id: SeqId) -> u8 {
        self.sequences[&id].variant
    }

    /// The blocks of a sequence; block i holds positions `16 i..16 i + 16`.
    pub fn block_table(&self, id: SeqId) -> &[u32] {
        &self.sequences[&id].blocks
    }

    /// Where a part reads and writes the recurrent state of its sequence.
    pub fn state_use(&self, part: &Part) -> StateUse {
        let state = self.sequences[&part.id].state.as_ref();
        state.map_or_else(StateUse::default, |state| state.usage(part.first))
    }

    /// How many tokens of the prompt were found in the cache when the sequence was first admitted.
    pub fn cached_tokens(&self, id: SeqId) -> usize {
        self.sequences[&id].cached
    }

    /// Adds the token that was sampled.
    pub fn push_token(&mut self, id: SeqId, token: u32) {
        let sequence = self.sequences.get_mut(&id).expect("a known sequence");
        sequence.tokens.push(token);
    }

    /// Plans a step. It is empty only when there is no sequence.
    pub fn schedule(&mut self, budget: Budget) -> Step {
        let mut step = Step::default();
        self.decodes(budget.tokens.max(1), &mut step);
        let left = match step.parts.len() {
            0 => budget.tokens,
            decodes => budget
                .beside_decodes
                .min(budget.tokens.saturating_sub(decodes)),
        };
        self.admit(&mut step);
        self.prompts(left.max(usize::from(step.parts.is_empty())), &mut step);
        step.parts.sort_unstable_by_key(|part| part.id);
        self.plan_saves(&step);
        step
    }

    /// Takes slots for copies of states, when everybody who begins to run has one.
    fn plan_saves(&mut self, step: &Step) {
        let dead = self.pool.dead_links();
        let Some(states) = &mut self.states else {
            return;
        };
        dead.into_iter().for_each(|link| states.forget(link));
        for part in &step.parts {
            let sequence = self.sequences.get_mut(&part.id).expect("a known sequence");
            if let Some(state) = &mut sequence.state {
                state.plan(states, part.first, part.first + part.count, self.interval);
            }
        }
    }

    /// Takes note that a step was computed, and makes the blocks that it completed known to the cache.
    pub fn commit(&mut self, step: &Step) {
        for part in &step.parts {
            let sequence = self.sequences.get_mut(&part.id).expect("a known sequence");
            debug_assert_eq!(sequence.computed, part.first);
            sequence.computed = part.first + part.count;
            if let (Some(states), Some(mut state)) = (&mut self.states, sequence.state.take()) {
                for save in state.commit(states) {
                    sequence.register(&mut self.pool, save.0);
                    state.keep(states, save, sequence.link, self.interval);
                }
                sequence.state = Some(state);
            }
            sequence.register(&mut self.pool, usize::MAX);
        }
    }

    fn decodes(&mut self, most: usize, step: &mut Step) {
        let ids: Vec<SeqId> = self.running.iter().copied().collect();
        for id in ids {
            // It may have lost its blocks to an older one just now.
            if step.parts.len() < most && self.running.contains(&id) && self.remaining(id) == 1 {
                self.add_part(id, 1, step);
            }
        }
    }

    /// Tokens of a sequence that are not computed yet.
    fn remaining(&self, id: SeqId) -> usize {
        self.sequences[&id].remaining()
    }

    /// Gives a running sequence its part of up to `count` tokens; less when there are not enough blocks, none when there is
    /// no block at all. Returns how many it was.
    fn add_part(&mut self, id: SeqId, count: usize, step: &mut Step) -> usize {
        let first = self.sequences[&id].computed;
        self.reserve(id, first + count, step);
        let sequence = &self.sequences[&id];
        let count = count.min((sequence.blocks.len() * BLOCK_TOKENS).saturating_sub(first));
        if count > 0 {
            step.parts.push(Part {
                id,
                first,
                count,
                samples: first + count == sequence.tokens.len(),
            });
        }
        count
    }

    /// Gets blocks for the first `length` tokens of a sequence, from younger ones if need be; perhaps not for all.
    fn reserve(&mut self, id: SeqId, length: usize, step: &mut Step) {
        let needed = length.div_ceil(BLOCK_TOKENS);
        while self.sequences[&id].blocks.len() < needed {
            match self.pool.take() {
                Some(block) => {
                    let sequence = self.sequences.get_mut(&id).expect("a known sequence");
                    sequence.blocks.push(block);
                }
                None => {
                    if !self.preempt_youngest_after(id, step) {
                        return;
                    }
                }
            }
        }
    }

    /// Preempts the youngest running sequence, if it is younger than `id`.
    fn preempt_youngest_after(&mut self, id: SeqId, step: &mut Step) -> bool {
        let Some(&youngest) = self.running.last().filter(|youngest| **youngest > id) else {
            return false;
        };
        let sequence = self.sequences.get_mut(&youngest).expect("a known sequence");
        sequence.give_back(&mut self.pool, self.states.as_mut());
        self.running.remove(&youngest);
        self.waiting.insert(youngest);
        step.parts.retain(|part| part.id != youngest);
        step.admitted.retain(|admitted| *admitted != youngest);
        step.preempted.push(youngest);
        true
    }

    /// Moves waiting sequences to the running ones as far as they fit.
    fn admit(&mut self, step: &mut Step) {
        let ids: Vec<SeqId> = self.waiting.iter().copied().collect();
        let mut first_refused = None;
        for id in ids {
            if self.running.len() >= self.max_num_seqs {
                break;
            }
            // What was taken away in this step is not given back in it.
            if step.preempted.contains(&id) || self.is_computed_by_another(id) {
                continue;
            }
            if first_refused == Some(self.bypassed.0) && self.bypassed.1 >= MAX_BYPASS {
                break;
            }
            if self.try_admit(id) {
                step.admitted.push(id);
                self.bypassed.1 += usize::from(first_refused.is_some());
            } else if first_refused.is_none() {
                first_refused = Some(id);
                if self.bypassed.0 != id {
                    self.bypassed = (id, 0);
                }
            }
        }
    }

    /// Whether a running sequence is about to compute the next block of this waiting one.
    fn is_computed_by_another(&mut self, id: SeqId) -> bool {
        let waiting = &self.sequences[&id];
        let (link, next) = waiting.next_uncached(&self.pool, self.states.as_ref());
        if next.is_empty() {
            return false;
        }
        let same = |other: &&SeqId| {
            let other = &self.sequences[*other];
            other.link == link && other.computes_next(next)
        };
        let Some(other) = self.running.iter().find(same).copied() else {
            return false;
        };
        let common = waiting.common_blocks(&self.sequences[&other]);
        let other = self.sequences.get_mut(&other).expect("a known sequence");
        if let Some(state) = &mut other.state {
            // There this one will go on by itself.
            state.mark(common);
        }
        true
    }

    /// Admits a sequence when its prompt fits beside what the running ones still need.
    fn try_admit(&mut self, id: SeqId) -> bool {
        let promised: usize = self
            .running
            .iter()
            .map(|id| self.sequences[id].missing_blocks())
            .sum();
        // One block more for each of the others, so that they can grow before somebody is preempted.
        let spare = self.running.len();
        let sequence = self.sequences.get_mut(&id).expect("a known sequence");
        if !sequence.find_cached(&mut self.pool, self.states.as_mut()) {
            return false;
        }
        let fits = self.pool.num_available() >= promised + spare + sequence.missing_blocks();
        if fits || self.running.is_empty() {
            sequence.note_cached();
            self.waiting.remove(&id);
            self.running.insert(id);
            true
        } else {
            sequence.give_back(&mut self.pool, self.states.as_mut());
            false
        }
    }

    /// Shares `left` tokens between the prompts.
    fn prompts(&mut self, left: usize, step: &mut Step) {
        let mut prompts: Vec<SeqId> = self
            .running
            .iter()
            .copied()
            .filter(|id| step.parts.iter().all(|part| part.id != *id))
            .collect();
        if prompts.is_empty() {
            return;
        }
        let oldest = prompts.remove(0);
        prompts.sort_by_key(|id| (self.remaining(*id), *id));
        let mut shares = vec![(oldest, left.div_ceil(2).min(self.remaining(oldest)))];
        let mut rest = left - shares[0].1;
        for id in prompts {
            let share = rest.min(self.remaining(id));
            rest -= share;
            shares.push((id, share));
        }
        shares[0].1 = (shares[0].1 + rest).min(self.remaining(oldest));
        for (id, share) in shares {
            if share > 0 && self.running.contains(&id) {
                self.add_part(id, share, step);
            }
        }
    }
}

#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;

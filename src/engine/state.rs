//! The recurrent state of one sequence: where it lies, and at which blocks copies of it are kept.
//!
//! Kept are the state behind the last block of a prompt that a later prompt may share, behind the block where another
//! prompt is known to part from this one, at regular distances (`interval`), and the newest one of all, which a conversation
//! goes on from. A preempted sequence loses the end of its chain to those that it made room for, so two older ones are kept
//! besides the newest (`STEPS`).

use std::collections::BTreeSet;

use crate::kv::{BLOCK_TOKENS, Link, StatePool, StateUse};

/// Behind the newest copy the last ones stay that lie at multiples of these many blocks.
const STEPS: [usize; 2] = [4, 16];

/// What a running sequence has of the pool.
#[derive(Debug)]
pub(super) struct SequenceState {
    /// The slot that it writes.
    slot: u32,
    /// The slot that its next step reads, a kept one at first.
    from: Option<u32>,
    /// Blocks behind which a copy stays.
    marks: BTreeSet<usize>,
    /// (blocks, slot) of copies that the step under way makes.
    saves: Vec<(usize, u32)>,
    /// (blocks, chain) of copies that only their being new keeps, ascending.
    passing: Vec<(usize, Link)>,
}

impl SequenceState {
    /// Takes a slot for a sequence, which goes on from the kept state behind `link` or begins with none.
    pub(super) fn begin(pool: &mut StatePool, link: Option<Link>) -> Option<Self> {
        let from = match link {
            Some(link) => Some(pool.hold(link)?),
            None => None,
        };
        let slot = match (pool.take(), from) {
            (Some(slot), _) => slot,
            // No room for both: it goes on in the kept slot.
            (None, Some(from)) if pool.take_over(from) => from,
            (None, from) => {
                from.into_iter().for_each(|from| pool.release(from));
                return None;
            }
        };
        Some(Self {
            slot,
            from,
            marks: BTreeSet::new(),
            saves: Vec::new(),
            passing: Vec::new(),
        })
    }

    /// Keeps a copy behind so many blocks, when the sequence gets there.
    pub(super) fn mark(&mut self, blocks: usize) {
        self.marks.insert(blocks);
    }

    /// Takes slots for the copies that a step of tokens `first..end` can make; as many as there are.
    pub(super) fn plan(&mut self, pool: &mut StatePool, first: usize, end: usize, interval: usize) {
        debug_assert!(self.saves.is_empty());
        let (after, last) = (first / BLOCK_TOKENS + 1, end / BLOCK_TOKENS);
        let is_wanted = |blocks: &usize| {
            *blocks == last || blocks.is_multiple_of(interval) || self.marks.contains(blocks)
        };
        for blocks in (after..=last).filter(is_wanted) {
            let Some(slot) = pool.take() else { break };
            self.saves.push((blocks, slot));
        }
    }

    /// Where a step that begins with token `first` reads and writes.
    pub(super) fn usage(&self, first: usize) -> StateUse {
        let save = |(blocks, slot): &(usize, u32)| (blocks * BLOCK_TOKENS - first, *slot);
        StateUse {
            from: self.from,
            to: self.slot,
            saves: self.saves.iter().map(save).collect(),
        }
    }

    /// The step was computed; returns the copies it made, for [`SequenceState::keep`].
    pub(super) fn commit(&mut self, pool: &mut StatePool) -> Vec<(usize, u32)> {
        if let Some(from) = self.from.replace(self.slot)
            && from != self.slot
        {
            pool.release(from);
        }
        std::mem::take(&mut self.saves)
    }

    /// Keeps a copy that was made behind so many blocks, whose chain is `link`.
    pub(super) fn keep(
        &mut self,
        pool: &mut StatePool,
        (blocks, slot): (usize, u32),
        link: Link,
        interval: usize,
    ) {
        let is_new = pool.keep(slot, link);
        let last_at = |step: usize| {
            let mut older = self.passing.iter().rev().map(|(at, _)| *at);
            older.find(|at| at.is_multiple_of(step))
        };
        let stay = STEPS.map(last_at);
        self.passing.retain(|(at, link)| {
            let stays = stay.contains(&Some(*at));
            if !stays {
                pool.forget_unread(*link);
            }
            stays
        });
        let stays = blocks.is_multiple_of(interval) || self.marks.contains(&blocks);
        if is_new && !stays {
            self.passing.push((blocks, link));
        }
    }

    /// Gives back all but what is kept.
    pub(super) fn give_back(self, pool: &mut StatePool) {
        for (_, slot) in self.saves {
            pool.give_back(slot);
        }
        if let Some(from) = self.from.filter(|from| *from != self.slot) {
            pool.release(from);
        }
        pool.give_back(self.slot);
    }
}

/// How many blocks of a chain there is a kept state behind.
pub(super) fn deepest_kept(chain: &[Link], pool: &StatePool) -> usize {
    let kept = chain.iter().rposition(|link| pool.has(*link));
    kept.map_or(0, |index| index + 1)
}

//! State slots of recurrent layers: in use by a sequence, kept for prompts that begin alike, or free. Integers only.
//!
//! Keys and values of a prefix serve whoever begins with it; a recurrent state is of use only to those that begin with all
//! of the tokens behind it. So states are kept at chosen ends of full blocks, by the link of the chain up to there
//! ([`super::BlockPool`]), and a prefix is found as far as the last block of its chain that a state is kept for.

use std::collections::{BTreeMap, HashMap};

use super::Link;

/// Where a step reads and writes the state of a sequence. Means nothing for models without recurrent layers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StateUse {
    /// The slot with the state before the step's first token; `None` at the beginning of the sequence.
    pub from: Option<u32>,
    /// The slot that the state behind the last token goes to.
    pub to: u32,
    /// (tokens of the step, slot), ascending: slots for copies of the state behind so many of them.
    pub saves: Vec<(usize, u32)>,
}

impl StateUse {
    /// A sequence that has `slot` to itself, and begins or goes on with the token at `position`.
    pub fn own(slot: u32, position: usize) -> Self {
        Self {
            from: (position > 0).then_some(slot),
            to: slot,
            saves: Vec::new(),
        }
    }
}

/// What is known about a slot.
#[derive(Debug, Clone, Default)]
struct Slot {
    /// The chain behind which it holds the state, when it is kept.
    link: Option<Link>,
    /// Sequences that are about to read it, while it is kept.
    readers: u32,
    /// Somebody has begun with it.
    was_read: bool,
    /// When it was last of use, while it is kept and nobody reads it.
    idle_since: u64,
    /// Neither free nor kept: a sequence writes it.
    in_use: bool,
}

/// Hands out state slots and takes them back. Kept states give way to whoever needs a slot, the one that was idle longest
/// first, unless a sequence is about to read them.
#[derive(Debug)]
pub struct StatePool {
    free: Vec<u32>,
    slots: Vec<Slot>,
    index: HashMap<Link, u32>,
    /// Kept slots that nobody reads, by the time of their last use.
    idle: BTreeMap<u64, u32>,
    clock: u64,
}

impl StatePool {
    /// A pool of slots `0..num_slots`, all free.
    pub fn new(num_slots: usize) -> Self {
        let count = u32::try_from(num_slots).expect("slot numbers have 32 bits");
        Self {
            free: (0..count).rev().collect(),
            slots: vec![Slot::default(); num_slots],
            index: HashMap::new(),
            idle: BTreeMap::new(),
            clock: 0,
        }
    }

    /// All slots.
    pub fn num_slots(&self) -> usize {
        self.slots.len()
    }

    /// Slots that somebody could take: free ones, and kept ones that nobody is about to read.
    pub fn num_available(&self) -> usize {
        self.free.len() + self.idle.len()
    }

    /// Slots with a state that is kept.
    pub fn num_kept(&self) -> usize {
        self.index.len()
    }

    /// Slots that a sequence writes.
    pub fn num_used(&self) -> usize {
        self.slots.iter().filter(|slot| slot.in_use).count()
    }

    /// A slot for writing, or `None` when all are written or about to be read.
    pub fn take(&mut self) -> Option<u32> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let (_, slot) = self.idle.pop_first()?;
                self.drop_key(slot);
                slot
            }
        };
        self.slots[slot as usize] = Slot {
            in_use: true,
            ..Slot::default()
        };
        Some(slot)
    }

    /// Gives back a slot that was taken. Panics when it was not: that would be a defect.
    pub fn give_back(&mut self, slot: u32) {
        let state = &mut self.slots[slot as usize];
        assert!(state.in_use, "state slot {slot} was given back twice");
        state.in_use = false;
        self.free.push(slot);
    }

    /// Whether the state behind `link` is kept.
    pub fn has(&self, link: Link) -> bool {
        self.index.contains_key(&link)
    }

    /// The kept state behind `link`, safe from being given up until [`StatePool::release`].
    pub fn hold(&mut self, link: Link) -> Option<u32> {
        let slot = *self.index.get(&link)?;
        let state = &mut self.slots[slot as usize];
        if state.readers == 0 {
            self.idle.remove(&state.idle_since);
        }
        state.readers += 1;
        state.was_read = true;
        Some(slot)
    }

    /// One reader less. Panics when there is none: that would be a defect.
    pub fn release(&mut self, slot: u32) {
        let state = &mut self.slots[slot as usize];
        assert!(state.readers > 0, "nobody reads state slot {slot}");
        state.readers -= 1;
        if state.readers > 0 {
            return;
        }
        if state.link.is_some() {
            self.make_idle(slot);
        } else {
            self.free.push(slot);
        }
    }

    /// Turns a held state into a slot that its only reader writes, so that it is no longer kept. `false` when others read it.
    pub fn take_over(&mut self, slot: u32) -> bool {
        if self.slots[slot as usize].readers != 1 {
            return false;
        }
        self.drop_key(slot);
        self.slots[slot as usize] = Slot {
            in_use: true,
            ..Slot::default()
        };
        true
    }

    /// Keeps what a taken slot holds as the state behind `link`. `false`, and the slot is free, when there is one already.
    pub fn keep(&mut self, slot: u32, link: Link) -> bool {
        if let Some(&known) = self.index.get(&link) {
            self.give_back(slot);
            if self.slots[known as usize].readers == 0 {
                self.idle.remove(&self.slots[known as usize].idle_since);
                self.make_idle(known);
            }
            return false;
        }
        let state = &mut self.slots[slot as usize];
        assert!(state.in_use, "state slot {slot} was not taken");
        state.in_use = false;
        state.link = Some(link);
        self.index.insert(link, slot);
        self.make_idle(slot);
        true
    }

    /// Drops the state behind `link`, if one is kept: nobody can find the chain any more.
    pub fn forget(&mut self, link: Link) {
        let Some(&slot) = self.index.get(&link) else {
            return;
        };
        self.drop_key(slot);
        if self.slots[slot as usize].readers == 0 {
            let since = self.slots[slot as usize].idle_since;
            self.idle.remove(&since);
            self.free.push(slot);
        }
    }

    /// [`StatePool::forget`], unless somebody has begun with the state: it may be of use again.
    pub fn forget_unread(&mut self, link: Link) {
        let unread = |slot: &u32| !self.slots[*slot as usize].was_read;
        if self.index.get(&link).is_some_and(unread) {
            self.forget(link);
        }
    }

    fn make_idle(&mut self, slot: u32) {
        self.clock += 1;
        self.slots[slot as usize].idle_since = self.clock;
        self.idle.insert(self.clock, slot);
    }

    fn drop_key(&mut self, slot: u32) {
        if let Some(link) = self.slots[slot as usize].link.take() {
            self.index.remove(&link);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::{BLOCK_TOKENS, BlockPool};

    /// Links of a chain of so many blocks.
    fn links(count: usize) -> Vec<Link> {
        let mut pool = BlockPool::new(count);
        let mut link = Link::ROOT;
        let mut next = |i: usize| {
            let block = pool.take().unwrap();
            link = pool.register(link, &[i as u32; BLOCK_TOKENS], block).link;
            link
        };
        (0..count).map(&mut next).collect()
    }

    #[test]
    fn a_kept_state_is_found_by_its_chain_until_somebody_needs_the_slot() {
        let chain = links(2);
        let mut pool = StatePool::new(2);
        let (a, b) = (pool.take().unwrap(), pool.take().unwrap());
        assert!(pool.take().is_none());
        assert!(pool.keep(a, chain[0]) && pool.keep(b, chain[1]));
        assert!(pool.has(chain[0]) && pool.has(chain[1]));
        // Used again, so no longer the oldest.
        assert_eq!(pool.hold(chain[0]), Some(a));
        pool.release(a);
        assert_eq!(pool.take(), Some(b));
        assert!(pool.has(chain[0]) && !pool.has(chain[1]));
        assert_eq!((pool.num_kept(), pool.num_used()), (1, 1));
    }

    #[test]
    fn a_state_that_is_about_to_be_read_is_not_given_up() {
        let chain = links(1);
        let mut pool = StatePool::new(1);
        let slot = pool.take().unwrap();
        pool.keep(slot, chain[0]);
        pool.hold(chain[0]);
        pool.hold(chain[0]);
        assert_eq!(pool.take(), None);
        assert!(!pool.take_over(slot), "another one reads it");
        pool.release(slot);
        assert!(pool.take_over(slot));
        assert!(!pool.has(chain[0]));
        pool.give_back(slot);
        assert_eq!(pool.take(), Some(slot));
    }

    #[test]
    fn a_forgotten_state_is_free_once_nobody_reads_it() {
        let chain = links(2);
        let mut pool = StatePool::new(2);
        let (a, b) = (pool.take().unwrap(), pool.take().unwrap());
        pool.keep(a, chain[0]);
        pool.keep(b, chain[1]);
        pool.hold(chain[0]);
        pool.forget(chain[0]);
        pool.forget_unread(chain[1]);
        assert_eq!(pool.num_kept(), 0);
        assert_eq!(pool.take(), Some(b));
        assert_eq!(pool.take(), None);
        pool.release(a);
        assert_eq!(pool.take(), Some(a));
    }

    #[test]
    fn a_second_copy_of_a_state_is_free_again_and_one_that_was_read_stays() {
        let chain = links(1);
        let mut pool = StatePool::new(2);
        let (a, b) = (pool.take().unwrap(), pool.take().unwrap());
        assert!(pool.keep(a, chain[0]));
        assert!(!pool.keep(b, chain[0]));
        assert_eq!(pool.hold(chain[0]), Some(a));
        pool.release(a);
        pool.forget_unread(chain[0]);
        assert!(pool.has(chain[0]));
        assert_eq!(pool.take(), Some(b));
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn giving_back_twice_is_caught() {
        let mut pool = StatePool::new(1);
        let slot = pool.take().unwrap();
        pool.give_back(slot);
        pool.give_back(slot);
    }
}

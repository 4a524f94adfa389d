//! Block numbers: free, in use with reference counts, or kept for prompts that begin alike. Integers only.
//!
//! The prefix cache is an index from what a block holds to the block: the key is the link of the block before it and the
//! block's own 16 tokens, so equal keys mean equal tokens from the beginning of the sequence, and a collision is
//! impossible. By the numerical contract (`docs/architecture.md`) equal tokens mean equal bits, whoever computed them.

use std::collections::{BTreeMap, HashMap};

use super::BLOCK_TOKENS;

/// The tokens of one block.
type BlockTokens = [u32; BLOCK_TOKENS];

/// Stands for a chain of full blocks from the beginning of a sequence. Never used twice in the life of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Link(u64);

impl Link {
    /// The empty chain.
    pub const ROOT: Self = Self(0);

    /// The empty chain of sequences that are computed in another way: equal tokens give the same keys and values within a variant
    /// only. Variant 0 is [`Self::ROOT`].
    pub const fn root(variant: u8) -> Self {
        Self(variant as u64)
    }
}

/// A block that the cache knows, with the chain up to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedBlock {
    /// The chain that ends with this block.
    pub link: Link,
    /// The block.
    pub block: u32,
}

/// What is known about a block.
#[derive(Debug, Clone, Default)]
struct State {
    references: u32,
    /// Its key in the index, when it is there.
    key: Option<(Link, BlockTokens)>,
    /// When it lost its last reference, while it has none and is in the index.
    idle_since: u64,
}

/// Hands out blocks and takes them back. A block with a reference is never handed out again; one without is kept as long as
/// there are others, when it is in the prefix index.
#[derive(Debug)]
pub struct BlockPool {
    /// Blocks without reference and without content, last given back on top: memory that was touched is used again first.
    free: Vec<u32>,
    states: Vec<State>,
    index: HashMap<(Link, BlockTokens), CachedBlock>,
    /// Cached blocks without reference, by the time they lost it.
    idle: BTreeMap<u64, u32>,
    clock: u64,
    next_link: u64,
    /// Chains that nobody can find any more since the last [`BlockPool::dead_links`].
    dead: Vec<Link>,
}

impl BlockPool {
    /// A pool of blocks `0..num_blocks`, all free.
    pub fn new(num_blocks: usize) -> Self {
        let count = u32::try_from(num_blocks).expect("block numbers have 32 bits");
        Self {
            free: (0..count).rev().collect(),
            states: vec![State::default(); num_blocks],
            index: HashMap::new(),
            idle: BTreeMap::new(),
            clock: 0,
            next_link: u64::from(u8::MAX) + 1,
            dead: Vec::new(),
        }
    }

    /// All blocks.
    pub fn num_blocks(&self) -> usize {
        self.states.len()
    }

    /// Blocks that nobody holds: free ones and those that the cache would give up.
    pub fn num_available(&self) -> usize {
        self.free.len() + self.idle.len()
    }

    /// Blocks that nobody holds but that the cache keeps.
    pub fn num_cached(&self) -> usize {
        self.idle.len()
    }

    /// Blocks that somebody holds.
    pub fn num_used(&self) -> usize {
        self.num_blocks() - self.num_available()
    }

    /// A block with one reference and no content, or `None` when all are held. The cache gives up what was idle longest.
    pub fn take(&mut self) -> Option<u32> {
        let block = match self.free.pop() {
            Some(block) => block,
            None => self.evict()?,
        };
        self.states[block as usize].references = 1;
        Some(block)
    }

    /// One more reference to a block in use. Panics when nobody holds it: that would be a defect.
    pub fn share(&mut self, block: u32) {
        let count = &mut self.states[block as usize].references;
        assert!(*count > 0, "block {block} is free and cannot be shared");
        *count += 1;
    }

    /// One reference less; without any the block is free, or idle when the index has it. Panics when it has none: that
    /// would be a defect.
    pub fn give_back(&mut self, block: u32) {
        let state = &mut self.states[block as usize];
        assert!(state.references > 0, "block {block} was given back twice");
        state.references -= 1;
        if state.references > 0 {
            return;
        }
        if state.key.is_some() {
            self.clock += 1;
            state.idle_since = self.clock;
            self.idle.insert(self.clock, block);
        } else {
            self.free.push(block);
        }
    }

    /// The cached block that continues the chain `parent` with `tokens`, without touching it.
    ///
    /// `tokens` must hold one block's tokens.
    pub fn peek(&self, parent: Link, tokens: &[u32]) -> Option<CachedBlock> {
        self.index.get(&key(parent, tokens)).copied()
    }

    /// The same with a reference for the caller.
    pub fn find(&mut self, parent: Link, tokens: &[u32]) -> Option<CachedBlock> {
        let found = self.peek(parent, tokens)?;
        let state = &mut self.states[found.block as usize];
        if state.references == 0 {
            self.idle.remove(&state.idle_since);
        }
        state.references += 1;
        Some(found)
    }

    /// Puts a held, completely computed block into the index. When an equal block is there already, the caller's
    /// reference moves to that one and its own block is given back; the block to go on with is returned either way.
    pub fn register(&mut self, parent: Link, tokens: &[u32], block: u32) -> CachedBlock {
        if let Some(found) = self.find(parent, tokens) {
            self.give_back(block);
            return found;
        }
        let state = &mut self.states[block as usize];
        assert!(state.references > 0, "block {block} is not held");
        assert!(state.key.is_none(), "block {block} is registered already");
        let key = key(parent, tokens);
        state.key = Some(key);
        let cached = CachedBlock {
            link: Link(self.next_link),
            block,
        };
        self.next_link += 1;
        self.index.insert(key, cached);
        cached
    }

    /// Takes the block that was idle longest out of the index.
    fn evict(&mut self) -> Option<u32> {
        let (_, block) = self.idle.pop_first()?;
        let key = self.states[block as usize].key.take();
        let key = key.expect("an idle block is in the index");
        if let Some(cached) = self.index.remove(&key) {
            self.dead.push(cached.link);
        }
        Some(block)
    }

    /// The chains that ended with a block that was given up since this was last asked: what is kept for them is of no use.
    pub fn dead_links(&mut self) -> Vec<Link> {
        std::mem::take(&mut self.dead)
    }
}

fn key(parent: Link, tokens: &[u32]) -> (Link, BlockTokens) {
    let tokens = tokens.try_into().expect("a block's tokens");
    (parent, tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Tokens of a block, all the same.
    fn tokens(of: u32) -> BlockTokens {
        [of; BLOCK_TOKENS]
    }

    proptest! {
        #[test]
        fn no_block_is_lost_and_none_is_shared_by_accident(actions in proptest::collection::vec((0_u8..5, 0_u32..4), 0..400)) {
            let mut pool = BlockPool::new(7);
            // With the tokens that the holder believes are in it.
            let mut held: Vec<(u32, Option<u32>)> = Vec::new();
            for (i, (action, value)) in actions.into_iter().enumerate() {
                let at = i % held.len().max(1);
                match action {
                    0 => match pool.take() {
                        Some(block) => {
                            prop_assert!(held.iter().all(|(b, _)| *b != block));
                            held.push((block, None));
                        }
                        None => prop_assert!((0..7).all(|b| held.iter().any(|(h, _)| *h == b))),
                    },
                    1 if !held.is_empty() => {
                        pool.share(held[at].0);
                        held.push(held[at]);
                    }
                    2 if !held.is_empty() => pool.give_back(held.swap_remove(at).0),
                    // Only a holder that is alone may fill a block.
                    3 if !held.is_empty() && held[at].1.is_none() && held.iter().filter(|h| h.0 == held[at].0).count() == 1 => {
                        let cached = pool.register(Link::ROOT, &tokens(value), held[at].0);
                        held[at] = (cached.block, Some(value));
                    }
                    4 => {
                        if let Some(found) = pool.find(Link::ROOT, &tokens(value)) {
                            prop_assert!(held.iter().all(|(b, t)| *b != found.block || *t == Some(value)));
                            held.push((found.block, Some(value)));
                        }
                    }
                    _ => {}
                }
                let mut distinct: Vec<u32> = held.iter().map(|(b, _)| *b).collect();
                distinct.sort_unstable();
                distinct.dedup();
                prop_assert_eq!(pool.num_available() + distinct.len(), 7);
                prop_assert_eq!(pool.num_used(), distinct.len());
            }
        }
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn giving_back_twice_is_caught() {
        let mut pool = BlockPool::new(1);
        let block = pool.take().unwrap();
        pool.give_back(block);
        pool.give_back(block);
    }

    #[test]
    fn a_chain_is_found_by_its_tokens_from_the_beginning_only() {
        let mut pool = BlockPool::new(4);
        let (a, b) = (pool.take().unwrap(), pool.take().unwrap());
        let first = pool.register(Link::ROOT, &tokens(1), a);
        let second = pool.register(first.link, &tokens(2), b);
        assert_eq!(pool.peek(first.link, &tokens(2)), Some(second));
        assert_eq!(
            pool.peek(Link::ROOT, &tokens(2)),
            None,
            "the same tokens elsewhere"
        );
        assert_eq!(pool.peek(second.link, &tokens(2)), None);
        let mut last_differs = tokens(1);
        last_differs[15] = 7;
        assert_eq!(pool.peek(Link::ROOT, &last_differs), None);
    }

    #[test]
    fn variants_do_not_share_blocks() {
        let mut pool = BlockPool::new(2);
        let block = pool.take().unwrap();
        let plain = pool.register(Link::ROOT, &tokens(1), block);
        assert_eq!(pool.peek(Link::root(0), &tokens(1)), Some(plain));
        assert_eq!(pool.peek(Link::root(1), &tokens(1)), None);
    }

    #[test]
    fn the_cache_gives_up_what_was_idle_longest_and_never_what_is_held() {
        let mut pool = BlockPool::new(3);
        let blocks: Vec<u32> = (0..3).map(|_| pool.take().unwrap()).collect();
        for (value, &block) in blocks.iter().enumerate() {
            pool.register(Link::ROOT, &tokens(value as u32), block);
        }
        pool.give_back(blocks[1]);
        pool.give_back(blocks[0]);
        assert_eq!((pool.num_available(), pool.num_cached()), (2, 2));
        // Used again, so no longer the oldest.
        let found = pool.find(Link::ROOT, &tokens(1)).unwrap();
        pool.give_back(found.block);
        assert_eq!(pool.take(), Some(blocks[0]));
        assert_eq!(pool.peek(Link::ROOT, &tokens(0)), None);
        assert_eq!(pool.dead_links().len(), 1);
        assert_eq!(pool.take(), Some(blocks[1]));
        assert_eq!(pool.dead_links(), [found.link]);
        assert_eq!(pool.take(), None);
        assert!(pool.peek(Link::ROOT, &tokens(2)).is_some());
    }

    #[test]
    fn an_equal_block_takes_the_place_of_a_second_copy() {
        let mut pool = BlockPool::new(2);
        let (a, b) = (pool.take().unwrap(), pool.take().unwrap());
        let first = pool.register(Link::ROOT, &tokens(1), a);
        assert_eq!(pool.register(Link::ROOT, &tokens(1), b), first);
        assert_eq!(pool.num_used(), 1, "the copy is free again");
        pool.give_back(a);
        pool.give_back(a);
        assert_eq!(pool.num_used(), 0);
    }
}

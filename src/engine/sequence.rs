//! What the scheduler knows about one sequence: tokens, blocks, how far it is computed.

use super::state::{SequenceState, deepest_kept};
use crate::kv::{BLOCK_TOKENS, BlockPool, Link, StatePool};

/// A sequence of tokens and the blocks that hold its keys and values.
#[derive(Debug)]
pub(super) struct Sequence {
    /// Prompt, then output.
    pub(super) tokens: Vec<u32>,
    /// Block i holds positions `16 i..16 i + 16`.
    pub(super) blocks: Vec<u32>,
    /// Tokens whose keys and values are in the blocks.
    pub(super) computed: usize,
    /// How it is computed: sequences of one variant share cached blocks.
    pub(super) variant: u8,
    /// The chain of the blocks that the cache knows.
    pub(super) link: Link,
    /// Its recurrent state while it runs, when the model has one.
    pub(super) state: Option<SequenceState>,
    /// How many blocks that chain has.
    registered: usize,
    /// Tokens found in the cache at the first admission.
    pub(super) cached: usize,
    admitted_before: bool,
}

impl Sequence {
    pub(super) fn new(tokens: Vec<u32>, variant: u8) -> Self {
        assert!(!tokens.is_empty(), "a sequence has a token at least");
        Self {
            tokens,
            blocks: Vec::new(),
            computed: 0,
            variant,
            link: Link::root(variant),
            state: None,
            registered: 0,
            cached: 0,
            admitted_before: false,
        }
    }

    /// The empty chain of its variant.
    fn root(&self) -> Link {
        Link::root(self.variant)
    }

    /// Tokens that are not computed yet.
    pub(super) fn remaining(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Blocks that the tokens so far need beyond those that are there.
    pub(super) fn missing_blocks(&self) -> usize {
        let needed = self.tokens.len().div_ceil(BLOCK_TOKENS);
        needed.saturating_sub(self.blocks.len())
    }

    /// Full blocks that may come from the cache: the last token is always computed, for its logits.
    fn cacheable_blocks(&self) -> usize {
        (self.tokens.len() - 1) / BLOCK_TOKENS
    }

    /// The tokens of full block `index`; empty when it may not come from the cache.
    fn cacheable(&self, index: usize) -> &[u32] {
        if index < self.cacheable_blocks() {
            &self.tokens[index * BLOCK_TOKENS..(index + 1) * BLOCK_TOKENS]
        } else {
            &[]
        }
    }

    /// The chain of blocks that the cache has of the beginning, link by link.
    fn cached_chain(&self, pool: &BlockPool) -> Vec<Link> {
        let mut chain: Vec<Link> = Vec::new();
        for index in 0..self.cacheable_blocks() {
            let parent = chain.last().copied().unwrap_or(self.root());
            match pool.peek(parent, self.cacheable(index)) {
                Some(found) => chain.push(found.link),
                None => break,
            }
        }
        chain
    }

    /// Takes what the cache has of the beginning: blocks, and with recurrent layers (`states`) only as many as a state is
    /// kept for. `false`, and nothing was taken, when there is no slot for a state.
    pub(super) fn find_cached(
        &mut self,
        pool: &mut BlockPool,
        states: Option<&mut StatePool>,
    ) -> bool {
        debug_assert!(self.blocks.is_empty() && self.computed == 0);
        let chain = self.cached_chain(pool);
        let mut usable = chain.len();
        if let Some(states) = states {
            usable = deepest_kept(&chain, states);
            let link = chain[..usable].last().copied();
            let Some(mut state) = SequenceState::begin(states, link) else {
                return false;
            };
            state.mark(self.cacheable_blocks());
            // Another sequence has the same beginning up to here, so a third may have.
            state.mark(chain.len());
            self.state = Some(state);
        }
        for index in 0..usable {
            let found = pool.find(self.link, self.cacheable(index));
            let found = found.expect("the chain was just looked up");
            self.blocks.push(found.block);
            self.link = found.link;
        }
        self.registered = usable;
        self.computed = usable * BLOCK_TOKENS;
        true
    }

    /// Remembers, at the first admission, how much the cache had.
    pub(super) fn note_cached(&mut self) {
        if !self.admitted_before {
            self.cached = self.computed;
        }
        self.admitted_before = true;
    }

    /// The chain that the cache has of the beginning (with recurrent layers: that a state is kept for), and the tokens of the
    /// block behind it (empty when there is none that could be cached). Changes nothing.
    pub(super) fn next_uncached(
        &self,
        pool: &BlockPool,
        states: Option<&StatePool>,
    ) -> (Link, &[u32]) {
        let chain = self.cached_chain(pool);
        let blocks = match states {
            Some(states) => deepest_kept(&chain, states),
            None => chain.len(),
        };
        let link = chain[..blocks].last().copied().unwrap_or(self.root());
        (link, self.cacheable(blocks))
    }

    /// Full blocks that this sequence and another begin with, without the last token of this one.
    pub(super) fn common_blocks(&self, other: &Self) -> usize {
        let same = self.tokens.iter().zip(&other.tokens);
        let same = same.take_while(|(a, b)| a == b).count();
        (same / BLOCK_TOKENS).min(self.cacheable_blocks())
    }

    /// Whether the block that this sequence computes next will hold `tokens`.
    pub(super) fn computes_next(&self, tokens: &[u32]) -> bool {
        let begin = self.registered * BLOCK_TOKENS;
        self.tokens.get(begin..begin + BLOCK_TOKENS) == Some(tokens)
    }

    /// Makes completely computed blocks known to the cache, the first `most` of the sequence at most.
    pub(super) fn register(&mut self, pool: &mut BlockPool, most: usize) {
        while self.registered < most.min(self.computed / BLOCK_TOKENS) {
            let index = self.registered;
            let tokens = &self.tokens[index * BLOCK_TOKENS..(index + 1) * BLOCK_TOKENS];
            let cached = pool.register(self.link, tokens, self.blocks[index]);
            self.blocks[index] = cached.block;
            self.link = cached.link;
            self.registered += 1;
        }
    }

    /// Gives all blocks back, the last one first: the cache gives the end of a chain up before its beginning.
    pub(super) fn give_back(&mut self, pool: &mut BlockPool, states: Option<&mut StatePool>) {
        for block in self.blocks.drain(..).rev() {
            pool.give_back(block);
        }
        if let (Some(state), Some(states)) = (self.state.take(), states) {
            state.give_back(states);
        }
        self.computed = 0;
        self.link = self.root();
        self.registered = 0;
    }
}

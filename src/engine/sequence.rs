//! What the scheduler knows about one sequence: tokens, blocks, how far it is computed.

use crate::kv::{BLOCK_TOKENS, BlockPool, Link};

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
            registered: 0,
            cached: 0,
            admitted_before: false,
        }
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

    /// Takes what the cache has of the beginning.
    pub(super) fn find_cached(&mut self, pool: &mut BlockPool) {
        debug_assert!(self.blocks.is_empty() && self.computed == 0);
        for index in 0..self.cacheable_blocks() {
            let Some(found) = pool.find(self.link, self.cacheable(index)) else {
                break;
            };
            self.blocks.push(found.block);
            self.link = found.link;
        }
        self.registered = self.blocks.len();
        self.computed = self.registered * BLOCK_TOKENS;
    }

    /// Remembers, at the first admission, how much the cache had.
    pub(super) fn note_cached(&mut self) {
        if !self.admitted_before {
            self.cached = self.computed;
        }
        self.admitted_before = true;
    }

    /// The chain that the cache has of the beginning, and the tokens of the block behind it (empty when there is none that
    /// could be cached). Changes nothing.
    pub(super) fn next_uncached(&self, pool: &BlockPool) -> (Link, &[u32]) {
        let mut link = Link::root(self.variant);
        for index in 0..self.cacheable_blocks() {
            let tokens = self.cacheable(index);
            match pool.peek(link, tokens) {
                Some(found) => link = found.link,
                None => return (link, tokens),
            }
        }
        (link, &[])
    }

    /// Whether the block that this sequence computes next will hold `tokens`.
    pub(super) fn computes_next(&self, tokens: &[u32]) -> bool {
        let begin = self.registered * BLOCK_TOKENS;
        self.tokens.get(begin..begin + BLOCK_TOKENS) == Some(tokens)
    }

    /// Makes completely computed blocks known to the cache.
    pub(super) fn register(&mut self, pool: &mut BlockPool) {
        while (self.registered + 1) * BLOCK_TOKENS <= self.computed {
            let index = self.registered;
            let tokens = &self.tokens[index * BLOCK_TOKENS..(index + 1) * BLOCK_TOKENS];
            let cached = pool.register(self.link, tokens, self.blocks[index]);
            self.blocks[index] = cached.block;
            self.link = cached.link;
            self.registered += 1;
        }
    }

    /// Gives all blocks back, the last one first: the cache gives the end of a chain up before its beginning.
    pub(super) fn give_back(&mut self, pool: &mut BlockPool) {
        for block in self.blocks.drain(..).rev() {
            pool.give_back(block);
        }
        self.computed = 0;
        self.link = Link::root(self.variant);
        self.registered = 0;
    }
}

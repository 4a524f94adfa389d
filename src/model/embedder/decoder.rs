//! Features of a decoder for whole texts: its last, normed hidden states instead of logits.

use crate::error::{Error, Result};
use crate::kv::{BLOCK_TOKENS, KvCache, StateUse};
use crate::model::encoder::TextTokens;
use crate::model::plan::CHUNK_TOKENS;
use crate::model::{Batch, Sequence, Transformer};
use crate::ops::Context;

/// A decoder with the cache that its texts are computed in, one group of texts after the other.
#[derive(Debug)]
pub(super) struct Decoder {
    transformer: Transformer,
    kv: KvCache,
    num_blocks: usize,
    /// Texts that are computed together.
    most_texts: usize,
    max_tokens: usize,
}

impl Decoder {
    /// With a cache for one text of `max_tokens`.
    pub fn new(transformer: Transformer, max_tokens: usize, num_blocks: usize) -> Self {
        let shape = transformer.config().cache_shape();
        // Texts with a recurrent state are computed one by one.
        let most_texts = if shape.states.is_empty() {
            usize::MAX
        } else {
            1
        };
        Self {
            kv: KvCache::new(&shape, num_blocks, 1),
            transformer,
            num_blocks,
            most_texts,
            max_tokens,
        }
    }

    pub fn transformer(&self) -> &Transformer {
        &self.transformer
    }

    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// The last features of each text, `[kept, hidden]` as one slice per text: of its last token, or of all of them.
    ///
    /// # Errors
    /// `Invalid` for a text without tokens or an id outside the vocabulary, `ContextLength` for one that is too long.
    pub fn features(
        &mut self,
        ctx: &Context,
        texts: &[&TextTokens],
        last_only: bool,
    ) -> Result<Vec<Vec<f32>>> {
        for text in texts {
            self.check(text)?;
        }
        let mut features = Vec::with_capacity(texts.len());
        let mut rest = texts;
        while !rest.is_empty() {
            let count = self.group(rest);
            let (group, others) = rest.split_at(count);
            self.compute(ctx, group, last_only, &mut features)?;
            rest = others;
        }
        Ok(features)
    }

    fn check(&self, text: &TextTokens) -> Result<()> {
        let (length, most) = (text.ids.len(), self.max_tokens);
        if length == 0 {
            return Err(Error::invalid("a text has no tokens"));
        }
        if length > most {
            return Err(Error::context_length(format!(
                "a text has {length} tokens, the model reads at most {most}"
            )));
        }
        Ok(())
    }

    /// How many of the first texts are computed together: as many as fill a chunk and the cache, one at least.
    fn group(&self, texts: &[&TextTokens]) -> usize {
        let (mut tokens, mut blocks) = (0, 0);
        let fitting = texts.iter().take_while(|text| {
            tokens += text.ids.len();
            blocks += text.ids.len().div_ceil(BLOCK_TOKENS);
            tokens <= CHUNK_TOKENS && blocks <= self.num_blocks
        });
        fitting.count().clamp(1, self.most_texts)
    }

    /// A group that fits a chunk in one step; a longer text chunk by chunk.
    fn compute(
        &mut self,
        ctx: &Context,
        group: &[&TextTokens],
        last_only: bool,
        features: &mut Vec<Vec<f32>>,
    ) -> Result<()> {
        let mut next_block = 0;
        let tables: Vec<Vec<u32>> = group
            .iter()
            .map(|text| {
                let count = text.ids.len().div_ceil(BLOCK_TOKENS) as u32;
                next_block += count;
                (next_block - count..next_block).collect()
            })
            .collect();
        let first = features.len();
        features.resize(first + group.len(), Vec::new());
        let longest = group.iter().map(|text| text.ids.len()).max().unwrap_or(0);
        for begin in (0..longest).step_by(CHUNK_TOKENS) {
            let sequences = group.iter().zip(&tables).map(|(text, table)| {
                let end = text.ids.len().min(begin + CHUNK_TOKENS);
                let is_last = end == text.ids.len();
                Sequence {
                    tokens: text.ids[begin..end].to_vec(),
                    first_position: begin,
                    block_table: table.clone(),
                    state: StateUse::own(0, begin),
                    is_long: self.transformer.config().is_long(text.ids.len()),
                    num_logits: match last_only {
                        true => usize::from(is_last),
                        false => end - begin,
                    },
                }
            });
            let batch = Batch {
                sequences: sequences.collect(),
            };
            let rows = self.transformer.features(ctx, &batch, &mut self.kv)?; // [kept rows, hidden]
            let mut row = 0;
            for (sequence, kept) in batch.sequences.iter().zip(&mut features[first..]) {
                let (begin, end) = (row * rows.cols(), (row + sequence.num_logits) * rows.cols());
                kept.extend_from_slice(&rows.as_slice()[begin..end]);
                row += sequence.num_logits;
            }
        }
        Ok(())
    }
}

//! What one forward pass computes.

use crate::kv::{BLOCK_TOKENS, StateUse};
use crate::ops::attention::SequenceRows;
use crate::ops::states::StateRows;

/// Consecutive tokens of one sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequence {
    /// The tokens to compute.
    pub tokens: Vec<u32>,
    /// Position of the first; everything before it is in the cache.
    pub first_position: usize,
    /// Block i holds positions `16 i..16 i + 16`; long enough for the tokens.
    pub block_table: Vec<u32>,
    /// Where its recurrent state lies.
    pub state: StateUse,
    /// How many of the last tokens need logits.
    pub num_logits: usize,
    /// It rotates by the frequencies for long sequences ([`ModelConfig::is_long`](super::ModelConfig::is_long)); the same in every
    /// batch of the sequence.
    pub is_long: bool,
}

/// What one forward pass computes: any mix of prompt chunks and single tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// The sequences, in the order of their logits.
    pub sequences: Vec<Sequence>,
}

impl Batch {
    pub(super) fn tokens(&self) -> Vec<u32> {
        self.sequences
            .iter()
            .flat_map(|s| s.tokens.iter().copied())
            .collect()
    }

    pub(super) fn positions(&self) -> Vec<u32> {
        let of = |s: &Sequence| s.first_position as u32..(s.first_position + s.tokens.len()) as u32;
        self.sequences.iter().flat_map(of).collect()
    }

    /// Whether each row's sequence is a long one.
    pub(super) fn long_rows(&self) -> Vec<bool> {
        let of = |s: &Sequence| std::iter::repeat_n(s.is_long, s.tokens.len());
        self.sequences.iter().flat_map(of).collect()
    }

    pub(super) fn slots(&self) -> Vec<usize> {
        let slot = |s: &Sequence, p: usize| {
            s.block_table[p / BLOCK_TOKENS] as usize * BLOCK_TOKENS + p % BLOCK_TOKENS
        };
        let of = |s: &Sequence| -> Vec<usize> {
            let positions = s.first_position..s.first_position + s.tokens.len();
            positions.map(|p| slot(s, p)).collect()
        };
        self.sequences.iter().flat_map(of).collect()
    }

    pub(super) fn rows(&self) -> Vec<SequenceRows<'_>> {
        let mut first_row = 0;
        self.sequences
            .iter()
            .map(|s| {
                let rows = SequenceRows {
                    first_row,
                    num_rows: s.tokens.len(),
                    first_position: s.first_position,
                    block_table: &s.block_table,
                };
                first_row += s.tokens.len();
                rows
            })
            .collect()
    }

    pub(super) fn state_rows(&self) -> Vec<StateRows<'_>> {
        let rows = self.rows().into_iter().zip(&self.sequences);
        rows.map(|(rows, s)| StateRows {
            first_row: rows.first_row,
            num_rows: rows.num_rows,
            from: s.state.from,
            to: s.state.to,
            saves: &s.state.saves,
        })
        .collect()
    }

    pub(super) fn logit_rows(&self) -> Vec<usize> {
        let rows = self.rows();
        let of = |(s, r): (&Sequence, &SequenceRows<'_>)| {
            let end = r.first_row + r.num_rows;
            end - s.num_logits.min(r.num_rows)..end
        };
        self.sequences.iter().zip(&rows).flat_map(of).collect()
    }
}

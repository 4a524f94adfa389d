//! What recurrent layers remember of a sequence: a fixed number of floats per layer, in slots of a pool.
//!
//! A slot holds the state behind some number of tokens. A step reads the state before a sequence's rows from one slot and
//! leaves the state behind them in another (or the same), and copies of the states in between wherever they are asked for.

use std::fmt;

use super::aligned::Aligned;

/// Rows of one sequence in a batch, and where its state lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateRows<'a> {
    /// First row in the batch.
    pub first_row: usize,
    /// Number of rows, at least 1.
    pub num_rows: usize,
    /// The slot with the state before the first row; `None` at the beginning of a sequence, where all of it is 0.
    pub from: Option<u32>,
    /// The slot that the state behind the last row goes to; may be `from`.
    pub to: u32,
    /// (rows, slot), ascending: slots that get the state behind the first so many rows.
    pub saves: &'a [(usize, u32)],
}

/// The states of one layer: `[slots, slot_len]`.
pub struct States {
    slot_len: usize,
    num_slots: usize,
    values: Aligned<f32>,
}

impl fmt::Debug for States {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "States[{}, {}]", self.num_slots, self.slot_len)
    }
}

impl States {
    /// Slots of `slot_len` floats. The system commits their memory when they are first written.
    pub fn new(slot_len: usize, num_slots: usize) -> Self {
        Self {
            slot_len,
            num_slots,
            values: Aligned::zeroed(slot_len * num_slots),
        }
    }

    /// Floats of a slot.
    pub fn slot_len(&self) -> usize {
        self.slot_len
    }

    pub(super) fn slot(&self, slot: u32) -> &[f32] {
        &self.values[slot as usize * self.slot_len..][..self.slot_len]
    }

    pub(super) fn slot_mut(&mut self, slot: u32) -> &mut [f32] {
        &mut self.values[slot as usize * self.slot_len..][..self.slot_len]
    }

    pub(super) fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }

    /// Brings the state that `rows` begins with into the slot that it works in.
    pub(super) fn begin(&mut self, rows: &StateRows<'_>) {
        match rows.from {
            None => self.slot_mut(rows.to).fill(0.0),
            Some(from) if from == rows.to => {}
            Some(from) => {
                let start = from as usize * self.slot_len;
                let to = rows.to as usize * self.slot_len;
                self.values.copy_within(start..start + self.slot_len, to);
            }
        }
    }

    /// Panics unless the rows are those of a batch of `num_rows` and no slot is written by two or written and read by two.
    pub(super) fn check(&self, sequences: &[StateRows<'_>], num_rows: usize) {
        let mut written = vec![false; self.num_slots];
        let mut end = 0;
        for rows in sequences {
            assert!(
                rows.first_row >= end && rows.num_rows > 0,
                "rows of {rows:?} behind row {end}"
            );
            end = rows.first_row + rows.num_rows;
            let saved = rows.saves.iter().map(|(count, slot)| {
                assert!((1..=rows.num_rows).contains(count), "a save of {rows:?}");
                *slot
            });
            for slot in saved.chain([rows.to]) {
                let first = !std::mem::replace(&mut written[slot as usize], true);
                assert!(first, "two write state slot {slot}");
            }
        }
        assert!(end <= num_rows, "{end} rows in a batch of {num_rows}");
        for rows in sequences {
            if let Some(from) = rows.from {
                let foreign = from != rows.to && written[from as usize];
                assert!(!foreign, "state slot {from} is read and written");
            }
        }
    }
}

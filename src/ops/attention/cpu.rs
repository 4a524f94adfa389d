//! What one task of attention does on the CPU: some rows (queries × heads that share a key/value head), tile by tile of
//! the keys that they see. A tile is read once for all of these rows.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ops::Range;

use super::tile::{MAX_ROWS, Row, own_tile};
use super::{AttentionOptions, SPAN_KEYS, SequenceRows, TILE_KEYS};
use crate::ops::Tensor;
use crate::ops::aligned::Aligned;
use crate::ops::cpu_level::CpuLevel;
use crate::ops::kv_write::{KvElement, Pages};
use crate::ops::simd::softmax::{Softened, merge};
use crate::ops::simd::{LANES, Simd, math, simd_kernel, store_part};
use crate::threads::Disjoint;

/// Rows (queries × heads of a group) of one task.
pub(super) const ROWS_PER_TASK: usize = 32;

/// Floats of one row's record of a span: sum and maximum in the first vector, weighted values behind it.
pub(super) fn record_len(value_dim: usize) -> usize {
    LANES + value_dim.next_multiple_of(LANES)
}

thread_local! {
    /// Records of a task's rows: of the whole, of a span, of a tile.
    static RECORDS: RefCell<Aligned<f32>> = const { RefCell::new(Aligned::new()) };
}

/// One sequence of a batch.
#[derive(Clone, Copy)]
pub(super) struct Work<'a> {
    pub q: &'a Tensor,
    pub pages: Pages<'a>,
    pub sequence: &'a SequenceRows<'a>,
    /// Query heads per key/value head.
    pub group: usize,
    pub options: &'a AttentionOptions<'a>,
}

impl Work<'_> {
    /// Rows of one key/value head: queries × heads of its group, heads innermost.
    pub(super) fn num_rows(&self) -> usize {
        self.sequence.num_rows * self.group
    }

    /// Pieces of work that never need to be split: rows of a task for each key/value head.
    pub(super) fn num_chunks(&self) -> usize {
        self.num_rows().div_ceil(ROWS_PER_TASK) * self.pages.shape().kv_heads
    }

    /// Spans that some row sees.
    fn spans(&self) -> Range<usize> {
        match self.num_rows() {
            0 => 0..0,
            rows => self.spans_of(0, rows),
        }
    }

    /// How many spans some row sees.
    pub(super) fn num_spans(&self) -> usize {
        self.spans().len()
    }

    /// Spans that rows `first..first + count` see.
    fn spans_of(&self, first: usize, count: usize) -> Range<usize> {
        let (from, to) = (self.seen(first).start, self.seen(first + count - 1).end);
        from / SPAN_KEYS..to.div_ceil(SPAN_KEYS)
    }

    /// Keys that a row sees.
    fn seen(&self, row: usize) -> Range<usize> {
        let to = self.sequence.first_position + row / self.group + 1;
        let window = self.options.window.unwrap_or(to);
        to.saturating_sub(window)..to
    }

    fn row(&self, head: usize, row: usize) -> Row<'_> {
        let key_dim = self.pages.shape().key_dim;
        let (token, query_head) = self.place(head, row);
        let seen = self.seen(row);
        Row {
            q: &self.q.row(token)[query_head * key_dim..][..key_dim],
            from: seen.start,
            to: seen.end,
        }
    }

    /// Row in the batch and query head of a row.
    fn place(&self, head: usize, row: usize) -> (usize, usize) {
        (
            self.sequence.first_row + row / self.group,
            head * self.group + row % self.group,
        )
    }

    fn count(&self, first: usize) -> usize {
        ROWS_PER_TASK.min(self.num_rows() - first)
    }

    /// The outputs of up to [`ROWS_PER_TASK`] rows from `first` on, of key/value head `head`.
    pub(super) fn compute(
        &self,
        level: CpuLevel,
        head: usize,
        first: usize,
        out: &Disjoint<'_, f32>,
    ) {
        let len = self.count(first) * record_len(self.pages.shape().value_dim);
        RECORDS.with_borrow_mut(|scratch| {
            let own_len = MAX_ROWS * self.pages.shape().value_dim.next_multiple_of(LANES);
            scratch.grow_to(2 * len + own_len);
            let (own, records) = scratch.split_at_mut(own_len);
            let (whole, span) = records[..2 * len].split_at_mut(len);
            clear(whole, len / self.count(first));
            for index in self.spans_of(first, self.count(first)) {
                self.fill_span(level, head, first, index, own, span);
                // SAFETY: the level stands for the instruction set; records have the length that the kernel asserts.
                unsafe { merge_kernel(level, self, span, whole) };
            }
            // SAFETY: as above.
            unsafe { finish_kernel(level, self, head, first, whole, out) };
        });
    }

    /// The records of the same rows for the span `span` (counted from the first that any row of the sequence sees).
    pub(super) fn compute_span(
        &self,
        level: CpuLevel,
        head: usize,
        span: usize,
        first: usize,
        records: &mut [f32],
    ) {
        let index = self.spans().start + span;
        let own_len = MAX_ROWS * self.pages.shape().value_dim.next_multiple_of(LANES);
        RECORDS.with_borrow_mut(|own| {
            own.grow_to(own_len);
            self.fill_span(level, head, first, index, own, records);
        });
    }

    fn fill_span(
        &self,
        level: CpuLevel,
        head: usize,
        first: usize,
        span: usize,
        own: &mut [f32],
        records: &mut [f32],
    ) {
        // SAFETY: the level stands for the instruction set; the kernel asserts the lengths.
        unsafe {
            match self.pages.shape().element {
                KvElement::F16 => {
                    span_kernel::<false>(level, self, head, first, span, own, records);
                }
                KvElement::F32 => {
                    span_kernel::<true>(level, self, head, first, span, own, records);
                }
            }
        }
    }

    /// The outputs of the same rows from their records of all spans.
    pub(super) fn merge_spans(
        &self,
        level: CpuLevel,
        head: usize,
        first: usize,
        spans: &[&[f32]],
        out: &Disjoint<'_, f32>,
    ) {
        let record = record_len(self.pages.shape().value_dim);
        let len = self.count(first) * record;
        RECORDS.with_borrow_mut(|scratch| {
            scratch.grow_to(len);
            let whole = &mut scratch[..len];
            clear(whole, record);
            for span in spans {
                // SAFETY: the level stands for the instruction set; records have the length that the kernel asserts.
                unsafe { merge_kernel(level, self, span, whole) };
            }
            // SAFETY: as above.
            unsafe { finish_kernel(level, self, head, first, whole, out) };
        });
    }
}

/// Makes records say that no key was seen.
fn clear(records: &mut [f32], record: usize) {
    for record in records.chunks_exact_mut(record) {
        record[..2].fill(0.0);
    }
}

simd_kernel! {
    /// All tiles of span `span` for rows from `first` on: a record for each.
    unsafe fn span_kernel<const WIDE: bool>(work: &Work<'_>, head: usize, first: usize, span: usize, own: &mut [f32], records: &mut [f32]) = span_body
}

#[inline(always)]
unsafe fn span_body<V: Simd, const WIDE: bool>(
    work: &Work<'_>,
    head: usize,
    first: usize,
    span: usize,
    own: &mut [f32],
    records: &mut [f32],
) {
    let record = record_len(work.pages.shape().value_dim);
    let count = work.count(first);
    assert!(records.len() == count * record);
    clear(records, record);
    let rows: [Row<'_>; ROWS_PER_TASK] =
        std::array::from_fn(|r| work.row(head, first + r.min(count - 1)));
    let rows = &rows[..count];
    // Rows are in order of position: the first sees furthest back, the last furthest ahead.
    let from = rows[0].from.max(span * SPAN_KEYS);
    let to = rows[count - 1].to.min((span + 1) * SPAN_KEYS);
    for tile in from / TILE_KEYS..to.div_ceil(TILE_KEYS) {
        let mut ahead = true;
        for at in (0..count).step_by(MAX_ROWS) {
            let rows = &rows[at..count.min(at + MAX_ROWS)];
            let records = &mut records[at * record..(at + rows.len()) * record];
            // SAFETY: the instruction set is the caller's duty.
            unsafe {
                match rows.len() {
                    1 => tile_rows::<V, WIDE, 1>(work, head, rows, tile, ahead, own, records),
                    2 => tile_rows::<V, WIDE, 2>(work, head, rows, tile, ahead, own, records),
                    3 => tile_rows::<V, WIDE, 3>(work, head, rows, tile, ahead, own, records),
                    _ => tile_rows::<V, WIDE, 4>(work, head, rows, tile, ahead, own, records),
                }
            }
            ahead = false;
        }
    }
}

/// One tile for `R` rows, merged into their records. `ahead`: what comes next is fetched. `own` is room for the tile's
/// weighted values.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn tile_rows<V: Simd, const WIDE: bool, const R: usize>(
    work: &Work<'_>,
    head: usize,
    rows: &[Row<'_>],
    tile: usize,
    ahead: bool,
    own: &mut [f32],
    records: &mut [f32],
) {
    let rows: &[Row<'_>; R] = rows.try_into().expect("as many rows as the caller counted");
    let stride = work.pages.shape().value_dim.next_multiple_of(LANES);
    let start = tile * TILE_KEYS;
    let keys = rows[0].from.max(start)..rows[R - 1].to.min(start + TILE_KEYS);
    if keys.is_empty() {
        return;
    }
    // SAFETY: the instruction set is the caller's duty.
    let softened = unsafe { own_tile::<V, WIDE, R>(work, head, rows, &keys, ahead, own) };
    for r in 0..R {
        if let Some(softened) = softened[r] {
            let record = &mut records[r * (LANES + stride)..][..LANES + stride];
            let own = &own[r * stride..][..stride];
            // SAFETY: the instruction set is the caller's duty.
            unsafe { merge_record::<V>(softened, own, record) };
        }
    }
}

simd_kernel! {
    /// Merges the records of a span into those of all spans before it.
    unsafe fn merge_kernel(work: &Work<'_>, span: &[f32], whole: &mut [f32]) = merge_body
}

#[inline(always)]
unsafe fn merge_body<V: Simd>(work: &Work<'_>, span: &[f32], whole: &mut [f32]) {
    let record = record_len(work.pages.shape().value_dim);
    assert!(span.len() == whole.len() && whole.len().is_multiple_of(record));
    for (span, whole) in span
        .chunks_exact(record)
        .zip(whole.chunks_exact_mut(record))
    {
        if span[0] != 0.0 {
            // SAFETY: records are whole vectors; the instruction set is the caller's duty.
            unsafe { merge_record::<V>(softened_of(span), &span[LANES..], whole) };
        }
    }
}

/// What a row's record says of the keys that it was made of. A sum of 0 means that there were none.
fn softened_of(record: &[f32]) -> Softened {
    Softened {
        sum: record[0],
        max: record[1],
    }
}

/// Merges what later keys gave into a row's record.
#[inline(always)]
unsafe fn merge_record<V: Simd>(later: Softened, own: &[f32], record: &mut [f32]) {
    let before = softened_of(record);
    let (head, merged) = record.split_at_mut(LANES);
    let all = if before.sum == 0.0 {
        merged.copy_from_slice(own);
        later
    } else {
        // SAFETY: the instruction set is the caller's duty.
        unsafe { merge::<V>(before, later, merged, own) }
    };
    (head[0], head[1]) = (all.sum, all.max);
}

simd_kernel! {
    /// Divides weighted values by sums, the sinks counted, and writes them to where they belong.
    unsafe fn finish_kernel(work: &Work<'_>, head: usize, first: usize, records: &[f32], out: &Disjoint<'_, f32>) = finish_body
}

#[inline(always)]
unsafe fn finish_body<V: Simd>(
    work: &Work<'_>,
    head: usize,
    first: usize,
    records: &[f32],
    out: &Disjoint<'_, f32>,
) {
    let shape = work.pages.shape();
    let heads = shape.kv_heads * work.group;
    for (r, record) in records
        .chunks_exact(record_len(shape.value_dim))
        .enumerate()
    {
        let (token, query_head) = work.place(head, first + r);
        let (softened, values) = (softened_of(record), &record[LANES..]);
        let start = (token * heads + query_head) * shape.value_dim;
        // SAFETY: this task alone writes this row and head; the instruction set is the caller's duty.
        unsafe {
            let out = out.part(start, shape.value_dim);
            let (factor, divisor) = match work.options.sinks {
                None => (V::splat(1.0), V::splat(softened.sum)),
                Some(sinks) => with_sink::<V>(softened, sinks[query_head]),
            };
            for at in (0..out.len()).step_by(LANES) {
                let value = V::load(values[at..at + LANES].as_ptr());
                store_part::<V>(out, at, V::div(V::mul(value, factor), divisor));
            }
        }
    }
}

/// What multiplies weighted values, and the whole sum, when `sink` is one more score.
#[inline(always)]
unsafe fn with_sink<V: Simd>(softened: Softened, sink: f32) -> (V::F32, V::F32) {
    let Softened { max, sum } = softened;
    let top = if sink > max { sink } else { max };
    // SAFETY: the instruction set is the caller's duty.
    unsafe {
        let keys = math::exp::<V>(V::splat(max - top));
        let own = math::exp::<V>(V::splat(sink - top));
        (keys, V::fma(V::splat(sum), keys, own))
    }
}

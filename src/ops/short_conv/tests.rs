use super::*;
use crate::ops::testing::{bits, contexts, random};

struct Case {
    conv: ShortConv,
    weight: Vec<f32>,
    x: Vec<f32>,
    length: usize,
}

impl Case {
    fn new(channels: usize, kernel: usize, length: usize, bias: bool, silu: bool) -> Self {
        let weight = random(1, channels * kernel);
        let bias = bias.then(|| random(2, channels));
        Self {
            conv: ShortConv::new(&weight, channels, bias, silu),
            weight,
            x: random(3, channels * length),
            length,
        }
    }

    fn states(&self, num_slots: usize) -> States {
        let len = ShortConv::state_len(self.conv.channels, self.conv.kernel());
        States::new(len, num_slots)
    }

    fn oracle(&self) -> Vec<f64> {
        let (channels, kernel) = (self.conv.channels, self.conv.kernel());
        let mut out = Vec::new();
        for t in 0..self.length {
            for c in 0..channels {
                let mut sum = self.conv.bias.as_ref().map_or(0.0, |b| f64::from(b[c]));
                for j in 0..kernel.min(t + 1) {
                    // The last weight belongs to the newest input.
                    let w = self.weight[c * kernel + kernel - 1 - j];
                    sum += f64::from(w) * f64::from(self.x[(t - j) * channels + c]);
                }
                out.push(if self.conv.silu {
                    sum / (1.0 + (-sum).exp())
                } else {
                    sum
                });
            }
        }
        out
    }

    /// In chunks, the state moving on from slot to slot.
    fn run(&self, ctx: &Context, chunk: usize) -> Vec<f32> {
        let mut states = self.states(3);
        let (mut out, mut from, mut first) = (Vec::new(), None, 0);
        while first < self.length {
            let count = chunk.min(self.length - first);
            let at = first * self.conv.channels..(first + count) * self.conv.channels;
            let x = ctx.tensor(count, self.conv.channels, &self.x[at]);
            let to = (first % 3) as u32;
            let rows = StateRows {
                first_row: 0,
                num_rows: count,
                from,
                to,
                saves: &[],
            };
            out.extend_from_slice(short_conv(ctx, &self.conv, &x, &mut states, &[rows]).as_slice());
            from = Some(to);
            first += count;
        }
        out
    }
}

#[test]
fn equals_the_formula_whatever_the_chunks_level_and_threads() {
    let cases = [
        Case::new(1, 1, 5, false, false),
        Case::new(7, 2, 9, true, false),
        Case::new(24, 3, 30, false, false),
        Case::new(70, 4, 41, false, true),
        Case::new(1030, 4, 66, true, true),
        Case::new(16, 9, 20, false, false),
    ];
    for case in cases {
        let expected = case.oracle();
        let mut seen: Option<Vec<u32>> = None;
        for ctx in contexts() {
            for chunk in [case.length, 1, 2, 7] {
                let got = case.run(&ctx, chunk);
                for (got, want) in got.iter().zip(&expected) {
                    assert!((f64::from(*got) - want).abs() < 2e-6, "{got} {want}");
                }
                let seen = seen.get_or_insert_with(|| bits(&got));
                assert_eq!(*seen, bits(&got), "chunk {chunk} {ctx:?}");
            }
        }
    }
}

#[test]
fn sequences_of_a_batch_have_their_own_past_and_saved_states_continue_them() {
    let case = Case::new(20, 4, 12, false, true);
    for ctx in contexts() {
        let alone = case.run(&ctx, 12);
        let mut states = case.states(6);
        // Stale values that a new sequence must not see.
        states.values_mut().fill(7.0);
        let both: Vec<f32> = [&case.x[..40], &case.x[..]].concat();
        let rows = [
            StateRows {
                first_row: 0,
                num_rows: 2,
                from: None,
                to: 1,
                saves: &[(1, 4)],
            },
            StateRows {
                first_row: 2,
                num_rows: 12,
                from: None,
                to: 0,
                saves: &[(2, 2), (11, 3)],
            },
        ];
        let x = ctx.tensor(14, 20, &both);
        let y = short_conv(&ctx, &case.conv, &x, &mut states, &rows);
        assert_eq!(bits(&y.as_slice()[..40]), bits(&alone[..40]));
        assert_eq!(bits(&y.as_slice()[40..]), bits(&alone));
        // From the states behind 1, 2 and 11 tokens, and in place behind 2.
        for (from, to, behind) in [(4, 5, 1), (2, 5, 2), (3, 5, 11), (1, 1, 2)] {
            let rest = ctx.tensor(12 - behind, 20, &case.x[behind * 20..]);
            let rows = StateRows {
                first_row: 0,
                num_rows: 12 - behind,
                from: Some(from),
                to,
                saves: &[],
            };
            let y = short_conv(&ctx, &case.conv, &rest, &mut states, &[rows]);
            assert_eq!(bits(y.as_slice()), bits(&alone[behind * 20..]));
        }
    }
}

#[test]
#[should_panic(expected = "is read and written")]
fn a_slot_that_one_reads_and_another_writes_is_a_defect() {
    let case = Case::new(8, 2, 2, false, false);
    let ctx = contexts().remove(0);
    let x = ctx.tensor(2, 8, &case.x);
    let rows = |first_row, from, to| StateRows {
        first_row,
        num_rows: 1,
        from,
        to,
        saves: &[],
    };
    let rows = [rows(0, Some(0), 0), rows(1, Some(0), 1)];
    short_conv(&ctx, &case.conv, &x, &mut case.states(2), &rows);
}

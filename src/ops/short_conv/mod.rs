//! Causal depthwise convolution over the tokens of a sequence: `y[t] = b + Σ w[j] · x[t - (K - 1) + j]`, per channel.
//!
//! What came before a step's rows stands in a window of the last `K - 1` inputs. A sum is one chain of fused multiply-adds
//! from the oldest input to the newest, so where a sequence was cut does not matter.

mod cpu;

use crate::ops::states::{StateRows, States};
use crate::ops::{Context, Tensor};
use crate::threads::Disjoint;

/// Weights of a convolution.
#[derive(Debug, Clone, PartialEq)]
pub struct ShortConv {
    channels: usize,
    /// `[kernel, channels]`, the oldest input's first.
    taps: Vec<f32>,
    /// Per channel.
    bias: Option<Vec<f32>>,
    /// Whether the result goes through SiLU.
    silu: bool,
}

impl ShortConv {
    /// From weights `[channels, kernel]` as files have them, the oldest input's first, and a bias per channel.
    ///
    /// Panics when the sizes do not fit.
    pub fn new(weight: &[f32], channels: usize, bias: Option<Vec<f32>>, silu: bool) -> Self {
        assert!(
            channels > 0 && !weight.is_empty() && weight.len().is_multiple_of(channels),
            "{} weights for {channels} channels",
            weight.len()
        );
        assert!(bias.as_ref().is_none_or(|b| b.len() == channels));
        let kernel = weight.len() / channels;
        let taps = (0..weight.len())
            .map(|at| weight[at % channels * kernel + at / channels])
            .collect();
        Self {
            channels,
            taps,
            bias,
            silu,
        }
    }

    /// Number of channels.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Inputs that a result depends on.
    pub fn kernel(&self) -> usize {
        self.taps.len() / self.channels
    }

    /// Floats of a sequence's state: the last `kernel - 1` inputs.
    pub fn state_len(channels: usize, kernel: usize) -> usize {
        (kernel - 1) * channels
    }

    /// Bytes of the weights.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.taps[..]) + self.bias.as_ref().map_or(0, |bias| size_of_val(&bias[..]))
    }
}

/// Where an input of a row stands.
fn input<'a>(x: &'a Tensor, before: Option<&'a [f32]>, first_row: usize, at: isize) -> &'a [f32] {
    let cols = x.cols();
    match usize::try_from(at) {
        Ok(row) => x.row(first_row + row),
        // The window's last row is the input just before the first row.
        Err(_) => match before {
            Some(window) => {
                let row = (window.len() / cols) as isize + at;
                &window[row as usize * cols..][..cols]
            }
            None => &[],
        },
    }
}

/// Convolves the rows of each sequence of `x` `[tokens, channels]` behind what its state holds; `[tokens, channels]`.
///
/// Panics when shapes or slots do not fit.
pub fn short_conv(
    ctx: &Context,
    conv: &ShortConv,
    x: &Tensor,
    states: &mut States,
    sequences: &[StateRows<'_>],
) -> Tensor {
    let (channels, kernel) = (conv.channels, conv.kernel());
    assert_eq!(x.cols(), channels, "{x:?} for {channels} channels");
    assert_eq!(
        states.slot_len(),
        ShortConv::state_len(channels, kernel),
        "{states:?} for a kernel of {kernel}"
    );
    states.check(sequences, x.rows());
    let mut y = ctx.uninit(x.rows(), channels);
    let out = Disjoint::new(y.as_mut_slice());
    for rows in sequences {
        let before = rows.from.map(|from| states.slot(from));
        ctx.for_row_ranges(rows.num_rows, channels * kernel, |first, count| {
            let mut inputs = Vec::with_capacity(kernel);
            for row in first..first + count {
                inputs.clear();
                let oldest = row as isize + 1 - kernel as isize;
                inputs
                    .extend((oldest..=row as isize).map(|at| input(x, before, rows.first_row, at)));
                // SAFETY: rows are disjoint.
                #[allow(unsafe_code)]
                let out = unsafe { out.part((rows.first_row + row) * channels, channels) };
                cpu::row(ctx.level(), &inputs, conv, out);
            }
        });
    }
    for rows in sequences {
        for (count, slot) in rows.saves {
            shift(states, x, rows, *count, *slot);
        }
        shift(states, x, rows, rows.num_rows, rows.to);
    }
    y
}

/// Writes the window behind the first `count` rows of a sequence to `slot`.
fn shift(states: &mut States, x: &Tensor, rows: &StateRows<'_>, count: usize, slot: u32) {
    let cols = x.cols();
    let window = states.slot_len() / cols;
    // Ascending: within one slot nothing is overwritten before it has moved.
    for row in 0..window {
        let to = slot as usize * states.slot_len() + row * cols;
        match (count + row).checked_sub(window) {
            Some(newer) => {
                let source = x.row(rows.first_row + newer);
                states.values_mut()[to..to + cols].copy_from_slice(source);
            }
            None => match rows.from {
                Some(from) => {
                    let from = from as usize * states.slot_len() + (row + count) * cols;
                    states.values_mut().copy_within(from..from + cols, to);
                }
                None => states.values_mut()[to..to + cols].fill(0.0),
            },
        }
    }
}

#[cfg(test)]
mod tests;

//! Weights of logits, in fixed order: `exp((logit - max) / temperature)`, so that the best token weighs 1.

use super::exp::exp;

/// Lanes of a reduction; enough for the compiler to use vector registers.
const LANES: usize = 16;

/// Logits whose weights are summed together when the whole row is drawn from.
pub(super) const BLOCK: usize = 1024;

/// How logits become weights.
#[derive(Debug, Clone, Copy)]
pub(super) struct Softmax {
    /// The largest logit; finite.
    pub(super) max: f32,
    /// More than 0.
    pub(super) temperature: f32,
}

impl Softmax {
    /// The weight of a logit: 1 for the best, down to 0. Dividing the difference cannot overflow upwards.
    pub(super) fn weight(&self, logit: f32) -> f32 {
        exp(self.exponent(logit))
    }

    /// The natural logarithm of the weight.
    pub(super) fn exponent(&self, logit: f32) -> f32 {
        (logit - self.max) / self.temperature
    }

    /// Draws from the whole row by `unit` in [0, 1), walking in order of ids. The row becomes its weights.
    pub(super) fn draw_from_row(
        &self,
        row: &mut [f32],
        unit: f64,
        block_sums: &mut Vec<f64>,
    ) -> u32 {
        block_sums.clear();
        for block in row.chunks_mut(BLOCK) {
            for x in block.iter_mut() {
                *x = self.weight(*x);
            }
            block_sums.push(sum(block));
        }
        let target = unit * block_sums.iter().sum::<f64>();
        let mut reached = 0.0;
        let mut last_possible = 0;
        for (index, &block_sum) in block_sums.iter().enumerate() {
            if reached + block_sum <= target {
                reached += block_sum;
                continue;
            }
            let start = index * BLOCK;
            let mut inside = reached;
            for (offset, &weight) in row[start..].iter().take(BLOCK).enumerate() {
                if weight > 0.0 {
                    inside += f64::from(weight);
                    last_possible = start + offset;
                    if inside > target {
                        break;
                    }
                }
            }
            return to_id(last_possible);
        }
        // Rounding put the target at the very end: the last token that can be drawn.
        to_id(
            row.iter()
                .rposition(|&weight| weight > 0.0)
                .expect("the best token weighs 1"),
        )
    }
}

fn to_id(index: usize) -> u32 {
    u32::try_from(index).expect("vocabularies have fewer than 2^32 tokens")
}

/// The sum by `LANES` partial sums, combined from the first to the last.
pub(super) fn sum(values: &[f32]) -> f64 {
    let mut lanes = [0.0_f64; LANES];
    for chunk in values.chunks(LANES) {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(x);
        }
    }
    lanes.iter().sum()
}

/// The largest value; negative infinity for an empty slice. There must be no NaN.
pub(super) fn max(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in values.chunks(LANES) {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = if x > *lane { x } else { *lane };
        }
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

/// Whether no value is NaN or positive infinity.
pub(super) fn all_below_infinity(values: &[f32]) -> bool {
    values.chunks(BLOCK).all(|block| {
        block
            .iter()
            .fold(true, |good, &x| good & (x < f32::INFINITY))
    })
}

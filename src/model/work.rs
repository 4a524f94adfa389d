//! What layers cost, for the planner and `bench`.

use std::ops::Add;

use crate::nn::Linear;

/// What some layers have to do for every token they compute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Integer multiply-accumulates per token.
    pub int8_macs: usize,
    /// F32 multiply-accumulates per token.
    pub f32_macs: usize,
    /// Bytes of weights, read once per step.
    pub weight_bytes: usize,
}

impl Work {
    pub(super) fn of<'a>(linears: impl IntoIterator<Item = &'a Linear>) -> Self {
        let of_one = |linear: &Linear| Self::product(linear.macs(), linear.bytes());
        linears.into_iter().map(of_one).sum()
    }

    /// Of one product: its multiply-accumulates and whether they are integer ones, and the bytes of its weights.
    pub(super) fn product((macs, is_integer): (usize, bool), weight_bytes: usize) -> Self {
        let (int8_macs, f32_macs) = if is_integer { (macs, 0) } else { (0, macs) };
        Self {
            int8_macs,
            f32_macs,
            weight_bytes,
        }
    }
}

impl Add for Work {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            int8_macs: self.int8_macs + other.int8_macs,
            f32_macs: self.f32_macs + other.f32_macs,
            weight_bytes: self.weight_bytes + other.weight_bytes,
        }
    }
}

impl std::iter::Sum for Work {
    fn sum<I: Iterator<Item = Self>>(works: I) -> Self {
        works.fold(Self::default(), Add::add)
    }
}

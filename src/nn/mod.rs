//! Layers: weights with their forward functions, made of `ops`.

mod experts;
mod linear;

pub use experts::{ExpertStack, Experts, StackShape};
pub use linear::{Input, Linear, WeightPath};

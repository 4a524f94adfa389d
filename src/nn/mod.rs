//! Layers: weights with their forward functions, made of `ops`.

mod experts;
mod heads;
mod linear;

pub use experts::{ExpertStack, Experts, StackShape};
pub use heads::HeadStack;
pub use linear::{Input, Linear, WeightPath};

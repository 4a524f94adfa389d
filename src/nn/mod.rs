//! Layers: weights with their forward functions, made of `ops`.

mod linear;

pub use linear::{Input, Linear, WeightPath};

//! Layers: weights with their forward functions, made of `ops`.

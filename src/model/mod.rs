//! Configs, weight names and the one forward pass.

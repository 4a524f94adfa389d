//! Where a model runs: device choice and capabilities.

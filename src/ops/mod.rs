//! Operations on tensors: one folder per op, one public safe function each, dispatched on the device.
//!
//! An op's `mod.rs` states its contract and checks its operands; `cpu.rs` holds the kernel body, written once over the
//! vector trait of [`simd`] (whose [`simd::Scalar`] twin is the reference). A CUDA or Metal kernel of an op goes into the
//! same folder as `cuda.rs` and `metal.rs`, next to a device variant of [`Context`]. Callers never see a device branch.
//!
//! | op | does |
//! |---|---|
//! | [`embed`] | rows of an embedding table |
//! | [`norm`] | RMS norm, per row or per head |
//! | [`layer_norm`] | layer norm, the same |
//! | [`rope`] | rotary position embedding |
//! | [`matmul`] | float weights × activations |
//! | [`qmatmul`] | packed integer weights × activations rounded to 8 bits |
//! | [`kv_write`] | keys and values into cache pages |
//! | [`attention`] | softmax(q·k)·v over cache pages |
//! | [`short_conv`] | causal depthwise convolution behind a window of past inputs |
//! | [`delta_net`] | the gated delta rule over a memory per head |
//! | [`moe`] | which experts a token goes to, and the sum of what they give |
//! | [`gated_act`] | act(gate) × up |
//! | [`activate`] | activation functions without a gate |
//! | [`encoder_attention`] | softmax(q·k)·v within each sequence of a batch, without mask or cache |
//! | [`pool`] | one vector of a sequence's rows |
//! | [`heads`] | heads by themselves, and parts of heads put together |
//! | [`elementwise`] | add, multiply, scale, clamp, gate, soft cap |
//!
//! [`ceilings`] measures what the machine can do at most.
//!
//! To add an op, see `docs/architecture.md`, "Adding an op".

pub mod activate;
mod aligned;
pub mod attention;
mod buffer;
#[doc(hidden)]
pub mod cases;
pub mod ceilings;
pub mod cpu_level;
pub mod delta_net;
pub mod elementwise;
pub mod embed;
pub mod encoder_attention;
pub mod gated_act;
pub mod heads;
pub mod kv_write;
pub mod layer_norm;
pub mod matmul;
pub mod moe;
pub mod norm;
pub mod pool;
pub mod qmatmul;
pub mod rope;
pub mod short_conv;
pub mod simd;
pub mod states;
mod tensor;

use std::sync::Arc;

use crate::threads::Pool;
pub use cpu_level::CpuLevel;
pub use tensor::{Arena, Rows, Tensor};

/// What every op needs besides its operands: where it runs and with what.
///
/// The CPU's compute pool, instruction-set level and buffer arena; a GPU's device and stream belong here too.
#[derive(Debug, Clone)]
pub struct Context {
    pool: Arc<Pool>,
    level: CpuLevel,
    arena: Arena,
    chunks: buffer::Chunks,
}

impl Context {
    /// A CPU context.
    pub fn cpu(pool: Arc<Pool>, level: CpuLevel) -> Self {
        Self {
            pool,
            level,
            arena: Arena::default(),
            chunks: buffer::Chunks::default(),
        }
    }

    /// A context on the same device and threads with buffers of its own: what one model's steps need is given back with
    /// that model.
    #[must_use]
    pub fn sibling(&self) -> Self {
        Self {
            arena: Arena::default(),
            chunks: buffer::Chunks::default(),
            ..self.clone()
        }
    }

    /// The instruction-set level.
    pub fn level(&self) -> CpuLevel {
        self.level
    }

    /// The compute pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// A tensor with unspecified values.
    pub fn uninit(&self, rows: usize, cols: usize) -> Tensor {
        Tensor::uninit_cpu(&self.arena, rows, cols)
    }

    /// A tensor with the given values; `values.len()` must be `rows * cols`.
    pub fn tensor(&self, rows: usize, cols: usize, values: &[f32]) -> Tensor {
        assert_eq!(
            values.len(),
            rows * cols,
            "a {rows} x {cols} tensor from {} values",
            values.len()
        );
        let mut tensor = self.uninit(rows, cols);
        tensor.as_mut_slice().copy_from_slice(values);
        tensor
    }

    /// Calls `work(first, count)` over `rows` in parts of some size, on all threads when `rows * cost` (in elements
    /// touched) is worth it. Which part a row is in must not matter to it.
    pub(crate) fn for_row_ranges(
        &self,
        rows: usize,
        cost: usize,
        work: impl Fn(usize, usize) + Sync,
    ) {
        /// Below this many elements a fork costs more than it saves.
        const MIN_PARALLEL: usize = 16 * 1024;
        let threads = self.pool.num_threads();
        if threads == 1 || rows == 1 || rows.saturating_mul(cost) < MIN_PARALLEL {
            return work(0, rows);
        }
        let part = rows.div_ceil(threads * 4).max(1);
        self.pool.run(rows.div_ceil(part), |i| {
            work(i * part, part.min(rows - i * part))
        });
    }
}

/// Whether no two of these have a row in common: which result, its first row and how many rows.
pub(crate) fn distinct_rows(parts: impl Iterator<Item = (usize, usize, usize)>) -> bool {
    let mut parts: Vec<_> = parts.filter(|(_, _, count)| *count > 0).collect();
    parts.sort_unstable();
    parts
        .windows(2)
        .all(|pair| pair[0].0 != pair[1].0 || pair[0].1 + pair[0].2 <= pair[1].1)
}

/// Contexts for tests: every level that this CPU has, with several thread counts.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Every level whose code differs, with 1 and 3 threads, for ops that multiply no bytes.
    pub fn contexts() -> Vec<Context> {
        let of_bytes = [CpuLevel::AvxVnni, CpuLevel::NeonI8mm];
        let mut all = product_contexts();
        all.retain(|ctx| !of_bytes.contains(&ctx.level()));
        all
    }

    /// Every level with 1 and 3 threads.
    pub fn product_contexts() -> Vec<Context> {
        let with = |level, threads| Context::cpu(Arc::new(Pool::new(threads)), level);
        let levels = CpuLevel::available().into_iter();
        levels
            .flat_map(|level| [1, 3].map(|threads| with(level, threads)))
            .collect()
    }

    /// Deterministic values in about -1..1.
    pub fn random(seed: u64, len: usize) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        (0..len)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 40) as f32 / 8_388_608.0 - 1.0
            })
            .collect()
    }

    /// Bits, for comparing results exactly.
    pub fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|x| x.to_bits()).collect()
    }
}

//! The gated delta rule: a matrix per head that remembers values by keys, token by token.
//!
//! For every value head, with `k` and `q` of length 1, decay `g` and strength `β` of the token:
//!
//! ```text
//! S ← g S + k ⊗ β (v − (g S)ᵀ k)        o = Sᵀ q
//! ```
//!
//! Source: Yang, Kautz and Hatamizadeh 2024, <https://arxiv.org/abs/2412.06464>.
//!
//! Prompts take this same step per token instead of the paper's form in chunks: the bits of a token's result then do not
//! depend on how its prompt was cut, nothing can overflow when keys repeat, and the recurrence is a few percent of a
//! prompt's work (`docs/architecture.md`, "Recurrent layers"). Columns of `S` do not touch each other: a strip of 32 of
//! them stays in the first-level cache while many tokens pass.

mod cpu;

use crate::ops::states::{StateRows, States};
use crate::ops::{Context, Tensor};
use crate::threads::Disjoint;

/// Columns of `S` that are worked on together.
const STRIP: usize = 32;

/// Inside the root of the norm of keys and queries.
const KEY_EPS: f32 = 1e-6;

/// Which value heads share a key head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadSharing {
    /// Neighbours: value heads `h r..h r + r` have key head h.
    Grouped,
    /// Value head v has key head v mod the number of key heads (files of llama.cpp).
    Tiled,
}

/// Geometry of the layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaShape {
    /// Heads of keys and queries.
    pub key_heads: usize,
    /// Heads of values; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Elements of a key and of a query.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Which value heads share a key head.
    pub sharing: HeadSharing,
}

impl DeltaShape {
    /// Elements of queries, keys and values of a token side by side.
    pub fn qkv_dim(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    fn padded_value_dim(&self) -> usize {
        self.value_dim.next_multiple_of(crate::ops::simd::LANES)
    }

    /// Floats of one head's matrix.
    fn head_len(&self) -> usize {
        self.key_dim * self.padded_value_dim()
    }

    /// Floats of a sequence's state.
    pub fn state_len(&self) -> usize {
        self.value_heads * self.head_len()
    }

    fn key_head(&self, value_head: usize) -> usize {
        match self.sharing {
            HeadSharing::Grouped => value_head / (self.value_heads / self.key_heads),
            HeadSharing::Tiled => value_head % self.key_heads,
        }
    }
}

/// What a layer's rule is made of besides its projections.
#[derive(Debug, Clone, PartialEq)]
pub struct DeltaRule {
    shape: DeltaShape,
    /// `-exp(A_log)` per value head.
    rates: Vec<f32>,
    /// Added to `a`, per value head.
    dt_bias: Vec<f32>,
    /// Tokens that pass one strip before the next one's turn: memory traffic only, never a bit.
    chunk: usize,
}

impl DeltaRule {
    /// Tokens that pass a strip in one go unless somebody says otherwise.
    pub const CHUNK: usize = 64;

    /// A rule with `rates` (negative: `-exp(A_log)`) and `dt_bias` per value head.
    ///
    /// Panics when the sizes do not fit.
    pub fn new(shape: DeltaShape, rates: Vec<f32>, dt_bias: Vec<f32>, chunk: usize) -> Self {
        let whole = shape.key_heads > 0 && shape.value_heads.is_multiple_of(shape.key_heads);
        assert!(
            whole && shape.key_dim > 0 && shape.value_dim > 0,
            "{shape:?}"
        );
        assert!(rates.len() == shape.value_heads && dt_bias.len() == shape.value_heads);
        Self {
            shape,
            rates,
            dt_bias,
            chunk: chunk.max(1),
        }
    }

    /// The geometry.
    pub fn shape(&self) -> DeltaShape {
        self.shape
    }

    /// Bytes of its vectors.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.rates[..]) + size_of_val(&self.dt_bias[..])
    }
}

/// What a batch brings to the rule.
#[derive(Debug)]
pub struct DeltaInput<'a> {
    /// `[tokens, queries | keys | values]` behind the convolution; queries and keys are normed in place.
    pub qkv: &'a mut Tensor,
    /// `[tokens, value_heads]`: the decay is `exp(rate · softplus(a + dt_bias))`.
    pub a: &'a Tensor,
    /// `[tokens, value_heads]`: the strength is `sigmoid(b)`.
    pub b: &'a Tensor,
}

/// What a token's heads need besides vectors, worked out once for all strips.
struct Gates {
    /// `[tokens, value_heads]`: decay of the state.
    decay: Tensor,
    /// `[tokens, value_heads]`: how much of the difference is written.
    strength: Tensor,
    /// `[tokens, key_heads]`: query · key.
    overlap: Tensor,
}

/// Runs the rule over the rows of each sequence, behind what its state holds; `[tokens, value_heads * value_dim]`.
///
/// Every element is a chain over the elements of its key, ascending, and over the tokens. Panics when shapes or slots do
/// not fit.
pub fn delta_net(
    ctx: &Context,
    rule: &DeltaRule,
    input: DeltaInput<'_>,
    states: &mut States,
    sequences: &[StateRows<'_>],
) -> Tensor {
    let shape = rule.shape;
    let tokens = input.qkv.rows();
    assert_eq!(input.qkv.cols(), shape.qkv_dim(), "{:?}", input.qkv);
    for gate in [input.a, input.b] {
        assert_eq!((gate.rows(), gate.cols()), (tokens, shape.value_heads));
    }
    assert_eq!(states.slot_len(), shape.state_len(), "{states:?}");
    states.check(sequences, tokens);
    let gates = prepare(ctx, rule, input.qkv, input.a, input.b);
    for rows in sequences {
        states.begin(rows);
    }
    let mut y = ctx.uninit(tokens, shape.value_heads * shape.value_dim);
    let (out, memory) = (
        Disjoint::new(y.as_mut_slice()),
        Disjoint::new(states.values_mut()),
    );
    let work = |task: usize| {
        let work = cpu::Head {
            rule,
            qkv: input.qkv,
            gates: &gates,
            rows: &sequences[task / shape.value_heads],
            head: task % shape.value_heads,
            memory: &memory,
            out: &out,
        };
        work.run(ctx.level());
    };
    let tasks = sequences.len() * shape.value_heads;
    if tokens * shape.state_len() < 1 << 14 {
        (0..tasks).for_each(work);
    } else {
        ctx.pool().run(tasks, work);
    }
    y
}

/// Norms queries and keys in place (queries times `key_dim^-1/2` too) and works out the gates.
fn prepare(ctx: &Context, rule: &DeltaRule, qkv: &mut Tensor, a: &Tensor, b: &Tensor) -> Gates {
    let shape = rule.shape;
    let (tokens, cols) = (qkv.rows(), qkv.cols());
    let mut gates = Gates {
        decay: ctx.uninit(tokens, shape.value_heads),
        strength: ctx.uninit(tokens, shape.value_heads),
        overlap: ctx.uninit(tokens, shape.key_heads),
    };
    let [decay, strength, overlap, vectors] = [
        gates.decay.as_mut_slice(),
        gates.strength.as_mut_slice(),
        gates.overlap.as_mut_slice(),
        qkv.as_mut_slice(),
    ]
    .map(Disjoint::new);
    let heads = shape.value_heads;
    ctx.for_row_ranges(tokens, cols + 32 * heads, |first, count| {
        for row in first..first + count {
            // SAFETY: rows are disjoint.
            #[allow(unsafe_code)]
            let (vectors, overlap, decay, strength) = unsafe {
                (
                    vectors.part(row * cols, cols),
                    overlap.part(row * shape.key_heads, shape.key_heads),
                    decay.part(row * heads, heads),
                    strength.part(row * heads, heads),
                )
            };
            cpu::norm_keys(ctx.level(), &shape, vectors, overlap);
            for (h, decay) in decay.iter_mut().enumerate() {
                *decay = rule.rates[h] * softplus(a.row(row)[h] + rule.dt_bias[h]);
            }
            cpu::exp(ctx.level(), decay);
            strength.copy_from_slice(b.row(row));
            cpu::sigmoid(ctx.level(), strength);
        }
    });
    gates
}

/// `ln(1 + e^x)`, in F64 by the `libm` crate: the same on every machine.
fn softplus(x: f32) -> f32 {
    // As the reference: above this it is x to the last bit of F32.
    if x > 20.0 {
        x
    } else {
        libm::log1p(libm::exp(f64::from(x))) as f32
    }
}

#[cfg(test)]
mod tests;

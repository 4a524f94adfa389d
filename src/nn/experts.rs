//! The experts of a layer: many gated blocks, of which every token uses a few.

use std::collections::HashMap;

use super::WeightPath;
use crate::error::Result;
use crate::ops::gated_act::{Activation, gated_act};
use crate::ops::matmul::{self, RawMatrix, matmul_all};
use crate::ops::moe::{Dispatch, Routing, add_expert_bias, combine};
use crate::ops::qmatmul::{self, QMatrix, qmatmul_all, quantize_all};
use crate::ops::{Context, Rows, Tensor};
use crate::quant::Encoding;

/// One matrix of every expert, all of one shape, with their biases.
#[derive(Debug)]
pub struct ExpertStack {
    rows: usize,
    cols: usize,
    matrices: Matrices,
    /// `[experts, rows]`.
    bias: Option<Vec<f32>>,
}

/// One variant per way to multiply.
#[derive(Debug)]
enum Matrices {
    /// In the file's encoding.
    Raw(Vec<RawMatrix>),
    /// Interleaved for the integer kernels.
    Packed(Vec<QMatrix>),
    /// Known by their size only.
    Weighed {
        count: usize,
        /// As they will be multiplied.
        bytes: usize,
        is_packed: bool,
    },
}

/// What [`ExpertStack::weighed`] knows of matrices that are not read.
#[derive(Debug, Clone, Copy)]
pub struct StackShape {
    /// Encoding of all of them.
    pub encoding: Encoding,
    /// Experts.
    pub count: usize,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
}

impl ExpertStack {
    /// The matrices of all experts, at least one, and their biases one after the other; packed formats are interleaved here
    /// unless `path` says otherwise.
    ///
    /// # Errors
    /// `Unsupported` when an encoding has no kernel and no decoder. Panics when shapes differ.
    pub fn new(
        ctx: &Context,
        matrices: Vec<RawMatrix>,
        bias: Option<Vec<f32>>,
        path: WeightPath,
    ) -> Result<Self> {
        let (rows, cols) = (matrices[0].rows(), matrices[0].cols());
        assert!(
            matrices
                .iter()
                .all(|m| (m.rows(), m.cols()) == (rows, cols)),
            "experts of one shape"
        );
        assert!(
            bias.as_ref()
                .is_none_or(|b| b.len() == matrices.len() * rows),
            "biases of {} experts",
            matrices.len()
        );
        let packs = |m: &RawMatrix| QMatrix::supports(m.encoding());
        let matrices = if path == WeightPath::Fast && matrices.iter().all(packs) {
            Matrices::Packed(QMatrix::pack_all(ctx, &matrices)?)
        } else {
            for matrix in &matrices {
                matrix.decode_row(0, &mut vec![0.0; cols])?;
            }
            Matrices::Raw(matrices)
        };
        Ok(Self {
            rows,
            cols,
            matrices,
            bias,
        })
    }

    /// [`Self::new`] of matrices of this shape that `make` makes one by one: of packed formats no more than a few exist at a time.
    ///
    /// # Errors
    /// Those of `make`, and as [`Self::new`].
    pub fn made(
        ctx: &Context,
        shape: StackShape,
        make: &(dyn Fn(usize) -> Result<RawMatrix> + Sync),
        bias: Option<Vec<f32>>,
        path: WeightPath,
    ) -> Result<Self> {
        let StackShape {
            encoding,
            count,
            rows,
            cols,
        } = shape;
        if path == WeightPath::Fast && QMatrix::supports(encoding) {
            return Ok(Self {
                rows,
                cols,
                matrices: Matrices::Packed(QMatrix::pack_made(
                    ctx,
                    count,
                    (encoding, rows, cols),
                    make,
                )?),
                bias,
            });
        }
        let mut made: Vec<Option<Result<RawMatrix>>> = (0..count).map(|_| None).collect();
        in_parallel(ctx, &mut made, |e| Some(make(e)));
        let matrices = made.into_iter().map(|m| m.expect("every task has run"));
        Self::new(ctx, matrices.collect::<Result<_>>()?, bias, path)
    }

    /// What [`Self::new`] would make of matrices of this shape, which are not read. It cannot be computed with.
    pub fn weighed(shape: StackShape, bias: Option<Vec<f32>>, path: WeightPath) -> Self {
        let StackShape {
            encoding,
            count,
            rows,
            cols,
        } = shape;
        let packed = match path {
            WeightPath::Fast => QMatrix::packed_bytes(encoding, rows, cols),
            WeightPath::Reference => None,
        };
        let raw = encoding.row_bytes(cols).unwrap_or(0) * rows;
        Self {
            rows,
            cols,
            matrices: Matrices::Weighed {
                count,
                bytes: count * packed.unwrap_or(raw),
                is_packed: packed.is_some(),
            },
            bias,
        }
    }

    /// Experts.
    pub fn count(&self) -> usize {
        match &self.matrices {
            Matrices::Raw(m) => m.len(),
            Matrices::Packed(m) => m.len(),
            Matrices::Weighed { count, .. } => *count,
        }
    }

    /// Bytes of all experts.
    pub fn bytes(&self) -> usize {
        let matrices = match &self.matrices {
            Matrices::Raw(m) => m.iter().map(|m| m.bytes().len()).sum(),
            Matrices::Packed(m) => m.iter().map(QMatrix::bytes).sum(),
            Matrices::Weighed { bytes, .. } => *bytes,
        };
        matrices + self.bias.as_ref().map_or(0, |b| size_of_val(&b[..]))
    }

    /// Multiply-accumulates per row of one expert, and whether they are integer ones.
    pub fn macs(&self) -> (usize, bool) {
        let is_integer = match &self.matrices {
            Matrices::Raw(_) => false,
            Matrices::Packed(_) => true,
            Matrices::Weighed { is_packed, .. } => *is_packed,
        };
        (self.rows * self.cols, is_integer)
    }
}

/// `values[i] = of(i)`, on all threads.
fn in_parallel<T: Send>(ctx: &Context, values: &mut [T], of: impl Fn(usize) -> T + Sync) {
    let slots: Vec<std::sync::Mutex<&mut T>> =
        values.iter_mut().map(std::sync::Mutex::new).collect();
    ctx.pool().run(slots.len(), |i| {
        let value = of(i);
        **slots[i]
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = value;
    });
}

/// `down(act(gate(x)) * up(x))` of every expert.
#[derive(Debug)]
pub struct Experts {
    /// Of the gates.
    pub activation: Activation,
    /// `[intermediate, hidden]` each.
    pub gate: ExpertStack,
    /// `[intermediate, hidden]` each.
    pub up: ExpertStack,
    /// `[hidden, intermediate]` each.
    pub down: ExpertStack,
}

impl Experts {
    /// Its matrices.
    pub fn stacks(&self) -> [&ExpertStack; 3] {
        [&self.gate, &self.up, &self.down]
    }

    /// Per row of `x` `[tokens, hidden]` the weighted sum of what its experts give.
    ///
    /// All experts are multiplied in one parallel section for gate and up and one for down, each with its own rows.
    ///
    /// # Errors
    /// As [`matmul::matmul`]. Panics for experts that were only weighed.
    pub fn forward(&self, ctx: &Context, x: &Tensor, routing: &Routing) -> Result<Tensor> {
        let dispatch = Dispatch::new(routing, self.gate.count());
        let both = multiply(ctx, x, &dispatch.tokens, &dispatch, &[&self.gate, &self.up])?;
        let [mut gate, up]: [Tensor; 2] = both.try_into().expect("two results for two stacks"); // [places, intermediate]
        gated_act(ctx, self.activation, &mut gate, &up);
        drop(up);
        let places: Vec<u32> = (0..gate.rows() as u32).collect();
        let down = multiply(ctx, &gate, &places, &dispatch, &[&self.down])?.remove(0); // [places, hidden]
        Ok(combine(ctx, &down, routing, &dispatch))
    }
}

/// Row `rows[place]` of `x` times the matrices of the expert that has the place, for every place: `[places, stack.rows]` for each of the
/// stacks, biases added.
pub(super) fn multiply(
    ctx: &Context,
    x: &Tensor,
    rows: &[u32],
    dispatch: &Dispatch,
    stacks: &[&ExpertStack],
) -> Result<Vec<Tensor>> {
    let mut results: Vec<Tensor> = stacks
        .iter()
        .map(|stack| ctx.uninit(rows.len(), stack.rows))
        .collect();
    let is_packed = |stack: &&ExpertStack| matches!(stack.matrices, Matrices::Packed(_));
    if stacks.iter().any(is_packed) {
        let (sets, of_group) = sets(dispatch, x, rows);
        let rounded = quantize_all(ctx, &sets);
        let mut products = Vec::new();
        for (group, &set) in dispatch.groups.iter().zip(&of_group) {
            for (result, stack) in stacks.iter().enumerate() {
                if let Matrices::Packed(matrices) = &stack.matrices {
                    products.push(qmatmul::Product {
                        x: &rounded[set],
                        w: &matrices[group.expert],
                        result,
                        first_row: group.places.start,
                    });
                }
            }
        }
        qmatmul_all(ctx, &products, &mut results);
    }
    let mut products = Vec::new();
    for group in &dispatch.groups {
        for (result, stack) in stacks.iter().enumerate() {
            match &stack.matrices {
                Matrices::Raw(matrices) => products.push(matmul::Product {
                    x: Rows::picked(x, &rows[group.places.clone()]),
                    w: &matrices[group.expert],
                    result,
                    first_row: group.places.start,
                }),
                Matrices::Packed(_) => {}
                Matrices::Weighed { .. } => panic!("{stack:?} was not loaded"),
            }
        }
    }
    matmul_all(ctx, &products, &mut results)?;
    for (result, stack) in results.iter_mut().zip(stacks) {
        if let Some(bias) = &stack.bias {
            add_expert_bias(ctx, result, bias, dispatch);
        }
    }
    Ok(results)
}

/// The rows of each expert, to be rounded together, and which of these sets each group has. Experts of one row each share
/// the rounding of that row: all experts of a single token do.
fn sets<'a>(dispatch: &Dispatch, x: &'a Tensor, rows: &'a [u32]) -> (Vec<Rows<'a>>, Vec<usize>) {
    let (mut sets, mut singles) = (Vec::new(), HashMap::new());
    let mut set_of = |places: std::ops::Range<usize>| {
        let mine = &rows[places];
        let next = sets.len();
        let set = match mine {
            [row] => *singles.entry(*row).or_insert(next),
            _ => next,
        };
        if set == next {
            sets.push(Rows::picked(x, mine));
        }
        set
    };
    let of_group = dispatch.groups.iter().map(|g| set_of(g.places.clone()));
    let of_group = of_group.collect();
    (sets, of_group)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::nn::{Input, Linear};
    use crate::ops::cases::random_matrix;
    use crate::ops::testing::{bits, contexts, random};

    const EXPERTS: usize = 6;
    const TOP_K: usize = 3;

    fn floats(rows: usize, cols: usize, seed: u64) -> RawMatrix {
        let bytes: Vec<u8> = random(seed, rows * cols)
            .iter()
            .flat_map(|x| half::bf16::from_f32(*x * 0.2).to_le_bytes())
            .collect();
        RawMatrix::new(rows, cols, Encoding::BF16, Arc::new(bytes)).unwrap()
    }

    /// gate, up and down of one expert.
    fn expert(encoding: Encoding, hidden: usize, inner: usize, e: usize) -> [RawMatrix; 3] {
        let shapes = [(inner, hidden), (inner, hidden), (hidden, inner)];
        let mut seed = 1 + 3 * e as u64;
        shapes.map(|(rows, cols)| {
            seed += 1;
            match encoding {
                Encoding::BF16 => floats(rows, cols, seed),
                _ => random_matrix(encoding, rows, cols, seed),
            }
        })
    }

    fn bias(part: usize, rows: usize, e: usize) -> Vec<f32> {
        random(100 + (part * 10 + e) as u64, rows)
    }

    fn experts(ctx: &Context, encoding: Encoding, hidden: usize, inner: usize) -> Experts {
        let [gate, up, down] = std::array::from_fn(|part| {
            let matrices: Vec<RawMatrix> = (0..EXPERTS)
                .map(|e| expert(encoding, hidden, inner, e)[part].clone())
                .collect();
            let rows = matrices[0].rows();
            let biases = (0..EXPERTS).flat_map(|e| bias(part, rows, e)).collect();
            ExpertStack::new(ctx, matrices, Some(biases), WeightPath::Fast).unwrap()
        });
        Experts {
            activation: Activation::Silu,
            gate,
            up,
            down,
        }
    }

    /// Expert 4 never has a row, expert 0 has one of every token.
    fn routing(tokens: usize) -> Routing {
        let experts = |t: usize| [0, [1, 2, 3][t % 3], 5];
        Routing {
            top_k: TOP_K,
            experts: (0..tokens).flat_map(experts).collect(),
            weights: random(7, tokens * TOP_K),
        }
    }

    /// What a token's experts give one by one, as dense blocks of a single row.
    fn plainly(
        ctx: &Context,
        encoding: Encoding,
        inner: usize,
        x: &[f32],
        experts: &[u32],
        weights: &[f32],
    ) -> Vec<f32> {
        let input = ctx.tensor(1, x.len(), x);
        let mut sum = vec![0.0_f32; x.len()];
        for (expert_index, weight) in experts.iter().zip(weights) {
            let e = *expert_index as usize;
            let matrices = expert(encoding, x.len(), inner, e);
            let linear = |part: usize| {
                let bias = bias(part, matrices[part].rows(), e);
                Linear::new(ctx, &matrices[part], Some(bias), WeightPath::Fast).unwrap()
            };
            let mut gate = linear(0).forward(ctx, &Input::new(&input)).unwrap();
            let up = linear(1).forward(ctx, &Input::new(&input)).unwrap();
            gated_act(ctx, Activation::Silu, &mut gate, &up);
            let y = linear(2).forward(ctx, &Input::new(&gate)).unwrap();
            for (sum, y) in sum.iter_mut().zip(y.as_slice()) {
                *sum = weight.mul_add(*y, *sum);
            }
        }
        sum
    }

    #[test]
    fn a_row_has_the_bits_of_its_own_experts_one_by_one_whoever_else_is_there() {
        for (encoding, hidden, inner) in [
            (Encoding::BF16, 48, 20),
            (Encoding::Q4K, 256, 256),
            (Encoding::MXFP4, 64, 96),
        ] {
            let x = random(3, 70 * hidden);
            let mut expected: Option<Vec<u32>> = None;
            for ctx in contexts() {
                let experts = experts(&ctx, encoding, hidden, inner);
                let all = routing(70);
                let expected = expected.get_or_insert_with(|| {
                    let of = |t: usize| {
                        let slots = t * TOP_K..(t + 1) * TOP_K;
                        let (e, w) = (&all.experts[slots.clone()], &all.weights[slots]);
                        plainly(&ctx, encoding, inner, &x[t * hidden..][..hidden], e, w)
                    };
                    bits(&(0..70).flat_map(of).collect::<Vec<_>>())
                });
                for (first, count) in [(0, 70), (0, 1), (69, 1), (5, 2), (11, 17)] {
                    let slots = first * TOP_K..(first + count) * TOP_K;
                    let some = Routing {
                        top_k: TOP_K,
                        experts: all.experts[slots.clone()].to_vec(),
                        weights: all.weights[slots].to_vec(),
                    };
                    let part = first * hidden..(first + count) * hidden;
                    let rows = ctx.tensor(count, hidden, &x[part.clone()]);
                    let y = experts.forward(&ctx, &rows, &some).unwrap();
                    assert_eq!(
                        bits(y.as_slice()),
                        expected[part],
                        "{encoding:?} {first} {count} {ctx:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn an_expert_that_overflows_does_not_touch_rows_that_were_not_routed_to_it() {
        for ctx in contexts() {
            let mut experts = experts(&ctx, Encoding::BF16, 48, 20);
            let bias = experts.down.bias.as_mut().unwrap();
            bias[5 * 48..].fill(f32::INFINITY);
            let routing = Routing {
                top_k: 1,
                experts: vec![0, 5, 1],
                weights: vec![0.5, 0.0, 0.5],
            };
            let x = ctx.tensor(3, 48, &random(3, 3 * 48));
            let y = experts.forward(&ctx, &x, &routing).unwrap();
            assert!(y.row(0).iter().chain(y.row(2)).all(|v| v.is_finite()));
            assert!(y.row(1).iter().all(|v| v.is_nan()));
        }
    }

    #[test]
    fn what_is_weighed_is_what_would_be_loaded() {
        let ctx = &contexts()[0];
        for path in [WeightPath::Fast, WeightPath::Reference] {
            for (encoding, rows, cols) in [
                (Encoding::Q4K, 40, 256),
                (Encoding::BF16, 7, 5),
                (Encoding::MXFP4, 33, 64),
            ] {
                let matrices: Vec<RawMatrix> = (0..3)
                    .map(|e| match encoding {
                        Encoding::BF16 => floats(rows, cols, e),
                        _ => random_matrix(encoding, rows, cols, e),
                    })
                    .collect();
                let bias = Some(vec![0.0; 3 * rows]);
                let loaded = ExpertStack::new(ctx, matrices, bias.clone(), path).unwrap();
                let shape = StackShape {
                    encoding,
                    count: 3,
                    rows,
                    cols,
                };
                let weighed = ExpertStack::weighed(shape, bias, path);
                assert_eq!(
                    (loaded.bytes(), loaded.macs()),
                    (weighed.bytes(), weighed.macs())
                );
                assert_eq!(loaded.count(), weighed.count());
            }
        }
    }
}

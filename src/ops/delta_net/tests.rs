use super::*;
use crate::ops::testing::{bits, contexts, random};

struct Case {
    rule: DeltaRule,
    qkv: Vec<f32>,
    a: Vec<f32>,
    b: Vec<f32>,
    length: usize,
}

impl Case {
    fn new(shape: DeltaShape, length: usize, chunk: usize) -> Self {
        let heads = shape.value_heads;
        let rates = random(4, heads).iter().map(|x| -x.abs() * 2.0).collect();
        let scaled = |seed, len| random(seed, len).iter().map(|x| x * 3.0).collect();
        Self {
            rule: DeltaRule::new(shape, rates, random(5, heads), chunk),
            qkv: random(1, length * shape.qkv_dim()),
            a: scaled(2, length * heads),
            b: scaled(3, length * heads),
            length,
        }
    }

    /// Every token has the first one's key.
    fn with_one_key(mut self) -> Self {
        let (shape, dim) = (self.rule.shape, self.rule.shape.qkv_dim());
        let width = shape.key_heads * shape.key_dim;
        let key = self.qkv[width..2 * width].to_vec();
        for token in self.qkv.chunks_exact_mut(dim) {
            token[width..2 * width].copy_from_slice(&key);
        }
        self
    }

    fn states(&self, num_slots: usize) -> States {
        States::new(self.rule.shape.state_len(), num_slots)
    }

    /// Rows `first..first + rows.num_rows` of the case as the batch's only ones.
    fn step(
        &self,
        ctx: &Context,
        states: &mut States,
        first: usize,
        rows: StateRows<'_>,
    ) -> Vec<f32> {
        let part = |values: &[f32], cols: usize| {
            let at = first * cols..(first + rows.num_rows) * cols;
            ctx.tensor(rows.num_rows, cols, &values[at])
        };
        let heads = self.rule.shape.value_heads;
        let input = DeltaInput {
            qkv: &mut part(&self.qkv, self.rule.shape.qkv_dim()),
            a: &part(&self.a, heads),
            b: &part(&self.b, heads),
        };
        let y = delta_net(ctx, &self.rule, input, states, &[rows]);
        y.as_slice().to_vec()
    }

    /// In chunks, the state moving on from slot to slot.
    fn run(&self, ctx: &Context, chunk: usize) -> Vec<f32> {
        let mut states = self.states(2);
        states.values_mut().fill(f32::NAN);
        let (mut out, mut from, mut first) = (Vec::new(), None, 0);
        while first < self.length {
            let rows = StateRows {
                first_row: 0,
                num_rows: chunk.min(self.length - first),
                from,
                to: (first / chunk % 2) as u32,
                saves: &[],
            };
            out.extend(self.step(ctx, &mut states, first, rows));
            from = Some(rows.to);
            first += rows.num_rows;
        }
        out
    }

    fn oracle(&self) -> Vec<f64> {
        let s = self.rule.shape;
        let (kd, vd, width) = (s.key_dim, s.value_dim, s.key_heads * s.key_dim);
        let mut memory = vec![0.0_f64; s.value_heads * kd * vd];
        let mut out = Vec::new();
        for t in 0..self.length {
            let token = &self.qkv[t * s.qkv_dim()..][..s.qkv_dim()];
            for h in 0..s.value_heads {
                let key_head = match s.sharing {
                    HeadSharing::Grouped => h * s.key_heads / s.value_heads,
                    HeadSharing::Tiled => h % s.key_heads,
                };
                let normed = |from: usize| -> Vec<f64> {
                    let x = &token[from + key_head * kd..][..kd];
                    let sum: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
                    x.iter()
                        .map(|x| f64::from(*x) / (sum + 1e-6).sqrt())
                        .collect()
                };
                let (q, k) = (normed(0), normed(width));
                let a = f64::from(self.a[t * s.value_heads + h] + self.rule.dt_bias[h]);
                let decay = (f64::from(self.rule.rates[h]) * a.exp().ln_1p()).exp();
                let strength = 1.0 / (1.0 + (-f64::from(self.b[t * s.value_heads + h])).exp());
                let memory = &mut memory[h * kd * vd..][..kd * vd];
                memory.iter_mut().for_each(|x| *x *= decay);
                for c in 0..vd {
                    let v = f64::from(token[2 * width + h * vd + c]);
                    let read: f64 = (0..kd).map(|i| k[i] * memory[i * vd + c]).sum();
                    for i in 0..kd {
                        memory[i * vd + c] += k[i] * (v - read) * strength;
                    }
                    let y: f64 = (0..kd).map(|i| q[i] * memory[i * vd + c]).sum();
                    out.push(y / (kd as f64).sqrt());
                }
            }
        }
        out
    }

    fn assert_close(&self, got: &[f32], what: &str) {
        for (i, (got, want)) in got.iter().zip(self.oracle()).enumerate() {
            // F32 chains over keys and tokens of terms below 1.
            let error = (f64::from(*got) - want).abs();
            assert!(error < 3e-6, "{what}: element {i} is {got}, not {want}");
        }
    }
}

fn shape(key_heads: usize, value_heads: usize, key_dim: usize, value_dim: usize) -> DeltaShape {
    DeltaShape {
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        sharing: HeadSharing::Grouped,
    }
}

#[test]
fn equals_the_formula_whatever_the_chunks_level_and_threads() {
    let tiled = DeltaShape {
        sharing: HeadSharing::Tiled,
        ..shape(2, 6, 12, 20)
    };
    let cases = [
        Case::new(shape(1, 1, 1, 1), 5, 64),
        Case::new(shape(2, 4, 16, 16), 130, 64),
        Case::new(shape(3, 3, 24, 40), 33, 8),
        Case::new(tiled, 21, 1),
        Case::new(shape(1, 2, 40, 9), 70, 64),
        Case::new(shape(2, 4, 64, 72), 40, 16),
    ];
    for case in cases {
        let mut seen: Option<Vec<u32>> = None;
        for ctx in contexts() {
            for chunk in [case.length, 1, 3, 7, 64] {
                let got = case.run(&ctx, chunk);
                let seen = seen.get_or_insert_with(|| {
                    case.assert_close(&got, &format!("{:?}", case.rule.shape));
                    bits(&got)
                });
                assert_eq!(*seen, bits(&got), "chunk {chunk} {ctx:?}");
            }
        }
    }
}

#[test]
fn a_prompt_of_any_length_leaves_the_state_that_single_tokens_leave() {
    let ctx = contexts().pop().unwrap();
    for length in [1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 130] {
        let case = Case::new(shape(1, 2, 16, 16), length, 64);
        let (mut whole, mut single) = (case.states(1), case.states(1));
        let rows = |num_rows, from| StateRows {
            first_row: 0,
            num_rows,
            from,
            to: 0,
            saves: &[],
        };
        case.step(&ctx, &mut whole, 0, rows(length, None));
        for t in 0..length {
            case.step(&ctx, &mut single, t, rows(1, (t > 0).then_some(0)));
        }
        assert_eq!(bits(whole.slot(0)), bits(single.slot(0)), "{length}");
    }
}

#[test]
fn one_key_for_thousands_of_tokens_stays_finite_and_right() {
    // The hardest case of the form in chunks, where powers of the keys' products overflow: nothing decays, all is written.
    let mut case = Case::new(shape(1, 1, 16, 16), 5000, 64).with_one_key();
    case.rule.rates = vec![-1e-7];
    case.b.fill(8.0);
    for ctx in contexts().iter().take(2) {
        let got = case.run(ctx, 512);
        assert!(got.iter().all(|x| x.is_finite()));
        case.assert_close(&got, "one key");
    }
    // The same with strengths and decays of all sizes.
    let case = Case::new(shape(1, 2, 32, 16), 3000, 64).with_one_key();
    case.assert_close(&case.run(&contexts()[0], 512), "one key, mixed gates");
}

#[test]
fn sequences_of_a_batch_have_their_own_past_and_saved_states_continue_them() {
    let case = Case::new(shape(2, 4, 16, 24), 40, 8);
    let (dim, heads) = (case.rule.shape.qkv_dim(), 4);
    let twice = |values: &[f32], cols: usize, first: usize| {
        [&values[..first * cols], &values[..40 * cols]].concat()
    };
    for ctx in contexts() {
        let alone = case.run(&ctx, 40);
        let cols = alone.len() / 40;
        let mut states = case.states(6);
        states.values_mut().fill(f32::NAN);
        let rows = [
            StateRows {
                first_row: 0,
                num_rows: 3,
                from: None,
                to: 5,
                saves: &[],
            },
            StateRows {
                first_row: 3,
                num_rows: 40,
                from: None,
                to: 0,
                saves: &[(8, 2), (9, 1), (40, 3)],
            },
        ];
        let input = DeltaInput {
            qkv: &mut ctx.tensor(43, dim, &twice(&case.qkv, dim, 3)),
            a: &ctx.tensor(43, heads, &twice(&case.a, heads, 3)),
            b: &ctx.tensor(43, heads, &twice(&case.b, heads, 3)),
        };
        let y = delta_net(&ctx, &case.rule, input, &mut states, &rows);
        assert_eq!(bits(&y.as_slice()[..3 * cols]), bits(&alone[..3 * cols]));
        assert_eq!(bits(&y.as_slice()[3 * cols..]), bits(&alone));
        assert_eq!(bits(states.slot(0)), bits(states.slot(3)));
        for (from, to, behind) in [(2, 4, 8), (1, 1, 9), (5, 4, 3)] {
            let rows = StateRows {
                first_row: 0,
                num_rows: 40 - behind,
                from: Some(from),
                to,
                saves: &[],
            };
            let rest = case.step(&ctx, &mut states, behind, rows);
            assert_eq!(bits(&rest), bits(&alone[behind * cols..]), "from {from}");
        }
    }
}

#[test]
fn nan_in_a_value_stays_in_its_column_and_is_not_lost() {
    let mut case = Case::new(shape(1, 1, 8, 16), 4, 64);
    case.qkv[16 + 5] = f32::NAN;
    for ctx in contexts() {
        let y = case.run(&ctx, 4);
        for (i, y) in y.iter().enumerate() {
            assert_eq!(y.is_nan(), i % 16 == 5, "element {i}");
        }
    }
}

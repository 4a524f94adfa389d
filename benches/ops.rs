//! Every CPU operation by itself, on the shapes of its tests and on those of real models.
//!
//! ```text
//! cargo bench --bench ops -- qmatmul/Q4_K
//! ```
//!
//! Absolute times of a shared machine prove nothing: compare runs of one session, or use `scripts/bench-vs-llamacpp.sh`.

#![allow(
    missing_docs,
    reason = "the macros of criterion make functions without them"
)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use oxydllm::ops::attention::{AttentionOptions, SequenceRows, attention};
use oxydllm::ops::cases::{FLOAT_SHAPES, PACKED, PACKED_SHAPES, random_matrix};
use oxydllm::ops::delta_net::{DeltaInput, DeltaRule, DeltaShape, HeadSharing, delta_net};
use oxydllm::ops::elementwise::add_assign;
use oxydllm::ops::gated_act::{Activation, gated_act};
use oxydllm::ops::kv_write::{BLOCK_TOKENS, KvElement, PageShape, PageStore, kv_write};
use oxydllm::ops::matmul::matmul;
use oxydllm::ops::norm::rms_norm;
use oxydllm::ops::qmatmul::{QMatrix, qmatmul, quantize_rows};
use oxydllm::ops::rope::{Pairing, rope, rope_table};
use oxydllm::ops::short_conv::{ShortConv, short_conv};
use oxydllm::ops::states::{StateRows, States};
use oxydllm::ops::{Context, CpuLevel, Tensor};
use oxydllm::quant::Encoding;
use oxydllm::threads::{Pool, num_threads};

/// Shapes of a layer of a 1B model: rows of activations, output features, input features.
const LAYER_SHAPES: [(usize, usize, usize); 4] = [
    (1, 2048, 2048),
    (2, 2048, 2048),
    (8, 2048, 2048),
    (128, 2048, 2048),
];

fn context() -> Context {
    Context::cpu(Arc::new(Pool::new(num_threads(None))), CpuLevel::detect())
}

fn values(count: usize) -> Vec<f32> {
    (0..count)
        .map(|i| ((i * 7919) % 2003) as f32 / 1001.5 - 1.0)
        .collect()
}

fn tensor(ctx: &Context, rows: usize, cols: usize) -> Tensor {
    ctx.tensor(rows, cols, &values(rows * cols))
}

fn macs((m, n, k): (usize, usize, usize)) -> Throughput {
    Throughput::Elements((m * n * k) as u64)
}

fn name((m, n, k): (usize, usize, usize)) -> String {
    format!("{m}x{n}x{k}")
}

fn fork_join(c: &mut Criterion) {
    let ctx = context();
    let tasks = ctx.pool().num_threads();
    c.bench_function("fork_join", |b| {
        b.iter(|| {
            ctx.pool().run(tasks, |i| {
                black_box(i);
            })
        })
    });
}

fn packed(c: &mut Criterion) {
    let ctx = context();
    for encoding in PACKED {
        let mut group = c.benchmark_group(format!("qmatmul/{}", encoding.name()));
        for shape in PACKED_SHAPES.into_iter().chain(LAYER_SHAPES) {
            let (m, n, k) = shape;
            let raw = random_matrix(encoding, n, k, 1);
            let w = QMatrix::pack(&ctx, &raw).expect("a packed format");
            let x = quantize_rows(&ctx, &tensor(&ctx, m, k));
            group.throughput(macs(shape));
            group.bench_function(BenchmarkId::from_parameter(name(shape)), |b| {
                b.iter(|| qmatmul(&ctx, &x, &[&w]))
            });
        }
        group.finish();
        let raw = random_matrix(encoding, 2048, 2048, 1);
        let mut group = c.benchmark_group("pack");
        group.throughput(Throughput::Bytes(raw.bytes().len() as u64));
        group.bench_function(encoding.name(), |b| b.iter(|| QMatrix::pack(&ctx, &raw)));
        group.finish();
    }
    let x = tensor(&ctx, 128, 2048);
    c.bench_function("quantize_rows/128x2048", |b| {
        b.iter(|| quantize_rows(&ctx, &x))
    });
}

fn float(c: &mut Criterion) {
    let ctx = context();
    for encoding in [Encoding::F32, Encoding::F16, Encoding::BF16] {
        let mut group = c.benchmark_group(format!("matmul/{}", encoding.name()));
        for shape in FLOAT_SHAPES.into_iter().chain(LAYER_SHAPES) {
            let (m, n, k) = shape;
            let w = random_matrix(encoding, n, k, 1);
            let x = tensor(&ctx, m, k);
            group.throughput(macs(shape));
            group.bench_function(BenchmarkId::from_parameter(name(shape)), |b| {
                b.iter(|| matmul(&ctx, &x, &w))
            });
        }
        group.finish();
    }
}

/// (rows, position of the first, query heads per key/value head)
const ATTENTION: [(usize, usize, usize); 5] = [
    (1, 1023, 1),
    (1, 1023, 4),
    (1, 4095, 2),
    (128, 0, 4),
    (128, 1024, 4),
];

fn over_pages(c: &mut Criterion) {
    let ctx = context();
    let shape = PageShape {
        element: KvElement::F16,
        kv_heads: 8,
        key_dim: 64,
        value_dim: 64,
    };
    let mut group = c.benchmark_group("attention");
    for (rows, first_position, per_head) in ATTENTION {
        let blocks = (first_position + rows).div_ceil(BLOCK_TOKENS);
        let pages = PageStore::new(&[shape], blocks);
        let block_table: Vec<u32> = (0..blocks as u32).collect();
        let q = tensor(&ctx, rows, shape.kv_heads * per_head * shape.key_dim);
        let sequence = SequenceRows {
            first_row: 0,
            num_rows: rows,
            first_position,
            block_table: &block_table,
        };
        let options = AttentionOptions {
            scale: 0.125,
            ..AttentionOptions::default()
        };
        let name = format!("{rows} behind {first_position}, {per_head} heads each");
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter(|| attention(&ctx, &q, pages.pages(0), &[sequence], &options))
        });
    }
    group.finish();
    let mut pages = PageStore::new(&[shape], 8);
    let k = tensor(&ctx, 128, shape.kv_heads * shape.key_dim);
    let slots: Vec<usize> = (0..128).collect();
    c.bench_function("kv_write/128 tokens", |b| {
        b.iter(|| kv_write(&ctx, pages.pages_mut(0), &k, &k, &slots))
    });
}

fn by_row(c: &mut Criterion) {
    let ctx = context();
    let weight = values(2048);
    for rows in [1, 128] {
        let x = tensor(&ctx, rows, 2048);
        let mut y = tensor(&ctx, rows, 2048);
        c.bench_function(&format!("rms_norm/{rows}x2048"), |b| {
            b.iter(|| rms_norm(&ctx, &x, &weight, 1e-5))
        });
        c.bench_function(&format!("add_assign/{rows}x2048"), |b| {
            b.iter(|| add_assign(&ctx, &mut y, &x))
        });
        c.bench_function(&format!("silu/{rows}x2048"), |b| {
            b.iter(|| gated_act(&ctx, Activation::Silu, &mut y, &x))
        });
        let positions: Vec<u32> = (0..rows as u32).collect();
        let table = rope_table(&ctx, &positions, &values(32), 1.0);
        c.bench_function(&format!("rope/{rows}x2048"), |b| {
            b.iter(|| rope(&ctx, &mut y, 64, Pairing::HalfSplit, &table))
        });
    }
}

/// The recurrent layers of Qwen3.5 9B: a single token, and a chunk of a prompt.
fn recurrent(c: &mut Criterion) {
    let ctx = context();
    let shape = DeltaShape {
        key_heads: 16,
        value_heads: 32,
        key_dim: 128,
        value_dim: 128,
        sharing: HeadSharing::Grouped,
    };
    let width = shape.qkv_dim();
    let conv = ShortConv::new(&values(width * 4), width, None, true);
    let rule = DeltaRule::new(shape, vec![-0.5; 32], values(32), DeltaRule::CHUNK);
    let mut past = States::new(ShortConv::state_len(width, 4), 1);
    let mut memory = States::new(shape.state_len(), 1);
    for num_rows in [1, 64] {
        let rows = StateRows {
            first_row: 0,
            num_rows,
            from: Some(0),
            to: 0,
            saves: &[],
        };
        let x = tensor(&ctx, num_rows, width);
        let (a, b) = (tensor(&ctx, num_rows, 32), tensor(&ctx, num_rows, 32));
        c.bench_function(&format!("short_conv/{num_rows}x{width}"), |bench| {
            bench.iter(|| short_conv(&ctx, &conv, &x, &mut past, &[rows]))
        });
        let mut qkv = tensor(&ctx, num_rows, width);
        c.bench_function(&format!("delta_net/{num_rows} tokens"), |bench| {
            bench.iter(|| {
                let input = DeltaInput {
                    qkv: &mut qkv,
                    a: &a,
                    b: &b,
                };
                delta_net(&ctx, &rule, input, &mut memory, &[rows])
            })
        });
    }
}

criterion_group! {
    name = ops;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800));
    targets = fork_join, packed, float, over_pages, by_row, recurrent
}
criterion_main!(ops);

//! The numerical contract on every fixture, and that each of its clauses is really watched.

use std::cell::Cell;
use std::sync::Arc;

use oxydllm::engine::contract::{Finding, Reference, Subject, built_in_prompts, check};
use oxydllm::error::Result;
use oxydllm::kv::KvCache;
use oxydllm::model::{Batch, LoadOptions, ModelConfig, Transformer, load};
use oxydllm::ops::{Context, CpuLevel, Tensor};
use oxydllm::threads::Pool;

use crate::models::{Expected, fixtures};

fn context(threads: usize, level: CpuLevel) -> Context {
    Context::cpu(Arc::new(Pool::new(threads)), level)
}

fn assert_nothing_moved(what: &str, finding: &Finding) {
    assert!(finding.moved.is_empty(), "{what}: {finding:?}");
    assert!(finding.compared > 0, "{what}: nothing was compared");
}

#[test]
fn every_checkpoint_keeps_the_contract() {
    let ctx = context(2, CpuLevel::detect());
    for folder in fixtures() {
        let expected = Expected::read(&folder);
        let name = folder.display().to_string();
        let model = |ctx: &Context| {
            load(ctx, &expected.model, LoadOptions::default())
                .unwrap()
                .transformer
        };
        let plain = model(&ctx);
        let config = plain.config();
        let prompts = built_in_prompts(config.vocab_size, config.max_context);
        let reference = Reference::compute(&plain, &ctx, &prompts).unwrap();
        let mut clauses = 0;
        check(&plain, &ctx, &reference, |finding| {
            assert_nothing_moved(&name, &finding);
            clauses += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(clauses, 12);
        for threads in [1, 5] {
            let ctx = context(threads, CpuLevel::detect());
            let finding = reference.repeat(&plain, &ctx, format!("{threads} threads"));
            assert_nothing_moved(&name, &finding.unwrap());
        }
        for level in CpuLevel::available() {
            let ctx = context(2, level);
            let short = reference.shortened(24);
            let finding = short.repeat(&model(&ctx), &ctx, format!("{level}"));
            assert_nothing_moved(&name, &finding.unwrap());
        }
    }
}

/// A model with one fault: a last bit moves under one condition.
struct Sabotaged<F> {
    inner: Transformer,
    /// Whether the fault shows in this batch.
    fault: F,
}

impl<F: Fn(&Context, &Batch) -> bool> Subject for Sabotaged<F> {
    fn config(&self) -> &ModelConfig {
        self.inner.config()
    }

    fn forward(&self, ctx: &Context, batch: &Batch, kv: &mut KvCache) -> Result<Tensor> {
        let mut logits = self.inner.forward(ctx, batch, kv)?;
        if (self.fault)(ctx, batch) {
            for row in logits.as_mut_slice().chunks_mut(self.config().vocab_size) {
                row[3] = f32::from_bits(row[3].to_bits() ^ 1);
            }
        }
        Ok(logits)
    }
}

/// The conditions under which a fault is seen.
fn caught(fault: impl Fn(&Context, &Batch) -> bool) -> Vec<String> {
    let ctx = context(2, CpuLevel::detect());
    let folder = fixtures()
        .into_iter()
        .find(|folder| folder.ends_with("packed_q4_k"))
        .unwrap();
    let inner = load(&ctx, &Expected::read(&folder).model, LoadOptions::default())
        .unwrap()
        .transformer;
    let prompts = built_in_prompts(inner.config().vocab_size, inner.config().max_context);
    let reference = Reference::compute(&inner, &ctx, &prompts).unwrap();
    let subject = Sabotaged { inner, fault };
    let mut caught = Vec::new();
    let mut note = |finding: Finding| {
        if !finding.moved.is_empty() {
            caught.push(finding.condition);
        }
        Ok(())
    };
    check(&subject, &ctx, &reference, &mut note).unwrap();
    for threads in [1, 5] {
        let ctx = context(threads, CpuLevel::detect());
        let condition = format!("with {threads} threads");
        note(reference.repeat(&subject, &ctx, condition).unwrap()).unwrap();
    }
    let ctx = context(2, CpuLevel::Scalar);
    let short = reference.shortened(24);
    note(
        short
            .repeat(&subject, &ctx, "on the scalar path".to_owned())
            .unwrap(),
    )
    .unwrap();
    caught
}

#[test]
fn a_fault_under_each_condition_is_caught_by_its_clause() {
    assert_eq!(caught(|_, _| false), [""; 0]);
    // Nine sequences and more share a step only beside eight others and more.
    let company = caught(|_, batch| batch.sequences.len() >= 9);
    assert_eq!(company, ["beside 8 others", "beside 31 others"]);
    let pair = caught(|_, batch| batch.sequences.len() >= 2);
    assert!(pair.contains(&"beside 1 other".to_owned()), "{pair:?}");
    let first = |batch: &Batch| batch.sequences[0].clone();
    let chunk =
        caught(|_, batch| first(batch).tokens.len() == 7 && first(batch).first_position == 7);
    assert_eq!(chunk, ["in chunks of 7"]);
    let one = caught(|_, batch| first(batch).tokens.len() == 1 && first(batch).first_position == 1);
    assert!(one.contains(&"one token at a time".to_owned()), "{one:?}");
    let scattered = caught(|_, batch| {
        let table = first(batch).block_table;
        table.windows(2).any(|pair| pair[1] > pair[0] + 3) && batch.sequences.len() == 1
    });
    assert!(
        scattered.contains(&"in shuffled blocks".to_owned()),
        "{scattered:?}"
    );
    // A prompt whose beginning is cached starts behind it, with more than one token to go.
    let cached = caught(|_, batch| {
        let first = first(batch);
        first.first_position == 144 && first.tokens.len() == 13
    });
    assert_eq!(cached, ["prompt cached"]);
    let half = caught(|_, batch| {
        let first = first(batch);
        first.first_position == 64 && first.tokens.len() == 93
    });
    assert_eq!(half, ["half of the prompt cached"]);
    assert_eq!(
        caught(|ctx, _| ctx.pool().num_threads() == 5),
        ["with 5 threads"]
    );
    assert_eq!(
        caught(|ctx, _| ctx.level() == CpuLevel::Scalar),
        ["on the scalar path"]
    );
}

#[test]
fn a_fault_after_a_preemption_is_caught() {
    // The step that computes a sequence again has its prompt and a part of its answer: between 1 and 24 tokens more.
    let fired = Cell::new(0);
    let again = caught(|_, batch| {
        let is_again = batch
            .sequences
            .iter()
            .any(|s| (s.first_position + s.tokens.len()) > 158 && s.tokens.len() > 1);
        fired.set(fired.get() + usize::from(is_again));
        is_again
    });
    assert_eq!(again, ["after a preemption"]);
    assert!(fired.get() > 0);
}

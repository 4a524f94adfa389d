//! `bench`: prompt processing and generation speed on random tokens, medians over repeats.
//!
//! Model load is not in the timings, nothing is cached between repeats, and only the logits that a real run would need
//! are computed.

mod report;

use std::process::ExitCode;
use std::time::Instant;

use super::Printer;
use super::args::BenchArgs;
use super::load::{context, load_generator, locate};
use crate::error::{Error, Result};
use crate::kv::{BLOCK_TOKENS, KvCache, StateUse};
use crate::memory;
use crate::model::plan::CHUNK_TOKENS;
use crate::model::{Batch, LoadOptions, ModelConfig, Sequence, Transformer};
use crate::ops::Context;
use crate::ops::ceilings::Ceilings;
use crate::store::Located;
use report::{Costs, ModelReport, Report};

/// Runs the command.
///
/// # Errors
/// Those of loading; `Invalid` when there is nothing to measure, `ContextLength` when the model's context does not hold it,
/// `Unsupported` for a model that does not generate text.
pub fn execute(args: &BenchArgs, printer: &Printer) -> Result<ExitCode> {
    if args.prompt_tokens == 0 && args.gen_tokens == 0 && !args.ceilings {
        return Err(Error::invalid(
            "nothing to measure: `-p` and `-n` are both 0",
        ));
    }
    let located = match &args.model {
        Some(model) => Some(locate(&args.models_dir, model, printer)?),
        None => None,
    };
    let ctx = context(&args.device, &args.threads, |text| printer.warn(text))?;
    let model = match &located {
        Some(located) => Some(measure(args, &ctx, located)?),
        None => None,
    };
    let report = Report {
        threads: ctx.pool().num_threads(),
        level: ctx.level(),
        // Last: what it allocates is not the model's peak.
        ceilings: Ceilings::measure(&ctx),
        model,
    };
    report.print(args, printer)?;
    Ok(ExitCode::SUCCESS)
}

fn measure(args: &BenchArgs, ctx: &Context, located: &Located) -> Result<ModelReport> {
    let begin = Instant::now();
    let other_kind = "`bench` measures models that generate text";
    let check = |config: &ModelConfig| check_lengths(args, config);
    let model = load_generator(ctx, located, LoadOptions::default(), other_kind, check)?;
    let load_s = begin.elapsed().as_secs_f64();
    let bench = Bench {
        args,
        ctx,
        transformer: &model.transformer,
    };
    let prefill = match args.prompt_tokens {
        0 => None,
        _ => Some(bench.prefill()?),
    };
    let mut decode = Vec::new();
    if args.gen_tokens > 0 {
        for batch in &args.batch {
            decode.push((batch.get(), bench.decode(batch.get())?));
        }
    }
    Ok(ModelReport {
        name: located.name(),
        load_s,
        prefill_tok_s: prefill.map(|(rate, _)| rate),
        ttft_ms: prefill.map(|(_, ttft)| ttft),
        decode,
        peak_rss_bytes: memory::peak().unwrap_or(0),
        costs: Costs::of(&model.transformer),
    })
}

/// Refuses what the model's context does not hold.
fn check_lengths(args: &BenchArgs, config: &ModelConfig) -> Result<()> {
    let (prompt, depth, more) = (args.prompt_tokens, args.depth, args.gen_tokens);
    config
        .check_context("the prompt test", prompt)
        .map_err(|e| e.with_hint("give a smaller `-p`, or `-p 0` for generation alone"))?;
    if more == 0 {
        return Ok(());
    }
    let what = format!("generating {more} tokens behind {}", depth.max(1));
    config
        .check_context(what, depth.max(1) + more)
        .map_err(|e| {
            e.with_hint("give a smaller `-n` or `-d`, or `-n 0` for the prompt test alone")
        })
}

struct Bench<'a> {
    args: &'a BenchArgs,
    ctx: &'a Context,
    transformer: &'a Transformer,
}

impl Bench<'_> {
    /// Tokens per second, and milliseconds to the first token.
    fn prefill(&self) -> Result<(f64, f64)> {
        let tokens = self.tokens(1, self.args.prompt_tokens);
        let (mut rates, mut firsts) = (Vec::new(), Vec::new());
        for repeat in 0..=self.args.repeat.get() {
            let mut run = Run::new(self, 1, tokens.len(), 0);
            let begin = Instant::now();
            let logits = run.prefill(&[&tokens])?;
            let seconds = begin.elapsed().as_secs_f64();
            let best = logits
                .as_slice()
                .iter()
                .copied()
                .fold(f32::NEG_INFINITY, f32::max);
            let first = begin.elapsed().as_secs_f64();
            if best.is_nan() {
                return Err(Error::internal("the logits hold NaN"));
            }
            // The first pass warms caches and buffers up.
            if repeat > 0 {
                rates.push(tokens.len() as f64 / seconds);
                firsts.push(first * 1e3);
            }
        }
        Ok((median(rates), median(firsts)))
    }

    /// Tokens per second of all sequences together.
    fn decode(&self, batch: usize) -> Result<f64> {
        let (depth, steps) = (self.args.depth, self.args.gen_tokens);
        let prompts: Vec<Vec<u32>> = (0..batch)
            .map(|i| self.tokens(2 + i as u64, depth.max(1) + steps + 1))
            .collect();
        let mut rates = Vec::new();
        for repeat in 0..=self.args.repeat.get() {
            // The context is filled once, and its end written again by every repeat.
            let mut run = Run::new(self, batch, depth.max(1), steps + 1);
            run.prefill(
                &prompts
                    .iter()
                    .map(|p| &p[..depth.max(1)])
                    .collect::<Vec<_>>(),
            )?;
            let begin = Instant::now();
            for step in 0..steps {
                let at = depth.max(1) + step;
                run.step(&prompts.iter().map(|p| &p[at..=at]).collect::<Vec<_>>(), 1)?;
            }
            if repeat > 0 {
                rates.push((batch * steps) as f64 / begin.elapsed().as_secs_f64());
            }
        }
        Ok(median(rates))
    }

    /// Pseudo-random ids, the same in every run.
    fn tokens(&self, seed: u64, count: usize) -> Vec<u32> {
        let vocab = self.transformer.config().vocab_size as u64;
        let mut state = seed;
        (0..count)
            .map(|_| {
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mut z = state;
                z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                ((z ^ (z >> 31)) % vocab) as u32
            })
            .collect()
    }
}

/// Sequences in a cache of their own.
struct Run<'a> {
    ctx: &'a Context,
    transformer: &'a Transformer,
    kv: KvCache,
    tables: Vec<Vec<u32>>,
    length: usize,
    is_long: bool,
}

impl<'a> Run<'a> {
    /// For `batch` prompts of `prompt_len` tokens and as many more as `more`.
    fn new(bench: &Bench<'a>, batch: usize, prompt_len: usize, more: usize) -> Self {
        let per = (prompt_len + more).div_ceil(BLOCK_TOKENS) as u32;
        let shape = bench.transformer.config().cache_shape();
        let kv = KvCache::new(&shape, batch * per as usize, batch);
        let tables = (0..batch as u32)
            .map(|i| (i * per..(i + 1) * per).collect())
            .collect();
        Self {
            ctx: bench.ctx,
            transformer: bench.transformer,
            kv,
            tables,
            length: 0,
            is_long: bench.transformer.config().is_long(prompt_len),
        }
    }

    fn prefill(&mut self, prompts: &[&[u32]]) -> Result<crate::ops::Tensor> {
        let mut logits = self.ctx.uninit(0, 0);
        let total = prompts[0].len();
        for first in (0..total).step_by(CHUNK_TOKENS) {
            let end = total.min(first + CHUNK_TOKENS);
            let parts: Vec<&[u32]> = prompts.iter().map(|p| &p[first..end]).collect();
            logits = self.step(&parts, usize::from(end == total))?;
        }
        Ok(logits)
    }

    fn step(&mut self, tokens: &[&[u32]], num_logits: usize) -> Result<crate::ops::Tensor> {
        let sequences = tokens
            .iter()
            .zip(&self.tables)
            .zip(0..)
            .map(|((tokens, table), slot)| Sequence {
                tokens: tokens.to_vec(),
                first_position: self.length,
                block_table: table.clone(),
                state: StateUse::own(slot, self.length),
                num_logits,
                is_long: self.is_long,
            })
            .collect();
        self.length += tokens[0].len();
        self.transformer
            .forward(self.ctx, &Batch { sequences }, &mut self.kv)
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) {
        (values[middle - 1] + values[middle]) / 2.0
    } else {
        values[middle]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_the_two() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}

//! `eval`: perplexity, logits and greedy tokens, to compare with a reference; and the numerical contract.

mod contract;
mod embedding;

use std::collections::HashMap;
use std::path::Path;
use std::process::ExitCode;

use safetensors::tensor::{Dtype, TensorView};
use serde::Deserialize;
use serde_json::json;

use super::Printer;
use super::args::EvalArgs;
use super::load::{context, load_generator, locate};
use crate::error::{Error, Result};
use crate::host::TextParts;
use crate::kv::{BLOCK_TOKENS, KvCache, StateUse};
use crate::model::plan::CHUNK_TOKENS;
use crate::model::{
    Batch, LoadOptions, LoadedModel, ModelConfig, ModelKind, Sequence, Transformer,
};
use crate::nn::WeightPath;
use crate::ops::Context;
use crate::text::Specials;

/// Tokens of one perplexity chunk, as llama.cpp's default.
const PERPLEXITY_CHUNK: usize = 512;

/// `--tokens FILE.json`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Prompts {
    prompts: Vec<Vec<u32>>,
}

/// Runs the command.
///
/// # Errors
/// Those of loading; `Invalid` for inputs that are not what they should be, `ContextLength` for those that the model's context does
/// not hold.
pub fn execute(args: &EvalArgs, printer: &Printer) -> Result<ExitCode> {
    check(args)?;
    let located = locate(&args.models_dir, &args.model, printer)?;
    let path = if args.reference {
        WeightPath::Reference
    } else {
        WeightPath::Fast
    };
    let prompts = match &args.tokens {
        Some(file) => Some(read_prompts(file)?),
        None => None,
    };
    if args.contract {
        if ModelKind::of_folder(&located.path) != ModelKind::Chat {
            let ctx = context(&args.device, &args.threads, |text| printer.warn(text))?;
            return embedding::contract(&ctx, &located, path, prompts, printer);
        }
        return contract::execute(args, &located, path, prompts, printer);
    }
    let ctx = context(&args.device, &args.threads, |text| printer.warn(text))?;
    if let Some(file) = &args.inputs {
        return embedding::execute(&ctx, &located, path, file, printer);
    }
    let other_kind = "give `--inputs FILE.json` or `--contract`";
    let check = |config: &ModelConfig| check_lengths(args, prompts.as_deref(), config);
    let model = load_generator(&ctx, &located, LoadOptions { path }, other_kind, check)?;
    if let Some(file) = &args.text {
        perplexity(&ctx, &model, &located.path, file, printer)?;
    }
    if let Some(prompts) = &prompts {
        tokens(args, &ctx, &model.transformer, prompts, printer)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn check(args: &EvalArgs) -> Result<()> {
    if args.contract || args.inputs.is_some() {
        return Ok(());
    }
    if args.text.is_none() && args.tokens.is_none() {
        return Err(Error::invalid(
            "nothing to evaluate: give `--text FILE`, `--tokens FILE.json`, `--inputs FILE.json` or `--contract`",
        ));
    }
    if args.tokens.is_none() && (args.logits.is_some() || args.greedy.is_some()) {
        return Err(Error::invalid(
            "`--logits` and `--greedy` need `--tokens FILE.json`",
        ));
    }
    if args.tokens.is_some() && args.logits.is_none() && args.greedy.is_none() {
        return Err(Error::invalid(
            "`--tokens` needs `--logits OUT.safetensors` or `--greedy N`, or both",
        ));
    }
    Ok(())
}

/// Refuses what the model's context does not hold: its numbers there would mean nothing.
fn check_lengths(
    args: &EvalArgs,
    prompts: Option<&[Vec<u32>]>,
    config: &ModelConfig,
) -> Result<()> {
    if args.text.is_some() {
        config
            .check_context("a chunk of the text", PERPLEXITY_CHUNK)
            .map_err(|e| e.with_hint("compare logits instead: `--tokens` with `--logits`"))?;
    }
    let more = args.greedy.map_or(0, |n| n.get());
    for (index, prompt) in prompts.unwrap_or_default().iter().enumerate() {
        let length = prompt.len();
        let what = match more {
            0 => format!("prompt {index}"),
            _ => format!("prompt {index}, of {length} tokens, with {more} behind it"),
        };
        config.check_context(what, length + more).map_err(|e| {
            e.with_hint(if length <= config.max_context {
                "give a smaller `--greedy`, or a shorter prompt"
            } else {
                "give a shorter prompt"
            })
        })?;
    }
    Ok(())
}

/// One sequence in a cache of its own.
struct Run<'a> {
    ctx: &'a Context,
    transformer: &'a Transformer,
    kv: KvCache,
    block_table: Vec<u32>,
    length: usize,
    is_long: bool,
}

impl<'a> Run<'a> {
    /// For a prompt of `prompt_len` tokens and as many more as `more`.
    fn new(ctx: &'a Context, transformer: &'a Transformer, prompt_len: usize, more: usize) -> Self {
        let blocks = (prompt_len + more).div_ceil(BLOCK_TOKENS);
        let kv = KvCache::new(&transformer.config().cache_shape(), blocks, 1);
        Self {
            ctx,
            transformer,
            kv,
            block_table: (0..blocks as u32).collect(),
            length: 0,
            is_long: transformer.config().is_long(prompt_len),
        }
    }

    /// Logits of the last `num_logits` of `tokens`, `[num_logits, vocab]`.
    fn forward(&mut self, tokens: &[u32], num_logits: usize) -> Result<crate::ops::Tensor> {
        let sequence = Sequence {
            tokens: tokens.to_vec(),
            first_position: self.length,
            block_table: self.block_table.clone(),
            state: StateUse::own(0, self.length),
            num_logits,
            is_long: self.is_long,
        };
        self.length += tokens.len();
        self.transformer.forward(
            self.ctx,
            &Batch {
                sequences: vec![sequence],
            },
            &mut self.kv,
        )
    }
}

fn tokens(
    args: &EvalArgs,
    ctx: &Context,
    transformer: &Transformer,
    prompts: &[Vec<u32>],
    printer: &Printer,
) -> Result<()> {
    let mut outputs = Vec::new();
    let mut greedy = Vec::new();
    for prompt in prompts {
        let count = args.greedy.map_or(0, |n| n.get());
        let mut run = Run::new(ctx, transformer, prompt.len(), count);
        // The forward itself is chunked only by its caller; logits of all positions come chunk by chunk.
        let mut logits = Vec::new();
        for chunk in prompt.chunks(CHUNK_TOKENS) {
            logits.extend_from_slice(run.forward(chunk, chunk.len())?.as_slice());
        }
        let vocab = transformer.config().vocab_size;
        if count > 0 {
            let first = argmax(&logits[logits.len() - vocab..])?;
            greedy.push(json!({ "tokens": continue_greedily(&mut run, first, count)? }));
        }
        outputs.push(logits);
    }
    if let Some(path) = &args.logits {
        write_logits(path, &outputs, transformer.config().vocab_size)?;
    }
    if args.greedy.is_some() {
        printer.data(json!({ "prompts": greedy }))?;
    }
    Ok(())
}

/// The prompts of a `--tokens` file: one at least, each with a token at least.
fn read_prompts(file: &Path) -> Result<Vec<Vec<u32>>> {
    let text = std::fs::read(file).map_err(|e| Error::io("read", file, e))?;
    let name = file.display();
    let input: Prompts = serde_json::from_slice(&text).map_err(|e| {
        Error::invalid(format!("`{name}` is not `{{\"prompts\": [[ids…],…]}}`")).with_source(e)
    })?;
    if input.prompts.is_empty() {
        return Err(nothing_in(file, "prompts"));
    }
    if let Some(index) = input.prompts.iter().position(Vec::is_empty) {
        return Err(Error::invalid(format!(
            "prompt {index} in `{name}` has no tokens"
        )));
    }
    Ok(input.prompts)
}

/// An empty list of inputs: nothing would be computed, and success would say otherwise.
fn nothing_in(file: &Path, list: &str) -> Error {
    let name = file.display();
    Error::invalid(format!(
        "`{list}` in `{name}` is empty: there is nothing to evaluate"
    ))
    .with_hint("give one of them at least")
}

fn continue_greedily(run: &mut Run<'_>, first: u32, count: usize) -> Result<Vec<u32>> {
    let mut tokens = vec![first];
    while tokens.len() < count {
        let logits = run.forward(&tokens[tokens.len() - 1..], 1)?;
        tokens.push(argmax(logits.as_slice())?);
    }
    Ok(tokens)
}

/// The lowest id with the largest logit.
fn argmax(row: &[f32]) -> Result<u32> {
    if row.iter().any(|x| x.is_nan()) {
        return Err(Error::internal("the logits hold NaN"));
    }
    let mut best = 0;
    for (id, x) in row.iter().enumerate() {
        if *x > row[best] {
            best = id;
        }
    }
    Ok(best as u32)
}

fn write_logits(path: &Path, outputs: &[Vec<f32>], vocab: usize) -> Result<()> {
    let bytes: Vec<Vec<u8>> = outputs
        .iter()
        .map(|x| x.iter().flat_map(|v| v.to_le_bytes()).collect())
        .collect();
    let mut views = Vec::new();
    for (index, bytes) in bytes.iter().enumerate() {
        let shape = vec![bytes.len() / 4 / vocab, vocab];
        let view = TensorView::new(Dtype::F32, shape, bytes).map_err(|e| {
            Error::internal(format!("cannot describe `logits.{index}`")).with_source(e)
        })?;
        views.push((format!("logits.{index}"), view));
    }
    safetensors::serialize_to_file(views, None::<HashMap<String, String>>, path)
        .map_err(|e| Error::invalid(format!("cannot write `{}`", path.display())).with_source(e))
}

/// Perplexity as llama.cpp defines it: chunks of 512 tokens, each evaluated on its own with its first token replaced by
/// the beginning-of-text token where the model wants one, scored in its second half.
fn perplexity(
    ctx: &Context,
    model: &LoadedModel,
    path: &Path,
    file: &Path,
    printer: &Printer,
) -> Result<()> {
    let transformer = &model.transformer;
    let tokenizer = TextParts::read(&model.weights, path, transformer.config())?.tokenizer;
    let bytes = std::fs::read(file).map_err(|e| Error::io("read", file, e))?;
    let text = String::from_utf8(bytes).map_err(|e| {
        Error::invalid(format!("`{}` is not UTF-8 text", file.display())).with_source(e)
    })?;
    let tokens = tokenizer.encode_framed(&text, Specials::Parse)?;
    let num_chunks = tokens.len() / PERPLEXITY_CHUNK;
    if num_chunks == 0 {
        let (name, found) = (file.display(), tokens.len());
        return Err(Error::invalid(format!(
            "`{name}` has {found} tokens, at least {PERPLEXITY_CHUNK} are needed"
        )));
    }
    let (mut sum, mut squares, mut scored) = (0.0_f64, 0.0_f64, 0_usize);
    for chunk in tokens.chunks_exact(PERPLEXITY_CHUNK) {
        let mut input = chunk.to_vec();
        if tokenizer.adds_bos()
            && let Some(bos) = tokenizer.bos()
        {
            input[0] = bos;
        }
        let first = PERPLEXITY_CHUNK / 2;
        let mut run = Run::new(ctx, transformer, PERPLEXITY_CHUNK, 0);
        let logits = run.forward(&input, PERPLEXITY_CHUNK - first)?;
        for (row, position) in (first..PERPLEXITY_CHUNK - 1).enumerate() {
            let loss = negative_log_likelihood(logits.row(row), chunk[position + 1]);
            (sum, squares, scored) = (sum + loss, squares + loss * loss, scored + 1);
        }
    }
    let mean = sum / scored as f64;
    let deviation =
        ((squares / scored as f64 - mean * mean).max(0.0) / (scored as f64 - 1.0).max(1.0)).sqrt();
    let value = mean.exp();
    printer.data(format_args!(
        "perplexity {value:.4} +/- {:.4} over {num_chunks} chunks of {PERPLEXITY_CHUNK} tokens",
        deviation * value
    ))
}

fn negative_log_likelihood(logits: &[f32], token: u32) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
    sum.ln() - f64::from(logits[token as usize] - max)
}

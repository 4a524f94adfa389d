//! `eval --inputs`: vectors of texts, or scores of pairs; and the contract of the models that make them.

use std::path::Path;
use std::process::ExitCode;

use serde::Deserialize;
use serde_json::json;

use super::contract::{SCALAR_TOKENS, THREADS, Tally, with_threads};
use super::nothing_in;
use crate::cli::Printer;
use crate::engine::embed::check_texts;
use crate::engine::embed::contract::{Reference, built_in_texts};
use crate::error::{Error, Result};
use crate::host::{EmbeddingText, wrong_kind};
use crate::memory;
use crate::model::ModelKind;
use crate::model::embedder::{Embedder, EmbedderSource, STEP_TOKENS};
use crate::model::encoder::TextTokens;
use crate::nn::WeightPath;
use crate::ops::{Context, CpuLevel};
use crate::store::Located;

/// `--inputs FILE.json`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
enum Inputs {
    /// Texts to make vectors of.
    Inputs(Vec<String>),
    /// Queries with documents to score.
    Pairs(Vec<[String; 2]>),
}

/// Computes the inputs in `file` and prints what came of them as JSON.
///
/// # Errors
/// Those of loading; `Invalid` for inputs that are not what they should be, `ContextLength` for a text that is too long,
/// `Unsupported` for a model of another kind.
pub(super) fn execute(
    ctx: &Context,
    located: &Located,
    path: WeightPath,
    file: &Path,
    printer: &Printer,
) -> Result<ExitCode> {
    let inputs = read_inputs(file)?;
    let wanted = match inputs {
        Inputs::Inputs(_) => ModelKind::Embedding,
        Inputs::Pairs(_) => ModelKind::Reranker,
    };
    let found = ModelKind::of_folder(&located.path);
    if found != wanted {
        return Err(wrong_kind(found, wanted).context(format!("cannot use `{}`", located.name())));
    }
    let cannot_load = |error: Error| error.context(format!("cannot load `{}`", located.name()));
    let mut embedder = load(ctx, &located.path, path).map_err(cannot_load)?;
    let text = EmbeddingText::read(&located.path).map_err(cannot_load)?;
    let texts: Vec<TextTokens> = match &inputs {
        Inputs::Inputs(texts) => {
            let prompt = text.prompt(None)?;
            let tokens = texts.iter().map(|input| text.tokens(input, prompt));
            tokens.collect::<Result<_>>()?
        }
        Inputs::Pairs(pairs) => {
            let tokens = pairs
                .iter()
                .map(|[query, document]| text.pair(query, document));
            tokens.collect::<Result<_>>()?
        }
    };
    check_texts(&texts, embedder.vocab_size(), embedder.max_tokens())?;
    let outputs = compute(&mut embedder, ctx, &texts)?;
    match wanted {
        ModelKind::Reranker => {
            let scores: Vec<f32> = outputs.into_iter().flatten().collect();
            printer.data(json!({ "scores": scores }))?;
        }
        ModelKind::Chat | ModelKind::Embedding => printer.data(json!({ "vectors": outputs }))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn read_inputs(file: &Path) -> Result<Inputs> {
    let text = std::fs::read(file).map_err(|e| Error::io("read", file, e))?;
    let inputs = serde_json::from_slice(&text).map_err(|e| {
        let name = file.display();
        Error::invalid(format!(
            "`{name}` is neither `{{\"inputs\": [text,…]}}` nor `{{\"pairs\": [[query, document],…]}}`"
        ))
        .with_source(e)
    })?;
    match &inputs {
        Inputs::Inputs(texts) if texts.is_empty() => Err(nothing_in(file, "inputs")),
        Inputs::Pairs(pairs) if pairs.is_empty() => Err(nothing_in(file, "pairs")),
        _ => Ok(inputs),
    }
}

fn load(ctx: &Context, path: &Path, weights: WeightPath) -> Result<Embedder> {
    let source = EmbedderSource::open(path)?;
    let available = memory::capacity().and_then(|bytes| usize::try_from(bytes).ok());
    let available = available.unwrap_or(usize::MAX / 2);
    let plan = source.plan(source.weight_bytes(weights)?, None, available)?;
    source.load(ctx, &plan, weights)
}

/// In steps of many short texts, as a server computes them.
fn compute(embedder: &mut Embedder, ctx: &Context, texts: &[TextTokens]) -> Result<Vec<Vec<f32>>> {
    let mut outputs = Vec::with_capacity(texts.len());
    while outputs.len() < texts.len() {
        let mut tokens = 0;
        let fitting = texts[outputs.len()..].iter().take_while(|text| {
            tokens += text.ids.len();
            tokens <= STEP_TOKENS
        });
        let step: Vec<&TextTokens> = fitting.collect();
        let step = if step.is_empty() {
            vec![&texts[outputs.len()]]
        } else {
            step
        };
        let first = outputs.len();
        let computed = embedder.compute(ctx, &step);
        outputs.extend(
            computed
                .map_err(|error| error.context(format!("in the step from input {first} on")))?,
        );
    }
    Ok(outputs)
}

/// `eval --contract` for a model that makes vectors or scores.
///
/// # Errors
/// Those of loading and computing.
pub(super) fn contract(
    ctx: &Context,
    located: &Located,
    path: WeightPath,
    prompts: Option<Vec<Vec<u32>>>,
    printer: &Printer,
) -> Result<ExitCode> {
    let load = |ctx: &Context| {
        load(ctx, &located.path, path)
            .map_err(|error| error.context(format!("cannot load `{}`", located.name())))
    };
    let mut model = load(ctx)?;
    let texts: Vec<TextTokens> = match prompts {
        Some(prompts) => prompts.into_iter().map(TextTokens::of_ids).collect(),
        None => built_in_texts(model.vocab_size(), model.max_tokens()),
    };
    check_texts(&texts, model.vocab_size(), model.max_tokens())?;
    let reference = Reference::compute(&mut model, ctx, &texts)?;
    let mut tally = Tally::new(printer, "texts");
    reference.check(&mut model, ctx, |finding| tally.add(&finding))?;
    for threads in THREADS {
        let (ctx, condition) = with_threads(ctx, threads);
        tally.add(&reference.repeat(&mut model, &ctx, condition)?)?;
    }
    drop(model);
    let own = ctx.level();
    for level in CpuLevel::available()
        .into_iter()
        .filter(|level| *level != own)
    {
        let pool = crate::threads::Pool::new(ctx.pool().num_threads());
        let ctx = Context::cpu(std::sync::Arc::new(pool), level);
        let mut model = load(&ctx)?;
        let short = reference.shortened(SCALAR_TOKENS);
        let reference = if level == CpuLevel::Scalar {
            &short
        } else {
            &reference
        };
        tally.add(&reference.repeat(&mut model, &ctx, format!("on the {level} path"))?)?;
    }
    tally.conclude(&located.name())
}

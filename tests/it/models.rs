//! Every checkpoint of `tests/fixtures/models` against the reference's logits and greedy tokens.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use oxydllm::formats::open;
use oxydllm::kv::{BLOCK_TOKENS, KvCache, StateUse};
use oxydllm::model::{Batch, LoadOptions, Sequence, Transformer, load, read_config, weigh};
use oxydllm::nn::WeightPath;
use oxydllm::ops::{Context, CpuLevel};
use oxydllm::threads::Pool;
use safetensors::SafeTensors;
use serde_json::Value;

pub struct Prompt {
    pub ids: Vec<u32>,
    logits: Vec<f32>,
    greedy: Vec<u32>,
    margins: Vec<f64>,
}

pub struct Expected {
    pub model: PathBuf,
    packed: bool,
    pub prompts: Vec<Prompt>,
    tolerance: Value,
}

fn numbers(value: &Value) -> Vec<u32> {
    let list = value.as_array().unwrap();
    list.iter().map(|x| x.as_u64().unwrap() as u32).collect()
}

impl Expected {
    pub fn read(folder: &Path) -> Self {
        let json = |folder: &Path| -> Value {
            serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap()
        };
        let own = json(folder);
        // A twin has the same weights in another container: what is expected stands in the other folder.
        let source = match own["twin_of"].as_str() {
            Some(twin) => folder.parent().unwrap().join(twin),
            None => folder.to_owned(),
        };
        let shared = json(&source);
        let bytes = std::fs::read(source.join("expected.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let prompt = |p: &Value| {
            let tensor = tensors.tensor(p["logits"].as_str().unwrap()).unwrap();
            let logits = tensor
                .data()
                .as_chunks::<4>()
                .0
                .iter()
                .map(|b| f32::from_le_bytes(*b));
            Prompt {
                ids: numbers(&p["ids"]),
                logits: logits.collect(),
                greedy: numbers(&p["greedy"]),
                margins: p["greedy_margins"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|x| x.as_f64().unwrap())
                    .collect(),
            }
        };
        Self {
            model: folder.join(own["model"].as_str().unwrap()),
            packed: folder
                .file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with("packed_"),
            prompts: shared["prompts"]
                .as_array()
                .unwrap()
                .iter()
                .map(prompt)
                .collect(),
            tolerance: shared["tolerance"].clone(),
        }
    }
}

pub fn fixtures() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models");
    let mut folders: Vec<PathBuf> = std::fs::read_dir(root)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.join("expected.json").exists())
        .collect();
    folders.sort();
    assert!(folders.len() >= 20, "fixtures are missing");
    folders
}

fn context(threads: usize, level: CpuLevel) -> Context {
    Context::cpu(Arc::new(Pool::new(threads)), level)
}

/// A sequence in a cache of its own.
struct Run<'a> {
    ctx: &'a Context,
    model: &'a Transformer,
    kv: KvCache,
    blocks: Vec<u32>,
    length: usize,
    is_long: bool,
}

impl<'a> Run<'a> {
    fn new(ctx: &'a Context, model: &'a Transformer, prompt_len: usize, more: usize) -> Self {
        let count = (prompt_len + more).div_ceil(BLOCK_TOKENS);
        let blocks = (0..count as u32).collect();
        let kv = KvCache::new(&model.config().cache_shape(), count, 1);
        Self {
            ctx,
            model,
            kv,
            blocks,
            length: 0,
            is_long: model.config().is_long(prompt_len),
        }
    }

    fn sequence(&self, tokens: &[u32], num_logits: usize) -> Sequence {
        Sequence {
            tokens: tokens.to_vec(),
            first_position: self.length,
            block_table: self.blocks.clone(),
            state: StateUse::own(0, self.length),
            num_logits,
            is_long: self.is_long,
        }
    }

    fn forward(&mut self, tokens: &[u32]) -> Vec<f32> {
        let batch = Batch {
            sequences: vec![self.sequence(tokens, tokens.len())],
        };
        self.length += tokens.len();
        self.model
            .forward(self.ctx, &batch, &mut self.kv)
            .unwrap()
            .as_slice()
            .to_vec()
    }
}

fn log_softmax(row: &[f32]) -> Vec<f64> {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|&x| f64::from(x - max).exp()).sum();
    row.iter().map(|&x| f64::from(x - max) - sum.ln()).collect()
}

fn argmax(row: &[f32]) -> usize {
    (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best })
}

/// The first thing that is out of tolerance, if any.
fn compare(
    ctx: &Context,
    model: &Transformer,
    expected: &Expected,
    profile: &str,
) -> Result<(), String> {
    let limits = &expected.tolerance[profile];
    let limit = |name: &str| {
        limits[name]
            .as_f64()
            .unwrap_or_else(|| panic!("no `{profile}.{name}`"))
    };
    let vocab = model.config().vocab_size;
    for (index, prompt) in expected.prompts.iter().enumerate() {
        let mut run = Run::new(ctx, model, prompt.ids.len(), prompt.greedy.len());
        let got = run.forward(&prompt.ids);
        assert_eq!(got.len(), prompt.logits.len());
        for (position, (got, want)) in got
            .chunks(vocab)
            .zip(prompt.logits.chunks(vocab))
            .enumerate()
        {
            let worst = got
                .iter()
                .zip(want)
                .map(|(a, b)| f64::from((a - b).abs()))
                .fold(0.0, f64::max);
            let (p, q) = (log_softmax(want), log_softmax(got));
            let kl: f64 = p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum();
            if !(worst <= limit("max_abs") && kl <= limit("max_kl")) {
                return Err(format!(
                    "prompt {index} position {position}: off by {worst:.3e}, KL {kl:.3e}"
                ));
            }
        }
        let mut row = got[got.len() - vocab..].to_vec();
        for (step, (&want, &margin)) in prompt.greedy.iter().zip(&prompt.margins).enumerate() {
            let id = argmax(&row) as u32;
            if id != want {
                if margin > limit("near_tie") {
                    return Err(format!(
                        "prompt {index}: greedy token {step} is {id}, expected {want} (margin {margin})"
                    ));
                }
                break;
            }
            row = run.forward(&[id]);
        }
    }
    Ok(())
}

#[test]
fn every_checkpoint_gives_the_references_logits_and_greedy_tokens() {
    let ctx = context(2, CpuLevel::detect());
    let mut wrong = Vec::new();
    for folder in fixtures() {
        let expected = Expected::read(&folder);
        let paths: &[(WeightPath, &str)] = if expected.packed {
            &[(WeightPath::Fast, "int8"), (WeightPath::Reference, "exact")]
        } else {
            &[(WeightPath::Fast, "exact")]
        };
        for &(path, profile) in paths {
            let model = load(&ctx, &expected.model, LoadOptions { path })
                .unwrap()
                .transformer;
            if let Err(why) = compare(&ctx, &model, &expected, profile) {
                wrong.push(format!("{} ({profile}): {why}", folder.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Largest difference of a logit of a prompt between two models.
fn furthest(ctx: &Context, models: [&Transformer; 2], ids: &[u32]) -> f32 {
    let [a, b] = models.map(|model| Run::new(ctx, model, ids.len(), 0).forward(ids));
    a.iter()
        .zip(&b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max)
}

#[test]
fn safetensors_and_gguf_of_the_same_weights_agree() {
    let ctx = context(2, CpuLevel::detect());
    let load = |folder: &Path| {
        let path = Expected::read(folder).model;
        load(&ctx, &path, LoadOptions::default())
            .unwrap()
            .transformer
    };
    let mut compared = 0;
    for folder in fixtures() {
        let json = std::fs::read(folder.join("expected.json")).unwrap();
        let json: Value = serde_json::from_slice(&json).unwrap();
        let Some(twin) = json["twin_of"].as_str() else {
            continue;
        };
        let models = [load(&folder), load(&folder.parent().unwrap().join(twin))];
        for prompt in Expected::read(&folder).prompts {
            let furthest = furthest(&ctx, [&models[0], &models[1]], &prompt.ids);
            assert!(furthest <= 1e-4, "{}: {furthest:.1e}", folder.display());
        }
        compared += 1;
    }
    assert!(compared >= 14, "twins are missing");
}

#[test]
fn the_headers_tell_what_the_weights_will_take() {
    let ctx = context(1, CpuLevel::detect());
    for folder in fixtures() {
        let path = Expected::read(&folder).model;
        for way in [WeightPath::Fast, WeightPath::Reference] {
            let weights = open(&path).unwrap();
            let config = read_config(&weights, &path).unwrap();
            let model = load(&ctx, &path, LoadOptions { path: way }).unwrap();
            assert_eq!(
                weigh(&weights, &config, way).unwrap(),
                model.transformer.weight_bytes(),
                "{} {way:?}",
                folder.display()
            );
        }
    }
}

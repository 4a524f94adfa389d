//! From opened weights to an [`Encoder`].

use super::config::{EncoderConfig, Family};
use super::forward::{Encoder, EncoderLayer, LayerNorm, ScoreHead, Tables};
use crate::error::Result;
use crate::formats::Weights;
use crate::model::ModelKind;
use crate::model::checkpoint::Checkpoint;
use crate::model::config::BiasPresence;
use crate::nn::WeightPath;
use crate::ops::Context;

/// Under these names a class with a head keeps the encoder itself.
const PREFIXES: [&str; 2] = ["bert.", "roberta."];

/// Buffers that older versions of transformers saved: the numbers 0, 1, 2, … and zeros.
const BUFFERS: [&str; 2] = ["embeddings.position_ids", "embeddings.token_type_ids"];

/// Loads the encoder in opened `weights`.
///
/// # Errors
/// `Invalid` or `Unsupported`, with the tensor.
pub fn load_encoder(
    ctx: &Context,
    weights: &Weights,
    config: EncoderConfig,
    path: WeightPath,
) -> Result<Encoder> {
    let mut file = open(Some(ctx), weights, &config, path)?;
    let encoder = encoder(&mut file, config)?;
    file.refuse_unused()?;
    Ok(encoder)
}

/// What [`Encoder::weight_bytes`] will say of the encoder in `weights`: everything that loading does but reading the tensors.
///
/// # Errors
/// `Invalid` for a tensor that is missing or has the wrong shape.
pub fn weigh_encoder(weights: &Weights, config: &EncoderConfig, path: WeightPath) -> Result<usize> {
    let mut file = open(None, weights, config, path)?;
    Ok(encoder(&mut file, config.clone())?.weight_bytes())
}

fn open<'a>(
    ctx: Option<&'a Context>,
    weights: &'a Weights,
    config: &EncoderConfig,
    path: WeightPath,
) -> Result<Checkpoint<'a>> {
    let names = Names(config.kind, config.family);
    let owner = config.architecture.to_owned();
    Checkpoint::new(ctx, weights, owner, path, |name| names.canonical(name))
}

/// What files call the tensors of a family.
#[derive(Debug, Clone, Copy)]
struct Names(ModelKind, Family);

impl Names {
    /// The canonical name of a tensor of the file, or `None` for one that the model does not use and that changes nothing.
    fn canonical(self, name: &str) -> Option<String> {
        let Self(kind, family) = self;
        let name = PREFIXES
            .iter()
            .find_map(|prefix| name.strip_prefix(prefix))
            .unwrap_or(name);
        // Heads of the training, and a pooler that only classes with a head read.
        let unused: &[&str] = match (kind, family) {
            (ModelKind::Reranker, Family::Bert) => &["cls."],
            (ModelKind::Reranker, Family::Roberta) => &["lm_head.", "pooler."],
            _ => &["cls.", "lm_head.", "pooler."],
        };
        if BUFFERS.contains(&name) || unused.iter().any(|prefix| name.starts_with(prefix)) {
            return None;
        }
        // The names of TensorFlow, which the first checkpoints were converted from.
        Some(
            match (name.strip_suffix(".gamma"), name.strip_suffix(".beta")) {
                (Some(stem), _) => format!("{stem}.weight"),
                (_, Some(stem)) => format!("{stem}.bias"),
                _ => name.to_owned(),
            },
        )
    }
}

fn encoder(file: &mut Checkpoint<'_>, config: EncoderConfig) -> Result<Encoder> {
    let hidden = config.hidden_size;
    let mut table = |name: &str, rows| {
        let name = format!("embeddings.{name}_embeddings.weight");
        file.table(&name, rows, hidden)
    };
    let tables = Tables {
        words: table("word", config.vocab_size)?,
        positions: table("position", config.num_positions)?,
        token_types: table("token_type", config.num_token_types)?,
    };
    let norm = norm(file, "embeddings.LayerNorm", hidden)?;
    let layers = (0..config.num_layers)
        .map(|index| layer(file, index, &config))
        .collect::<Result<Vec<_>>>()?;
    let head = match config.kind {
        ModelKind::Reranker => Some(head(file, &config)?),
        ModelKind::Chat | ModelKind::Embedding => None,
    };
    Ok(Encoder::new(config, tables, norm, layers, head))
}

fn layer(file: &mut Checkpoint<'_>, layer: usize, config: &EncoderConfig) -> Result<EncoderLayer> {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let stem = |name: &str| format!("encoder.layer.{layer}.{name}");
    let mut linear =
        |name: &str, out, inn| file.linear(&stem(name), out, inn, BiasPresence::Required);
    let [q, k, v] = ["query", "key", "value"]
        .map(|name| linear(&format!("attention.self.{name}"), hidden, hidden));
    let o = linear("attention.output.dense", hidden, hidden)?;
    let up = linear("intermediate.dense", inner, hidden)?;
    let down = linear("output.dense", hidden, inner)?;
    Ok(EncoderLayer {
        q: q?,
        k: k?,
        v: v?,
        o,
        attention_norm: norm(file, &stem("attention.output.LayerNorm"), hidden)?,
        up,
        down,
        output_norm: norm(file, &stem("output.LayerNorm"), hidden)?,
    })
}

fn norm(file: &mut Checkpoint<'_>, stem: &str, size: usize) -> Result<LayerNorm> {
    Ok(LayerNorm {
        weight: file.vector(&format!("{stem}.weight"), size)?,
        bias: file.vector(&format!("{stem}.bias"), size)?,
    })
}

fn head(file: &mut Checkpoint<'_>, config: &EncoderConfig) -> Result<ScoreHead> {
    let hidden = config.hidden_size;
    let (dense, out) = match config.family {
        Family::Bert => ("pooler.dense", "classifier"),
        Family::Roberta => ("classifier.dense", "classifier.out_proj"),
    };
    Ok(ScoreHead {
        dense: file.linear(dense, hidden, hidden, BiasPresence::Required)?,
        out: file.linear(out, 1, hidden, BiasPresence::Required)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_their_prefix_and_what_is_not_used_is_skipped() {
        let names = Names(ModelKind::Embedding, Family::Bert);
        let canonical = |name: &str| names.canonical(name);
        for name in [
            "encoder.layer.0.output.dense.bias",
            "bert.encoder.layer.0.output.dense.bias",
        ] {
            assert_eq!(
                canonical(name).as_deref(),
                Some("encoder.layer.0.output.dense.bias")
            );
        }
        assert_eq!(
            canonical("bert.embeddings.LayerNorm.gamma").as_deref(),
            Some("embeddings.LayerNorm.weight")
        );
        for unused in [
            "bert.pooler.dense.weight",
            "cls.predictions.bias",
            "embeddings.position_ids",
        ] {
            assert_eq!(canonical(unused), None);
        }
        let scoring = Names(ModelKind::Reranker, Family::Bert);
        assert!(scoring.canonical("bert.pooler.dense.weight").is_some());
        let scoring = Names(ModelKind::Reranker, Family::Roberta);
        assert!(scoring.canonical("roberta.pooler.dense.weight").is_none());
        assert!(scoring.canonical("classifier.dense.weight").is_some());
    }
}

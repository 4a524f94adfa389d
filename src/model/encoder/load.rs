//! From opened weights to an [`Encoder`].

use super::config::{EncoderConfig, Family};
use super::forward::{Encoder, EncoderLayer, LayerNorm, ScoreHead, Tables};
use super::tensors::Tensors;
use crate::error::Result;
use crate::formats::{TensorSource, Weights};
use crate::model::ModelKind;
use crate::nn::WeightPath;
use crate::ops::Context;
use crate::ops::qmatmul::QMatrix;

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
    let names = Names(config.kind, config.family);
    let tensors = Tensors::new(weights, config.architecture, path, |name| {
        names.canonical(name)
    })?;
    Loader { ctx, tensors }.encoder(config)
}

/// What [`Encoder::weight_bytes`] will say of the encoder in `weights`, from headers alone.
pub fn weigh_encoder(weights: &Weights, config: &EncoderConfig, path: WeightPath) -> usize {
    let names = Names(config.kind, config.family);
    let size = |tensor: &crate::formats::TensorInfo| {
        let canonical = names.canonical(&tensor.name)?;
        Some(match tensor.shape[..] {
            [rows, cols] => {
                let raw = tensor
                    .encoding
                    .row_bytes(cols)
                    .unwrap_or(0)
                    .saturating_mul(rows);
                let is_table = canonical.ends_with("_embeddings.weight");
                let packed = QMatrix::packed_bytes(tensor.encoding, rows, cols);
                packed
                    .filter(|_| path == WeightPath::Fast && !is_table)
                    .unwrap_or(raw)
            }
            _ => tensor.num_elements() * size_of::<f32>(),
        })
    };
    weights.tensors().iter().filter_map(size).sum()
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

struct Loader<'a> {
    ctx: &'a Context,
    tensors: Tensors<'a>,
}

impl Loader<'_> {
    fn encoder(mut self, config: EncoderConfig) -> Result<Encoder> {
        let hidden = config.hidden_size;
        let mut table = |name: &str, rows| {
            let name = format!("embeddings.{name}_embeddings.weight");
            self.tensors.matrix(&name, rows, hidden)
        };
        let tables = Tables {
            words: table("word", config.vocab_size)?,
            positions: table("position", config.num_positions)?,
            token_types: table("token_type", config.num_token_types)?,
        };
        let norm = self.norm("embeddings.LayerNorm", hidden)?;
        let layers = (0..config.num_layers)
            .map(|layer| self.layer(layer, &config))
            .collect::<Result<Vec<_>>>()?;
        let head = match config.kind {
            ModelKind::Reranker => Some(self.head(&config)?),
            ModelKind::Chat | ModelKind::Embedding => None,
        };
        self.tensors.refuse_unused()?;
        Ok(Encoder::new(config, tables, norm, layers, head))
    }

    fn layer(&mut self, layer: usize, config: &EncoderConfig) -> Result<EncoderLayer> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let stem = format!("encoder.layer.{layer}");
        let linear = |this: &mut Self, name: &str, out, inn| {
            this.tensors
                .linear(this.ctx, &format!("{stem}.{name}"), out, inn, true)
        };
        Ok(EncoderLayer {
            q: linear(self, "attention.self.query", hidden, hidden)?,
            k: linear(self, "attention.self.key", hidden, hidden)?,
            v: linear(self, "attention.self.value", hidden, hidden)?,
            o: linear(self, "attention.output.dense", hidden, hidden)?,
            attention_norm: self.norm(&format!("{stem}.attention.output.LayerNorm"), hidden)?,
            up: linear(self, "intermediate.dense", inner, hidden)?,
            down: linear(self, "output.dense", hidden, inner)?,
            output_norm: self.norm(&format!("{stem}.output.LayerNorm"), hidden)?,
        })
    }

    fn norm(&mut self, stem: &str, size: usize) -> Result<LayerNorm> {
        Ok(LayerNorm {
            weight: self.tensors.vector(&format!("{stem}.weight"), size)?,
            bias: self.tensors.vector(&format!("{stem}.bias"), size)?,
        })
    }

    fn head(&mut self, config: &EncoderConfig) -> Result<ScoreHead> {
        let hidden = config.hidden_size;
        let (dense, out) = match config.family {
            Family::Bert => ("pooler.dense", "classifier"),
            Family::Roberta => ("classifier.dense", "classifier.out_proj"),
        };
        Ok(ScoreHead {
            dense: self.tensors.linear(self.ctx, dense, hidden, hidden, true)?,
            out: self.tensors.linear(self.ctx, out, 1, hidden, true)?,
        })
    }
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

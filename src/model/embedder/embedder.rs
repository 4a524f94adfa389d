//! [`Embedder`]: from tokens of texts to vectors or scores.

use super::decoder::Decoder;
use super::dense::Dense;
use super::recipe::{Pooling, PoolingMode};
use crate::error::{Error, Result};
use crate::model::ModelKind;
use crate::model::encoder::{Encoder, TextTokens};
use crate::ops::Context;
use crate::ops::pool::{largest, normalize, weighted_mean};

/// What computes features.
#[derive(Debug)]
pub(super) enum Backbone {
    /// All tokens see all others.
    Encoder(Box<Encoder>),
    /// Tokens see those before them.
    Decoder(Box<Decoder>),
}

/// What becomes of the features.
#[derive(Debug)]
pub(super) enum Tail {
    /// A vector.
    Vector {
        pooling: Pooling,
        modules: Vec<Module>,
        dimensions: usize,
    },
    /// The encoder's classifier makes a score.
    Score,
}

/// What follows the pooling.
#[derive(Debug)]
pub(super) enum Module {
    Dense(Dense),
    Normalize,
}

/// An embedding model or a reranker with its weights.
#[derive(Debug)]
pub struct Embedder {
    pub(super) backbone: Backbone,
    pub(super) tail: Tail,
}

impl Embedder {
    /// What it makes: vectors or scores.
    pub fn kind(&self) -> ModelKind {
        match self.tail {
            Tail::Vector { .. } => ModelKind::Embedding,
            Tail::Score => ModelKind::Reranker,
        }
    }

    /// Numbers per text: the length of a vector, or 1 for a score.
    pub fn dimensions(&self) -> usize {
        match self.tail {
            Tail::Vector { dimensions, .. } => dimensions,
            Tail::Score => 1,
        }
    }

    /// The longest text, in tokens.
    pub fn max_tokens(&self) -> usize {
        match &self.backbone {
            Backbone::Encoder(encoder) => encoder.config().max_tokens(),
            Backbone::Decoder(decoder) => decoder.max_tokens(),
        }
    }

    /// Token ids are below this.
    pub fn vocab_size(&self) -> usize {
        match &self.backbone {
            Backbone::Encoder(encoder) => encoder.config().vocab_size,
            Backbone::Decoder(decoder) => decoder.transformer().config().vocab_size,
        }
    }

    /// Bytes of weights.
    pub fn weight_bytes(&self) -> usize {
        let backbone = match &self.backbone {
            Backbone::Encoder(encoder) => encoder.weight_bytes(),
            Backbone::Decoder(decoder) => decoder.transformer().weight_bytes(),
        };
        let modules = match &self.tail {
            Tail::Vector { modules, .. } => modules.as_slice(),
            Tail::Score => &[],
        };
        let dense = modules.iter().map(|module| match module {
            Module::Dense(dense) => dense.bytes(),
            Module::Normalize => 0,
        });
        backbone + dense.sum::<usize>()
    }

    /// [`Embedder::dimensions`] numbers for each of `texts`: its vector, or its score as the classifier gives it. They are the
    /// same bits whatever other texts there are (`docs/architecture.md`, numerical contract).
    ///
    /// # Errors
    /// `Invalid` for a text without tokens or an id outside the vocabulary, `ContextLength` for one that is too long, `Internal`
    /// when a number is not finite.
    pub fn compute(&mut self, ctx: &Context, texts: &[&TextTokens]) -> Result<Vec<Vec<f32>>> {
        if texts.is_empty() {
            return Ok(Vec::new());
        }
        let outputs = match (&mut self.backbone, &self.tail) {
            (Backbone::Encoder(encoder), Tail::Score) => {
                let scores = encoder.scores(ctx, texts)?;
                scores.into_iter().map(|score| vec![score]).collect()
            }
            (
                Backbone::Encoder(encoder),
                Tail::Vector {
                    pooling, modules, ..
                },
            ) => {
                let features = encoder.features(ctx, texts)?;
                let hidden = features.cols();
                let mut rest = features.as_slice();
                let pooled = texts.iter().map(|text| {
                    let (own, others) = rest.split_at(text.ids.len() * hidden);
                    rest = others;
                    pool(pooling, own, hidden, text.num_skipped)
                });
                finish(ctx, pooled.collect(), modules)?
            }
            (
                Backbone::Decoder(decoder),
                Tail::Vector {
                    pooling, modules, ..
                },
            ) => {
                let last_only = pooling.modes == [PoolingMode::LastToken];
                let features = decoder.features(ctx, texts, last_only)?;
                let hidden = decoder.transformer().config().hidden_size;
                let pooled = texts.iter().zip(features).map(|(text, own)| {
                    let skipped = if last_only { 0 } else { text.num_skipped };
                    pool(pooling, &own, hidden, skipped)
                });
                finish(ctx, pooled.collect(), modules)?
            }
            (Backbone::Decoder(_), Tail::Score) => {
                return Err(Error::internal("a decoder has no classifier"));
            }
        };
        match outputs.iter().flatten().all(|x| x.is_finite()) {
            true => Ok(outputs),
            false => Err(Error::internal(
                "the model's output holds a number that is not finite",
            )),
        }
    }
}

/// The vector of a text's rows; the first `skipped` of them do not count, unless that would leave none.
fn pool(pooling: &Pooling, rows: &[f32], hidden: usize, skipped: usize) -> Vec<f32> {
    let count = rows.len() / hidden;
    let skipped = if pooling.include_prompt || skipped >= count {
        0
    } else {
        skipped
    };
    let kept = &rows[skipped * hidden..];
    let length = (count - skipped) as f32;
    let one = |mode: &PoolingMode| match mode {
        PoolingMode::Cls => kept[..hidden].to_vec(),
        PoolingMode::LastToken => rows[rows.len() - hidden..].to_vec(),
        PoolingMode::Max => largest(kept, hidden),
        PoolingMode::Mean => weighted_mean(kept, hidden, |_| 1.0, length),
        PoolingMode::MeanSqrtLength => weighted_mean(kept, hidden, |_| 1.0, length.sqrt()),
        PoolingMode::WeightedMean => {
            // Weights count from the beginning of the prompt.
            let weight = |index: usize| (skipped + index + 1) as f32;
            let sum = (0..count - skipped).map(|i| weight(i) as f64).sum::<f64>();
            weighted_mean(kept, hidden, weight, sum as f32)
        }
    };
    pooling.modes.iter().flat_map(one).collect()
}

/// Puts vectors through the modules behind the pooling.
fn finish(ctx: &Context, mut vectors: Vec<Vec<f32>>, modules: &[Module]) -> Result<Vec<Vec<f32>>> {
    for module in modules {
        match module {
            Module::Normalize => vectors.iter_mut().for_each(|vector| normalize(vector)),
            Module::Dense(dense) => {
                let x = ctx.tensor(vectors.len(), vectors[0].len(), &vectors.concat());
                let y = dense.forward(ctx, &x)?; // [texts, out_features]
                vectors = y
                    .as_slice()
                    .chunks_exact(y.cols())
                    .map(<[f32]>::to_vec)
                    .collect();
            }
        }
    }
    Ok(vectors)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three tokens of two features.
    const ROWS: [f32; 6] = [1.0, -4.0, 3.0, 0.0, 5.0, 1.0];

    fn pooled(modes: &[PoolingMode], include_prompt: bool, skipped: usize) -> Vec<f32> {
        let pooling = Pooling {
            modes: modes.to_vec(),
            include_prompt,
        };
        pool(&pooling, &ROWS, 2, skipped)
    }

    #[test]
    fn every_mode_has_its_formula_and_several_are_joined() {
        assert_eq!(pooled(&[PoolingMode::Cls], true, 0), [1.0, -4.0]);
        assert_eq!(pooled(&[PoolingMode::LastToken], true, 0), [5.0, 1.0]);
        assert_eq!(pooled(&[PoolingMode::Max], true, 0), [5.0, 1.0]);
        assert_eq!(pooled(&[PoolingMode::Mean], true, 0), [3.0, -1.0]);
        let root = 3.0_f32.sqrt();
        assert_eq!(
            pooled(&[PoolingMode::MeanSqrtLength], true, 0),
            [9.0 / root, -3.0 / root]
        );
        assert_eq!(
            pooled(&[PoolingMode::WeightedMean], true, 0),
            [22.0 / 6.0, -1.0 / 6.0]
        );
        assert_eq!(
            pooled(&[PoolingMode::Cls, PoolingMode::Mean], true, 0),
            [1.0, -4.0, 3.0, -1.0]
        );
    }

    #[test]
    fn a_prompt_counts_unless_the_model_leaves_it_out() {
        assert_eq!(pooled(&[PoolingMode::Mean], true, 1), [3.0, -1.0]);
        assert_eq!(pooled(&[PoolingMode::Mean], false, 1), [4.0, 0.5]);
        assert_eq!(pooled(&[PoolingMode::Cls], false, 1), [3.0, 0.0]);
        assert_eq!(
            pooled(&[PoolingMode::WeightedMean], false, 1),
            [21.0 / 5.0, 3.0 / 5.0]
        );
        assert_eq!(
            pooled(&[PoolingMode::Mean], false, 3),
            [3.0, -1.0],
            "never nothing"
        );
    }
}

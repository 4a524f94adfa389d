//! The forward pass of an encoder: sequences one behind the other, nothing padded.

use super::config::{EncoderConfig, Positions};
use crate::error::{Error, Result};
use crate::nn::{Input, Linear};
use crate::ops::activate::{Function, activate};
use crate::ops::elementwise::{add_assign, select_rows};
use crate::ops::embed::embed;
use crate::ops::encoder_attention::{HeadShape, encoder_attention};
use crate::ops::layer_norm::layer_norm_in_place;
use crate::ops::matmul::RawMatrix;
use crate::ops::{Context, Tensor};

/// The tokens of a text or of a pair of texts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextTokens {
    /// The ids, those at the beginning and end included.
    pub ids: Vec<u32>,
    /// Which text of the pair each belongs to; empty: all to the first.
    pub type_ids: Vec<u32>,
    /// How many of the first tokens do not go into the vector.
    pub num_skipped: usize,
}

impl TextTokens {
    /// A text of these ids.
    pub fn of_ids(ids: Vec<u32>) -> Self {
        Self {
            ids,
            ..Self::default()
        }
    }
}

/// What is added up for a token.
#[derive(Debug)]
pub(super) struct Tables {
    pub words: RawMatrix,
    pub positions: RawMatrix,
    pub token_types: RawMatrix,
}

/// Weight and bias of a layer norm.
#[derive(Debug)]
pub(super) struct LayerNorm {
    pub weight: Vec<f32>,
    pub bias: Vec<f32>,
}

impl LayerNorm {
    fn apply(&self, ctx: &Context, x: &mut Tensor, eps: f32) {
        layer_norm_in_place(ctx, x, &self.weight, Some(&self.bias), eps);
    }

    fn bytes(&self) -> usize {
        size_of_val(&self.weight[..]) + size_of_val(&self.bias[..])
    }
}

/// Weights of one layer. Norms stand behind the residual additions.
#[derive(Debug)]
pub(super) struct EncoderLayer {
    pub q: Linear,
    pub k: Linear,
    pub v: Linear,
    pub o: Linear,
    pub attention_norm: LayerNorm,
    pub up: Linear,
    pub down: Linear,
    pub output_norm: LayerNorm,
}

impl EncoderLayer {
    fn bytes(&self) -> usize {
        let linears = [&self.q, &self.k, &self.v, &self.o, &self.up, &self.down];
        let norms = self.attention_norm.bytes() + self.output_norm.bytes();
        linears.map(Linear::bytes).iter().sum::<usize>() + norms
    }
}

/// From the first token's features to a score: dense, tanh, out.
#[derive(Debug)]
pub(super) struct ScoreHead {
    pub dense: Linear,
    pub out: Linear,
}

/// An encoder with its weights.
#[derive(Debug)]
pub struct Encoder {
    config: EncoderConfig,
    tables: Tables,
    norm: LayerNorm,
    layers: Vec<EncoderLayer>,
    head: Option<ScoreHead>,
}

impl Encoder {
    pub(super) fn new(
        config: EncoderConfig,
        tables: Tables,
        norm: LayerNorm,
        layers: Vec<EncoderLayer>,
        head: Option<ScoreHead>,
    ) -> Self {
        Self {
            config,
            tables,
            norm,
            layers,
            head,
        }
    }

    /// The configuration.
    pub fn config(&self) -> &EncoderConfig {
        &self.config
    }

    /// Bytes of weights.
    pub fn weight_bytes(&self) -> usize {
        let tables = &self.tables;
        let tables = [&tables.words, &tables.positions, &tables.token_types];
        let head = self.head.as_ref();
        tables
            .map(|table| table.bytes().len())
            .iter()
            .sum::<usize>()
            + self.norm.bytes()
            + self.layers.iter().map(EncoderLayer::bytes).sum::<usize>()
            + head.map_or(0, |head| head.dense.bytes() + head.out.bytes())
    }

    /// The features of every token, `[Σ tokens, hidden]`, sequence after sequence. Those of a sequence are the same bits
    /// whatever else is in the batch.
    ///
    /// # Errors
    /// `Invalid` for a sequence without tokens, or an id or type outside its table; `ContextLength` for one that is too long.
    pub fn features(&self, ctx: &Context, sequences: &[&TextTokens]) -> Result<Tensor> {
        let config = &self.config;
        let mut x = self.embeddings(ctx, sequences)?; // [tokens, hidden]
        let lengths: Vec<usize> = sequences.iter().map(|s| s.ids.len()).collect();
        let heads = HeadShape {
            num_heads: config.num_heads,
            head_dim: config.head_dim(),
            scale: 1.0 / (config.head_dim() as f32).sqrt(),
        };
        for layer in &self.layers {
            let qkv = [&layer.q, &layer.k, &layer.v];
            let qkv = Linear::forward_all(ctx, &Input::new(&x), &qkv)?;
            let [q, k, v]: [Tensor; 3] = qkv.try_into().expect("three results for three layers");
            let mixed = encoder_attention(ctx, &q, &k, &v, &lengths, heads); // [tokens, hidden]
            let out = layer.o.forward(ctx, &Input::new(&mixed))?;
            add_assign(ctx, &mut x, &out);
            layer.attention_norm.apply(ctx, &mut x, config.norm_eps);
            let mut inner = layer.up.forward(ctx, &Input::new(&x))?; // [tokens, intermediate]
            activate(ctx, config.activation, &mut inner);
            let out = layer.down.forward(ctx, &Input::new(&inner))?;
            add_assign(ctx, &mut x, &out);
            layer.output_norm.apply(ctx, &mut x, config.norm_eps);
        }
        Ok(x)
    }

    /// The score of each sequence: the classifier's output for its first token, as it is.
    ///
    /// # Errors
    /// As [`Encoder::features`]; `Unsupported` for an encoder without a classifier.
    pub fn scores(&self, ctx: &Context, sequences: &[&TextTokens]) -> Result<Vec<f32>> {
        let Some(head) = &self.head else {
            let name = self.config.architecture;
            return Err(Error::unsupported(format!("a {name} does not score texts")));
        };
        let features = self.features(ctx, sequences)?;
        let mut first = 0;
        let firsts = sequences.iter().map(|sequence| {
            let row = first;
            first += sequence.ids.len();
            row
        });
        let first_tokens = select_rows(ctx, &features, &firsts.collect::<Vec<_>>());
        let mut inner = head.dense.forward(ctx, &Input::new(&first_tokens))?;
        activate(ctx, Function::Tanh, &mut inner);
        let scores = head.out.forward(ctx, &Input::new(&inner))?; // [sequences, 1]
        Ok(scores.as_slice().to_vec())
    }

    /// Word, type and position, added in the order of the reference, and normed.
    fn embeddings(&self, ctx: &Context, sequences: &[&TextTokens]) -> Result<Tensor> {
        for sequence in sequences {
            self.check(sequence)?;
        }
        let ids: Vec<u32> = sequences
            .iter()
            .flat_map(|s| s.ids.iter().copied())
            .collect();
        let types: Vec<u32> = sequences.iter().flat_map(|s| types_of(s)).collect();
        let positions = sequences.iter().flat_map(|s| self.positions(&s.ids));
        let mut x = embed(ctx, &self.tables.words, &ids, 1.0)?;
        add_assign(
            ctx,
            &mut x,
            &embed(ctx, &self.tables.token_types, &types, 1.0)?,
        );
        let positions: Vec<u32> = positions.collect();
        add_assign(
            ctx,
            &mut x,
            &embed(ctx, &self.tables.positions, &positions, 1.0)?,
        );
        self.norm.apply(ctx, &mut x, self.config.norm_eps);
        Ok(x)
    }

    fn check(&self, sequence: &TextTokens) -> Result<()> {
        let (length, most) = (sequence.ids.len(), self.config.max_tokens());
        if length == 0 {
            return Err(Error::invalid("a text has no tokens"));
        }
        if length > most {
            return Err(Error::context_length(format!(
                "a text has {length} tokens, the model reads at most {most}"
            )));
        }
        let types = self.config.num_token_types;
        match sequence.type_ids.iter().find(|id| **id as usize >= types) {
            Some(id) => Err(Error::invalid(format!(
                "token type {id}: the model has {types}"
            ))),
            None => Ok(()),
        }
    }

    /// As `create_position_ids_from_input_ids` of the reference: padding is not counted.
    fn positions(&self, ids: &[u32]) -> Vec<u32> {
        match self.config.positions {
            Positions::FromZero => (0..ids.len() as u32).collect(),
            Positions::AfterPadding(pad) => {
                let mut last = pad;
                let mut position = |&id: &u32| {
                    last += u32::from(id != pad);
                    if id == pad { pad } else { last }
                };
                ids.iter().map(&mut position).collect()
            }
        }
    }
}

fn types_of(sequence: &TextTokens) -> Vec<u32> {
    if sequence.type_ids.is_empty() {
        return vec![0; sequence.ids.len()];
    }
    assert_eq!(
        sequence.type_ids.len(),
        sequence.ids.len(),
        "a type for every token"
    );
    sequence.type_ids.clone()
}

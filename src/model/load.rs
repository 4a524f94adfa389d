//! From a file or folder to a [`Transformer`]: every tensor is looked for by name and checked by shape before it is used.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::config::{BiasPresence, ModelConfig, QkNorm};
use super::names::{LayerWeight, ModelWeight, Names};
use super::read::read_config;
use super::transformer::{Head, Layer, Transformer};
use crate::error::{Error, Result};
use crate::formats::{self, MappedBytes, TensorSource, TensorView, Weights};
use crate::nn::{Linear, WeightPath};
use crate::ops::Context;
use crate::ops::matmul::{ByteStore, RawMatrix};

/// How to load.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoadOptions {
    /// Which multiplication packed weights use.
    pub path: WeightPath,
}

/// A model with its container, whose metadata the text layer reads.
#[derive(Debug)]
pub struct LoadedModel {
    /// The forward pass.
    pub transformer: Transformer,
    /// The container; mapped.
    pub weights: Weights,
}

/// Loads the model in `path`: a GGUF file or a folder with `config.json` and safetensors.
///
/// # Errors
/// `NotFound`, `Invalid` or `Unsupported`, with the file, tensor or field.
pub fn load(ctx: &Context, path: &Path, options: LoadOptions) -> Result<LoadedModel> {
    let weights = formats::open(path)?;
    let config = read_config(&weights, path)?;
    let transformer = assemble(ctx, &weights, config, options)?;
    Ok(LoadedModel {
        transformer,
        weights,
    })
}

/// Loads the model in opened `weights`, whose configuration has been read.
///
/// # Errors
/// `Invalid` or `Unsupported`, with the tensor.
pub fn assemble(
    ctx: &Context,
    weights: &Weights,
    config: ModelConfig,
    options: LoadOptions,
) -> Result<Transformer> {
    Loader::new(ctx, weights, config, options)?.transformer()
}

impl ByteStore for MappedBytes {
    fn bytes(&self) -> &[u8] {
        self.as_slice()
    }

    fn release(&self) {
        self.release_pages();
    }
}

struct Loader<'a> {
    ctx: &'a Context,
    weights: &'a Weights,
    config: ModelConfig,
    options: LoadOptions,
    names: Names,
    /// Names in the file by canonical name; what is left at the end is not part of the model.
    unused: HashMap<String, String>,
}

impl<'a> Loader<'a> {
    fn new(
        ctx: &'a Context,
        weights: &'a Weights,
        config: ModelConfig,
        options: LoadOptions,
    ) -> Result<Self> {
        let names = Names::of(weights, config.sandwich_norms);
        let mut unused = HashMap::new();
        let mut skipped = Vec::new();
        for tensor in weights.tensors() {
            match names.canonical(&tensor.name) {
                None => skipped.push(&tensor.name),
                Some(canonical) => {
                    if let Some(other) = unused.insert(canonical, tensor.name.clone()) {
                        let name = &tensor.name;
                        return Err(Error::invalid(format!(
                            "`{name}` and `{other}` are the same tensor of the model"
                        )));
                    }
                }
            }
        }
        if let Some(first) = skipped.first() {
            tracing::info!(tensors = skipped.len(), first = %first, "tensors that are not the language model's are skipped");
        }
        Ok(Self {
            ctx,
            weights,
            config,
            options,
            names,
            unused,
        })
    }

    fn transformer(mut self) -> Result<Transformer> {
        let (vocab, hidden) = (self.config.vocab_size, self.config.hidden_size);
        let embedding_name = format!("{}.weight", self.names.model(ModelWeight::Embedding));
        let embedding = self.matrix(&embedding_name, vocab, hidden)?;
        let layers = (0..self.config.layers.len())
            .map(|i| self.layer(i))
            .collect::<Result<Vec<_>>>()?;
        let norm = self.norm(
            &format!("{}.weight", self.names.model(ModelWeight::FinalNorm)),
            hidden,
        )?;
        let head = self.head(&embedding)?;
        self.refuse_unused()?;
        Ok(Transformer::new(self.config, embedding, layers, norm, head))
    }

    fn head(&mut self, embedding: &RawMatrix) -> Result<Head> {
        let name = format!("{}.weight", self.names.model(ModelWeight::Head));
        let own = self.unused.contains_key(&name);
        let tied = !own && self.config.tied_head != Some(false);
        let matrix = match (self.config.tied_head, own) {
            _ if tied => embedding.clone(),
            (Some(true), true) => {
                let own = self.matrix(&name, self.config.vocab_size, self.config.hidden_size)?;
                if own.encoding() != embedding.encoding() || own.bytes() != embedding.bytes() {
                    // As the reference does from version 5 on: different weights are not tied.
                    tracing::warn!(tensor = %name, "the head is said to be the embedding but differs; it is used as it is");
                }
                own
            }
            _ => self.matrix(&name, self.config.vocab_size, self.config.hidden_size)?,
        };
        let linear = Linear::new(self.ctx, &matrix, None, self.options.path)
            .map_err(|e| e.context(format!("tensor `{name}`")))?;
        Ok(Head { linear, tied })
    }

    fn layer(&mut self, layer: usize) -> Result<Layer> {
        let c = &self.config;
        let (hidden, inner) = (c.hidden_size, c.intermediate_size);
        let (q, kv) = (c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim);
        let (qkv_bias, o_bias, mlp_bias) = (c.qkv_bias, c.o_bias, c.mlp_bias);
        let (head_dim, sandwich) = (c.head_dim, c.sandwich_norms);
        let per_head = c.qk_norm == QkNorm::PerHead;
        let norm = |this: &mut Self, weight, size| {
            let name = this.names.layer(layer, weight);
            this.norm(&format!("{name}.weight"), size)
        };
        Ok(Layer {
            attn_norm: norm(self, LayerWeight::AttnNorm, hidden)?,
            q: self.linear(layer, LayerWeight::Q, q, hidden, qkv_bias)?,
            k: self.linear(layer, LayerWeight::K, kv, hidden, qkv_bias)?,
            v: self.linear(layer, LayerWeight::V, kv, hidden, qkv_bias)?,
            o: self.linear(layer, LayerWeight::O, hidden, q, o_bias)?,
            q_norm: per_head
                .then(|| norm(self, LayerWeight::QNorm, head_dim))
                .transpose()?,
            k_norm: per_head
                .then(|| norm(self, LayerWeight::KNorm, head_dim))
                .transpose()?,
            post_attn_norm: sandwich
                .then(|| norm(self, LayerWeight::PostAttnNorm, hidden))
                .transpose()?,
            ffn_norm: norm(self, LayerWeight::FfnNorm, hidden)?,
            post_ffn_norm: sandwich
                .then(|| norm(self, LayerWeight::PostFfnNorm, hidden))
                .transpose()?,
            gate: self.linear(layer, LayerWeight::Gate, inner, hidden, mlp_bias)?,
            up: self.linear(layer, LayerWeight::Up, inner, hidden, mlp_bias)?,
            down: self.linear(layer, LayerWeight::Down, hidden, inner, mlp_bias)?,
        })
    }

    fn linear(
        &mut self,
        layer: usize,
        weight: LayerWeight,
        out: usize,
        inn: usize,
        bias: BiasPresence,
    ) -> Result<Linear> {
        let stem = self.names.layer(layer, weight);
        let (weight_name, bias_name) = (format!("{stem}.weight"), format!("{stem}.bias"));
        let matrix = self.matrix(&weight_name, out, inn)?;
        let has_bias = self.unused.contains_key(&bias_name);
        let bias = match bias {
            BiasPresence::Required => Some(self.vector(&bias_name, out)?),
            BiasPresence::Optional if has_bias => Some(self.vector(&bias_name, out)?),
            // A bias that must not be there stays unused and is refused by name.
            BiasPresence::Optional | BiasPresence::Absent => None,
        };
        Linear::new(self.ctx, &matrix, bias, self.options.path)
            .map_err(|e| e.context(format!("tensor `{weight_name}`")))
    }

    fn norm(&mut self, name: &str, size: usize) -> Result<Vec<f32>> {
        let mut weight = self.vector(name, size)?;
        // In F32, as the reference does: adding 1 in half precision would lose the low bits.
        weight
            .iter_mut()
            .for_each(|w| *w += self.config.norm_offset);
        Ok(weight)
    }

    fn take(&mut self, name: &str) -> Result<TensorView> {
        let in_file = self.unused.remove(name).ok_or_else(|| {
            Error::invalid(format!(
                "the checkpoint has no tensor `{name}`, which a {} model needs",
                self.config.architecture
            ))
        })?;
        Ok(self
            .weights
            .find(&in_file)
            .expect("listed tensors can be found"))
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<RawMatrix> {
        let view = self.take(name)?;
        expect_shape(&view, &[rows, cols])?;
        RawMatrix::new(rows, cols, view.info.encoding, Arc::new(view.bytes))
            .map_err(|e| e.context(format!("tensor `{}`", view.info.name)))
    }

    fn vector(&mut self, name: &str, size: usize) -> Result<Vec<f32>> {
        let view = self.take(name)?;
        expect_shape(&view, &[size])?;
        let mut values = vec![0.0; size];
        let decoded = view
            .info
            .encoding
            .decode_row(view.bytes.as_slice(), &mut values);
        decoded.map_err(|e| e.context(format!("tensor `{}`", view.info.name)))?;
        match values.iter().position(|x| !x.is_finite()) {
            Some(at) => {
                let name = &view.info.name;
                Err(Error::invalid(format!(
                    "tensor `{name}` holds {} at element {at}",
                    values[at]
                )))
            }
            None => Ok(values),
        }
    }

    /// What the model does not use would change its output in the reference; silence would be a lie.
    fn refuse_unused(&mut self) -> Result<()> {
        self.unused.remove("rope_freqs.weight");
        let mut left: Vec<&String> = self.unused.values().collect();
        left.sort();
        match left.first() {
            None => Ok(()),
            Some(first) => {
                let (count, name) = (left.len(), self.config.architecture);
                let text = format!(
                    "the checkpoint has {count} tensors that a {name} model does not use, such as `{first}`"
                );
                Err(Error::unsupported(text))
            }
        }
    }
}

fn expect_shape(view: &TensorView, expected: &[usize]) -> Result<()> {
    if view.info.shape == expected {
        return Ok(());
    }
    let (name, found) = (&view.info.name, &view.info.shape);
    Err(Error::invalid(format!(
        "tensor `{name}` has shape {found:?}, expected {expected:?}"
    )))
}

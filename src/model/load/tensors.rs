//! Tensors of a decoder's file, by the parts of the model that they are.

use std::collections::BTreeMap;

use super::LoadOptions;
use crate::error::Result;
use crate::formats::Weights;
use crate::model::checkpoint::Checkpoint;
use crate::model::config::{BiasPresence, ModelConfig, NormConfig, NormKind};
use crate::model::layers::Norm;
use crate::model::names::{Names, Part, Use};
use crate::nn::Linear;
use crate::ops::Context;

/// The tensors of one file.
pub(super) struct Tensors<'a> {
    /// By canonical name.
    pub file: Checkpoint<'a>,
    is_gguf: bool,
    names: Names,
    /// How many tensors each skipped part has.
    skipped: BTreeMap<&'static str, usize>,
}

impl<'a> Tensors<'a> {
    /// The tensors of `weights`; without `ctx` they are only weighed.
    pub fn new(
        ctx: Option<&'a Context>,
        weights: &'a Weights,
        config: &ModelConfig,
        options: LoadOptions,
    ) -> Result<Self> {
        let names = Names::of(weights, config);
        let mut skipped = BTreeMap::new();
        let owner = format!("{} model", config.architecture);
        let file = Checkpoint::new(ctx, weights, owner, options.path, |name| {
            match names.use_of(name) {
                Use::Config => None,
                Use::Skipped(part) => {
                    *skipped.entry(part).or_default() += 1;
                    None
                }
                Use::Weight(canonical) => Some(canonical),
            }
        })?;
        Ok(Self {
            file,
            is_gguf: matches!(weights, Weights::Gguf(_)),
            names,
            skipped,
        })
    }

    /// Names the parts that are not loaded.
    pub fn log_skipped(&self) {
        for (part, tensors) in &self.skipped {
            tracing::info!(part, tensors, "skipped: not used by the language model");
        }
    }

    /// The canonical name of a part's weight.
    pub fn weight_name(&self, layer: Option<usize>, part: Part) -> String {
        format!("{}.weight", self.names.stem(layer, part))
    }

    /// The canonical name of a part that is one tensor without a kind: `.weight` stands behind it in GGUF files only.
    pub fn bare_name(&self, layer: usize, part: Part) -> String {
        if self.is_gguf {
            self.weight_name(Some(layer), part)
        } else {
            self.stem(layer, part)
        }
    }

    /// The canonical name of a part of a layer, without `.weight` or `.bias`.
    pub fn stem(&self, layer: usize, part: Part) -> String {
        self.names.stem(Some(layer), part)
    }

    /// Leaves the weight and the bias of a part out, if the file has them.
    pub fn skip(&mut self, layer: usize, part: Part, why: &'static str) {
        let stem = self.stem(layer, part);
        for kind in ["weight", "bias"] {
            if self.file.skip(&format!("{stem}.{kind}")) {
                *self.skipped.entry(why).or_default() += 1;
            }
        }
    }

    /// Whether the file is a GGUF file.
    pub fn is_gguf(&self) -> bool {
        self.is_gguf
    }

    /// The canonical name of a tensor of all experts, if the file has it; `.weight` may stand behind it.
    pub fn stack_name(&self, layer: usize, part: Part) -> Option<String> {
        let stem = self.stem(layer, part);
        let names = [format!("{stem}.weight"), stem];
        names.into_iter().find(|name| self.file.has(name))
    }

    /// The canonical name of what is added to a router's scores: a bias in GGUF files.
    pub fn correction_name(&self, layer: usize) -> String {
        let stem = self.stem(layer, Part::RouterCorrection);
        if self.is_gguf {
            format!("{stem}.bias")
        } else {
            stem
        }
    }

    /// [`Self::linear`], multiplied in floats whatever its encoding.
    pub fn exact_linear(
        &mut self,
        layer: usize,
        part: Part,
        out: usize,
        inn: usize,
        bias: BiasPresence,
    ) -> Result<Linear> {
        self.file
            .exact_linear(&self.names.stem(Some(layer), part), out, inn, bias)
    }

    /// The same with one output, which GGUF files store as a vector.
    pub fn exact_row(&mut self, layer: usize, part: Part, inn: usize) -> Result<Linear> {
        let name = self.weight_name(Some(layer), part);
        self.file.exact_row(&name, inn)
    }

    /// A linear layer of layer `layer`: `[out, inn]` and perhaps a bias `[out]`.
    pub fn linear(
        &mut self,
        layer: usize,
        part: Part,
        out: usize,
        inn: usize,
        bias: BiasPresence,
    ) -> Result<Linear> {
        self.file
            .linear(&self.names.stem(Some(layer), part), out, inn, bias)
    }

    /// Linear layers over one input that files have by themselves, as `parts` (with their output features), or fused into
    /// `whole`, whose rows they are one after the other.
    pub fn rows_of<const N: usize>(
        &mut self,
        layer: usize,
        whole: Part,
        parts: [(Part, usize); N],
        inn: usize,
        bias: BiasPresence,
    ) -> Result<[Linear; N]> {
        let name = self.weight_name(Some(layer), whole);
        // In some files the fused tensor has the name of its last part.
        if self.file.has(&name) && !self.file.has(&self.weight_name(Some(layer), parts[0].0)) {
            return self.split(layer, whole, parts.map(|(_, rows)| rows), inn, bias);
        }
        let mut layers = Vec::with_capacity(N);
        for (part, rows) in parts {
            layers.push(self.linear(layer, part, rows, inn, bias)?);
        }
        Ok(layers.try_into().expect("one layer per part"))
    }

    /// Linear layers over one input that files have as one, `whole`: their output features are its rows, one layer after the
    /// other.
    pub fn split<const N: usize>(
        &mut self,
        layer: usize,
        whole: Part,
        features: [usize; N],
        inn: usize,
        bias: BiasPresence,
    ) -> Result<[Linear; N]> {
        let stem = self.stem(layer, whole);
        self.file.split(&stem, features, inn, bias)
    }

    /// Weights of a depthwise convolution, `[channels, kernel]`.
    pub fn conv(
        &mut self,
        layer: usize,
        part: Part,
        channels: usize,
        kernel: usize,
    ) -> Result<Vec<f32>> {
        let name = self.weight_name(Some(layer), part);
        self.file.conv(&name, channels, kernel)
    }

    /// A norm over `size` elements, its offset added.
    pub fn norm(
        &mut self,
        layer: Option<usize>,
        part: Part,
        size: usize,
        config: &NormConfig,
    ) -> Result<Norm> {
        let stem = self.names.stem(layer, part);
        let mut weight = self.file.vector(&format!("{stem}.weight"), size)?;
        // In F32, as the reference does: adding 1 in half precision would lose the low bits.
        weight.iter_mut().for_each(|w| *w += config.offset);
        let bias = match config.kind {
            NormKind::Layer { bias: true } => {
                Some(self.file.vector(&format!("{stem}.bias"), size)?)
            }
            NormKind::Layer { bias: false } | NormKind::Rms => None,
        };
        Ok(Norm::new(config, weight, bias))
    }
}

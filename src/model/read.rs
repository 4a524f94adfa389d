//! From a container's own description (`config.json` or GGUF metadata) and the architecture table to a [`ModelConfig`].
//!
//! Generic over families: it reads the fields of `arch/keys.rs` by the rules of the row, and never compares names.

use std::path::Path;

use serde_json::Value;

use super::arch::keys::{self, Key};
use super::arch::table::{Architecture, BiasRule, WindowRule};
use super::arch::{find_gguf, find_hf};
use super::config::{BiasPresence, LayerConfig, ModelConfig, RopeConfig};
use super::rope::{RopeScaling, read_scaling, scaled_frequencies};
use crate::error::{Error, Result};
use crate::formats::gguf::Metadata;
use crate::formats::{TensorSource, Weights};
use crate::ops::gated_act::Activation;
use crate::ops::rope::Pairing;

/// More layers than any model has; a bound for what a file may make us allocate.
const MAX_LAYERS: usize = 4096;
/// The same for sizes of a row.
const MAX_WIDTH: usize = 1 << 24;

/// Where fields come from.
enum Source<'a> {
    Hf(Value),
    Gguf {
        metadata: &'a Metadata,
        prefix: String,
    },
}

/// Reads the configuration of the model in `weights`; `folder` holds `config.json` when the weights are safetensors.
///
/// # Errors
/// `Unsupported` for an architecture or feature that this build does not run, `Invalid` for a field that is missing,
/// of the wrong type or impossible, `NotFound` without a `config.json`.
pub fn read_config(weights: &Weights, folder: &Path) -> Result<ModelConfig> {
    match weights {
        Weights::Gguf(file) => {
            let metadata = file.metadata();
            let name = metadata.find_str("general.architecture")?.ok_or_else(|| {
                Error::invalid("the GGUF file does not say its `general.architecture`")
            })?;
            let source = Source::Gguf {
                metadata,
                prefix: name.to_owned(),
            };
            Reader {
                source,
                arch: find_gguf(name)?,
                weights,
            }
            .config()
        }
        Weights::Safetensors(_) => {
            let path = folder.join("config.json");
            let bytes = std::fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
            let json: Value = serde_json::from_slice(&bytes).map_err(|e| {
                Error::invalid(format!("`{}` is not JSON", path.display())).with_source(e)
            })?;
            let config = read_hf(json, weights);
            config.map_err(|e| e.context(format!("in `{}`", path.display())))
        }
    }
}

fn read_hf(json: Value, weights: &Weights) -> Result<ModelConfig> {
    let classes = json.get("architectures").and_then(Value::as_array);
    let classes = classes
        .ok_or_else(|| Error::invalid("no list `architectures`: the model's class is unknown"))?;
    let arch = find_hf(classes.iter().filter_map(Value::as_str))?;
    Reader {
        source: Source::Hf(merge_text_config(json)),
        arch,
        weights,
    }
    .config()
}

/// Multimodal files nest the language model's fields; they win over the root's.
fn merge_text_config(mut json: Value) -> Value {
    let text = json
        .as_object_mut()
        .and_then(|root| root.remove("text_config"));
    if let (Some(root), Some(Value::Object(text))) = (json.as_object_mut(), text) {
        root.extend(text);
    }
    json
}

struct Reader<'a> {
    source: Source<'a>,
    arch: &'static Architecture,
    weights: &'a Weights,
}

impl Reader<'_> {
    fn config(&self) -> Result<ModelConfig> {
        let hidden_size = self.size(&keys::HIDDEN_SIZE)?;
        let num_heads = self.size(&keys::NUM_HEADS)?;
        let num_kv_heads = self.find_size(&keys::NUM_KV_HEADS)?.unwrap_or(num_heads);
        if !num_heads.is_multiple_of(num_kv_heads) {
            return Err(Error::invalid(format!(
                "{num_heads} query heads cannot share {num_kv_heads} key/value heads"
            )));
        }
        let head_dim = match self.find_size(&keys::HEAD_DIM)? {
            Some(size) => size,
            None => self.head_dim_from_shapes(hidden_size, num_heads)?,
        };
        self.check_value_dim(head_dim)?;
        let num_layers = self.size(&keys::NUM_LAYERS)?;
        if num_layers > MAX_LAYERS {
            return Err(Error::invalid(format!(
                "{num_layers} layers: at most {MAX_LAYERS} are believed"
            )));
        }
        let (ropes, layers) = self.layers(num_layers, head_dim)?;
        let query_scalar = self.query_scalar(head_dim, hidden_size, num_heads, num_layers)?;
        let (qkv_bias, o_bias, mlp_bias) = self.biases();
        Ok(ModelConfig {
            architecture: self.arch.name,
            extra_stop_ids: self.arch.extra_stop_ids,
            vocab_size: self.vocab_size()?,
            hidden_size,
            num_heads,
            num_kv_heads,
            head_dim,
            intermediate_size: self.size(&keys::INTERMEDIATE_SIZE)?,
            max_context: self.size(&keys::MAX_CONTEXT)?,
            norm_eps: self.positive(&keys::RMS_NORM_EPS)? as f32,
            norm_offset: if self.arch.zero_centred_norms && self.is_hf() {
                1.0
            } else {
                0.0
            },
            sandwich_norms: self.arch.sandwich_norms,
            qk_norm: self.arch.qk_norm,
            qkv_bias,
            o_bias,
            mlp_bias,
            activation: self.activation()?,
            embedding_scale: if self.arch.scaled_embeddings {
                (hidden_size as f32).sqrt()
            } else {
                1.0
            },
            attention_scale: (1.0 / query_scalar.sqrt()) as f32,
            attention_soft_cap: self.find_positive(&keys::ATTN_SOFT_CAP)?.map(|x| x as f32),
            final_soft_cap: self.find_positive(&keys::FINAL_SOFT_CAP)?.map(|x| x as f32),
            tied_head: self.tied_head(),
            ropes,
            layers,
        })
    }

    fn is_hf(&self) -> bool {
        matches!(self.source, Source::Hf(_))
    }

    fn hf(&self, key: &str) -> Option<&Value> {
        match &self.source {
            Source::Hf(json) => json.get(key).filter(|v| !v.is_null()),
            Source::Gguf { .. } => None,
        }
    }

    /// A number as it stands in the file, or the class's default.
    fn find_number(&self, key: &Key) -> Result<Option<f64>> {
        let found = match &self.source {
            Source::Hf(_) => match key.hf.iter().find_map(|name| Some((*name, self.hf(name)?))) {
                Some((name, value)) => Some(value.as_f64().ok_or_else(|| {
                    Error::invalid(format!("`{name}` is {value}, expected a number"))
                })?),
                None => None,
            },
            Source::Gguf { metadata, prefix } => match key.gguf {
                Some(suffix) => metadata.find_f64(&format!("{prefix}.{suffix}"))?,
                None => None,
            },
        };
        Ok(found.or_else(|| key.hf.iter().find_map(|name| self.arch.default_of(name))))
    }

    fn name<'k>(&self, key: &'k Key) -> &'k str {
        if self.is_hf() {
            key.hf[0]
        } else {
            key.gguf.unwrap_or(key.hf[0])
        }
    }

    fn missing(&self, key: &Key) -> Error {
        Error::invalid(format!("the model does not say its `{}`", self.name(key)))
    }

    /// A count or width: a whole number from 1 to [`MAX_WIDTH`].
    fn find_size(&self, key: &Key) -> Result<Option<usize>> {
        match self.find_number(key)? {
            None => Ok(None),
            Some(x) if x.fract() == 0.0 && (1.0..=MAX_WIDTH as f64).contains(&x) => {
                Ok(Some(x as usize))
            }
            Some(x) => {
                let name = self.name(key);
                Err(Error::invalid(format!(
                    "`{name}` is {x}, expected a whole number from 1 to {MAX_WIDTH}"
                )))
            }
        }
    }

    fn size(&self, key: &Key) -> Result<usize> {
        self.find_size(key)?.ok_or_else(|| self.missing(key))
    }

    fn find_positive(&self, key: &Key) -> Result<Option<f64>> {
        match self.find_number(key)? {
            Some(x) if !(x.is_finite() && x > 0.0) => Err(Error::invalid(format!(
                "`{}` is {x}, expected a positive number",
                self.name(key)
            ))),
            other => Ok(other),
        }
    }

    fn positive(&self, key: &Key) -> Result<f64> {
        self.find_positive(key)?.ok_or_else(|| self.missing(key))
    }

    fn vocab_size(&self) -> Result<usize> {
        // The tensor's shape is the truth; a padded table is larger than the tokenizer.
        let name = if self.is_hf() {
            "embed_tokens.weight"
        } else {
            "token_embd.weight"
        };
        let table = self
            .weights
            .tensors()
            .iter()
            .find(|t| t.name.ends_with(name) && t.shape.len() == 2);
        match (table, self.is_hf()) {
            (Some(table), false) => Ok(table.shape[0]),
            (None, false) => Err(Error::invalid(
                "no tensor `token_embd.weight` `[vocab, hidden]` in the file",
            )),
            _ => self.size(&keys::VOCAB_SIZE),
        }
    }

    /// GGUF files of the older kind leave the head size out; the shape of q knows it.
    fn head_dim_from_shapes(&self, hidden_size: usize, num_heads: usize) -> Result<usize> {
        if !self.is_hf()
            && let Some(q) = self.weights.find("blk.0.attn_q.weight")
            && q.info.shape[0].is_multiple_of(num_heads)
        {
            return Ok(q.info.shape[0] / num_heads);
        }
        if !hidden_size.is_multiple_of(num_heads) {
            let text = format!(
                "a hidden size of {hidden_size} is no multiple of {num_heads} heads, and no `head_dim` is given"
            );
            return Err(Error::invalid(text));
        }
        Ok(hidden_size / num_heads)
    }

    fn check_value_dim(&self, head_dim: usize) -> Result<()> {
        match self.find_size(&keys::VALUE_DIM)? {
            Some(size) if size != head_dim => {
                let text = format!(
                    "values of {size} elements beside keys of {head_dim} are not supported for {}",
                    self.arch.name
                );
                Err(Error::unsupported(text))
            }
            _ => Ok(()),
        }
    }

    fn query_scalar(
        &self,
        head_dim: usize,
        hidden: usize,
        heads: usize,
        layers: usize,
    ) -> Result<f64> {
        if !self.arch.query_pre_attn_scalar {
            return Ok(head_dim as f64);
        }
        if self.is_hf() {
            return self.positive(&keys::QUERY_PRE_ATTN_SCALAR);
        }
        // Converters do not write the scalar. llama.cpp's loader (gemma3) knows that only the 27B model, of 62 layers,
        // has another one than the head size.
        let written = match &self.source {
            Source::Gguf { metadata, prefix } => metadata
                .find_f64(&format!("{prefix}.attention.query_pre_attn_scalar"))?
                .filter(|x| *x > 0.0),
            Source::Hf(_) => None,
        };
        Ok(written.unwrap_or(if layers == 62 {
            hidden as f64 / heads as f64
        } else {
            head_dim as f64
        }))
    }

    fn activation(&self) -> Result<Activation> {
        // Gemma's classes read `hidden_activation` and ignore a `hidden_act` that older files carry.
        let own = match self.arch.activation {
            Activation::GeluTanh => self.hf("hidden_activation"),
            Activation::Silu => self
                .hf("hidden_act")
                .or_else(|| self.hf("hidden_activation")),
        };
        match own.map(|v| v.as_str().unwrap_or("?")) {
            None => Ok(self.arch.activation),
            Some("silu" | "swish") => Ok(Activation::Silu),
            Some("gelu_pytorch_tanh" | "gelu_new" | "gelu_fast") => Ok(Activation::GeluTanh),
            Some(other) => Err(Error::unsupported(format!(
                "activation `{other}` is not supported"
            ))
            .with_hint("supported are `silu` and `gelu_pytorch_tanh`")),
        }
    }

    fn biases(&self) -> (BiasPresence, BiasPresence, BiasPresence) {
        use BiasPresence::{Absent, Optional, Required};
        let configured = |key: &str| match self.hf(key).and_then(Value::as_bool) {
            Some(true) => Required,
            _ => Absent,
        };
        match (self.arch.biases, self.is_hf()) {
            (BiasRule::Qkv, _) => (Required, Absent, Absent),
            (BiasRule::Configured, true) => (
                configured("attention_bias"),
                configured("attention_bias"),
                configured("mlp_bias"),
            ),
            (BiasRule::Configured, false) => (Optional, Optional, Optional),
        }
    }

    fn tied_head(&self) -> Option<bool> {
        self.is_hf().then(|| {
            self.hf("tie_word_embeddings")
                .and_then(Value::as_bool)
                .unwrap_or(self.arch.tied_by_default)
        })
    }

    fn layers(
        &self,
        num_layers: usize,
        head_dim: usize,
    ) -> Result<(Vec<RopeConfig>, Vec<LayerConfig>)> {
        let windows = self.windows(num_layers)?;
        let local = matches!(self.arch.window, WindowRule::EveryNthFull(_));
        let mut ropes = vec![self.rope("full_attention", &keys::ROPE_THETA, head_dim, true)?];
        if local {
            ropes.push(self.rope(
                "sliding_attention",
                &keys::ROPE_LOCAL_THETA,
                head_dim,
                false,
            )?);
        }
        let layers = windows
            .into_iter()
            .map(|window| LayerConfig {
                window,
                rope: usize::from(local && window.is_some()),
            })
            .collect();
        Ok((ropes, layers))
    }

    fn windows(&self, num_layers: usize) -> Result<Vec<Option<usize>>> {
        let sliding: Vec<bool> = match self.layer_types(num_layers)? {
            Some(types) => types,
            None => (0..num_layers)
                .map(|i| self.slides_by_rule(i))
                .collect::<Result<_>>()?,
        };
        if !sliding.contains(&true) {
            return Ok(vec![None; num_layers]);
        }
        if self.arch.window == WindowRule::None {
            return Err(Error::unsupported(format!(
                "`sliding_attention` layers in a {} model",
                self.arch.name
            )));
        }
        let window = self.size(&keys::SLIDING_WINDOW)?;
        Ok(sliding
            .into_iter()
            .map(|slides| slides.then_some(window))
            .collect())
    }

    /// `layer_types` (in GGUF a list `sliding_window_pattern`), where the file has it: true for sliding layers.
    fn layer_types(&self, num_layers: usize) -> Result<Option<Vec<bool>>> {
        if let Source::Gguf { metadata, prefix } = &self.source {
            return gguf_layer_types(metadata, prefix, num_layers);
        }
        let Some(types) = self.hf("layer_types").and_then(Value::as_array) else {
            return Ok(None);
        };
        if types.len() < num_layers {
            return Err(Error::invalid(format!(
                "`layer_types` has {} entries for {num_layers} layers",
                types.len()
            )));
        }
        let one = |value: &Value| match value.as_str() {
            Some("full_attention") => Ok(false),
            Some("sliding_attention") => Ok(true),
            _ => Err(Error::unsupported(format!(
                "layer type {value} is not supported"
            ))),
        };
        types[..num_layers]
            .iter()
            .map(one)
            .collect::<Result<_>>()
            .map(Some)
    }

    fn slides_by_rule(&self, layer: usize) -> Result<bool> {
        match self.arch.window {
            WindowRule::None => Ok(false),
            WindowRule::Switched => {
                let on = self
                    .hf("use_sliding_window")
                    .and_then(Value::as_bool)
                    .unwrap_or(false);
                // Below 0 and above all layers are both written in real files.
                let from = self.find_number(&keys::MAX_WINDOW_LAYERS)?.unwrap_or(0.0);
                Ok(on && self.hf("sliding_window").is_some() && layer as f64 >= from)
            }
            WindowRule::EveryNthFull(default) => {
                let period = self.find_size(&keys::SLIDING_PATTERN)?.unwrap_or(default);
                Ok(!(layer + 1).is_multiple_of(period))
            }
        }
    }

    /// The rotation of full or sliding layers.
    fn rope(
        &self,
        kind: &str,
        theta_key: &Key,
        head_dim: usize,
        scaled: bool,
    ) -> Result<RopeConfig> {
        let parameters = self.hf("rope_parameters");
        // Newer files: one object, or one object per layer type.
        let parameters = parameters.map(|p| p.get(kind).unwrap_or(p));
        let nested = self
            .hf("rope_parameters")
            .is_some_and(|p| p.get(kind).is_some());
        let theta = match parameters
            .and_then(|p| p.get("rope_theta"))
            .and_then(Value::as_f64)
        {
            Some(theta) if scaled || nested => theta,
            _ => self
                .positive(theta_key)
                .or_else(|_| self.positive(&keys::ROPE_THETA))?,
        };
        let scaling = match &self.source {
            Source::Hf(_) if nested => read_scaling(parameters)?,
            Source::Hf(_) if scaled => read_scaling(self.hf("rope_scaling").or(parameters))?,
            Source::Hf(_) => RopeScaling::None,
            Source::Gguf { metadata, prefix } => self.gguf_scaling(metadata, prefix, scaled)?,
        };
        let factor = parameters
            .and_then(|p| p.get("partial_rotary_factor"))
            .or_else(|| self.hf("partial_rotary_factor"))
            .and_then(Value::as_f64)
            .unwrap_or(1.0);
        let dim = self
            .find_size(&keys::ROTARY_DIM)?
            .unwrap_or((head_dim as f64 * factor) as usize);
        if dim == 0 || dim > head_dim || !dim.is_multiple_of(2) {
            return Err(Error::invalid(format!(
                "{dim} rotated elements in a head of {head_dim}: expected an even part"
            )));
        }
        let pairing = if self.is_hf() {
            Pairing::HalfSplit
        } else {
            self.arch.gguf_pairing
        };
        Ok(RopeConfig {
            frequencies: scaled_frequencies(theta, dim, &scaling)?,
            magnitude: 1.0,
            pairing,
        })
    }

    fn gguf_scaling(&self, metadata: &Metadata, prefix: &str, scaled: bool) -> Result<RopeScaling> {
        if !scaled {
            return Ok(RopeScaling::None);
        }
        if let Some(divisors) = self.weights.find("rope_freqs.weight") {
            let mut values = vec![0.0; divisors.info.num_elements()];
            divisors
                .info
                .encoding
                .decode_row(divisors.bytes.as_slice(), &mut values)?;
            return Ok(RopeScaling::Divisors(values));
        }
        let kind = metadata.find_str(&format!("{prefix}.rope.scaling.type"))?;
        let factor = metadata.find_f64(&format!("{prefix}.rope.scaling.factor"))?;
        let older = metadata.find_f64(&format!("{prefix}.rope.scale_linear"))?;
        match (kind, factor.or(older).filter(|f| *f > 0.0)) {
            (None | Some("none" | "linear"), None) | (Some("none"), _) => Ok(RopeScaling::None),
            (None | Some("linear"), Some(factor)) => Ok(RopeScaling::Linear { factor }),
            (Some(other), _) => Err(Error::unsupported(format!(
                "rope scaling `{other}` is not supported"
            ))
            .with_hint("supported are `linear` and the factors of Llama 3")),
        }
    }
}

/// `attention.sliding_window_pattern` as newer converters write it: one flag per layer, true for sliding ones.
fn gguf_layer_types(
    metadata: &Metadata,
    prefix: &str,
    num_layers: usize,
) -> Result<Option<Vec<bool>>> {
    let key = format!("{prefix}.attention.sliding_window_pattern");
    if metadata.find_array_len(&key).ok().flatten().is_none() {
        return Ok(None);
    }
    let flags = metadata.find_bool_array(&key)?.unwrap_or_default();
    if flags.len() < num_layers {
        return Err(Error::invalid(format!(
            "`{key}` has {} entries for {num_layers} layers",
            flags.len()
        )));
    }
    Ok(Some(flags[..num_layers].to_vec()))
}

//! How the attention of layers differs from layer to layer: windows, rotations, sizes of heads, whose keys they read.

use serde_json::Value;

use super::source::Reader;
use crate::error::{Error, Result};
use crate::formats::TensorSource;
use crate::model::arch::keys;
use crate::model::arch::rules::RopeLayers;
use crate::model::config::{AttentionConfig, KvSource, ValueSource};

/// Key/value heads of a layer.
#[derive(Debug, Clone, Copy)]
struct Heads {
    /// Elements of each.
    dim: usize,
    count: usize,
}

impl Reader<'_> {
    /// The attention of each layer, of which `windows` and `rotates` tell the window and whether it rotates; `all` is what they
    /// have in common.
    pub(super) fn attention_by_layer(
        &self,
        all: &AttentionConfig,
        windows: &[Option<usize>],
        rotates: &[bool],
    ) -> Result<Vec<AttentionConfig>> {
        let sources = self.kv_sources(windows)?;
        let heads = self.heads_by_layer(all, windows)?;
        let mut layers: Vec<AttentionConfig> = Vec::with_capacity(windows.len());
        for (layer, window) in windows.iter().copied().enumerate() {
            let local = self.arch.local_rope && window.is_some();
            let rotates = rotates[layer]
                && (self.arch.rope_layers != RopeLayers::Sliding || window.is_some());
            let mut own = AttentionConfig {
                window,
                rope: rotates.then_some(usize::from(local)),
                kv: sources[layer],
                key_dim: heads[layer].dim,
                value_dim: heads[layer].dim,
                kv_heads: heads[layer].count,
                ..all.clone()
            };
            match own.kv {
                KvSource::Own if self.values_are_keys(layer, window)? => {
                    own.values = ValueSource::Keys;
                }
                KvSource::Own => {}
                KvSource::Layer(owner) => {
                    (own.kv_heads, own.values) = (layers[owner].kv_heads, layers[owner].values);
                }
            }
            if own.kv_heads == 0 || !own.heads.is_multiple_of(own.kv_heads) {
                return Err(Error::invalid(format!(
                    "{} query heads cannot share {} key/value heads in layer {layer}",
                    own.heads, own.kv_heads
                )));
            }
            layers.push(own);
        }
        Ok(layers)
    }

    /// The size of heads in layers without a window, and in those with one: all layers that rotate alike have the same.
    pub(super) fn head_dims(
        &self,
        all: &AttentionConfig,
        layers: &[AttentionConfig],
    ) -> Result<(usize, usize)> {
        let of = |slides: bool| -> Result<usize> {
            let mut dims = layers.iter().filter(|own| own.window.is_some() == slides);
            let first = dims.next().map_or(all.key_dim, |own| own.key_dim);
            match dims.find(|own| own.key_dim != first) {
                None => Ok(first),
                Some(other) => Err(Error::unsupported(format!(
                    "heads of {first} and of {} elements in layers that see equally much",
                    other.key_dim
                ))),
            }
        };
        Ok((of(false)?, of(true)?))
    }

    /// Key/value heads of each layer.
    fn heads_by_layer(
        &self,
        all: &AttentionConfig,
        windows: &[Option<usize>],
    ) -> Result<Vec<Heads>> {
        let base = Heads {
            dim: all.key_dim,
            count: all.kv_heads,
        };
        if self.arch.full_layers.is_none() {
            return Ok(vec![base; windows.len()]);
        }
        if let Some(overrides) = self.hf("per_layer_config") {
            return overridden(base, overrides, windows.len());
        }
        let mut full = base;
        if let Some(dim) = self.find_size(&keys::FULL_HEAD_DIM)? {
            full.dim = dim;
        }
        if self.has_shared_projection()?
            && let Some(count) = self.find_size(&keys::FULL_KV_HEADS)?
        {
            full.count = count;
        }
        let listed = self.per_layer(&keys::NUM_KV_HEADS, windows.len())?;
        let of = |(layer, window): (usize, &Option<usize>)| {
            let own = if window.is_some() { base } else { full };
            let listed = listed.as_ref().map(|listed| listed[layer]);
            Heads {
                count: listed.unwrap_or(own.count),
                ..own
            }
        };
        Ok(windows.iter().enumerate().map(of).collect())
    }

    /// Whether keys and values of layers without a window have one projection, as a `config.json` says.
    fn has_shared_projection(&self) -> Result<bool> {
        Ok(self.hf_flag("attention_k_eq_v")? == Some(true))
    }

    /// Whether the values of a layer are its keys; in GGUF files the tensor of the values is left out then.
    fn values_are_keys(&self, layer: usize, window: Option<usize>) -> Result<bool> {
        if self.arch.full_layers.is_none() {
            return Ok(false);
        }
        if self.is_hf() {
            return Ok(self.has_shared_projection()? && window.is_none());
        }
        let has = |part: &str| {
            let name = format!("blk.{layer}.{part}.weight");
            self.weights.find(&name).is_some()
        };
        Ok(!has("attn_v") && !has("attn_qkv"))
    }

    /// Whose keys and values each layer reads: the last layers those of the last layer before them that slides or does not, as
    /// they do.
    fn kv_sources(&self, windows: &[Option<usize>]) -> Result<Vec<KvSource>> {
        let mut sources = vec![KvSource::Own; windows.len()];
        if !self.arch.shared_keys {
            return Ok(sources);
        }
        let shared = self.find_count(&keys::SHARED_KV_LAYERS)?.unwrap_or(0);
        let first = windows.len().saturating_sub(shared);
        for layer in first..windows.len() {
            let alike = |owner: &usize| windows[*owner].is_some() == windows[layer].is_some();
            let owner = (0..first).rev().find(alike).ok_or_else(|| {
                let name = self.name(&keys::SHARED_KV_LAYERS);
                Error::invalid(format!(
                    "`{name}` is {shared}, but no layer before those has keys for layer {layer}"
                ))
            })?;
            sources[layer] = KvSource::Layer(owner);
        }
        Ok(sources)
    }
}

/// `per_layer_config` as newer versions of the reference write it: what differs from the rest, by the number of the layer.
fn overridden(base: Heads, overrides: &Value, num_layers: usize) -> Result<Vec<Heads>> {
    let mut heads = vec![base; num_layers];
    let bad = |what: String| Error::invalid(format!("`per_layer_config` {what}"));
    let layers = overrides
        .as_object()
        .ok_or_else(|| bad(format!("is {overrides}, expected an object")))?;
    for (number, fields) in layers {
        let layer = number.parse::<usize>().ok().filter(|l| *l < num_layers);
        let layer = layer.ok_or_else(|| {
            bad(format!(
                "names layer `{number}`, expected one of {num_layers}"
            ))
        })?;
        let fields = fields
            .as_object()
            .ok_or_else(|| bad(format!("has {fields} for layer {layer}")))?;
        for (key, value) in fields {
            let own = &mut heads[layer];
            let place = match key.as_str() {
                "head_dim" => &mut own.dim,
                "num_key_value_heads" => &mut own.count,
                _ => {
                    return Err(Error::unsupported(format!(
                        "`per_layer_config` changes `{key}` of layer {layer}, which is not supported"
                    )));
                }
            };
            *place = match value.as_u64() {
                Some(size @ 1..=0x10000) => size as usize,
                _ => {
                    return Err(bad(format!(
                        "has a `{key}` of {value} for layer {layer}, expected a whole number from 1 to 65536"
                    )));
                }
            };
        }
    }
    Ok(heads)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const BASE: Heads = Heads { dim: 16, count: 2 };

    #[test]
    fn layers_that_per_layer_config_leaves_out_are_as_all_are() {
        let overrides = json!({"02": {"head_dim": 32, "num_key_value_heads": 1}, "01": {}});
        let heads = overridden(BASE, &overrides, 3).unwrap();
        let heads: Vec<_> = heads.iter().map(|h| (h.dim, h.count)).collect();
        assert_eq!(heads, [(16, 2), (16, 2), (32, 1)]);
    }

    #[test]
    fn what_per_layer_config_cannot_change_is_refused_by_name() {
        let refusal = |overrides: Value| overridden(BASE, &overrides, 3).unwrap_err().chain();
        for (overrides, named) in [
            (json!({"1": {"intermediate_size": 7}}), "intermediate_size"),
            (json!({"3": {"head_dim": 7}}), "`3`"),
            (json!({"-1": {"head_dim": 7}}), "`-1`"),
            (json!({"1": {"head_dim": 0}}), "head_dim"),
            (json!({"1": {"head_dim": 1e9}}), "head_dim"),
            (json!({"1": 7}), "layer 1"),
            (json!([7]), "[7]"),
        ] {
            let text = refusal(overrides);
            assert!(text.contains(named), "{text}");
        }
    }
}

//! Attention: q, k and v by themselves or fused, their norms, the output.

use super::tensors::Tensors;
use crate::error::Result;
use crate::model::config::{
    AttentionConfig, KvSource, ModelConfig, NormConfig, NormKind, QkNorm, ValueSource,
};
use crate::model::layers::{Attention, Keys, Norm};
use crate::model::names::Part;
use crate::ops::rope::Pairing;

pub(super) fn load(
    tensors: &mut Tensors<'_>,
    config: &ModelConfig,
    index: usize,
    own: &AttentionConfig,
) -> Result<Attention> {
    let hidden = config.hidden_size;
    let (q_rows, k_rows) = (own.query_features(), own.kv_heads * own.key_dim);
    let v_rows = own.kv_heads * own.value_dim;
    let (q, kv) = match (own.kv, own.values) {
        (KvSource::Own, ValueSource::Projection) => {
            let parts = [(Part::Q, q_rows), (Part::K, k_rows), (Part::V, v_rows)];
            let [q, k, v] = tensors.rows_of(index, Part::Qkv, parts, hidden, own.qkv_bias)?;
            (q, Some((k, Some(v))))
        }
        (KvSource::Own, ValueSource::Keys) => {
            let mut linear = |part, rows| tensors.linear(index, part, rows, hidden, own.qkv_bias);
            let q = linear(Part::Q, q_rows)?;
            (q, Some((linear(Part::K, k_rows)?, None)))
        }
        (KvSource::Layer(_), _) => {
            // Some checkpoints hold what such a layer would have without sharing.
            for part in [Part::K, Part::V, Part::KNorm] {
                tensors.skip(
                    index,
                    part,
                    "keys and values of layers that read those of others",
                );
            }
            let q = tensors.linear(index, Part::Q, q_rows, hidden, own.qkv_bias)?;
            (q, None)
        }
    };
    let mut norm = |part: Part, heads: usize| -> Result<Option<Norm>> {
        let size = match own.qk_norm {
            QkNorm::None => return Ok(None),
            QkNorm::PerHead => own.key_dim,
            QkNorm::Flat => heads * own.key_dim,
        };
        let norm = NormConfig {
            kind: NormKind::Rms,
            ..config.norm
        };
        tensors.norm(Some(index), part, size, &norm).map(Some)
    };
    let q_norm = norm(Part::QNorm, own.heads)?;
    let keys = match kv {
        Some((k, v)) => Some(Keys {
            k,
            v,
            k_norm: norm(Part::KNorm, own.kv_heads)?,
            v_norm: own.value_norm.then(|| value_norm(config, own.value_dim)),
        }),
        None => None,
    };
    let sinks = own.sinks.then(|| {
        let name = tensors.bare_name(index, Part::Sinks);
        tensors.file.vector(&name, own.heads)
    });
    let rope = own.rope.map(|rope| config.ropes[rope].pairing);
    Ok(Attention {
        q,
        q_norm,
        keys,
        sinks: sinks.transpose()?,
        o: tensors.linear(
            index,
            Part::O,
            hidden,
            own.heads * own.value_dim,
            own.o_bias,
        )?,
        pages: config.pages_of(index).expect("the layer has attention"),
        pairing: rope.unwrap_or(Pairing::HalfSplit),
        config: own.clone(),
    })
}

/// A norm without weights: with all of them 1 it gives the same bits.
fn value_norm(config: &ModelConfig, size: usize) -> Norm {
    let rule = NormConfig {
        kind: NormKind::Rms,
        ..config.norm
    };
    Norm::new(&rule, vec![1.0; size], None)
}

//! The gated delta rule: its projections, the convolution, decay rates and the gated norm.

use super::tensors::Tensors;
use crate::env;
use crate::error::{Error, Result};
use crate::model::config::{
    BiasPresence, DecayRates, DeltaNetConfig, ModelConfig, NormConfig, NormKind,
};
use crate::model::layers::DeltaNet;
use crate::model::names::Part;
use crate::ops::delta_net::DeltaRule;
use crate::ops::short_conv::ShortConv;

pub(super) fn load(
    tensors: &mut Tensors<'_>,
    config: &ModelConfig,
    index: usize,
    own: &DeltaNetConfig,
) -> Result<DeltaNet> {
    let (hidden, shape) = (config.hidden_size, own.shape);
    let (heads, values) = (shape.value_heads, shape.value_heads * shape.value_dim);
    let mut linear = |part: Part, out: usize, inn: usize| {
        tensors.linear(index, part, out, inn, BiasPresence::Absent)
    };
    let qkv = linear(Part::DeltaQkv, shape.qkv_dim(), hidden)?;
    let z = linear(Part::DeltaZ, values, hidden)?;
    let a = linear(Part::DeltaA, heads, hidden)?;
    let b = linear(Part::DeltaB, heads, hidden)?;
    let out = linear(Part::DeltaOut, hidden, values)?;
    let weight = tensors.conv(index, Part::DeltaConv, shape.qkv_dim(), own.conv_kernel)?;
    let rates = rates(tensors, index, own)?;
    let dt_bias = tensors
        .file
        .vector(&tensors.stem(index, Part::DeltaDtBias), heads)?;
    // The one norm of these models whose weight is not zero-centred.
    let norm = NormConfig {
        kind: NormKind::Rms,
        eps: config.norm.eps,
        offset: 0.0,
    };
    let norm = tensors.norm(Some(index), Part::DeltaNorm, shape.value_dim, &norm)?;
    let chunk = env::GDN_CHUNK.number()?.unwrap_or(DeltaRule::CHUNK);
    Ok(DeltaNet {
        layer: index,
        states: config.states_of(index),
        qkv,
        z,
        a,
        b,
        conv: ShortConv::new(&weight, shape.qkv_dim(), None, true),
        rule: DeltaRule::new(shape, rates, dt_bias, chunk),
        norm,
        out,
        probe: env::GDN_DEBUG.switch()?.unwrap_or(false),
    })
}

/// `-exp(A_log)` per value head.
fn rates(tensors: &mut Tensors<'_>, index: usize, own: &DeltaNetConfig) -> Result<Vec<f32>> {
    let name = tensors.stem(index, Part::DeltaRates);
    let mut values = tensors.file.vector(&name, own.shape.value_heads)?;
    if own.rates == DecayRates::Logarithms {
        values.iter_mut().for_each(|a| *a = -libm::expf(*a));
    }
    // A rate above 0 would let the memory grow with every token.
    match values
        .iter()
        .find(|rate| !(rate.is_finite() && **rate <= 0.0))
    {
        Some(rate) => Err(Error::invalid(format!(
            "tensor `{name}` gives a decay rate of {rate}, expected none above 0"
        ))),
        None => Ok(values),
    }
}

//! The gated short convolution: the fused projection to gates and input, the convolution, the output.

use super::tensors::Tensors;
use crate::error::Result;
use crate::model::config::{ModelConfig, ShortConvConfig};
use crate::model::layers::ShortConv;
use crate::model::names::Part;
use crate::ops::short_conv;

pub(super) fn load(
    tensors: &mut Tensors<'_>,
    config: &ModelConfig,
    index: usize,
    own: &ShortConvConfig,
) -> Result<ShortConv> {
    let hidden = config.hidden_size;
    let [b, c, x] = tensors.split(index, Part::ConvIn, [hidden; 3], hidden, own.bias)?;
    let weight = tensors.conv(index, Part::Conv, hidden, own.kernel)?;
    let stem = tensors.stem(index, Part::Conv);
    let bias = tensors.file.bias(&stem, hidden, own.bias)?;
    Ok(ShortConv {
        states: config.states_of(index),
        b,
        c,
        x,
        conv: short_conv::ShortConv::new(&weight, hidden, bias, false),
        out: tensors.linear(index, Part::ConvOut, hidden, hidden, own.bias)?,
    })
}

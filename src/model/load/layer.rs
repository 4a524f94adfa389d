//! One layer: its norms, and the loaders of its parts.

use super::tensors::Tensors;
use super::{attention, delta_net, feed_forward, mla, moe, per_layer, short_conv};
use crate::error::Result;
use crate::model::config::{FeedForwardConfig, MixerConfig, ModelConfig, NormPlacement};
use crate::model::layers::{FeedForward, Layer, LayerNorms, Mixer, Norm};
use crate::model::names::Part;

pub(super) fn load(tensors: &mut Tensors<'_>, config: &ModelConfig, index: usize) -> Result<Layer> {
    let layer = &config.layers[index];
    let mut norm = |wanted: bool, part: Part| -> Result<Option<Norm>> {
        let load = || tensors.norm(Some(index), part, config.hidden_size, &config.norm);
        wanted.then(load).transpose()
    };
    let (before, after) = (layer.norms.is_before(), layer.norms.is_after());
    let own = layer.norms != NormPlacement::Parallel;
    let norms = LayerNorms {
        before_mixer: norm(before, Part::AttnNorm)?,
        after_mixer: norm(after, Part::PostAttnNorm)?,
        before_feed_forward: norm(before && own, Part::FfnNorm)?,
        after_feed_forward: norm(after, Part::PostFfnNorm)?,
    };
    Ok(Layer {
        placement: layer.norms,
        per_layer: per_layer::load(tensors, config, index)?,
        output_scale: per_layer::output_scale(tensors, config, index)?,
        norms,
        mixer: match &layer.mixer {
            MixerConfig::Attention(own) => {
                Mixer::Attention(attention::load(tensors, config, index, own)?)
            }
            MixerConfig::Mla(own) => Mixer::Mla(Box::new(mla::load(tensors, config, index, own)?)),
            MixerConfig::DeltaNet(own) => {
                Mixer::DeltaNet(delta_net::load(tensors, config, index, own)?)
            }
            MixerConfig::ShortConv(own) => {
                Mixer::ShortConv(short_conv::load(tensors, config, index, own)?)
            }
        },
        feed_forward: match &layer.feed_forward {
            FeedForwardConfig::Dense(own) => {
                FeedForward::Dense(Box::new(feed_forward::load(tensors, config, index, own)?))
            }
            FeedForwardConfig::Moe(own) => {
                FeedForward::Moe(Box::new(moe::load(tensors, config, index, own)?))
            }
            FeedForwardConfig::Twofold(own) => {
                FeedForward::Twofold(Box::new(moe::load_twofold(tensors, config, index, own)?))
            }
        },
    })
}

//! From a file or folder to a [`Transformer`]: every tensor is looked for by name and checked by shape before it is used.
//!
//! | file | owns |
//! |---|---|
//! | `tensors.rs` | tensors by the parts of the model that they are; `model/checkpoint.rs` takes them out of the file |
//! | `layer.rs` | one layer: its norms and which kinds of parts it has |
//! | `attention.rs`, `mla.rs`, `delta_net.rs`, `short_conv.rs`, `feed_forward.rs`, `moe.rs`, `per_layer.rs` | one kind of part each |
//! | `experts.rs` | experts, in whatever way files store them |

mod attention;
mod delta_net;
mod experts;
mod feed_forward;
mod layer;
mod mla;
mod moe;
mod per_layer;
mod short_conv;
mod tensors;

use std::path::Path;

use self::tensors::Tensors;
use super::config::ModelConfig;
use super::names::Part;
use super::read::read_config;
use super::transformer::{Head, Parts, Transformer};
use crate::error::Result;
use crate::formats::{self, MappedBytes, Weights};
use crate::nn::WeightPath;
use crate::ops::Context;
use crate::ops::kv_write::KvElement;
use crate::ops::matmul::{ByteStore, RawMatrix};

/// How to load.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoadOptions {
    /// Which multiplication packed weights use; on the reference path keys and values stay in single precision too.
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
    mut config: ModelConfig,
    options: LoadOptions,
) -> Result<Transformer> {
    if options.path == WeightPath::Reference {
        config.kv_element = KvElement::F32;
    }
    let mut tensors = Tensors::new(Some(ctx), weights, &config, options)?;
    let transformer = transformer(&mut tensors, config)?;
    tensors.log_skipped();
    tensors.file.refuse_unused()?;
    Ok(transformer)
}

/// What [`Transformer::weight_bytes`] will say of the model in `weights` when it is loaded for `path`: everything that
/// loading does but reading the tensors.
///
/// # Errors
/// `Invalid` for a tensor that is missing or has the wrong shape.
pub fn weigh(weights: &Weights, config: &ModelConfig, path: WeightPath) -> Result<usize> {
    let mut tensors = Tensors::new(None, weights, config, LoadOptions { path })?;
    Ok(transformer(&mut tensors, config.clone())?.weight_bytes())
}

impl ByteStore for MappedBytes {
    fn bytes(&self) -> &[u8] {
        self.as_slice()
    }

    fn release(&self) {
        self.release_pages();
    }
}

fn transformer(tensors: &mut Tensors<'_>, config: ModelConfig) -> Result<Transformer> {
    let (vocab, hidden) = (config.vocab_size, config.hidden_size);
    let name = tensors.weight_name(None, Part::Embedding);
    let embedding = tensors.file.table(&name, vocab, hidden)?;
    let per_layer = per_layer::load_inputs(tensors, &config)?;
    let layers = (0..config.layers.len()).map(|index| layer::load(tensors, &config, index));
    let layers = layers.collect::<Result<Vec<_>>>()?;
    let norm = tensors.norm(None, Part::FinalNorm, hidden, &config.norm)?;
    let head = head(tensors, &config, &embedding)?;
    Ok(Transformer::new(
        config,
        Parts {
            embedding,
            per_layer,
            layers,
            norm,
            head,
        },
    ))
}

fn head(tensors: &mut Tensors<'_>, config: &ModelConfig, embedding: &RawMatrix) -> Result<Head> {
    let name = tensors.weight_name(None, Part::Head);
    let own = tensors.file.has(&name);
    let tied = !own && config.tied_head != Some(false);
    let matrix = if tied {
        embedding.clone()
    } else {
        tensors
            .file
            .matrix(&name, config.vocab_size, config.hidden_size)?
    };
    if own && config.tied_head == Some(true) && tensors.file.differ(&matrix, embedding) {
        // As the reference does from version 5 on: different weights are not tied.
        tracing::warn!(tensor = %name, "the head is said to be the embedding but differs; it is used as it is");
    }
    let linear = tensors.file.build(&matrix, None);
    let source = match tied {
        true => tensors.weight_name(None, Part::Embedding),
        false => name,
    };
    let linear = linear.map_err(|e| tensors.file.in_tensor(&source, e))?;
    Ok(Head { linear, tied })
}

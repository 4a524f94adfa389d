//! Models whose layers are unlike each other (Gemma 4): heads of full layers, keys of other layers, inputs per layer.

use std::path::Path;

use oxydllm::formats::open;
use oxydllm::kv::BLOCK_TOKENS;
use oxydllm::model::plan::{Wish, plan};
use oxydllm::model::{ModelConfig, read_config};
use oxydllm::ops::kv_write::{KvElement, PageShape};
use safetensors::Dtype;
use serde_json::{Value, json};

use crate::refusals::{Copy, fixture};

fn config(path: &Path) -> ModelConfig {
    read_config(&open(path).unwrap(), path).unwrap()
}

fn pages(dims: &[(usize, usize)]) -> Vec<PageShape> {
    let page = |&(kv_heads, dim): &(usize, usize)| PageShape {
        kv_heads,
        key_dim: dim,
        value_dim: dim,
        element: KvElement::F16,
    };
    dims.iter().map(page).collect()
}

#[test]
fn every_layer_with_keys_of_its_own_has_pages_of_its_own_geometry_and_the_others_have_none() {
    for (name, dims, read) in [
        (
            "gemma4_inputs",
            &[(1, 10), (1, 14), (1, 10)][..],
            &[0, 1, 2, 2, 1][..],
        ),
        ("gemma4_experts", &[(2, 8), (2, 8), (1, 12)], &[0, 1, 2]),
    ] {
        let in_gguf = fixture(&format!("gguf_{name}")).join("model.gguf");
        for path in [fixture(name), in_gguf] {
            let config = config(&path);
            let shape = config.cache_shape();
            assert_eq!(shape.pages, pages(dims), "{}", path.display());
            let layers = 0..config.layers.len();
            let found: Vec<_> = layers.map(|l| config.pages_of(l).unwrap()).collect();
            assert_eq!(found, read);
            // Keys and values in F16, values as whole vectors of 8.
            let page = |&(heads, dim): &(usize, usize)| heads * (dim + dim.next_multiple_of(8));
            let block_bytes = dims.iter().map(page).sum::<usize>() * BLOCK_TOKENS * 2;
            let planned = plan(&config, 0, Wish::default(), 1 << 40).unwrap();
            assert_eq!(planned.kv_bytes, planned.num_blocks * block_bytes);
        }
    }
}

#[test]
fn the_older_spelling_of_full_layers_means_the_same_as_per_layer_config() {
    let mut copy = Copy::of("gemma4_experts");
    let newer = config(copy.write());
    let object = copy.config.as_object_mut().unwrap();
    object.remove("per_layer_config");
    object.insert("global_head_dim".to_owned(), 12.into());
    object.insert("num_global_key_value_heads".to_owned(), 1.into());
    assert_eq!(config(copy.write()), newer);
    // Key/value heads of full layers count only where their values are their keys.
    copy.config["attention_k_eq_v"] = false.into();
    let own = config(copy.write()).cache_shape();
    assert_eq!(own.pages, pages(&[(2, 8), (2, 8), (2, 12)]));
}

fn nan() -> (Dtype, Vec<usize>, Vec<u8>) {
    (Dtype::F32, vec![1], f32::NAN.to_le_bytes().to_vec())
}

#[test]
fn keys_that_a_layer_does_not_use_are_not_read_and_those_that_it_needs_are_missed() {
    let mut copy = Copy::of("gemma4_inputs");
    for part in [
        "k_proj.weight",
        "k_proj.bias",
        "v_proj.weight",
        "k_norm.weight",
    ] {
        let name = format!("model.layers.4.self_attn.{part}");
        assert!(copy.tensors.insert(name, nan()).is_none());
    }
    copy.load().unwrap();
    // Layer 2 is the one whose keys layer 3 reads.
    let name = "model.layers.2.self_attn.v_proj.weight";
    copy.tensors.remove(name).unwrap();
    let refusal = copy.refusal();
    assert!(
        refusal.contains(&format!("no tensor `{name}`")),
        "{refusal}"
    );
}

#[test]
fn the_text_part_of_a_multimodal_file_is_the_same_model_and_its_towers_are_not_read() {
    let mut copy = Copy::of("gemma4_experts");
    let alone = config(copy.write());
    let inner = |name: String| match name.strip_prefix("model.") {
        Some(rest) => format!("model.language_model.{rest}"),
        None => name,
    };
    let tensors = std::mem::take(&mut copy.tensors).into_iter();
    copy.tensors = tensors
        .map(|(name, tensor)| (inner(name), tensor))
        .collect();
    for tower in [
        "vision_tower.patch_embedder.input_proj",
        "audio_tower.output_proj",
        "embed_vision.embedding_projection",
        "embed_audio.embedding_projection",
    ] {
        copy.tensors.insert(format!("model.{tower}.weight"), nan());
    }
    let mut text = copy.config.take();
    let tied = text["tie_word_embeddings"].take();
    text["model_type"] = "gemma4_text".into();
    copy.config = json!({
        "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "tie_word_embeddings": tied, "text_config": text,
        "vision_config": {"model_type": "gemma4_vision", "hidden_size": 8}, "audio_config": Value::Null,
    });
    copy.load().unwrap();
    assert_eq!(config(copy.write()), alone);
}

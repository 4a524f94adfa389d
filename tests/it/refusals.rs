//! Checkpoints that are not what they say: refused before anything is computed, with the tensor's or the field's name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oxydllm::error::Error;
use oxydllm::formats::open;
use oxydllm::model::{LoadOptions, load, read_config, weigh};
use oxydllm::nn::WeightPath;
use oxydllm::ops::{Context, CpuLevel};
use oxydllm::threads::Pool;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

/// Dtype, shape and bytes.
type Tensor = (Dtype, Vec<usize>, Vec<u8>);

/// A fixture in a folder of its own, to be spoilt.
pub struct Copy {
    folder: tempfile::TempDir,
    pub tensors: BTreeMap<String, Tensor>,
    pub config: Value,
}

impl Copy {
    pub fn of(name: &str) -> Self {
        let source = fixture(name);
        let owned =
            |t: &TensorView<'_>| -> Tensor { (t.dtype(), t.shape().to_vec(), t.data().to_vec()) };
        let mut tensors = BTreeMap::new();
        // One file, or several shards.
        for entry in std::fs::read_dir(&source).unwrap() {
            let path = entry.unwrap().path();
            let is_shard = path
                .file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with("model");
            if is_shard && path.extension().is_some_and(|end| end == "safetensors") {
                let bytes = std::fs::read(path).unwrap();
                let read = SafeTensors::deserialize(&bytes).unwrap();
                tensors.extend(read.iter().map(|(name, t)| (name.to_owned(), owned(&t))));
            }
        }
        let config = std::fs::read(source.join("config.json")).unwrap();
        Self {
            folder: tempfile::tempdir().unwrap(),
            tensors,
            config: serde_json::from_slice(&config).unwrap(),
        }
    }

    pub fn write(&self) -> &Path {
        let path = self.folder.path();
        let views = self.tensors.iter().map(|(name, (dtype, shape, bytes))| {
            (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        safetensors::serialize_to_file(views, None, &path.join("model.safetensors")).unwrap();
        std::fs::write(path.join("config.json"), self.config.to_string()).unwrap();
        path
    }

    pub fn load(&self) -> Result<(), Error> {
        let ctx = Context::cpu(Arc::new(Pool::new(2)), CpuLevel::detect());
        load(&ctx, self.write(), LoadOptions::default()).map(|_| ())
    }

    /// What loading says against it.
    pub fn refusal(&self) -> String {
        self.load().unwrap_err().chain()
    }
}

pub fn fixture(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("tests/fixtures/models").join(name)
}

#[test]
fn a_copy_that_nobody_spoilt_loads() {
    for name in [
        "deepseek_v2_direct",
        "deepseek_v3_halves",
        "mistral_window",
        "granite_scales",
        "cohere2_parallel",
        "phi3_long",
        "gemma4_inputs",
        "gemma4_experts",
    ] {
        Copy::of(name).load().unwrap();
    }
}

#[test]
fn a_missing_tensor_of_any_kind_is_named() {
    for fixture in ["granite_scales", "gemma4_inputs", "gemma4_experts"] {
        let all = Copy::of(fixture).tensors;
        // A fused one is named by one of its parts.
        let single = |name: &&String| !name.ends_with("gate_up_proj");
        for name in all.keys().filter(single) {
            let mut copy = Copy::of(fixture);
            copy.tensors.remove(name);
            let refusal = copy.refusal();
            assert!(
                refusal.contains(&format!("no tensor `{name}")),
                "{name}: {refusal}"
            );
        }
    }
}

#[test]
fn a_missing_fused_tensor_is_named_by_one_of_its_parts() {
    let mut copy = Copy::of("phi3_long");
    copy.tensors
        .remove("model.layers.1.self_attn.qkv_proj.weight");
    let refusal = copy.refusal();
    assert!(
        refusal.contains("no tensor `model.layers.1.self_attn.q_proj.weight`"),
        "{refusal}"
    );
}

#[test]
fn an_extra_tensor_is_named_and_a_tower_is_not_read() {
    let mut copy = Copy::of("mistral_window");
    let nan = (
        Dtype::F32,
        vec![2],
        [f32::NAN.to_le_bytes(), f32::NAN.to_le_bytes()].concat(),
    );
    copy.tensors
        .insert("vision_tower.patch.weight".to_owned(), nan.clone());
    copy.tensors
        .insert("mtp.layers.0.weight".to_owned(), nan.clone());
    copy.load().unwrap();
    copy.tensors
        .insert("model.layers.1.self_attn.q_proj.bias".to_owned(), nan);
    let refusal = copy.refusal();
    assert!(
        refusal.contains("1 tensors that a Mistral model does not use, such as `model.layers.1.self_attn.q_proj.bias`"),
        "{refusal}"
    );
}

#[test]
fn a_layer_that_predicts_further_tokens_is_not_read_where_the_class_has_one() {
    let mut copy = Copy::of("deepseek_v3_halves");
    let nan = (Dtype::F32, vec![1], f32::NAN.to_le_bytes().to_vec());
    copy.tensors
        .insert("model.layers.2.enorm.weight".to_owned(), nan);
    // The file says that there is none.
    let refusal = copy.refusal();
    assert!(
        refusal.contains("`model.layers.2.enorm.weight`"),
        "{refusal}"
    );
    let config = copy.config.as_object_mut().unwrap();
    config.remove("num_nextn_predict_layers");
    copy.load().unwrap();
}

#[test]
fn a_wrongly_shaped_tensor_is_named_with_both_shapes() {
    for (name, shape) in [
        ("model.layers.0.self_attn.k_proj.weight", vec![24, 30]),
        ("model.layers.1.mlp.down_proj.weight", vec![960]),
        ("model.norm.weight", vec![4, 6]),
        ("lm_head.weight", vec![24, 288]),
    ] {
        let mut copy = Copy::of("mistral_window");
        let tensor = copy.tensors.get_mut(name).unwrap();
        let right = std::mem::replace(&mut tensor.1, shape.clone());
        let refusal = copy.refusal();
        let expected = format!("tensor `{name}` has shape {shape:?}, expected {right:?}");
        assert!(refusal.contains(&expected), "{refusal}");
    }
}

#[test]
fn a_float_that_is_none_is_named_with_its_place_in_matrices_and_vectors() {
    let at = 77;
    let spoilt = [
        (
            "mistral_window",
            "model.embed_tokens.weight",
            0x7fc0_u16,
            "NaN",
        ),
        (
            "mistral_window",
            "model.layers.1.mlp.up_proj.weight",
            0x7f80,
            "inf",
        ),
        ("mistral_window", "lm_head.weight", 0xff80, "-inf"),
        (
            "phi3_long",
            "model.layers.0.self_attn.qkv_proj.weight",
            0xffff,
            "NaN",
        ),
    ];
    for (fixture, name, bits, shown) in spoilt {
        let mut copy = Copy::of(fixture);
        let bytes = &mut copy.tensors.get_mut(name).unwrap().2;
        bytes[2 * at..2 * at + 2].copy_from_slice(&bits.to_le_bytes());
        let refusal = copy.refusal();
        let expected = format!("tensor `{name}` holds {shown} at element {at}");
        assert!(refusal.contains(&expected), "{refusal}");
    }
    let mut copy = Copy::of("granite_scales");
    let name = "model.layers.1.self_attn.o_proj.bias";
    copy.tensors.get_mut(name).unwrap().2[6..8].copy_from_slice(&0x7fc0_u16.to_le_bytes());
    let refusal = copy.refusal();
    assert!(
        refusal.contains(&format!("tensor `{name}` holds NaN at element 3")),
        "{refusal}"
    );
}

#[test]
fn weighing_finds_wrong_tensors_before_anything_is_read() {
    let mut copy = Copy::of("mistral_window");
    copy.tensors.remove("model.layers.1.mlp.up_proj.weight");
    let path = copy.write();
    let weights = open(path).unwrap();
    let config = read_config(&weights, path).unwrap();
    let refusal = weigh(&weights, &config, WeightPath::Fast)
        .unwrap_err()
        .chain();
    assert!(
        refusal.contains("no tensor `model.layers.1.mlp.up_proj.weight`"),
        "{refusal}"
    );
}

#[test]
fn a_description_that_this_build_cannot_follow_is_refused_with_its_field() {
    refused_with([
        (
            "mistral_window",
            "architectures",
            serde_json::json!(["MambaForCausalLM"]),
            "`MambaForCausalLM` is not supported",
        ),
        (
            "mistral_window",
            "hidden_act",
            "relu".into(),
            "activation `relu`",
        ),
        (
            "mistral_window",
            "rope_scaling",
            serde_json::json!({"type": "ntk", "factor": 2.0}),
            "rope scaling `ntk`",
        ),
        (
            "mistral_window",
            "num_key_value_heads",
            2.into(),
            "3 query heads cannot share 2",
        ),
        (
            "mistral_window",
            "head_dim",
            9.into(),
            "9 rotated elements in a head of 9",
        ),
        (
            "phi3_long",
            "rope_scaling",
            serde_json::json!({"type": "longrope", "short_factor": [1.0], "long_factor": [1.0, 2.0, 3.0]}),
            "has 1 divisors, expected 3",
        ),
        (
            "smollm3_rope",
            "no_rope_layers",
            serde_json::json!([1, 1]),
            "`no_rope_layers` has 2 entries for 4 layers",
        ),
        (
            "gemma2_caps",
            "layer_types",
            serde_json::json!(["full_attention", "full_attention", "linear_attention"]),
            "layer type \"linear_attention\"",
        ),
    ]);
}

#[test]
fn what_latent_attention_and_unlike_layers_cannot_be_is_refused_with_its_field() {
    refused_with([
        (
            "deepseek_v2_groups",
            "topk_method",
            "noaux_tc".into(),
            "`topk_method` `noaux_tc` is not supported for DeepSeek V2",
        ),
        (
            "deepseek_v3_halves",
            "scoring_func",
            "softmax".into(),
            "`scoring_func` `softmax` is not supported for DeepSeek V3",
        ),
        (
            "deepseek_v3_halves",
            "num_key_value_heads",
            1.into(),
            "1 key/value heads beside 2 query heads",
        ),
        (
            "deepseek_v2_direct",
            "rope_scaling",
            serde_json::json!({"type": "yarn", "mscale_all_dim": 0.7}),
            "has `mscale_all_dim` and no number `factor`",
        ),
        (
            "gemma4_inputs",
            "num_kv_shared_layers",
            4.into(),
            "`num_kv_shared_layers` is 4, but no layer before those has keys for layer 1",
        ),
        (
            "gemma4_inputs",
            "vocab_size_per_layer_input",
            344.into(),
            "a vocabulary of 345 with inputs per layer for 344",
        ),
        (
            "gemma4_inputs",
            "use_bidirectional_attention",
            "all".into(),
            "bidirectional",
        ),
        (
            "gemma4_experts",
            "per_layer_config",
            serde_json::json!({"2": {"intermediate_size": 12}}),
            "`per_layer_config` changes `intermediate_size` of layer 2",
        ),
        (
            "gemma4_experts",
            "per_layer_config",
            serde_json::json!({"1": {"head_dim": 12}}),
            "heads of 8 and of 12 elements",
        ),
        (
            "gemma4_experts",
            "per_layer_config",
            serde_json::json!({"2": {"num_key_value_heads": 3}}),
            "4 query heads cannot share 3 key/value heads in layer 2",
        ),
    ]);
}

#[test]
fn rotary_parameters_that_would_be_passed_over_are_refused() {
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    refused_with([
        (
            "phi3_long",
            "partial_rotary_factor",
            1e300.into(),
            "rotated elements in a head of",
        ),
        (
            "llama_plain",
            "rope_scaling",
            "x".into(),
            "`rope_scaling` is \"x\", expected an object",
        ),
        (
            "llama_plain",
            "rope_parameters",
            json("[]"),
            "`rope_parameters` is [], expected an object",
        ),
        (
            "llama_plain",
            "rope_scaling",
            json(r#"{"rope_type": 5, "factor": 2}"#),
            "`rope_type` in `rope_scaling` is 5, expected the name of a rotation",
        ),
        (
            "llama_plain",
            "rope_parameters",
            json(r#"{"rope_type": "default", "rope_theta": "x"}"#),
            "`rope_theta` in `rope_parameters` is \"x\", expected a number",
        ),
    ]);
}

#[test]
fn a_switch_of_another_type_is_refused_wherever_it_is_read() {
    for (fixture, key) in [
        ("lfm2_plain", "tie_embedding"),
        ("lfm2_plain", "conv_bias"),
        ("lfm2_plain", "block_auto_adjust_ff_dim"),
        ("llama_plain", "mlp_bias"),
        ("qwen2_window", "use_sliding_window"),
        ("qwen2_moe_plain", "qkv_bias"),
        ("qwen3_moe_sparse", "norm_topk_prob"),
        ("glm4_moe_groups", "use_qk_norm"),
        ("deepseek_v3_groups", "rope_interleave"),
        ("gemma4_experts", "enable_moe_block"),
        ("gemma4_experts", "attention_k_eq_v"),
        ("gemma4_inputs", "use_double_wide_mlp"),
    ] {
        let expected = format!("`{key}` is 1, expected `true` or `false`");
        refused_with([(fixture, key, 1.into(), &expected)]);
    }
    let mut copy = Copy::of("gpt_oss_float");
    copy.config["rope_parameters"]["truncate"] = "no".into();
    let refusal = copy.refusal();
    let expected = "`truncate` in `rope_parameters` is \"no\", expected `true` or `false`";
    assert!(refusal.contains(expected), "{refusal}");
    let mut copy = Copy::of("ministral3_plain");
    copy.config["rope_parameters"]["llama_4_scaling_beta"] = "x".into();
    let refusal = copy.refusal();
    let expected = "`llama_4_scaling_beta` in `rope_parameters` is \"x\", expected a number";
    assert!(refusal.contains(expected), "{refusal}");
    let list = "`mlp_only_layers` is 1, expected a list";
    refused_with([("qwen3_moe_sparse", "mlp_only_layers", 1.into(), list)]);
}

#[test]
fn a_refusal_names_what_the_file_has() {
    refused_with([
        (
            "gemma4_experts",
            "top_k_experts",
            0.into(),
            "`top_k_experts` is 0, expected a whole number from 1",
        ),
        (
            "gemma4_experts",
            "top_k_experts",
            Value::Null,
            "does not say its `num_experts_per_tok` or `experts_per_token` or `top_k_experts`",
        ),
    ]);
    // Whole numbers without a scale are no weights.
    for (fixture, table) in [
        ("llama_rope3_tied", "model.embed_tokens.weight"),
        ("mistral_window", "model.embed_tokens.weight"),
        (
            "mistral3_nested",
            "language_model.model.embed_tokens.weight",
        ),
        ("gemma4_inputs", "model.embed_tokens_per_layer.weight"),
        (
            "mistral3_nested",
            "language_model.model.layers.1.mlp.up_proj.weight",
        ),
    ] {
        let mut copy = Copy::of(fixture);
        let (dtype, shape, bytes) = copy.tensors.get_mut(table).unwrap();
        (*dtype, *bytes) = (Dtype::I8, vec![1; shape.iter().product()]);
        let refusal = copy.refusal();
        assert!(
            refusal.contains(&format!("tensor `{table}`")) && refusal.contains("I8"),
            "{fixture} {table}: {refusal}"
        );
    }
}

#[test]
fn switches_and_lists_of_another_type_are_refused() {
    refused_with([
        (
            "llama_plain",
            "tie_word_embeddings",
            "yes".into(),
            "`tie_word_embeddings` is \"yes\", expected `true` or `false`",
        ),
        (
            "llama_plain",
            "attention_bias",
            1.into(),
            "`attention_bias` is 1, expected `true` or `false`",
        ),
        (
            "qwen3_5_plain",
            "layer_types",
            "x".into(),
            "`layer_types` is \"x\", expected a list",
        ),
    ]);
}

/// Fixtures with a field of their description changed are refused, and the error says this.
pub fn refused_with<const N: usize>(spoilt: [(&str, &str, Value, &str); N]) {
    for (fixture, key, value, expected) in spoilt {
        let mut copy = Copy::of(fixture);
        copy.config[key] = value;
        let refusal = copy.refusal();
        assert!(refusal.contains(expected), "{fixture} {key}: {refusal}");
    }
}

#[test]
fn a_head_of_its_own_is_used_although_the_file_calls_it_tied() {
    let mut copy = Copy::of("mistral_window");
    copy.config["tie_word_embeddings"] = true.into();
    copy.load().unwrap();
    copy.tensors.remove("lm_head.weight");
    copy.load().unwrap();
    copy.config["tie_word_embeddings"] = false.into();
    let refusal = copy.refusal();
    assert!(refusal.contains("no tensor `lm_head.weight`"), "{refusal}");
}

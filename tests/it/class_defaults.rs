//! What classes assume where a `config.json` is silent: the numbers are those of transformers 5.24 for the same files.

use oxydllm::formats::open;
use oxydllm::model::{MixerConfig, ModelConfig, read_config};
use serde_json::{Value, json};

use crate::gguf_numbers::File;
use crate::refusals::{Copy, refused_with};

fn config(copy: &Copy) -> ModelConfig {
    let path = copy.write();
    read_config(&open(path).unwrap(), path).unwrap()
}

/// The fixture without rotary parameters.
fn silent(fixture: &str) -> Copy {
    let mut copy = Copy::of(fixture);
    let fields = copy.config.as_object_mut().unwrap();
    fields.remove("rope_parameters").unwrap();
    copy
}

fn growth(config: &ModelConfig) -> Option<(f32, usize)> {
    let MixerConfig::Attention(attention) = &config.layers[0].mixer else {
        panic!("{:?}", config.layers[0].mixer)
    };
    attention.query_scaling.map(|own| (own.beta, own.original))
}

const MINISTRAL_3: [f32; 6] = [
    1.0,
    0.099_999_994,
    0.006_874_998_6,
    0.000_375,
    6.249_998e-6,
    6.250_002e-7,
];

#[track_caller]
fn assert_near(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!(
            (found - expected).abs() <= 1e-6 * expected,
            "{found} {expected}"
        );
    }
}

#[test]
fn ministral_3_stretches_by_yarn_unless_a_file_says_otherwise() {
    let mut copy = silent("ministral3_plain");
    // Its class does not look at a base outside.
    copy.config["rope_theta"] = 5e5.into();
    for (key, value) in [
        ("rope_parameters", Value::Null),
        ("rope_scaling", Value::Null),
        ("rope_scaling", json!({})),
    ] {
        copy.config[key] = value;
        let config = config(&copy);
        assert_near(&config.ropes[0].frequencies, &MINISTRAL_3);
        assert_eq!(config.ropes[0].magnitude, 1.0);
        assert_eq!(growth(&config), Some((0.1, 16384)));
    }
    // An empty newer object is one.
    copy.config["rope_parameters"] = json!({});
    let config = config(&copy);
    assert_eq!(config.ropes[0].frequencies[0], 1.0);
    assert!(config.ropes[0].frequencies[5] > 1e-5);
    assert_eq!(growth(&config), None);
}

#[test]
fn a_mistral_3_holds_the_text_that_its_text_part_says() {
    let mut copy = Copy::of("mistral3_nested");
    let mistral = config(&copy);
    assert_eq!(mistral.architecture, "Mistral 3");
    assert_eq!(growth(&mistral), None);
    copy.config["text_config"]["model_type"] = "ministral3".into();
    copy.config["text_config"]["head_dim"] = 12.into();
    let ministral = config(&copy);
    assert_eq!(ministral.architecture, "Ministral 3");
    assert_near(&ministral.ropes[0].frequencies, &MINISTRAL_3);
    assert_eq!(growth(&ministral), Some((0.1, 16384)));
}

#[test]
fn gpt_oss_stretches_by_yarn_without_rounding_its_ends() {
    let config = config(&silent("gpt_oss_float"));
    let rope = &config.ropes[0];
    assert_near(&rope.frequencies, &[1.0, 0.013_777_479, 1.106_935_8e-5]);
    assert!((rope.magnitude - 1.346_573_6).abs() < 1e-6);
}

#[test]
fn gpt_oss_files_of_llama_cpp_round_no_ends_either() {
    let key = "gpt-oss.rope.scaling.original_context_length";
    let mut file = File::of("packed_gguf_gpt_oss_mxfp4");
    assert_eq!(file.count(key), 8);
    // An original context whose ramp has broken ends inside the head.
    let file = file.with_count(key, 32).read().unwrap();

    let mut copy = Copy::of("packed_gpt_oss_mxfp4");
    let original = &mut copy.config["rope_parameters"]["original_max_position_embeddings"];
    *original = 32.into();
    let folder = config(&copy);
    assert_near(&file.ropes[0].frequencies, &folder.ropes[0].frequencies);
}

#[test]
fn a_share_of_a_head_rotates_only_in_classes_that_know_it_or_where_frequencies_are_scaled() {
    let rotated = |copy: &Copy| config(copy).ropes[0].frequencies.len();
    let whole = rotated(&Copy::of("llama_plain"));
    let mut copy = Copy::of("llama_plain");
    copy.config["partial_rotary_factor"] = 0.5.into();
    assert_eq!(rotated(&copy), whole);
    copy.config["rope_parameters"] =
        json!({"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5});
    assert_eq!(rotated(&copy), whole);
    copy.config["rope_parameters"]["rope_type"] = "linear".into();
    copy.config["rope_parameters"]["factor"] = 2.0.into();
    assert_eq!(rotated(&copy), whole / 2);
    copy.config["rope_parameters"]["rope_type"] = "dynamic".into();
    assert_eq!(rotated(&copy), whole / 2);

    let mut knows = Copy::of("glm4_moe_groups");
    let half = rotated(&knows);
    knows.config["rope_parameters"]["partial_rotary_factor"] = 1.0.into();
    assert!(rotated(&knows) > half);
}

#[test]
fn a_bad_base_of_sliding_layers_is_refused_and_not_replaced_by_the_common_one() {
    let key = "rope_local_base_freq";
    let bad = [Value::Null, json!("10000"), json!(-1e4), json!(0)];
    refused_with(bad.map(|value| ("gemma3_pattern", key, value, "`rope_local_base_freq`")));
}

#[test]
fn the_epsilon_has_one_name_in_each_class() {
    let mut copy = Copy::of("llama_plain");
    let fields = copy.config.as_object_mut().unwrap();
    fields.remove("rms_norm_eps").unwrap();
    fields.insert("norm_eps".to_owned(), 0.1.into());
    assert_eq!(config(&copy).norm.eps, 1e-6);

    let mut copy = Copy::of("lfm2_plain");
    copy.config["rms_norm_eps"] = 0.1.into();
    assert_eq!(config(&copy).norm.eps, 1e-5);
    copy.config["norm_eps"] = 0.1.into();
    assert_eq!(config(&copy).norm.eps, 0.1);

    copy.config["norm_eps"] = 1e300.into();
    assert!(
        copy.refusal().contains("`norm_eps` is 1"),
        "{}",
        copy.refusal()
    );
}

#[test]
fn gelu_is_its_approximation_in_the_first_gemma_only() {
    let mut copy = Copy::of("gemma_one_key");
    copy.config["hidden_act"] = "gelu".into();
    copy.load().unwrap();
    refused_with([(
        "gemma3_pattern",
        "hidden_activation",
        "gelu".into(),
        "activation `gelu` is not supported",
    )]);
}

#[test]
fn a_window_of_nothing_is_refused() {
    let refusal = "`sliding_window` is 0";
    let fixtures = ["mistral_window", "gemma3_pattern"];
    refused_with(fixtures.map(|fixture| (fixture, "sliding_window", 0.into(), refusal)));
}

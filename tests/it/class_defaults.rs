//! What classes assume where a `config.json` is silent: the numbers are those of transformers 5.24 for the same files.

use std::path::Path;

use oxydllm::formats::open;
use oxydllm::model::{MixerConfig, ModelConfig, read_config};
use serde_json::{Value, json};

use crate::refusals::Copy;

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
    let name = "packed_gguf_gpt_oss_mxfp4/model.gguf";
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models");
    let mut bytes = std::fs::read(fixtures.join(name)).unwrap();
    // An original context whose ramp has broken ends inside the head: the key, its type, and the number.
    let key = b"gpt-oss.rope.scaling.original_context_length";
    let at = bytes.windows(key.len()).position(|part| part == key);
    let value = at.unwrap() + key.len() + 4;
    assert_eq!(bytes[value - 4..value + 4], [4, 0, 0, 0, 8, 0, 0, 0]);
    bytes[value] = 32;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    let file = read_config(&open(&path).unwrap(), &path).unwrap();

    let mut copy = Copy::of("packed_gpt_oss_mxfp4");
    let original = &mut copy.config["rope_parameters"]["original_max_position_embeddings"];
    *original = 32.into();
    let folder = config(&copy);
    assert_near(&file.ropes[0].frequencies, &folder.ropes[0].frequencies);
}

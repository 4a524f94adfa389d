//! Numbers in GGUF files that are missing or none: what the file says is taken, or the key is named.

use oxydllm::error::Error;
use oxydllm::formats::open;
use oxydllm::model::{MixerConfig, ModelConfig, read_config};

use crate::refusals::fixture;

/// Numbers of value types.
const U32: u8 = 4;
const F32: u8 = 6;

/// The bytes of a fixture's file, to be spoilt.
pub struct File(Vec<u8>);

impl File {
    pub fn of(name: &str) -> Self {
        Self(std::fs::read(fixture(name).join("model.gguf")).unwrap())
    }

    /// Where the value of a 32-bit key lies.
    fn value(&self, key: &str) -> usize {
        let found: Vec<usize> = (0..self.0.len() - key.len())
            .filter(|&at| {
                let len = (key.len() as u64).to_le_bytes();
                self.0[at..].starts_with(key.as_bytes()) && self.0[..at].ends_with(&len)
            })
            .collect();
        let [at] = found[..] else {
            panic!("`{key}` stands {} times", found.len())
        };
        at + key.len() + 4
    }

    /// The four bytes of a value whose type has the number `kind`.
    fn four(&mut self, key: &str, kind: u8) -> &mut [u8; 4] {
        let at = self.value(key);
        assert_eq!(self.0[at - 4..at], [kind, 0, 0, 0], "{key}");
        (&mut self.0[at..at + 4]).try_into().unwrap()
    }

    fn with(mut self, key: &str, value: f32) -> Self {
        *self.four(key, F32) = value.to_le_bytes();
        self
    }

    pub fn with_count(mut self, key: &str, count: u32) -> Self {
        *self.four(key, U32) = count.to_le_bytes();
        self
    }

    pub fn count(&mut self, key: &str) -> u32 {
        u32::from_le_bytes(*self.four(key, U32))
    }

    /// Under another name, which nobody knows.
    fn without(mut self, key: &str) -> Self {
        let end = self.value(key) - 4;
        self.0[end - 1] = b'~';
        self
    }

    pub fn read(&self) -> Result<ModelConfig, Error> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, &self.0).unwrap();
        read_config(&open(&path)?, &path)
    }
}

#[test]
fn a_number_that_is_none_is_refused_by_its_key() {
    let nan_and_more = [f32::NAN, f32::INFINITY, -2.0];
    for (fixture, key) in [
        ("gguf_ministral3_plain", "mistral3.rope.scaling.factor"),
        (
            "gguf_ministral3_plain",
            "mistral3.rope.scaling.yarn_beta_fast",
        ),
        (
            "gguf_ministral3_plain",
            "mistral3.rope.scaling.yarn_beta_slow",
        ),
        (
            "gguf_ministral3_plain",
            "mistral3.rope.scaling.yarn_log_multiplier",
        ),
        ("gguf_phi3_long", "phi3.rope.scaling.attn_factor"),
        ("gguf_llama_bias_f16", "llama.rope.scaling.factor"),
        ("gguf_llama_bias_f16", "llama.rope.freq_base"),
        ("packed_mixed_float", "gemma3.rope.freq_base_swa"),
    ] {
        for value in nan_and_more {
            let refusal = File::of(fixture).with(key, value).read().unwrap_err();
            let expected = format!("`{key}` is {value}, expected a ");
            assert!(refusal.chain().contains(&expected), "{}", refusal.chain());
        }
    }
    for value in [f32::NAN, f32::INFINITY] {
        let key = "granite.logit_scale";
        let file = File::of("gguf_granite_scales").with(key, value);
        let refusal = file.read().unwrap_err().chain();
        assert!(
            refusal.contains(&format!("`{key}` is {value}")),
            "{refusal}"
        );
    }
}

#[test]
fn what_every_file_has_is_not_made_up() {
    for (fixture, key) in [
        ("gguf_llama_f32", "llama.attention.layer_norm_rms_epsilon"),
        ("gguf_mixtral_plain", "llama.expert_used_count"),
        ("packed_gguf_gpt_oss_mxfp4", "gpt-oss.expert_used_count"),
        ("gguf_granite_scales", "granite.logit_scale"),
    ] {
        let refusal = File::of(fixture).without(key).read().unwrap_err().chain();
        assert!(
            refusal.contains(&format!("does not say its `{key}`")),
            "{refusal}"
        );
    }
}

#[test]
fn a_missing_attention_scale_is_that_of_the_heads_as_zero_is() {
    let scale = |file: File| {
        let config = file.read().unwrap();
        let MixerConfig::Attention(attention) = &config.layers[0].mixer else {
            panic!("{:?}", config.layers[0].mixer)
        };
        attention.scale
    };
    let file = || File::of("gguf_granite_scales");
    let key = "granite.attention.scale";
    assert!((scale(file()) - 0.21).abs() < 1e-6);
    let of_heads = scale(file().with(key, 0.0));
    assert_eq!(of_heads, scale(file().without(key)));
    assert_ne!(of_heads, 1.0);
}

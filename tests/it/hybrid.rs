//! Models with recurrent layers: what is planned for their states, and the variables of the delta rule.

use std::fs;
use std::path::PathBuf;

use oxydllm::formats::open;
use oxydllm::model::plan::{Plan, Wish, plan};
use oxydllm::model::{ModelConfig, read_config};
use safetensors::SafeTensors;

use crate::support::program::Home;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/models")
        .join(name)
}

fn config(name: &str) -> ModelConfig {
    let path = fixture(name);
    read_config(&open(&path).unwrap(), &path).unwrap()
}

const MIB: usize = 1 << 20;

#[test]
fn states_are_planned_beside_blocks_and_counted() {
    let config = config("qwen3_5_plain");
    let shape = config.cache_shape();
    let bytes = |p: &Plan| p.num_blocks * shape.block_bytes() + p.num_slots * shape.slot_bytes();
    let plenty = plan(&config, 0, Wish::default(), 1 << 40).unwrap();
    assert_eq!(plenty.kv_bytes, bytes(&plenty));
    // Two for each of the eight sequences that it is planned for, and what is kept on the way.
    assert_eq!(plenty.num_blocks, 8 * plenty.context / 16);
    let kept = plenty.num_blocks / plenty.state_interval;
    assert_eq!(plenty.num_slots, 16 + kept);
    let share = kept * shape.slot_bytes() * 4;
    assert!(share <= plenty.num_blocks * shape.block_bytes());
    assert!(plenty.max_num_seqs <= plenty.num_slots / 2);
    let wish = |max_num_seqs| Wish {
        max_num_seqs: Some(max_num_seqs),
        ..Wish::default()
    };
    let single = plan(&config, 0, wish(1), 1 << 40).unwrap();
    assert_eq!(single.max_num_seqs, 1);
    assert_eq!(
        single.num_slots,
        2 + single.num_blocks / single.state_interval
    );
    // A model without recurrent layers has none.
    let plain = plan(&self::config("llama_plain"), 0, Wish::default(), 1 << 40).unwrap();
    assert_eq!(plain.num_slots, 0);
}

#[test]
fn in_any_memory_a_plan_holds_one_sequence_with_its_states_or_is_refused() {
    for name in ["qwen3_5_plain", "lfm2_plain"] {
        let config = config(name);
        let mut refused = 0;
        for available in (1..400).map(|i| i * MIB / 32) {
            for max_num_seqs in [None, Some(1), Some(3), Some(200)] {
                let wish = Wish {
                    max_num_seqs,
                    ..Wish::default()
                };
                let Ok(plan) = plan(&config, MIB / 2, wish, available) else {
                    refused += 1;
                    continue;
                };
                assert!(plan.total_bytes() <= available, "{name}: {plan:?}");
                assert!(plan.num_slots >= 2 && plan.num_blocks * 16 >= plan.context);
                assert!(
                    (1..=plan.num_slots).contains(&plan.max_num_seqs),
                    "{plan:?}"
                );
            }
        }
        assert!((1..800).contains(&refused), "{name}: {refused} refused");
    }
}

const PROMPTS: &[u8] =
    br#"{"prompts": [[5, 9, 11, 40, 7, 8, 22, 31, 5, 5, 5, 5, 60, 61, 62, 63, 64, 65]]}"#;

#[test]
fn the_chunk_of_the_delta_rule_changes_no_bit_and_must_be_a_number() {
    let model = fixture("qwen3_5_plain");
    let logits = |chunk: &str| {
        let home = Home::new().with_env("OXYDLLM_GDN_CHUNK", chunk);
        home.write("in.json", PROMPTS);
        let model = model.to_str().unwrap();
        let words = ["eval", model, "--tokens", "in.json", "--logits", "out"];
        home.run(&words).ok();
        fs::read(home.path().join("out")).unwrap()
    };
    let usual = logits("");
    for chunk in ["1", "3", "64", "1000"] {
        assert_eq!(logits(chunk), usual, "{chunk}");
    }
    for wrong in ["0", "-1", "many"] {
        let home = Home::new().with_env("OXYDLLM_GDN_CHUNK", wrong);
        let ran = home.run(&["list"]).failed();
        let said = format!("`OXYDLLM_GDN_CHUNK` is `{wrong}`");
        assert!(ran.stderr.contains(&said), "{}", ran.stderr);
    }
}

#[test]
fn the_probe_of_the_delta_rule_says_in_which_stage_values_stop_being_finite() {
    let whole = fixture("qwen3_5_plain");
    let home = Home::new();
    for file in fs::read_dir(&whole).unwrap() {
        let file = file.unwrap();
        let name = file.file_name().into_string().unwrap();
        let mut bytes = fs::read(file.path()).unwrap();
        if name == "model.safetensors" {
            overflow(&mut bytes, "model.layers.1.linear_attn.out_proj.weight");
        }
        home.write(&format!("model/{name}"), &bytes);
    }
    home.write("in.json", PROMPTS);
    let words = ["eval", "model", "--tokens", "in.json", "--logits", "out"];
    assert!(!home.run(&words).stderr.contains("not finite"));
    let home = home.with_env("OXYDLLM_GDN_DEBUG", "1");
    let said = home.run(&words).stderr;
    let first = said.lines().find(|line| line.contains("not finite"));
    let first = first.unwrap_or_else(|| panic!("nothing was found: {said}"));
    assert!(
        first.contains("layer=1") && first.contains("stage=\"output\""),
        "{first}"
    );
    let home = home.with_env("RUST_LOG", "oxydllm=debug");
    let said = home.run(&words).stderr;
    let fine = said.lines().filter(|line| line.contains("all finite"));
    // The eight stages of layer 0, and all but the last of layer 1.
    assert_eq!(fine.count(), 8 + 7, "{said}");
}

/// Makes a BF16 tensor of the file as large as the type goes.
fn overflow(file: &mut [u8], tensor: &str) {
    let (range, header) = {
        let (header, metadata) = SafeTensors::read_metadata(file).unwrap();
        let (begin, end) = metadata.info(tensor).unwrap().data_offsets;
        (begin..end, header + 8)
    };
    for value in file[header + range.start..header + range.end].chunks_exact_mut(2) {
        value.copy_from_slice(&[0x7f, 0x7f]);
    }
}

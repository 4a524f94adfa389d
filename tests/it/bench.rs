//! `bench` as a person or a script meets it.

use std::path::Path;

use crate::support::program::Home;

#[test]
fn bench_says_what_the_machine_can_do_and_its_share_of_that() {
    let home = Home::new();
    let alone = home
        .run(&["bench", "--ceilings", "--json", "--threads", "2"])
        .ok();
    let json: serde_json::Value = serde_json::from_str(&alone.stdout).unwrap();
    let ceilings = &json["ceilings"];
    let threads: Vec<_> = ceilings["read"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            (
                entry["threads"].as_u64().unwrap(),
                entry["bytes_s"].as_f64().unwrap(),
            )
        })
        .collect();
    assert_eq!(threads.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [1, 2]);
    assert!(threads.iter().all(|(_, rate)| *rate > 0.0));
    assert!(ceilings["int8_macs_s"].as_f64().unwrap() > 0.0);
    assert!(ceilings["f32_macs_s"].as_f64().unwrap() > 0.0);
    assert_eq!(json["model"], serde_json::Value::Null);

    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let model = root.join("tests/fixtures/models/gguf_llama_f32/model.gguf");
    let model = model.to_str().unwrap();
    let with_model = home
        .run(&["bench", model, "-p", "8", "-n", "2", "--repeat", "1"])
        .ok();
    let text = &with_model.stdout;
    for line in ["prefill ", "decode "] {
        let line = text.lines().find(|l| l.starts_with(line)).unwrap();
        assert!(line.contains(" % of the ceiling)"), "{line}");
    }
    assert!(!text.contains("read by"), "{text}");
    let neither = home.run(&["bench"]).failed();
    assert!(neither.stderr.contains("MODEL"), "{neither:#?}");
}

//! `docs/models.md`, from the table.

use std::fmt::Write;

use super::table::{ARCHITECTURES, Architecture};
use crate::model::ModelKind;
use crate::model::encoder::class_names;

/// The page.
pub fn models_page() -> String {
    let mut page = String::from(
        "# Models\n\n\
         <!-- Generated from the table in src/model/arch by scripts/regen-docs.sh; a test compares it. -->\n\n\
         What this build loads. `pull` refuses everything else before it downloads, `list` marks it, and loading refuses it with this list.\n\n\
         | architecture | class in `config.json` | GGUF | models |\n|---|---|---|---|\n",
    );
    for row in ARCHITECTURES {
        let (classes, gguf) = (codes(row.hf), codes(row.gguf));
        // Writing to a string does not fail.
        let _ = writeln!(
            page,
            "| {} | {classes} | {gguf} | {} |",
            row.name, row.examples
        );
    }
    page.push_str(FORMATS);
    page.push_str("\n## Embedding models and rerankers\n\n");
    for (what, kind) in [
        ("Embedding models", ModelKind::Embedding),
        ("Rerankers", ModelKind::Reranker),
    ] {
        let names: Vec<&str> = class_names(kind).collect();
        let _ = writeln!(page, "{what}: {}.", codes(&names));
    }
    page.push_str(ENCODERS);
    page.push_str("\n## Verified\n\n");
    page.push_str(VERIFIED);
    for row in ARCHITECTURES {
        let _ = writeln!(page, "| {} | {} | {} |", row.name, tiny(row), real(row));
    }
    page
}

const FORMATS: &str = "
A file without `architectures` is known by its `model_type`; an encoder by that and a `modules.json`, without which an embedder and a reranker look alike. Multimodal checkpoints load their text part: vision and audio towers, projectors and
layers that predict further tokens are skipped without reading them, and named in the log.

## Containers and formats

| container | formats |
|---|---|
| safetensors, one file or sharded | F32, F16, BF16; MXFP4 for the experts of GPT-OSS |
| GGUF, one file or split | F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, MXFP4, mixed within a file |

A checkpoint with a missing, extra or wrongly shaped tensor, or with NaN or infinity in a float one, is refused with the tensor's name; an activation,
a rotary scaling or a layer type that is not supported, with its own.

Rotary scaling: `linear`, `llama3`, `yarn`, `longrope`, `proportional`; `dynamic` changes nothing up to the model's own context, which is the limit here.
LongRoPE has two lists of factors. The prompt's length decides which one a sequence uses, from its beginning to the end of its answer.
";

const ENCODERS: &str = "
`…ForMaskedLM` and `…ForPreTraining` need sentence-transformers' `modules.json`. Every decoder above is an embedding model when it has a `modules.json` (Qwen3-Embedding), unless its
`config.json` says that its tokens see those behind them. All as safetensors; examples are all-MiniLM, BGE, E5, GTE (BERT), Granite Embedding (RoBERTa), BGE-M3, multilingual E5 (XLM-RoBERTa),
and the rerankers of MS MARCO MiniLM and BGE. Modules: `Transformer`, `Pooling` (every mode), `Dense`, `Normalize`, `Dropout`. Other modules, relative positions and classifiers of several labels are refused by name.
";

const VERIFIED: &str = "\
Every architecture against the logits and greedy tokens of transformers on tiny random checkpoints (`tests/fixtures/models`), with prompts longer
than windows and original contexts; GGUF files also against safetensors of the same weights, within 1e-4. Real models against llama.cpp
(`docs/verification.md`).

| architecture | tiny checkpoints | real models |
|---|---|---|
";

fn codes(names: &[&str]) -> String {
    let codes: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    if codes.is_empty() {
        "–".to_owned()
    } else {
        codes.join(", ")
    }
}

fn tiny(row: &Architecture) -> &'static str {
    match (row.hf.is_empty(), row.gguf.is_empty() || !row.tiny_gguf) {
        (false, false) => "safetensors, GGUF",
        (false, true) => "safetensors",
        (true, false) => "GGUF",
        (true, true) => "–",
    }
}

fn real(row: &Architecture) -> String {
    if row.verified.is_empty() {
        "–".to_owned()
    } else {
        row.verified.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::{self, Weights};

    fn path() -> std::path::PathBuf {
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/models.md")
    }

    #[test]
    fn the_page_in_docs_is_what_the_table_says() {
        let found = std::fs::read_to_string(path()).unwrap();
        assert!(found == models_page(), "run scripts/regen-docs.sh");
    }

    /// Class names and GGUF architectures of the tiny checkpoints.
    fn fixtures() -> (Vec<String>, Vec<String>) {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models");
        let (mut classes, mut gguf) = (Vec::new(), Vec::new());
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if let Ok(bytes) = std::fs::read(path.join("config.json")) {
                let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
                let class = json["architectures"][0].as_str();
                classes.extend(class.map(str::to_owned));
            } else if let Ok(Weights::Gguf(file)) = formats::open(&path.join("model.gguf")) {
                let name = file.metadata().find_str("general.architecture").unwrap();
                gguf.extend(name.map(str::to_owned));
            }
        }
        (classes, gguf)
    }

    #[test]
    fn tiny_checkpoints_are_there_for_every_row_that_claims_them() {
        let (classes, gguf) = fixtures();
        let among = |found: &[String], names: &[&str]| {
            names.iter().any(|n| found.contains(&(*n).to_owned()))
        };
        for row in ARCHITECTURES {
            let found = match (among(&classes, row.hf), among(&gguf, row.gguf)) {
                (true, true) => "safetensors, GGUF",
                (true, false) => "safetensors",
                (false, true) => "GGUF",
                (false, false) => "–",
            };
            assert_eq!(tiny(row), found, "{}", row.name);
        }
    }

    #[test]
    #[ignore = "writes docs/models.md: scripts/regen-docs.sh"]
    fn write_the_page() {
        std::fs::write(path(), models_page()).unwrap();
    }
}

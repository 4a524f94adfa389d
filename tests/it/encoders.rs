//! Every model of `tests/fixtures/encoders` against the reference's ids, vectors and scores; and what is refused.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use oxydllm::engine::embed::contract::{Reference, built_in_texts};
use oxydllm::engine::embed::worker::Compute;
use oxydllm::error::{ErrorKind, Result};
use oxydllm::host::EmbeddingText;
use oxydllm::model::ModelKind;
use oxydllm::model::embedder::{Embedder, EmbedderSource};
use oxydllm::model::encoder::TextTokens;
use oxydllm::nn::WeightPath;
use oxydllm::ops::{Context, CpuLevel};
use oxydllm::threads::Pool;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

/// Plenty.
const AVAILABLE: usize = 1 << 30;

pub fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/encoders")
        .join(name)
}

fn fixtures() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder("")).unwrap();
    let mut folders: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    folders.sort();
    assert_eq!(folders.len(), 6);
    folders
}

fn context(threads: usize, level: CpuLevel) -> Context {
    Context::cpu(Arc::new(Pool::new(threads)), level)
}

fn load_for(ctx: &Context, path: &Path, weights: WeightPath) -> Result<Embedder> {
    let source = EmbedderSource::open(path)?;
    let plan = source.plan(source.weight_bytes(weights)?, None, AVAILABLE)?;
    source.load(ctx, &plan, weights)
}

fn load(ctx: &Context, path: &Path) -> Result<Embedder> {
    load_for(ctx, path, WeightPath::Fast)
}

/// What a folder expects of one text or pair.
struct Case {
    tokens: TextTokens,
    ids: Vec<u32>,
    type_ids: Vec<u32>,
    outputs: Vec<f32>,
}

fn numbers(value: &Value) -> Vec<u32> {
    let numbers = value.as_array().into_iter().flatten();
    numbers.map(|x| x.as_u64().unwrap() as u32).collect()
}

fn cases(path: &Path) -> Vec<Case> {
    let text = std::fs::read(path.join("expected.json")).unwrap();
    let expected: Value = serde_json::from_slice(&text).unwrap();
    let reader = EmbeddingText::read(path).unwrap();
    let string = |case: &Value, key: &str| case[key].as_str().unwrap().to_owned();
    let case = |case: &Value| {
        let (tokens, outputs) = if expected["kind"] == "reranker" {
            let tokens = reader.pair(&string(case, "query"), &string(case, "document"));
            (tokens, vec![case["score"].as_f64().unwrap() as f32])
        } else {
            let prompt = reader.prompt(case["prompt_name"].as_str()).unwrap();
            let vector = case["vector"].as_array().unwrap();
            let vector = vector.iter().map(|x| x.as_f64().unwrap() as f32);
            (
                reader.tokens(&string(case, "text"), prompt),
                vector.collect(),
            )
        };
        Case {
            tokens: tokens.unwrap(),
            ids: numbers(&case["ids"]),
            type_ids: numbers(&case["type_ids"]),
            outputs,
        }
    };
    expected["cases"]
        .as_array()
        .unwrap()
        .iter()
        .map(case)
        .collect()
}

#[test]
fn every_model_gives_the_references_ids_vectors_and_scores() {
    let ctx = context(2, CpuLevel::detect());
    for path in fixtures() {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        // A decoder's cache holds half precision; the rest is F32 in another order, of numbers up to 16.
        let slack = if name == "qwen3_last" { 1e-3 } else { 2e-5 };
        let cases = cases(&path);
        for weights in [WeightPath::Fast, WeightPath::Reference] {
            let mut model = load_for(&ctx, &path, weights).unwrap();
            let texts: Vec<&TextTokens> = cases.iter().map(|case| &case.tokens).collect();
            let outputs = model.compute(&ctx, &texts).unwrap();
            for (case, output) in cases.iter().zip(outputs) {
                assert_eq!(case.tokens.ids, case.ids, "{name}");
                assert_eq!(case.tokens.type_ids, case.type_ids, "{name}");
                assert_eq!(output.len(), case.outputs.len(), "{name}");
                assert_eq!(output.len(), model.dimensions(), "{name}");
                for (got, want) in output.iter().zip(&case.outputs) {
                    assert!(
                        (got - want).abs() < slack,
                        "{name} {:?}: {got} {want}",
                        case.ids
                    );
                }
            }
        }
    }
}

#[test]
fn every_model_keeps_the_contract() {
    let ctx = context(2, CpuLevel::detect());
    for path in fixtures() {
        let mut model = load(&ctx, &path).unwrap();
        let texts = built_in_texts(model.vocab_size(), model.max_tokens());
        let reference = Reference::compute(&mut model, &ctx, &texts).unwrap();
        let mut conditions = 0;
        let assert_equal = |finding: &oxydllm::engine::contract::Finding| {
            assert!(finding.moved.is_empty(), "{path:?}: {finding:?}");
            assert!(finding.compared > 0, "{path:?}: {finding:?}");
        };
        let check = reference.check(&mut model, &ctx, |finding| {
            assert_equal(&finding);
            conditions += 1;
            Ok(())
        });
        check.unwrap();
        assert_eq!(conditions, 5);
        for threads in [1, 5] {
            let ctx = context(threads, CpuLevel::detect());
            assert_equal(
                &reference
                    .repeat(&mut model, &ctx, format!("{threads}"))
                    .unwrap(),
            );
        }
        for level in CpuLevel::available() {
            let ctx = context(2, level);
            let mut model = load(&ctx, &path).unwrap();
            assert_equal(
                &reference
                    .repeat(&mut model, &ctx, format!("{level}"))
                    .unwrap(),
            );
        }
    }
}

/// A model with one fault: a last bit of a text's output moves when the batch is as `fault` says.
struct Sabotaged {
    inner: Embedder,
    fault: fn(&[&TextTokens]) -> bool,
}

impl Compute for Sabotaged {
    fn compute(&mut self, ctx: &Context, texts: &[&TextTokens]) -> Result<Vec<Vec<f32>>> {
        let mut outputs = self.inner.compute(ctx, texts)?;
        if (self.fault)(texts) {
            let x = &mut outputs[0][0];
            *x = f32::from_bits(x.to_bits() ^ 1);
        }
        Ok(outputs)
    }
}

#[test]
fn the_contract_sees_a_last_bit_that_depends_on_company() {
    let ctx = context(1, CpuLevel::detect());
    for (fault, conditions) in [
        ((|_| false) as fn(&[&TextTokens]) -> bool, 0),
        (|texts| texts.len() == 2, 1),
        (|texts| texts.len() > 1, 5),
        // Only when they stand in reverse order.
        (
            |texts| texts[0].ids.len() > texts[texts.len() - 1].ids.len() && texts.len() == 8,
            1,
        ),
    ] {
        let inner = load(&ctx, &folder("bert_dense")).unwrap();
        let texts = built_in_texts(inner.vocab_size(), inner.max_tokens());
        let mut model = Sabotaged { inner, fault };
        let reference = Reference::compute(&mut model, &ctx, &texts).unwrap();
        let mut moved = 0;
        let check = reference.check(&mut model, &ctx, |finding| {
            moved += usize::from(!finding.moved.is_empty());
            Ok(())
        });
        check.unwrap();
        assert_eq!(moved, conditions);
    }
}

#[test]
fn the_headers_tell_what_the_weights_will_take() {
    let ctx = context(1, CpuLevel::detect());
    for path in fixtures() {
        let source = EmbedderSource::open(&path).unwrap();
        let weighed = source.weight_bytes(WeightPath::Fast).unwrap();
        let loaded = load(&ctx, &path).unwrap().weight_bytes();
        assert_eq!(weighed, loaded, "{path:?}");
    }
}

#[test]
fn the_longest_text_is_read_and_a_longer_one_is_refused() {
    let ctx = context(2, CpuLevel::detect());
    for (name, longest) in [
        ("bert_dense", 160),
        ("roberta_cls", 158),
        ("qwen3_last", 160),
    ] {
        let mut model = load(&ctx, &folder(name)).unwrap();
        assert_eq!(model.max_tokens(), longest);
        let text = |length| TextTokens::of_ids(vec![7; length]);
        assert!(model.compute(&ctx, &[&text(longest)]).is_ok());
        let error = model.compute(&ctx, &[&text(longest + 1)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ContextLength);
        assert!(
            error.to_string().contains(&format!("{}", longest + 1)),
            "{error}"
        );
        let outside = TextTokens::of_ids(vec![1_000_000]);
        assert_eq!(
            model.compute(&ctx, &[&outside]).unwrap_err().kind(),
            ErrorKind::Invalid
        );
        assert!(model.compute(&ctx, &[&TextTokens::default()]).is_err());
    }
}

#[test]
fn positions_of_padding_are_not_counted() {
    let ctx = context(1, CpuLevel::detect());
    let mut model = load(&ctx, &folder("roberta_cls")).unwrap();
    let vector = |model: &mut Embedder, ids: &[u32]| {
        let text = TextTokens::of_ids(ids.to_vec());
        model.compute(&ctx, &[&text]).unwrap().remove(0)
    };
    // 158 tokens may be followed by padding as far as the table goes, but not behind it: no position is beyond the table.
    let all_padding = vec![1; 158];
    assert!(
        vector(&mut model, &all_padding)
            .iter()
            .all(|x| x.is_finite())
    );
    assert_ne!(
        vector(&mut model, &[0, 9, 2]),
        vector(&mut model, &[0, 1, 9, 2])
    );
}

#[test]
fn prompts_are_found_by_name_and_the_default_one_is_used() {
    let qwen = EmbeddingText::read(&folder("qwen3_last")).unwrap();
    assert_eq!(qwen.prompt(None).unwrap(), Some("Query: "));
    assert_eq!(qwen.prompt(Some("plain")).unwrap(), None);
    let error = qwen.prompt(Some("passage")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("`plain`, `query`"), "{error}");
    let bert = EmbeddingText::read(&folder("bert_dense")).unwrap();
    assert_eq!(bert.prompt(None).unwrap(), None);
    // `find`, `:` and the token at the beginning are the prompt's.
    let prompt = bert.prompt(Some("query")).unwrap();
    assert_eq!(bert.tokens("storm", prompt).unwrap().num_skipped, 3);
}

#[test]
fn text_that_spells_a_control_token_stays_text() {
    let reader = EmbeddingText::read(&folder("bert_rerank")).unwrap();
    // 2 and 3 frame a text.
    let frame = |ids: &[u32]| ids.iter().filter(|id| [2, 3].contains(*id)).count();
    assert_eq!(
        frame(&reader.tokens("a [SEP] b [CLS]", None).unwrap().ids),
        2
    );
    let pair = reader.pair("a [SEP]", "[CLS] b").unwrap();
    assert_eq!(frame(&pair.ids), 3);
    assert_eq!(pair.type_ids.len(), pair.ids.len());
    assert_eq!((pair.type_ids[0], *pair.type_ids.last().unwrap()), (0, 1));
}

#[test]
fn lower_case_is_made_of_texts_when_the_model_asks_for_it() {
    let copy = copied("roberta_cls");
    let path = copy.path();
    let ids = |text: &str| {
        EmbeddingText::read(path)
            .unwrap()
            .tokens(text, None)
            .unwrap()
            .ids
    };
    assert_ne!(ids("The STORM"), ids("the storm"));
    let switch = json!({ "max_seq_length": 150, "do_lower_case": true });
    std::fs::write(path.join("sentence_bert_config.json"), switch.to_string()).unwrap();
    assert_eq!(ids("The STORM"), ids("the storm"));
}

/// A copy of a fixture that a test may change.
fn copied(name: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    copy_folder(&folder(name), copy.path());
    copy
}

pub fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_folder(&path, &to);
        } else if entry.file_name() != "expected.json" {
            std::fs::copy(path, to).unwrap();
        }
    }
}

/// Writes the tensors of `path` again, as `change` renames them; `None` leaves one out.
fn rename_tensors(path: &Path, change: impl Fn(&str) -> Option<String>) {
    let file = path.join("model.safetensors");
    let bytes = std::fs::read(&file).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let renamed = tensors.iter().filter_map(|(name, view)| {
        let view = TensorView::new(view.dtype(), view.shape().to_vec(), view.data()).unwrap();
        Some((change(name)?, view))
    });
    let renamed: Vec<(String, TensorView<'_>)> = renamed.collect();
    let written = safetensors::serialize(renamed, None).unwrap();
    std::fs::write(&file, written).unwrap();
}

fn refusal(path: &Path) -> (ErrorKind, String) {
    let ctx = context(1, CpuLevel::detect());
    let error = load(&ctx, path).unwrap_err();
    (error.kind(), error.chain())
}

#[test]
fn a_missing_or_unknown_tensor_is_named() {
    let copy = copied("bert_rerank");
    rename_tensors(copy.path(), |name| {
        (name != "bert.encoder.layer.1.output.dense.bias").then(|| name.to_owned())
    });
    let (kind, message) = refusal(copy.path());
    assert_eq!(kind, ErrorKind::Invalid);
    assert!(
        message.contains("`encoder.layer.1.output.dense.bias`"),
        "{message}"
    );

    let copy = copied("bert_rerank");
    let extra = "bert.encoder.layer.1.output.dense.bias";
    rename_tensors(copy.path(), |name| {
        Some(if name == extra {
            "bert.adapter.bias".to_owned()
        } else {
            name.to_owned()
        })
    });
    assert!(refusal(copy.path()).1.contains("dense.bias"));

    let copy = copied("roberta_cls");
    rename_tensors(copy.path(), |name| {
        Some(name.replace("layer.1.", "layer.7."))
    });
    assert!(
        refusal(copy.path())
            .1
            .contains("`encoder.layer.1.attention")
    );

    let copy = copied("roberta_cls");
    let config = copy.path().join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let fewer = text.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1");
    assert_ne!(text, fewer);
    std::fs::write(&config, fewer).unwrap();
    let (kind, message) = refusal(copy.path());
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(
        message.contains("does not use, such as `roberta.encoder.layer.1"),
        "{message}"
    );
}

#[test]
fn a_matrix_with_a_number_that_is_none_is_refused() {
    for poisoned in ["embeddings.word_embeddings.weight", "output.dense.weight"] {
        let copy = copied("bert_dense");
        let path = copy.path().join("model.safetensors");
        let bytes = std::fs::read(&path).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let (name, view) = tensors
            .iter()
            .find(|(name, _)| name.ends_with(poisoned))
            .unwrap();
        assert_eq!(view.dtype(), Dtype::F32);
        let mut data = view.data().to_vec();
        data[20..24].copy_from_slice(&f32::NAN.to_le_bytes());
        let twin = TensorView::new(Dtype::F32, view.shape().to_vec(), &data).unwrap();
        let others = tensors.iter().filter(|(other, _)| *other != name);
        let all: Vec<_> = others.chain([(name, twin)]).collect();
        std::fs::write(&path, safetensors::serialize(all, None).unwrap()).unwrap();
        let (kind, message) = refusal(copy.path());
        assert_eq!(kind, ErrorKind::Invalid);
        assert!(
            message.contains(&format!("tensor `{name}` holds NaN at element 5")),
            "{message}"
        );
    }
}

#[test]
fn tensors_under_two_names_and_of_wrong_shapes_are_refused() {
    let copy = copied("bert_dense");
    let path = copy.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut all: Vec<(String, TensorView<'_>)> = tensors
        .iter()
        .map(|(name, view)| (name.to_owned(), view))
        .collect();
    let zeros = [0; 24 * 4];
    let twin = TensorView::new(Dtype::F32, vec![24], &zeros).unwrap();
    all.push(("bert.embeddings.LayerNorm.weight".to_owned(), twin));
    std::fs::write(&path, safetensors::serialize(all, None).unwrap()).unwrap();
    let (kind, message) = refusal(copy.path());
    assert_eq!(kind, ErrorKind::Invalid);
    assert!(message.contains("are the same tensor"), "{message}");

    let copy = copied("bert_dense");
    let config = copy.path().join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(
        &config,
        text.replace("\"type_vocab_size\": 2", "\"type_vocab_size\": 3"),
    )
    .unwrap();
    let (_, message) = refusal(copy.path());
    assert!(
        message.contains(
            "`embeddings.token_type_embeddings.weight` has shape [2, 24], expected [3, 24]"
        ),
        "{message}"
    );
}

#[test]
fn modules_that_do_not_fit_or_are_missing_are_refused() {
    let copy = copied("bert_dense");
    let dense = copy.path().join("2_Dense/config.json");
    std::fs::write(
        &dense,
        json!({ "in_features": 20, "out_features": 10 }).to_string(),
    )
    .unwrap();
    let (kind, message) = refusal(copy.path());
    assert_eq!(kind, ErrorKind::Invalid);
    assert!(
        message.contains("expects 20 features, and is given 24"),
        "{message}"
    );

    let copy = copied("bert_dense");
    std::fs::remove_file(copy.path().join("2_Dense/model.safetensors")).unwrap();
    std::fs::write(copy.path().join("2_Dense/pytorch_model.bin"), "x").unwrap();
    let ctx = context(1, CpuLevel::detect());
    let error = load(&ctx, copy.path()).unwrap_err();
    assert!(
        error.hint().unwrap().contains("pytorch_model.bin"),
        "{error:?}"
    );

    let copy = copied("bert_dense");
    std::fs::remove_dir_all(copy.path().join("1_Pooling")).unwrap();
    assert_eq!(refusal(copy.path()).0, ErrorKind::NotFound);
}

#[test]
fn a_decoder_without_modules_chats_and_one_with_both_directions_is_refused() {
    let copy = copied("qwen3_last");
    assert_eq!(ModelKind::of_folder(copy.path()), ModelKind::Embedding);
    let config = copy.path().join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let mut json: Value = serde_json::from_str(&text).unwrap();
    json["is_causal"] = false.into();
    std::fs::write(&config, json.to_string()).unwrap();
    let (kind, message) = refusal(copy.path());
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(message.contains("`is_causal`"), "{message}");
    std::fs::remove_file(copy.path().join("modules.json")).unwrap();
    assert_eq!(ModelKind::of_folder(copy.path()), ModelKind::Chat);
    assert_eq!(refusal(copy.path()).0, ErrorKind::Unsupported);
}

#[test]
fn what_does_not_fit_is_told_with_numbers() {
    let source = EmbedderSource::open(&folder("bert_dense")).unwrap();
    let error = source.plan(60_000, None, 100_000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    let fits = source.plan(60_000, Some(20), AVAILABLE).unwrap();
    assert_eq!(fits.max_tokens, 20);
    let decoder = EmbedderSource::open(&folder("qwen3_last")).unwrap();
    let fits = decoder.plan(10_000, Some(32), AVAILABLE).unwrap();
    assert_eq!(fits.max_tokens, 32);
    assert!(fits.kv_bytes > 0 && fits.total_bytes() > fits.kv_bytes + 10_000);
}

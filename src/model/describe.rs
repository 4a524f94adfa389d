//! What a `config.json` says of itself, before any weight is there: whether this build runs the model.
//!
//! The one check for `pull` (before the download) and for loading.

use serde_json::Value;

use super::arch::rules::ExpertKind;
use super::arch::{self, Architecture, find_hf, find_model_type, find_text};
use super::encoder::{describe_encoder, find_class, headless_class};
use crate::error::{Error, Result};

/// The row of the architecture table for a `config.json`: by the first known of its classes, or its model type when it names
/// no class.
///
/// # Errors
/// `Unsupported` for an architecture or a feature that this build does not run, with what it does run; `Invalid` when the
/// description names neither.
pub fn check_description(json: &Value) -> Result<&'static Architecture> {
    let classes = json.get("architectures").and_then(Value::as_array);
    let arch = match (classes, json.get("model_type").and_then(Value::as_str)) {
        (Some(classes), _) if !classes.is_empty() => {
            find_hf(classes.iter().filter_map(Value::as_str))?
        }
        (_, Some(model_type)) => match headless_class(model_type) {
            None => find_model_type(model_type)?,
            Some(class) => return Err(classless_encoder(model_type, class.name)),
        },
        _ => {
            return Err(Error::invalid(
                "neither `architectures` nor `model_type`: the model's class is unknown",
            ));
        }
    };
    let arch = find_text(arch, json["text_config"]["model_type"].as_str())?;
    for object in [Some(json), json.get("text_config")].into_iter().flatten() {
        refuse_bidirectional(object)?;
        refuse_quantized(object, Some(arch))?;
    }
    Ok(arch)
}

/// Embedding models and rerankers of one model type differ in their class alone.
fn classless_encoder(model_type: &str, class: &str) -> Error {
    Error::invalid(format!(
        "no `architectures`: a model of the type `{model_type}` makes vectors or scores, and only its class says which"
    ))
    .with_hint(format!(
        "for vectors write `\"architectures\": [\"{class}\"]` into its `config.json`, or put its `modules.json` beside it"
    ))
}

/// The name of what `config.json` describes: an architecture of the table, or an encoder's class. `has_modules`: a `modules.json`
/// lies beside it.
///
/// # Errors
/// `Unsupported` for an architecture or a feature that this build does not run, `Invalid` without a class.
pub fn check_supported(json: &Value, has_modules: bool) -> Result<&'static str> {
    match describe_encoder(json, has_modules)? {
        Some(encoder) => refuse_quantized(json, None).map(|()| encoder.architecture),
        None => check_description(json).map(|row| row.name),
    }
}

/// Whether this build runs what a model's list calls its architecture: a class name, or a GGUF architecture followed by ` (GGUF)`.
pub fn is_supported(name: &str) -> bool {
    arch::is_supported(name) || find_class(name).is_some()
}

/// Embedding models are made of decoders by this switch.
fn refuse_bidirectional(object: &Value) -> Result<()> {
    // Gemma 4 names which tokens: with "vision" those of pictures, which do not occur in text.
    let switch = object.get("use_bidirectional_attention");
    if !switch.is_some_and(|all| *all == Value::Bool(true) || all == "all") {
        return Ok(());
    }
    Err(
        Error::unsupported("`use_bidirectional_attention` is not supported")
            .with_hint("a model whose tokens see those behind them does not generate text"),
    )
}

fn refuse_quantized(object: &Value, arch: Option<&Architecture>) -> Result<()> {
    let Some(quantization) = object.get("quantization_config").filter(|q| !q.is_null()) else {
        return Ok(());
    };
    let method = quantization.get("quant_method").and_then(Value::as_str);
    let method = method.unwrap_or("unknown");
    let kind = arch.and_then(|arch| arch.moe).map(|rule| rule.experts);
    if method == "mxfp4" && kind == Some(ExpertKind::GptOss) {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "safetensors quantised by `{method}` are not supported"
    ))
    .with_hint("supported are F32, F16 and BF16 safetensors, and GGUF files"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refusal(json: &Value) -> String {
        check_description(json).unwrap_err().to_string()
    }

    #[test]
    fn encoders_are_supported_as_decoders_are() {
        let bert = json!({
            "architectures": ["BertModel"], "vocab_size": 50, "hidden_size": 12, "num_attention_heads": 3,
            "num_hidden_layers": 2, "intermediate_size": 20, "max_position_embeddings": 40,
        });
        let check = |json: &Value| check_supported(json, false);
        assert_eq!(check(&bert).unwrap(), "BertModel");
        assert_eq!(check(&json!({"model_type": "llama"})).unwrap(), "Llama");
        assert!(check(&json!({"architectures": ["MambaForCausalLM"]})).is_err());
        let typed = json!({
            "model_type": "xlm-roberta", "vocab_size": 50, "hidden_size": 12, "num_attention_heads": 3,
            "num_hidden_layers": 2, "intermediate_size": 20, "max_position_embeddings": 40,
        });
        assert_eq!(check_supported(&typed, true).unwrap(), "XLMRobertaModel");
        let error = check(&typed).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("`xlm-roberta` makes vectors or scores")
        );
        assert!(error.hint().unwrap().contains("XLMRobertaModel"));
        let is = [
            "BertModel",
            "LlamaForCausalLM",
            "llama (GGUF)",
            "bert (GGUF)",
            "Mamba",
        ];
        assert_eq!(is.map(is_supported), [true, true, true, false, false]);
    }

    #[test]
    fn the_first_known_class_counts_and_a_model_type_where_there_is_no_class() {
        let name = |json: Value| check_description(&json).unwrap().name;
        assert_eq!(
            name(json!({"architectures": ["MyLlama", "Qwen3ForCausalLM"]})),
            "Qwen3"
        );
        assert_eq!(name(json!({"model_type": "olmo2"})), "OLMo 2");
        assert_eq!(
            name(json!({"architectures": [], "model_type": "phi3"})),
            "Phi 3"
        );
        assert_eq!(
            refusal(&json!({"model_type": "mamba"})),
            "architecture `mamba` is not supported"
        );
        assert!(refusal(&json!({})).contains("`model_type`"));
    }

    #[test]
    fn what_changes_the_weights_or_the_mask_is_refused_by_name_also_when_nested() {
        let llama = |more: (&str, Value)| json!({"model_type": "llama", more.0: more.1});
        let awq = json!({"quant_method": "awq", "bits": 4});
        assert!(refusal(&llama(("quantization_config", awq.clone()))).contains("`awq`"));
        let mxfp4 = json!({"quant_method": "mxfp4"});
        assert!(refusal(&llama(("quantization_config", mxfp4.clone()))).contains("`mxfp4`"));
        let gpt_oss = json!({"model_type": "gpt_oss", "quantization_config": mxfp4});
        assert!(check_description(&gpt_oss).is_ok());
        let nested = json!({"quantization_config": awq});
        assert!(refusal(&llama(("text_config", nested))).contains("`awq`"));
        assert!(check_description(&llama(("quantization_config", Value::Null))).is_ok());
        let switch = ("use_bidirectional_attention", Value::Bool(true));
        assert!(refusal(&llama(switch)).contains("bidirectional"));
        let switch = |which: &str| llama(("use_bidirectional_attention", which.into()));
        assert!(refusal(&switch("all")).contains("bidirectional"));
        assert!(check_description(&switch("vision")).is_ok());
    }
}

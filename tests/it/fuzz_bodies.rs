//! What the fuzz targets do with their bytes. Shared: `fuzz/fuzz_targets` runs it under libFuzzer, `fuzz.rs` beside this file
//! over the committed corpus and fixed mutations of it, on the stable tool chain.

use oxydllm::formats::gguf::header::{self, HeaderError};
use oxydllm::formats::gguf::meta::HeaderBytes;
use oxydllm::formats::gguf::{Metadata, describe_tensors};
use oxydllm::formats::safetensors::parse_header;
use oxydllm::text::{ChatTemplate, RenderInput, Specials, Tokenizer};

/// Parses `data` as the start of a GGUF file and asks for everything in it.
pub fn gguf_header(data: &[u8]) {
    let parsed = match header::parse(data) {
        Ok(parsed) => parsed,
        Err(HeaderError::Incomplete { need }) => return assert!(need > data.len() as u64),
        Err(HeaderError::Bad(_)) => return,
    };
    let _ = describe_tensors(&parsed);
    let metadata = Metadata::new(HeaderBytes::Owned(data.into()), &parsed);
    for key in metadata.keys() {
        let _ = (
            metadata.find_u64(key),
            metadata.find_i64(key),
            metadata.find_f32(key),
        );
        let _ = (
            metadata.find_bool(key),
            metadata.find_str(key),
            metadata.find_bytes(key),
        );
        let _ = (
            metadata.find_u64_array(key),
            metadata.find_i32_array(key),
            metadata.find_f32_array(key),
        );
        let _ = (
            metadata.find_bool_array(key),
            metadata.find_str_array(key),
            metadata.find_u64_or_array(key, 3),
        );
        if let Ok(Some(strings)) = metadata.find_bytes_array(key) {
            assert_eq!(
                strings.len(),
                strings.count(),
                "every string of `{key}` was walked over by the parser"
            );
        }
    }
}

/// Parses `data` as a whole safetensors file; what is accepted must lie inside it.
pub fn safetensors_header(data: &[u8]) {
    for place in parse_header(data).unwrap_or_default() {
        let bytes = &data[place.start..place.start + place.len];
        let elements: usize = place.info.shape.iter().product();
        assert_eq!(place.info.encoding.row_bytes(elements), Some(bytes.len()));
    }
}

/// Builds a tokenizer from `data` and sends a text through it.
pub fn tokenizer_json(data: &[u8]) {
    if let Ok(tokenizer) = Tokenizer::from_json_bytes(data)
        && let Ok(ids) = tokenizer.encode_framed("Hello <|im_end|> w\u{f6}rld", Specials::Plain)
    {
        let _ = tokenizer.decode(&ids);
    }
}

/// Compiles `data` as a chat template and renders a conversation with it; its fuel bounds it.
pub fn jinja(data: &[u8]) {
    let Ok(source) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(template) = ChatTemplate::new(source) {
        let messages = [serde_json::json!({"role": "user", "content": "Hello"})];
        let _ = template.render(&RenderInput {
            messages: &messages,
            add_generation_prompt: true,
            ..RenderInput::default()
        });
    }
}

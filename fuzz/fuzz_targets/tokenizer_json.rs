#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = oxydllm::text::Tokenizer::from_json_bytes(data);
});

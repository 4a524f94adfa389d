#![no_main]

libfuzzer_sys::fuzz_target!(|source: &str| {
    let _ = oxydllm::text::ChatTemplate::new(source);
});

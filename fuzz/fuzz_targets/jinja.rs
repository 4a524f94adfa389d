#![no_main]

#[allow(dead_code)]
#[path = "../../tests/it/fuzz_bodies.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::jinja(data));

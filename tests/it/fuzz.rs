//! The fuzz bodies over the committed corpus and a few thousand mutations of it: no panic, no claim believed.

use std::path::Path;

use crate::fuzz_bodies;

/// Small and fast, and the same numbers on every machine.
struct XorShift(u64);

impl XorShift {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// One to four edits of the kinds that break parsers: flipped bits, extreme lengths, cuts, copies of other parts.
fn mutate(seed: &[u8], random: &mut XorShift) -> Vec<u8> {
    const EXTREMES: [u64; 8] = [0, 1, 0x7f, 1 << 31, 1 << 32, 1 << 62, 1 << 63, u64::MAX];
    let mut data = seed.to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(data.len());
        match random.below(6) {
            0 if at < data.len() => data[at] ^= 1 << random.below(8),
            1 if at < data.len() => data[at] = random.next() as u8,
            2 if at + 8 <= data.len() => {
                data[at..at + 8]
                    .copy_from_slice(&EXTREMES[random.below(EXTREMES.len())].to_le_bytes());
            }
            3 => data.truncate(at),
            4 => {
                let from = random.below(data.len());
                let piece = data[from..(from + random.below(24)).min(data.len())].to_vec();
                data.splice(at..at, piece);
            }
            _ => drop(data.drain(at..(at + random.below(9)).min(data.len()))),
        }
    }
    data
}

fn run_over_corpus(target: &str, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(target);
    let mut seeds: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    seeds.sort();
    assert!(!seeds.is_empty(), "no seeds in {}", folder.display());
    for seed in seeds {
        let data = std::fs::read(&seed).unwrap();
        body(&data);
        let mut random = XorShift(0x9e37_79b9_7f4a_7c15);
        for round in 0..3000 {
            let mutated = mutate(&data, &mut random);
            if std::panic::catch_unwind(|| body(&mutated)).is_err() {
                panic!(
                    "mutation {round} of {} panics: {}",
                    seed.display(),
                    mutated.escape_ascii()
                );
            }
        }
    }
}

#[test]
fn gguf_headers_survive_mutation() {
    run_over_corpus("gguf_header", fuzz_bodies::gguf_header);
}

#[test]
fn safetensors_headers_survive_mutation() {
    run_over_corpus("safetensors_header", fuzz_bodies::safetensors_header);
}

#[test]
fn tokenizers_survive_mutation() {
    run_over_corpus("tokenizer_json", fuzz_bodies::tokenizer_json);
}

#[test]
fn chat_templates_survive_mutation() {
    run_over_corpus("jinja", fuzz_bodies::jinja);
}

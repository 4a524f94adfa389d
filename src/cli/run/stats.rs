//! What `--verbose` says: where the time and the memory went.

use super::Loaded;
use crate::engine::{EngineInfo, Usage};
use crate::memory;
use crate::units;

/// The line after loading.
pub(super) fn loaded(loaded: &Loaded) -> String {
    let info = loaded.model.engine().info();
    format!(
        "Loaded in {}: vocabulary {}, context {} tokens, weights {} + KV {} = {}",
        units::format_duration(loaded.load_time),
        info.vocab_size,
        info.max_context,
        size(info.weight_bytes),
        size(info.kv_bytes),
        size(info.weight_bytes + info.kv_bytes),
    )
}

/// The lines after an answer.
pub(super) fn answered(usage: &Usage, info: &EngineInfo) -> String {
    let computed = usage.prompt_tokens - usage.cached_tokens.min(usage.prompt_tokens);
    let memory = match memory::peak() {
        Some(bytes) => format!(", peak of the process {}", units::format_size(bytes)),
        None => String::new(),
    };
    // The first token comes out of the prefill.
    let decoded = usage.completion_tokens.saturating_sub(1);
    format!(
        "prefill  {} tokens ({} cached) in {:.2} s, {}\n\
         decode   {} tokens in {:.2} s, {}\n\
         memory   weights {}, KV {}{memory}",
        usage.prompt_tokens,
        usage.cached_tokens,
        usage.prefill_s,
        rate(computed, usage.prefill_s),
        usage.completion_tokens,
        usage.decode_s,
        rate(decoded, usage.decode_s),
        size(info.weight_bytes),
        size(info.kv_bytes),
    )
}

fn rate(tokens: usize, seconds: f64) -> String {
    if tokens == 0 || seconds <= 0.0 {
        return "- tok/s".to_owned();
    }
    #[expect(clippy::cast_precision_loss, reason = "shown with one decimal")]
    let tokens = tokens as f64;
    format!("{:.1} tok/s", tokens / seconds)
}

fn size(bytes: usize) -> String {
    units::format_size(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_count_what_was_computed() {
        let usage = Usage {
            prompt_tokens: 100,
            cached_tokens: 20,
            completion_tokens: 11,
            queue_s: 0.0,
            prefill_s: 0.5,
            decode_s: 2.0,
        };
        let info = EngineInfo {
            vocab_size: 1,
            max_context: 1,
            weight_bytes: 1 << 20,
            kv_bytes: 1 << 10,
            ..EngineInfo::default()
        };
        let text = answered(&usage, &info);
        assert!(
            text.contains("100 tokens (20 cached) in 0.50 s, 160.0 tok/s"),
            "{text}"
        );
        assert!(text.contains("11 tokens in 2.00 s, 5.0 tok/s"), "{text}");
        assert!(text.contains("weights 1.0 MB, KV 1 KB"), "{text}");
    }

    #[test]
    fn nothing_computed_is_no_rate() {
        assert_eq!(rate(0, 0.0), "- tok/s");
        assert_eq!(rate(5, 0.0), "- tok/s");
    }
}

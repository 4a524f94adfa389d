//! [`EndTokens`]: which token ids end an answer, from every file that has a say.

use serde_json::Value;

use super::Tokenizer;

/// The union of all end tokens of a model, sorted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndTokens(Vec<u32>);

/// What ends an answer when no file says anything.
const DEFAULT_END: u32 = 2;

impl EndTokens {
    /// Unites `eos_token_id` (a number or a list) of `config.json` and `generation_config.json`, the tokenizer's own end
    /// tokens, and `extra` ids that a model family is known to need. With no source at all it is id 2.
    pub fn collect(configs: &[&Value], tokenizer: Option<&Tokenizer>, extra: &[u32]) -> Self {
        let mut ids = extra.to_vec();
        for config in configs {
            let text_config = &config["text_config"];
            for value in [&config["eos_token_id"], &text_config["eos_token_id"]] {
                let values = value
                    .as_array()
                    .map_or(std::slice::from_ref(value), Vec::as_slice);
                ids.extend(
                    values
                        .iter()
                        .filter_map(Value::as_u64)
                        .filter_map(|id| u32::try_from(id).ok()),
                );
            }
        }
        ids.extend(tokenizer.map(Tokenizer::end_tokens).unwrap_or_default());
        if ids.is_empty() {
            ids.push(DEFAULT_END);
        }
        ids.sort_unstable();
        ids.dedup();
        Self(ids)
    }

    /// The ids, sorted.
    pub fn ids(&self) -> &[u32] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_sources_are_united_and_two_is_the_last_resort() {
        let config = json!({"eos_token_id": 7});
        let generation = json!({"eos_token_id": [9, 7, 3]});
        assert_eq!(
            EndTokens::collect(&[&config, &generation], None, &[106]).ids(),
            [3, 7, 9, 106]
        );
        assert_eq!(
            EndTokens::collect(&[&json!({"eos_token_id": null})], None, &[]).ids(),
            [2]
        );
        assert_eq!(
            EndTokens::collect(&[&json!({"text_config": {"eos_token_id": 5}})], None, &[]).ids(),
            [5]
        );
    }
}

//! [`EndTokens`]: which token ids end an answer, from every file that has a say.

use serde_json::Value;

use super::Tokenizer;
use crate::error::{Error, Result};

/// The union of all end tokens of a model, sorted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndTokens(Vec<u32>);

/// What ends an answer when no file says anything.
const DEFAULT_END: u32 = 2;

impl EndTokens {
    /// Unites `eos_token_id` (a number or a list) of `config.json` and `generation_config.json`, which `configs` has with their
    /// names, the tokenizer's own end tokens, and `extra` ids that a model family is known to need. With no source at all it is id 2.
    ///
    /// # Errors
    /// `Invalid` for an `eos_token_id` that is something else: passed over, answers would not end there.
    pub fn collect(
        configs: &[(&str, Value)],
        tokenizer: Option<&Tokenizer>,
        extra: &[u32],
    ) -> Result<Self> {
        let mut ids = extra.to_vec();
        for (file, config) in configs {
            for object in [config, &config["text_config"]] {
                let own = ids_in(&object["eos_token_id"]);
                ids.extend(own.map_err(|error| error.context(format!("in `{file}`")))?);
            }
        }
        ids.extend(tokenizer.map(Tokenizer::end_tokens).unwrap_or_default());
        if ids.is_empty() {
            ids.push(DEFAULT_END);
        }
        ids.sort_unstable();
        ids.dedup();
        Ok(Self(ids))
    }

    /// The ids, sorted.
    pub fn ids(&self) -> &[u32] {
        &self.0
    }
}

/// The ids that an `eos_token_id` names. A whole number that no token has, such as -1, ends nothing.
fn ids_in(value: &Value) -> Result<Vec<u32>> {
    let listed = match value {
        Value::Null => return Ok(Vec::new()),
        Value::Array(all) => all.as_slice(),
        one => std::slice::from_ref(one),
    };
    if listed.iter().any(|id| !(id.is_i64() || id.is_u64())) {
        return Err(Error::invalid(format!(
            "`eos_token_id` is {value}, expected a token id, a list of them or null"
        )));
    }
    let ids = listed.iter().filter_map(Value::as_u64);
    Ok(ids.filter_map(|id| u32::try_from(id).ok()).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn collect(configs: &[Value], extra: &[u32]) -> Result<Vec<u32>> {
        let names = ["config.json", "generation_config.json"];
        let configs: Vec<_> = names.into_iter().zip(configs.iter().cloned()).collect();
        EndTokens::collect(&configs, None, extra).map(|ends| ends.ids().to_vec())
    }

    #[test]
    fn all_sources_are_united_and_two_is_the_last_resort() {
        let config = json!({"eos_token_id": 7});
        let generation = json!({"eos_token_id": [9, 7, 3]});
        assert_eq!(
            collect(&[config, generation], &[106]).unwrap(),
            [3, 7, 9, 106]
        );
        assert_eq!(collect(&[json!({"eos_token_id": null})], &[]).unwrap(), [2]);
        let nested = json!({"text_config": {"eos_token_id": 5}});
        assert_eq!(collect(&[nested], &[]).unwrap(), [5]);
    }

    #[test]
    fn an_id_that_is_none_is_refused_and_one_that_no_token_has_ends_nothing() {
        for value in [
            json!("x"),
            json!([1, "2"]),
            json!(1.5),
            json!(true),
            json!({}),
            json!([null]),
        ] {
            let refusal = collect(&[json!({}), json!({"eos_token_id": value})], &[]).unwrap_err();
            assert_eq!(
                refusal.chain(),
                format!(
                    "in `generation_config.json`: `eos_token_id` is {value}, expected a token id, a list of them or null"
                )
            );
            let nested = json!({"text_config": {"eos_token_id": value}});
            assert!(collect(&[nested], &[]).is_err(), "{value}");
        }
        let none = json!({"eos_token_id": [-1, 3, 1_u64 << 40]});
        assert_eq!(collect(&[none], &[]).unwrap(), [3]);
    }
}

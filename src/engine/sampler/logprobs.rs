//! Log-probabilities of the model's own distribution: temperature, penalties and filters do not show in them.

use super::candidates::{id_of, key};
use super::softmax::{Softmax, max, sum};
use crate::engine::request::TokenLogprobs;

/// The log-probability of `chosen` and of the `count` best tokens of `raw`, the row before anything changed it.
pub(super) fn report(raw: &[f32], chosen: u32, count: usize, keys: &mut Vec<u64>) -> TokenLogprobs {
    let softmax = Softmax {
        max: max(raw),
        temperature: 1.0,
    };
    let mut weights = [0.0_f32; 1024];
    let mut total = 0.0;
    for block in raw.chunks(weights.len()) {
        for (weight, &logit) in weights.iter_mut().zip(block) {
            *weight = softmax.weight(logit);
        }
        total += sum(&weights[..block.len()]);
    }
    let log_total = libm::log(total);
    #[expect(clippy::cast_possible_truncation, reason = "reported as f32")]
    let logprob =
        |id: u32| (f64::from(raw[id as usize]) - f64::from(softmax.max) - log_total) as f32;
    let top = best(raw, count, keys)
        .iter()
        .map(|&key| (id_of(key), logprob(id_of(key))))
        .collect();
    TokenLogprobs {
        chosen: logprob(chosen),
        top,
    }
}

/// The keys of the `count` best tokens, best first; impossible tokens are left out.
fn best<'k>(raw: &[f32], count: usize, keys: &'k mut Vec<u64>) -> &'k [u64] {
    keys.clear();
    if count == 0 {
        return keys;
    }
    let possible = raw
        .iter()
        .enumerate()
        .filter(|&(_, &x)| x != f32::NEG_INFINITY);
    keys.extend(possible.map(|(id, &x)| key(x, id)));
    if keys.len() > count {
        keys.select_nth_unstable(count - 1);
        keys.truncate(count);
    }
    keys.sort_unstable();
    keys
}

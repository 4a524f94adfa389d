//! The sampler as one would write it without thinking of speed: sort everything, copy everything.

use std::collections::BTreeMap;

use super::History;
use super::exp::exp;
use super::random::Random;
use crate::engine::request::SamplingParams;

/// The token that [`super::Sampler`] must choose, and the tokens it may choose from.
pub(super) fn choose(
    params: &SamplingParams,
    masked: &[u32],
    logits: &[f32],
    history: &History<'_>,
    position: u64,
) -> (u32, Vec<u32>) {
    let logits = modified(params, masked, logits, history);
    let mut tokens: Vec<(f32, u32)> = logits.iter().zip(0..).map(|(&x, id)| (x, id)).collect();
    tokens.retain(|token| token.0 > f32::NEG_INFINITY);
    tokens.sort_by(|a, b| b.0.partial_cmp(&a.0).unwrap().then(a.1.cmp(&b.1)));
    let max = tokens[0].0;
    if params.temperature == 0.0 {
        return (tokens[0].1, vec![tokens[0].1]);
    }
    let random = Random::new(params.seed, params.choice, position);
    let weight = |logit: f32| exp((logit - max) / params.temperature);
    tokens.retain(|token| weight(token.0) >= params.min_p);
    if params.top_k > 0 && tokens.len() > params.top_k {
        let border = tokens[params.top_k - 1].0;
        let mut kept: Vec<_> = tokens
            .iter()
            .copied()
            .filter(|token| token.0 > border)
            .collect();
        let mut tied: Vec<_> = tokens
            .iter()
            .copied()
            .filter(|token| token.0 == border)
            .collect();
        tied.sort_by_key(|token| random.tie_key(token.1));
        tied.truncate(params.top_k - kept.len());
        tied.sort_by_key(|token| token.1);
        kept.extend(tied);
        tokens = kept;
    }
    if params.top_p < 1.0 {
        let target = f64::from(params.top_p)
            * tokens
                .iter()
                .map(|token| f64::from(weight(token.0)))
                .sum::<f64>();
        let mut mass = 0.0;
        let mut count = 0;
        while count < tokens.len() && (count == 0 || mass < target) {
            mass += f64::from(weight(tokens[count].0));
            count += 1;
        }
        tokens.truncate(count);
    }
    if params.top_k == 0 && params.top_p >= 1.0 {
        tokens.sort_by_key(|token| token.1);
    }
    let target = random.unit()
        * tokens
            .iter()
            .map(|token| f64::from(weight(token.0)))
            .sum::<f64>();
    let mut mass = 0.0;
    let chosen = tokens.iter().find(|token| {
        mass += f64::from(weight(token.0));
        mass > target
    });
    (
        chosen.unwrap().1,
        tokens.iter().map(|token| token.1).collect(),
    )
}

/// The logits after mask, penalties and bias.
pub(super) fn modified(
    params: &SamplingParams,
    masked: &[u32],
    logits: &[f32],
    history: &History<'_>,
) -> Vec<f32> {
    let mut logits = logits.to_vec();
    for &id in masked {
        logits[id as usize] = f32::NEG_INFINITY;
    }
    let window = match params.repetition_window {
        0 => history.tokens.len(),
        n => n.min(history.tokens.len()),
    };
    for (id, _) in counts(&history.tokens[history.tokens.len() - window..]) {
        let x = &mut logits[id as usize];
        *x = if *x > 0.0 {
            *x / params.repetition_penalty
        } else {
            *x * params.repetition_penalty
        };
    }
    for (id, count) in counts(&history.tokens[history.output_start..]) {
        let x = &mut logits[id as usize];
        *x = *x - count as f32 * params.frequency_penalty - params.presence_penalty;
    }
    for &(id, bias) in &params.logit_bias {
        logits[id as usize] += bias;
    }
    logits
}

fn counts(tokens: &[u32]) -> BTreeMap<u32, u32> {
    let mut counts = BTreeMap::new();
    for &id in tokens {
        *counts.entry(id).or_insert(0) += 1;
    }
    counts
}

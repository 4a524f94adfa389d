//! min-p, top-k and top-p over candidates that are numbers: sorting `key`s ascending puts better tokens first and equal
//! ones by id. Only as much is sorted as the answer needs; a full sort would give the same bits.

use super::random::Random;
use super::softmax::{BLOCK, Softmax, sum};
use crate::engine::request::SamplingParams;

/// Tokens of at least this weight (against 1 for the best) are looked at first by top-p; nearly always they suffice.
const HEAD_WEIGHT: f32 = 1e-4;

/// How far the bound that saves `exp` stands off: far more than the error of `exp` and `log`.
const MARGIN: f32 = 1e-3;

/// A candidate as a number: smaller is better, equal logits by lower id.
pub(super) fn key(logit: f32, id: usize) -> u64 {
    let bits = (logit + 0.0).to_bits(); // + 0.0 makes the two zeros equal
    let ascending = if bits >> 31 == 1 {
        !bits
    } else {
        bits | 0x8000_0000
    };
    (u64::from(!ascending) << 32) | id as u64
}

/// The token of a key.
pub(super) fn id_of(key: u64) -> u32 {
    (key & u64::from(u32::MAX)) as u32
}

fn rank_of(key: u64) -> u32 {
    (key >> 32) as u32
}

/// The keys that pass min-p, top-k and top-p: best first when top-k or top-p is on, else by id.
pub(super) fn filter<'k>(
    params: &SamplingParams,
    logits: &[f32],
    softmax: &Softmax,
    random: &Random,
    keys: &'k mut Vec<u64>,
) -> &'k [u64] {
    if params.top_k == 0 && params.min_p <= 0.0 {
        let count = nucleus_of_row(params.top_p, logits, softmax, keys);
        return &keys[..count];
    }
    gather(keys, logits, |logit| {
        might_pass(softmax, logit, params.min_p)
    });
    if params.top_k > 0 {
        keep_best(keys, params.top_k, random);
    }
    // min-p may come second: it keeps a prefix of the same order, and tokens that tie pass or fail together.
    let weight = |key: u64| softmax.weight(logits[id_of(key) as usize]);
    if params.min_p > 0.0 {
        keys.retain(|&key| weight(key) >= params.min_p);
    }
    if params.top_p < 1.0 {
        let total: f64 = keys.iter().map(|&key| f64::from(weight(key))).sum();
        let mut mass = 0.0;
        let target = total * f64::from(params.top_p);
        let count = sort_until(keys, weight, target, &mut mass).unwrap_or(keys.len());
        keys.truncate(count);
    }
    keys
}

/// Draws from `kept` in its order by `unit` in [0, 1).
pub(super) fn draw(kept: &[u64], logits: &[f32], softmax: &Softmax, unit: f64) -> u32 {
    let weight = |key: u64| f64::from(softmax.weight(logits[id_of(key) as usize]));
    let target = unit * kept.iter().map(|&key| weight(key)).sum::<f64>();
    let mut reached = 0.0;
    let mut chosen = kept[0];
    for &key in kept {
        let weight = weight(key);
        if weight > 0.0 {
            reached += weight;
            chosen = key;
            if reached > target {
                break;
            }
        }
    }
    id_of(chosen)
}

/// A bound that is cheaper than the weight and never drops what passes min-p.
fn might_pass(softmax: &Softmax, logit: f32, min_p: f32) -> bool {
    min_p <= 0.0 || softmax.exponent(logit) >= libm::logf(min_p) - MARGIN
}

fn gather(keys: &mut Vec<u64>, logits: &[f32], wanted: impl Fn(f32) -> bool) {
    keys.clear();
    let finite = |logit: f32| logit != f32::NEG_INFINITY;
    keys.extend(
        logits
            .iter()
            .enumerate()
            .filter(|&(_, &x)| finite(x) && wanted(x))
            .map(|(id, &x)| key(x, id)),
    );
}

/// Keeps the `count` best, sorted. Tokens that tie at the border are taken in random order, not by id.
fn keep_best(keys: &mut Vec<u64>, count: usize, random: &Random) {
    if keys.len() > count {
        let border = rank_of(*keys.select_nth_unstable(count - 1).1);
        keys.retain(|&key| rank_of(key) <= border);
        let better = keys.iter().filter(|&&key| rank_of(key) < border).count();
        keys.sort_unstable();
        keys[better..].sort_unstable_by_key(|&key| (random.tie_key(id_of(key)), id_of(key)));
        keys.truncate(count);
    }
    keys.sort_unstable();
}

/// Top-p over the whole row: how many of `keys`, then sorted that far, make up the share `top_p`.
fn nucleus_of_row(top_p: f32, logits: &[f32], softmax: &Softmax, keys: &mut Vec<u64>) -> usize {
    let mut weights = [0.0_f32; BLOCK];
    let mut total = 0.0;
    for block in logits.chunks(BLOCK) {
        for (weight, &logit) in weights.iter_mut().zip(block) {
            *weight = softmax.weight(logit);
        }
        total += sum(&weights[..block.len()]);
    }
    let target = total * f64::from(top_p);
    let weight = |key: u64| softmax.weight(logits[id_of(key) as usize]);
    let border = libm::logf(HEAD_WEIGHT);
    let mut mass = 0.0;
    gather(keys, logits, |logit| softmax.exponent(logit) >= border);
    if let Some(count) = sort_until(keys, weight, target, &mut mass) {
        return count;
    }
    let head = keys.len();
    let tail = logits
        .iter()
        .enumerate()
        .filter(|&(_, &x)| x != f32::NEG_INFINITY && softmax.exponent(x) < border);
    keys.extend(tail.map(|(id, &x)| key(x, id)));
    sort_until(&mut keys[head..], weight, target, &mut mass)
        .map_or(keys.len(), |count| head + count)
}

/// Sorts `keys` from the best on until their weights, added to `mass`, reach `target`; the number of keys up to there.
///
/// Works in chunks that grow, each selected before it is sorted: linear when few tokens suffice, no worse than a sort
/// (by a constant) when the distribution is flat. The order of the sum is that of a full sort.
fn sort_until(
    keys: &mut [u64],
    weight: impl Fn(u64) -> f32,
    target: f64,
    mass: &mut f64,
) -> Option<usize> {
    let mut start = 0;
    let mut chunk = 128;
    while start < keys.len() {
        let end = keys.len().min(start + chunk);
        if end < keys.len() {
            keys[start..].select_nth_unstable(end - start - 1);
        }
        keys[start..end].sort_unstable();
        for (index, &key) in keys.iter().enumerate().take(end).skip(start) {
            *mass += f64::from(weight(key));
            if *mass >= target {
                return Some(index + 1);
            }
        }
        start = end;
        chunk *= 4;
    }
    None
}

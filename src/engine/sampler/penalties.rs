//! What past tokens and the request's bias do to the logits.

use super::History;
use crate::engine::request::SamplingParams;

/// Repetition penalty over the window, frequency and presence penalty over the output, then the bias.
///
/// `counts` is all zero before and after.
pub(super) fn apply(
    params: &SamplingParams,
    logits: &mut [f32],
    history: &History<'_>,
    counts: &mut Vec<u32>,
) {
    if params.repetition_penalty != 1.0 {
        let penalty = params.repetition_penalty;
        for_each_distinct(
            history.window(params.repetition_window),
            logits,
            counts,
            |logit, _| {
                // A tiny penalty may overflow the quotient; infinity would have no place in a softmax.
                if logit > 0.0 {
                    (logit / penalty).min(f32::MAX)
                } else {
                    logit * penalty
                }
            },
        );
    }
    if params.frequency_penalty != 0.0 || params.presence_penalty != 0.0 {
        let (frequency, presence) = (params.frequency_penalty, params.presence_penalty);
        for_each_distinct(history.output(), logits, counts, |logit, count| {
            #[expect(
                clippy::cast_precision_loss,
                reason = "an output longer than 2^24 tokens does not exist"
            )]
            let count = count as f32;
            (logit - count * frequency - presence).min(f32::MAX)
        });
    }
    for &(id, bias) in &params.logit_bias {
        let logit = &mut logits[id as usize];
        *logit = (*logit + bias).min(f32::MAX);
    }
}

/// Replaces the logit of each distinct token by `change(logit, how often the token occurs)`.
fn for_each_distinct(
    tokens: &[u32],
    logits: &mut [f32],
    counts: &mut Vec<u32>,
    change: impl Fn(f32, u32) -> f32,
) {
    if counts.len() < logits.len() {
        counts.resize(logits.len(), 0);
    }
    let known = |id: &&u32| (**id as usize) < logits.len();
    for &id in tokens.iter().filter(known) {
        counts[id as usize] += 1;
    }
    for &id in tokens {
        let Some(logit) = logits.get_mut(id as usize) else {
            continue;
        };
        let count = std::mem::take(&mut counts[id as usize]);
        if count > 0 {
            *logit = change(*logit, count);
        }
    }
}

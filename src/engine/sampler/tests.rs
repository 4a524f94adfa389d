use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;

use super::random::Random;
use super::softmax::Softmax;
use super::{History, Sampler, Scratch, candidates, oracle};
use crate::engine::request::SamplingParams;
use crate::error::ErrorKind;

const NOTHING: History<'static> = History {
    tokens: &[],
    output_start: 0,
};

fn sampler(params: &SamplingParams, vocab_size: usize) -> Sampler {
    Sampler::new(params, vocab_size, Arc::new([])).unwrap()
}

fn greedy() -> SamplingParams {
    SamplingParams {
        temperature: 0.0,
        ..SamplingParams::default()
    }
}

fn sample(params: &SamplingParams, logits: &[f32]) -> u32 {
    sampler(params, logits.len())
        .sample(&mut logits.to_vec(), &NOTHING, 0)
        .unwrap()
        .id
}

/// Rows with ties, impossible tokens, peaks and flat stretches.
fn row() -> impl Strategy<Value = Vec<f32>> {
    let coarse = (-8_i8..8).prop_map(|x| f32::from(x) * 0.5);
    let fine = -12.0_f32..12.0;
    let logit = prop_oneof![4 => coarse, 4 => fine, 1 => Just(f32::NEG_INFINITY), 1 => Just(0.25)];
    let small = prop::collection::vec(logit, 1..300);
    let flat = (1_usize..3000, -1e-3_f32..1e-3)
        .prop_map(|(len, slope)| (0..len).map(|i| slope * (i % 97) as f32).collect());
    prop_oneof![6 => small, 1 => flat]
}

fn params() -> impl Strategy<Value = SamplingParams> {
    let temperature = prop_oneof![Just(0.0_f32), Just(1.0), 0.05_f32..3.0];
    let top_k = prop_oneof![Just(0_usize), 1_usize..60];
    let top_p = prop_oneof![Just(1.0_f32), Just(0.0), 0.01_f32..1.0];
    let min_p = prop_oneof![Just(0.0_f32), Just(1.0), 0.001_f32..0.5];
    let repetition = prop_oneof![Just(1.0_f32), 0.5_f32..2.0];
    let frequency = prop_oneof![Just(0.0_f32), -2.0_f32..2.0];
    let presence = prop_oneof![Just(0.0_f32), -2.0_f32..2.0];
    (
        temperature,
        top_k,
        top_p,
        min_p,
        repetition,
        0_usize..12,
        frequency,
        presence,
        any::<u64>(),
    )
        .prop_map(
            |(temperature, top_k, top_p, min_p, repetition, window, frequency, presence, seed)| {
                SamplingParams {
                    temperature,
                    top_k,
                    top_p,
                    min_p,
                    repetition_penalty: repetition,
                    repetition_window: window,
                    frequency_penalty: frequency,
                    presence_penalty: presence,
                    seed,
                    ..SamplingParams::default()
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn equals_the_naive_oracle(
        logits in row(),
        mut params in params(),
        past in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        masked in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
        bias in prop::collection::vec((any::<prop::sample::Index>(), -5.0_f32..5.0), 0..3),
        position in 0_u64..1000,
    ) {
        let id = |index: &prop::sample::Index| index.index(logits.len()) as u32;
        let tokens: Vec<u32> = past.iter().map(id).collect();
        let masked: Arc<[u32]> = masked.iter().map(id).collect();
        params.logit_bias = bias.iter().map(|(index, bias)| (id(index), *bias)).collect();
        let history = History { tokens: &tokens, output_start: tokens.len() / 2 };
        let sampler = Sampler::new(&params, logits.len(), Arc::clone(&masked)).unwrap();
        let got = sampler.sample(&mut logits.clone(), &history, position);
        if oracle::modified(&params, &masked, &logits, &history).iter().all(|&x| x == f32::NEG_INFINITY) {
            prop_assert_eq!(got.unwrap_err().kind(), ErrorKind::Internal);
        } else {
            prop_assert_eq!(got.unwrap().id, oracle::choose(&params, &masked, &logits, &history, position).0);
        }
    }

    #[test]
    fn kept_tokens_equal_those_of_a_full_sort(logits in row(), mut params in params()) {
        params.temperature = params.temperature.max(0.1);
        params.repetition_penalty = 1.0;
        prop_assume!(params.top_k > 0 || params.top_p < 1.0 || params.min_p > 0.0);
        let max = super::softmax::max(&logits);
        prop_assume!(max > f32::NEG_INFINITY);
        let softmax = Softmax { max, temperature: params.temperature };
        let mut scratch = Scratch::default();
        let random = Random::new(params.seed, params.choice, 3);
        let kept = candidates::filter(&params, &logits, &softmax, &random, &mut scratch.keys);
        let kept: Vec<u32> = kept.iter().map(|&key| candidates::id_of(key)).collect();
        prop_assert_eq!(kept, oracle::choose(&params, &[], &logits, &NOTHING, 3).1);
    }

    #[test]
    fn top_logprobs_equal_a_full_sort(logits in row(), count in 0_usize..25) {
        prop_assume!(logits.iter().any(|x| x.is_finite()));
        let params = SamplingParams { logprobs: Some(count), temperature: 0.3, ..SamplingParams::default() };
        let got = sampler(&params, logits.len()).sample(&mut logits.clone(), &NOTHING, 0).unwrap();
        let report = got.logprobs.unwrap();
        let total: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        let logprob = |id: u32| f64::from(logits[id as usize]) - total.ln();
        let mut ids: Vec<u32> = (0..logits.len() as u32).filter(|&id| logits[id as usize].is_finite()).collect();
        ids.sort_by(|&a, &b| logits[b as usize].partial_cmp(&logits[a as usize]).unwrap().then(a.cmp(&b)));
        ids.truncate(count);
        prop_assert_eq!(report.top.iter().map(|entry| entry.0).collect::<Vec<_>>(), ids);
        for (id, value) in report.top.into_iter().chain([(got.id, report.chosen)]) {
            prop_assert!((f64::from(value) - logprob(id)).abs() < 1e-5);
        }
    }
}

#[test]
fn nan_and_positive_infinity_are_errors_that_name_the_token() {
    for temperature in [0.0, 1.0] {
        let params = SamplingParams {
            temperature,
            ..SamplingParams::default()
        };
        for (bad, word) in [(f32::NAN, "NaN"), (f32::INFINITY, "infinity")] {
            let mut logits = vec![0.0; 2000];
            logits[1500] = bad;
            let error = sampler(&params, 2000)
                .sample(&mut logits, &NOTHING, 0)
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Internal);
            assert!(
                error.chain().contains(word) && error.chain().contains("1500"),
                "{}",
                error.chain()
            );
        }
    }
}

#[test]
fn a_row_without_possible_token_is_an_error_and_never_token_zero() {
    for temperature in [0.0, 1.0] {
        let params = SamplingParams {
            temperature,
            top_p: 0.9,
            ..SamplingParams::default()
        };
        let error = sampler(&params, 50)
            .sample(&mut [f32::NEG_INFINITY; 50], &NOTHING, 0)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
    }
}

#[test]
fn a_row_of_the_wrong_length_is_an_error() {
    assert!(
        sampler(&greedy(), 50)
            .sample(&mut [0.0; 49], &NOTHING, 0)
            .is_err()
    );
}

#[test]
fn impossible_tokens_are_never_drawn() {
    let mut logits = vec![f32::NEG_INFINITY; 3000];
    (logits[7], logits[2900]) = (1.0, 1.0);
    let params = SamplingParams {
        temperature: 5.0,
        ..SamplingParams::default()
    };
    let drawn: BTreeSet<u32> = (0..200)
        .map(|seed| {
            sample(
                &SamplingParams {
                    seed,
                    ..params.clone()
                },
                &logits,
            )
        })
        .collect();
    assert_eq!(drawn, BTreeSet::from([7, 2900]));
}

#[test]
fn ids_without_text_are_never_chosen() {
    let logits = [0.0, 1.0, 9.0, 9.0];
    for temperature in [0.0, 1.0] {
        let params = SamplingParams {
            temperature,
            logprobs: Some(4),
            ..SamplingParams::default()
        };
        let sampler = Sampler::new(&params, 4, Arc::new([2, 3])).unwrap();
        for position in 0..100 {
            let got = sampler
                .sample(&mut logits.clone(), &NOTHING, position)
                .unwrap();
            assert!(got.id < 2);
            assert_eq!(got.logprobs.unwrap().top.len(), 2);
        }
    }
}

#[test]
fn greedy_takes_the_lowest_of_equal_tokens_after_penalties() {
    assert_eq!(sample(&greedy(), &[1.0, 3.0, 3.0, 2.0]), 1);
    assert_eq!(sample(&greedy(), &[-0.0, 0.0, -1.0]), 0);
    let params = SamplingParams {
        presence_penalty: 1.5,
        ..greedy()
    };
    let history = History {
        tokens: &[3, 1],
        output_start: 1,
    };
    let got = sampler(&params, 4)
        .sample(&mut [1.0, 3.0, 3.0, 2.0], &history, 2)
        .unwrap();
    assert_eq!(got.id, 2);
}

#[test]
fn penalties_on_output_ignore_the_prompt() {
    let params = SamplingParams {
        frequency_penalty: 2.0,
        presence_penalty: 2.0,
        ..greedy()
    };
    let history = History {
        tokens: &[1, 1, 1, 0],
        output_start: 3,
    };
    assert_eq!(
        sampler(&params, 3)
            .sample(&mut [2.5, 2.0, 0.0], &history, 4)
            .unwrap()
            .id,
        1
    );
}

#[test]
fn two_thousand_repeats_are_punished_once_and_stay_finite() {
    let params = SamplingParams {
        repetition_penalty: 1.1,
        ..greedy()
    };
    let tokens = vec![1_u32; 2000];
    let history = History {
        tokens: &tokens,
        output_start: 5,
    };
    // 2.0 / 1.1 is still above 1.5; compounded it would be far below.
    assert_eq!(
        sampler(&params, 3)
            .sample(&mut [0.0, 2.0, 1.5], &history, 2000)
            .unwrap()
            .id,
        1
    );
    let params = SamplingParams {
        temperature: 1.0,
        ..params
    };
    assert!(
        sampler(&params, 3)
            .sample(&mut [0.0, 0.0, -3.0e38], &history, 2000)
            .is_ok()
    );
}

#[test]
fn the_repetition_window_forgets_older_tokens() {
    let params = SamplingParams {
        repetition_penalty: 2.0,
        repetition_window: 2,
        ..greedy()
    };
    let history = History {
        tokens: &[0, 1, 1],
        output_start: 0,
    };
    assert_eq!(
        sampler(&params, 2)
            .sample(&mut [1.0, 1.5], &history, 3)
            .unwrap()
            .id,
        0
    );
    let history = History {
        tokens: &[0, 0, 1],
        output_start: 0,
    };
    assert_eq!(
        sampler(&params, 2)
            .sample(&mut [1.0, 0.9], &history, 3)
            .unwrap()
            .id,
        0
    );
}

#[test]
fn ties_at_the_top_k_border_are_broken_evenly_and_by_the_seed() {
    let logits = vec![1.0_f32; 10];
    let mut hits = [0_u32; 10];
    for seed in 0..4000 {
        let params = SamplingParams {
            top_k: 3,
            seed,
            ..SamplingParams::default()
        };
        let id = sample(&params, &logits);
        assert_eq!(id, sample(&params, &logits));
        hits[id as usize] += 1;
    }
    // Expected 400 each, standard deviation 19.
    assert!(hits.iter().all(|&n| (310..490).contains(&n)), "{hits:?}");
}

#[test]
fn draws_follow_the_distribution() {
    let logits = [0.0_f32, 1.0, 2.0];
    let total: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
    let mut hits = [0_u32; 3];
    for seed in 0..20_000 {
        hits[sample(
            &SamplingParams {
                seed,
                ..SamplingParams::default()
            },
            &logits,
        ) as usize] += 1;
    }
    for (x, n) in logits.into_iter().zip(hits) {
        let expected = 20_000.0 * f64::from(x).exp() / total;
        assert!((f64::from(n) - expected).abs() < 300.0, "{hits:?}");
    }
}

#[test]
fn same_seed_same_tokens_and_choices_differ() {
    let logits: Vec<f32> = (0..500).map(|i| (i % 13) as f32 * 0.1).collect();
    let run = |seed, choice| -> Vec<u32> {
        let params = SamplingParams {
            seed,
            choice,
            ..SamplingParams::default()
        };
        let sampler = sampler(&params, 500);
        (0..50)
            .map(|at| {
                sampler
                    .sample(&mut logits.clone(), &NOTHING, at)
                    .unwrap()
                    .id
            })
            .collect()
    };
    assert_eq!(run(7, 0), run(7, 0));
    assert_ne!(run(7, 0), run(8, 0));
    assert_ne!(run(7, 0), run(7, 1));
    assert_ne!(run(7, 0)[1..], run(7, 1)[..49]);
}

#[test]
fn logprobs_do_not_depend_on_sampling() {
    let logits = [1.0_f32, 2.0, 0.5, -1.0];
    let plain = SamplingParams {
        logprobs: Some(2),
        ..greedy()
    };
    let reference = sampler(&plain, 4)
        .sample(&mut logits.clone(), &NOTHING, 0)
        .unwrap()
        .logprobs
        .unwrap();
    let bent = SamplingParams {
        temperature: 0.2,
        top_k: 1,
        frequency_penalty: 0.3,
        logit_bias: vec![(0, 9.0)],
        logprobs: Some(2),
        ..SamplingParams::default()
    };
    let history = History {
        tokens: &[0, 1],
        output_start: 0,
    };
    let got = sampler(&bent, 4)
        .sample(&mut logits.clone(), &history, 0)
        .unwrap();
    let report = got.logprobs.unwrap();
    assert_eq!(report.top, reference.top);
    assert_eq!(got.id, 0, "the bias wins");
    assert_eq!(report.chosen.to_bits(), report.top[1].1.to_bits());
    assert!(
        sampler(&greedy(), 4)
            .sample(&mut logits.clone(), &NOTHING, 0)
            .unwrap()
            .logprobs
            .is_none()
    );
}

#[test]
fn parameters_out_of_range_are_refused_by_name() {
    let refused = |change: fn(&mut SamplingParams), name: &str| {
        let mut params = SamplingParams::default();
        change(&mut params);
        let error = Sampler::new(&params, 10, Arc::new([])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.chain().contains(name), "{}", error.chain());
    };
    refused(|p| p.temperature = -0.1, "`temperature`");
    refused(|p| p.temperature = f32::NAN, "`temperature`");
    refused(|p| p.top_p = 1.01, "`top_p`");
    refused(|p| p.min_p = -0.5, "`min_p`");
    refused(|p| p.repetition_penalty = 0.0, "`repetition_penalty`");
    refused(
        |p| p.frequency_penalty = f32::INFINITY,
        "`frequency_penalty`",
    );
    refused(|p| p.presence_penalty = f32::NAN, "`presence_penalty`");
    refused(|p| p.logit_bias = vec![(10, 1.0)], "token id 10");
    refused(|p| p.logit_bias = vec![(1, f32::NAN)], "`logit_bias`");
}

#[test]
fn extreme_logits_and_temperatures_still_give_a_token() {
    let logits = [f32::MAX, f32::MIN, 0.0, f32::MAX];
    for temperature in [f32::MIN_POSITIVE, 1e-6, 1.0, 1e30] {
        for (top_k, top_p, min_p) in [(0, 1.0, 0.0), (2, 0.5, 0.1), (0, 0.5, 0.0), (0, 1.0, 1.0)] {
            let params = SamplingParams {
                temperature,
                top_k,
                top_p,
                min_p,
                ..SamplingParams::default()
            };
            assert!(sample(&params, &logits) < 4);
        }
    }
    let params = SamplingParams {
        repetition_penalty: 1e-30,
        ..SamplingParams::default()
    };
    let history = History {
        tokens: &[0, 1, 2],
        output_start: 0,
    };
    assert!(
        sampler(&params, 4)
            .sample(&mut [9e20, -1.0, 0.0, 1.0], &history, 3)
            .is_ok()
    );
}

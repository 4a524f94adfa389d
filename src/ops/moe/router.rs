//! The router: from logits to the experts of a token and their weights.

use crate::ops::{Context, Tensor};
use crate::threads::Disjoint;

/// How logits become scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scoring {
    /// Softmax over all experts.
    Softmax,
    /// The largest logits are chosen, softmax over those.
    SoftmaxOfChosen,
    /// The sigmoid of each.
    Sigmoid,
}

/// How a group of experts is scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupScore {
    /// By its best expert.
    Best,
    /// By the sum of its two best.
    TwoBest,
}

/// Experts are chosen from some groups only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Groups of equally many experts, one after the other.
    pub count: usize,
    /// Groups that experts are chosen from.
    pub kept: usize,
    /// How they are compared.
    pub score: GroupScore,
}

/// How experts are chosen and weighted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouterRule {
    /// Scores.
    pub scoring: Scoring,
    /// Experts of a token.
    pub top_k: usize,
    /// Groups, where only some are chosen from.
    pub groups: Option<ExpertGroups>,
    /// The weights of a token are divided by their sum.
    pub normalize: bool,
    /// Multiplies the weights.
    pub scale: f32,
}

/// The experts of some tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Routing {
    /// Experts per token.
    pub top_k: usize,
    /// `[tokens, top_k]`: best first, of equal ones the lower number first.
    pub experts: Vec<u32>,
    /// `[tokens, top_k]`.
    pub weights: Vec<f32>,
}

impl Routing {
    /// Multiplies the weights of each expert by its own of `factors`.
    pub fn scale_experts(&mut self, factors: &[f32]) {
        for (weight, expert) in self.weights.iter_mut().zip(&self.experts) {
            *weight *= factors[*expert as usize];
        }
    }
}

impl RouterRule {
    /// Whether the rule can be applied to `experts` experts.
    pub fn fits(&self, experts: usize) -> bool {
        let in_groups = |groups: &ExpertGroups| {
            (1..=groups.count).contains(&groups.kept)
                && experts.is_multiple_of(groups.count)
                && self.top_k <= experts / groups.count * groups.kept
        };
        (1..=experts).contains(&self.top_k) && self.groups.as_ref().is_none_or(in_groups)
    }
}

/// Routes every token by its `logits` `[tokens, experts]`. `correction` (one per expert) is added to scores for choosing, not
/// to weights.
///
/// NaN is larger than any number: it is chosen, and the weight of its expert is NaN. Panics when the rule does not fit.
pub fn route(
    ctx: &Context,
    logits: &Tensor,
    rule: &RouterRule,
    correction: Option<&[f32]>,
) -> Routing {
    let (tokens, experts) = (logits.rows(), logits.cols());
    assert!(rule.fits(experts), "{rule:?} for {experts} experts");
    assert!(
        correction.is_none_or(|c| c.len() == experts),
        "corrections for {experts} experts"
    );
    let mut chosen = vec![0_u32; tokens * rule.top_k];
    let mut weights = vec![0.0_f32; tokens * rule.top_k];
    let (chosen_out, weights_out) = (Disjoint::new(&mut chosen), Disjoint::new(&mut weights));
    ctx.for_row_ranges(tokens, experts * 16, |first, count| {
        let mut token = Token::default();
        for row in first..first + count {
            // SAFETY: this task alone writes these tokens.
            #[allow(unsafe_code)]
            let (chosen, weights) = unsafe {
                let at = row * rule.top_k;
                (
                    chosen_out.part(at, rule.top_k),
                    weights_out.part(at, rule.top_k),
                )
            };
            token.route(logits.row(row), rule, correction, chosen, weights);
        }
    });
    Routing {
        top_k: rule.top_k,
        experts: chosen,
        weights,
    }
}

/// Buffers for one token after the other. All of it is scalar code: the same bits on every CPU.
#[derive(Default)]
struct Token {
    /// What weights are made of.
    scores: Vec<f32>,
    /// What is chosen by.
    choice: Vec<f32>,
    groups: Vec<f32>,
    /// Experts, or groups, best first.
    order: Vec<u32>,
}

impl Token {
    fn route(
        &mut self,
        logits: &[f32],
        rule: &RouterRule,
        correction: Option<&[f32]>,
        chosen: &mut [u32],
        weights: &mut [f32],
    ) {
        self.scores.clear();
        self.scores.extend_from_slice(logits);
        match rule.scoring {
            Scoring::Softmax => softmax(&mut self.scores),
            Scoring::SoftmaxOfChosen => {}
            Scoring::Sigmoid => {
                let scores = self.scores.iter_mut();
                scores.for_each(|x| *x = 1.0 / (1.0 + libm::expf(-*x)));
            }
        }
        self.choice.clear();
        self.choice.extend_from_slice(&self.scores);
        if let Some(correction) = correction {
            let choice = self.choice.iter_mut();
            choice.zip(correction).for_each(|(x, c)| *x += c);
        }
        if let Some(groups) = &rule.groups {
            self.leave_groups(groups);
        }
        best(&self.choice, chosen.len(), &mut self.order);
        chosen.copy_from_slice(&self.order);
        for (weight, expert) in weights.iter_mut().zip(&*chosen) {
            *weight = self.scores[*expert as usize];
        }
        if rule.scoring == Scoring::SoftmaxOfChosen {
            softmax(weights);
        }
        if rule.normalize {
            // The reference adds this where scores can all be zero; nowhere else does it change a bit.
            let sum = weights.iter().sum::<f32>() + 1e-20;
            weights.iter_mut().for_each(|w| *w /= sum);
        }
        weights.iter_mut().for_each(|w| *w *= rule.scale);
    }

    /// Makes the experts of all but the best groups unable to be chosen.
    fn leave_groups(&mut self, groups: &ExpertGroups) {
        let size = self.choice.len() / groups.count;
        let two = match groups.score {
            GroupScore::Best => 1,
            GroupScore::TwoBest => 2.min(size),
        };
        self.groups.clear();
        for group in self.choice.chunks_exact(size) {
            best(group, two, &mut self.order);
            let sum = self.order.iter().map(|&i| group[i as usize]).sum();
            self.groups.push(sum);
        }
        best(&self.groups, groups.kept, &mut self.order);
        for (index, group) in self.choice.chunks_exact_mut(size).enumerate() {
            if !self.order.contains(&(index as u32)) {
                group.fill(f32::NEG_INFINITY);
            }
        }
    }
}

/// The numbers of the `count` largest of `values`, best first; of equal ones the lower number first, NaN above all.
fn best(values: &[f32], count: usize, order: &mut Vec<u32>) {
    let is_above = |a: f32, b: f32| a > b || (a.is_nan() && !b.is_nan());
    order.clear();
    for (index, &value) in values.iter().enumerate() {
        let last = order.last().map(|&i| values[i as usize]);
        if order.len() == count {
            if last.is_none_or(|last| !is_above(value, last)) {
                continue;
            }
            order.pop();
        }
        let behind = order.iter().rev();
        let passed = behind.take_while(|&&i| is_above(value, values[i as usize]));
        let at = order.len() - passed.count();
        order.insert(at, index as u32);
    }
}

/// `x = e^(x - max) / Σ`, added in ascending order.
fn softmax(x: &mut [f32]) {
    let max = x
        .iter()
        .fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
    x.iter_mut().for_each(|x| *x = libm::expf(*x - max));
    let sum: f32 = x.iter().sum();
    x.iter_mut().for_each(|x| *x /= sum);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{bits, contexts, random};

    const PLAIN: RouterRule = RouterRule {
        scoring: Scoring::Softmax,
        top_k: 3,
        groups: None,
        normalize: false,
        scale: 1.0,
    };

    /// The rule, written down in F64 over a sorted list.
    fn oracle(logits: &[f32], rule: &RouterRule, correction: &[f32]) -> Vec<(u32, f64)> {
        let exp: Vec<f64> = logits.iter().map(|x| f64::from(*x).exp()).collect();
        let sum: f64 = exp.iter().sum();
        let scores: Vec<f64> = match rule.scoring {
            Scoring::Softmax => exp.iter().map(|e| e / sum).collect(),
            Scoring::SoftmaxOfChosen => exp.clone(),
            Scoring::Sigmoid => exp.iter().map(|e| e / (1.0 + e)).collect(),
        };
        let logits: Vec<f64> = logits.iter().map(|x| f64::from(*x)).collect();
        let by_logits = rule.scoring == Scoring::SoftmaxOfChosen;
        let choice: Vec<f64> = if by_logits { &logits } else { &scores }
            .iter()
            .zip(correction)
            .map(|(s, c)| s + f64::from(*c))
            .collect();
        let sorted = |mut values: Vec<(f64, usize)>| {
            values.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            values
        };
        let numbered = |values: &[f64]| sorted(values.iter().copied().zip(0..).collect());
        let mut order = numbered(&choice);
        if let Some(groups) = &rule.groups {
            let size = choice.len() / groups.count;
            let take = if groups.score == GroupScore::Best {
                1
            } else {
                2
            };
            let of =
                |group: &[f64]| -> f64 { numbered(group).iter().take(take).map(|v| v.0).sum() };
            let scored: Vec<f64> = choice.chunks(size).map(of).collect();
            let kept: Vec<usize> = numbered(&scored)[..groups.kept]
                .iter()
                .map(|v| v.1)
                .collect();
            order.retain(|(_, expert)| kept.contains(&(expert / size)));
        }
        order.truncate(rule.top_k);
        let chosen: f64 = order.iter().map(|(_, e)| scores[*e]).sum();
        let divide = rule.normalize || rule.scoring == Scoring::SoftmaxOfChosen;
        let weight =
            |e: usize| f64::from(rule.scale) * scores[e] / if divide { chosen } else { 1.0 };
        order.iter().map(|(_, e)| (*e as u32, weight(*e))).collect()
    }

    #[test]
    fn every_rule_chooses_and_weighs_as_its_formula_says_alone_and_in_a_batch() {
        let groups = |score| {
            Some(ExpertGroups {
                count: 4,
                kept: 2,
                score,
            })
        };
        let rules = [
            PLAIN,
            RouterRule {
                normalize: true,
                top_k: 1,
                ..PLAIN
            },
            RouterRule {
                scoring: Scoring::SoftmaxOfChosen,
                ..PLAIN
            },
            RouterRule {
                scoring: Scoring::Sigmoid,
                normalize: true,
                scale: 2.5,
                groups: groups(GroupScore::TwoBest),
                top_k: 4,
            },
            RouterRule {
                scale: 16.0,
                groups: groups(GroupScore::Best),
                top_k: 5,
                ..PLAIN
            },
            RouterRule { top_k: 24, ..PLAIN },
        ];
        let logits: Vec<f32> = random(3, 70 * 24).iter().map(|x| x * 4.0).collect();
        let correction: Vec<f32> = random(5, 24).iter().map(|x| x * 0.1).collect();
        for rule in rules {
            for correction in [vec![0.0; 24], correction.clone()] {
                let mut seen: Option<Routing> = None;
                for ctx in contexts() {
                    let all = route(&ctx, &ctx.tensor(70, 24, &logits), &rule, Some(&correction));
                    for (t, row) in logits.chunks(24).enumerate() {
                        let at = t * rule.top_k..(t + 1) * rule.top_k;
                        let (experts, weights) = (&all.experts[at.clone()], &all.weights[at]);
                        for (i, (expert, weight)) in
                            oracle(row, &rule, &correction).into_iter().enumerate()
                        {
                            assert_eq!(experts[i], expert, "{rule:?}");
                            let off = (f64::from(weights[i]) - weight).abs();
                            assert!(off < 1e-6 * weight.max(1e-3), "{rule:?} {weight}");
                        }
                        let alone = route(&ctx, &ctx.tensor(1, 24, row), &rule, Some(&correction));
                        assert_eq!(
                            (&alone.experts[..], bits(&alone.weights)),
                            (experts, bits(weights))
                        );
                    }
                    let seen = seen.get_or_insert_with(|| all.clone());
                    assert_eq!(*seen, all, "{ctx:?}");
                }
            }
        }
    }

    #[test]
    fn each_weight_is_multiplied_by_the_factor_of_its_expert() {
        let mut routing = Routing {
            top_k: 2,
            experts: vec![2, 0, 0, 1],
            weights: vec![0.5, 0.25, 1.0, 2.0],
        };
        routing.scale_experts(&[2.0, 3.0, 5.0]);
        assert_eq!(routing.weights, [2.5, 0.5, 2.0, 6.0]);
    }

    #[test]
    fn of_equal_experts_the_lower_number_is_chosen_and_nan_is_not_hidden() {
        let ctx = &contexts()[0];
        let of = |logits: &[f32], rule: &RouterRule| {
            route(ctx, &ctx.tensor(1, logits.len(), logits), rule, None)
        };
        assert_eq!(of(&[1.0, 2.0, 2.0, 2.0, 2.0], &PLAIN).experts, [1, 2, 3]);
        let rule = RouterRule {
            scoring: Scoring::Sigmoid,
            ..PLAIN
        };
        let nan = of(&[9.0, 1.0, f32::NAN, 3.0, 2.0], &rule);
        assert_eq!(nan.experts, [2, 0, 3]);
        assert!(nan.weights[0].is_nan() && nan.weights[1] > 0.9);
        assert!(
            of(&[f32::NAN; 5], &PLAIN)
                .weights
                .iter()
                .all(|w| w.is_nan())
        );
        assert!(of(&[f32::INFINITY, 0.0, 0.0], &PLAIN).weights[0].is_nan());
    }

    #[test]
    fn a_rule_fits_when_its_groups_hold_enough_experts() {
        let with = |count, kept, top_k| RouterRule {
            groups: Some(ExpertGroups {
                count,
                kept,
                score: GroupScore::Best,
            }),
            top_k,
            ..PLAIN
        };
        assert!(with(4, 2, 4).fits(8));
        assert!(!with(4, 2, 5).fits(8));
        assert!(!with(3, 2, 1).fits(8));
        assert!(!with(4, 0, 1).fits(8) && !with(4, 5, 1).fits(8));
        assert!(
            !RouterRule { top_k: 0, ..PLAIN }.fits(8) && !RouterRule { top_k: 9, ..PLAIN }.fits(8)
        );
    }
}

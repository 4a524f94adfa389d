//! Mixtures of experts: how many, how they are chosen, which layers have them.

use serde_json::Value;

use super::source::{Reader, Source};
use crate::error::{Error, Result};
use crate::formats::TensorSource;
use crate::model::arch::keys;
use crate::model::arch::rules::{Beside, ExpertKind, GroupRule, MoeRule, Normalize, SharedRule};
use crate::model::config::{BiasPresence, MoeConfig, SharedConfig};
use crate::ops::gated_act::Activation;
use crate::ops::moe::{ExpertGroups, GroupScore, RouterRule, Scoring};

impl Reader<'_> {
    /// The mixture of a family that has one; `None` too for a file that says it has no experts.
    pub(super) fn moe(&self) -> Result<Option<MoeConfig>> {
        let Some(rule) = &self.arch.moe else {
            return Ok(None);
        };
        if self.is_hf()
            && let Some(key) = rule.switch
            && self.hf_flag(key)? != Some(true)
        {
            return Ok(None);
        }
        let experts = self.find_count(&keys::NUM_EXPERTS)?.unwrap_or(0);
        if experts == 0 {
            return Ok(None);
        }
        let intermediate = match self.find_count(&keys::EXPERT_SIZE)? {
            Some(size) if size > 0 => size,
            _ => self.size(&keys::INTERMEDIATE_SIZE)?,
        };
        let router = self.router(rule)?;
        if !router.fits(experts) {
            let k = router.top_k;
            let groups = router.groups.map_or(String::new(), |g| {
                format!(", in {} groups of which {} are kept", g.count, g.kept)
            });
            return Err(Error::invalid(format!(
                "a token cannot use {k} of {experts} experts{groups}"
            )));
        }
        let bias = match rule.has_biases {
            true => BiasPresence::Required,
            false => BiasPresence::Absent,
        };
        Ok(Some(MoeConfig {
            experts,
            intermediate,
            activation: self.expert_activation(rule)?,
            router,
            router_bias: bias,
            has_correction: self.has_correction(rule),
            has_expert_scale: rule.beside == Beside::Dense,
            expert_bias: bias,
            kind: rule.experts,
            shared: self.shared(rule, intermediate)?,
        }))
    }

    /// Which layers have experts.
    pub(super) fn sparse_layers(&self, num_layers: usize) -> Result<Vec<bool>> {
        if !self.is_hf() {
            let router = |layer| format!("blk.{layer}.ffn_gate_inp.weight");
            let has = |layer| self.weights.find(&router(layer)).is_some();
            return Ok((0..num_layers).map(has).collect());
        }
        let first = self.find_count(&keys::FIRST_DENSE)?.unwrap_or(0);
        let step = self.find_size(&keys::SPARSE_STEP)?.unwrap_or(1);
        let frequency = self.find_size(&keys::SPARSE_FREQUENCY)?.unwrap_or(1);
        let dense = self.hf_list("mlp_only_layers")?;
        let is_listed = |layer: usize| {
            let mut listed = dense.into_iter().flatten().filter_map(Value::as_u64);
            listed.any(|l| l == layer as u64)
        };
        let has = |layer: usize| {
            layer >= first
                && (layer + 1).is_multiple_of(step)
                && layer.is_multiple_of(frequency)
                && !is_listed(layer)
        };
        Ok((0..num_layers).map(has).collect())
    }

    fn router(&self, rule: &MoeRule) -> Result<RouterRule> {
        let normalize = match rule.normalize {
            Normalize::Always => true,
            Normalize::Never => false,
            Normalize::Configured { hf, gguf } => match &self.source {
                Source::Hf(_) => self.hf_flag("norm_topk_prob")?.unwrap_or(hf),
                Source::Gguf { metadata, prefix } => metadata
                    .find_bool(&format!("{prefix}.expert_weights_norm"))?
                    .unwrap_or(gguf),
            },
        };
        let scale = match rule.is_scaled {
            true => self.find_multiplier(&keys::ROUTED_SCALE)?,
            false => None,
        };
        let scoring = self.scoring(rule)?;
        Ok(RouterRule {
            scoring,
            top_k: self.size(&keys::EXPERTS_PER_TOKEN)?,
            groups: self.groups(rule, scoring)?,
            normalize,
            scale: scale.unwrap_or(1.0) as f32,
        })
    }

    fn scoring(&self, rule: &MoeRule) -> Result<Scoring> {
        let Source::Gguf { metadata, prefix } = &self.source else {
            let own = self.hf_name("scoring_func")?;
            return match (own, rule.scoring) {
                (None, _)
                | (Some("softmax"), Scoring::Softmax)
                | (Some("sigmoid"), Scoring::Sigmoid) => Ok(rule.scoring),
                (Some(other), _) => Err(self.unknown_choice("scoring_func", other)),
            };
        };
        let key = format!("{prefix}.expert_gating_func");
        // The numbers of llama.cpp's `llama_expert_gating_func_type`.
        match metadata.find_f64(&key)?.map(|number| number as i64) {
            // Where a file does not say it, corrections do: they are of the families whose scores are sigmoids.
            None | Some(0) if self.has_optional_correction(rule) => Ok(Scoring::Sigmoid),
            None | Some(0) => Ok(rule.scoring),
            Some(1) => Ok(Scoring::Softmax),
            Some(2) => Ok(Scoring::Sigmoid),
            Some(3) => Ok(Scoring::SoftmaxOfChosen),
            Some(other) => Err(Error::unsupported(format!(
                "`{key}` is {other}, which is not supported"
            ))),
        }
    }

    fn has_correction(&self, rule: &MoeRule) -> bool {
        match rule.correction {
            BiasPresence::Required => true,
            BiasPresence::Absent => false,
            BiasPresence::Optional => self.has_optional_correction(rule),
        }
    }

    fn has_optional_correction(&self, rule: &MoeRule) -> bool {
        let mut tensors = self.weights.tensors().iter();
        rule.correction == BiasPresence::Optional
            && tensors.any(|t| t.name.ends_with(".exp_probs_b.bias"))
    }

    fn unknown_choice(&self, key: &str, found: &str) -> Error {
        let name = self.arch.name;
        Error::unsupported(format!("`{key}` `{found}` is not supported for {name}"))
    }

    fn groups(&self, rule: &MoeRule, scoring: Scoring) -> Result<Option<ExpertGroups>> {
        let score = match rule.groups {
            None => return Ok(None),
            Some(GroupRule::Always(score)) => score,
            Some(GroupRule::ByScoring) if scoring == Scoring::Sigmoid => GroupScore::TwoBest,
            Some(GroupRule::ByScoring) => GroupScore::Best,
            Some(GroupRule::Method(method, score)) => {
                // As for the class, which knows these two.
                match self.hf_name("topk_method")? {
                    None | Some("greedy") => return Ok(None),
                    Some(own) if own == method => score,
                    Some(other) => return Err(self.unknown_choice("topk_method", other)),
                }
            }
        };
        let count = self.find_count(&keys::EXPERT_GROUPS)?.unwrap_or(1);
        let kept = self.find_count(&keys::KEPT_GROUPS)?.unwrap_or(count);
        // All of one group is everything.
        Ok((count > 1).then_some(ExpertGroups { count, kept, score }))
    }

    fn expert_activation(&self, rule: &MoeRule) -> Result<Activation> {
        match rule.experts {
            ExpertKind::Usual => self.activation(),
            ExpertKind::GptOss => Ok(Activation::ClampedSwish {
                alpha: self.positive(&keys::SWIGLU_ALPHA)? as f32,
                limit: self.positive(&keys::SWIGLU_LIMIT)? as f32,
            }),
        }
    }

    fn shared(&self, rule: &MoeRule, expert: usize) -> Result<Option<SharedConfig>> {
        if rule.shared == SharedRule::None {
            return Ok(None);
        }
        let own = self
            .find_count(&keys::SHARED_SIZE)?
            .filter(|size| *size > 0);
        let size = match (own, self.find_count(&keys::NUM_SHARED)?) {
            (Some(size), _) => size,
            (None, Some(count)) => count * expert,
            (None, None) => self.shared_size_from_shapes().unwrap_or(0),
        };
        Ok((size > 0).then_some(SharedConfig {
            block: self.dense_of(size, self.activation()?)?,
            is_gated: rule.shared == SharedRule::Gated,
        }))
    }

    /// Some GGUF files leave the width to the tensors.
    fn shared_size_from_shapes(&self) -> Option<usize> {
        let is_up = |name: &str| name.starts_with("blk.") && name.ends_with(".ffn_up_shexp.weight");
        let mut tensors = self.weights.tensors().iter();
        let up = tensors.find(|t| is_up(&t.name) && t.shape.len() == 2)?;
        (!self.is_hf()).then_some(up.shape[0])
    }
}

//! The ranges in which sampling parameters make sense.

use super::super::request::SamplingParams;
use crate::error::{Error, Result};

impl SamplingParams {
    /// Checks every field against its range; `vocab_size` bounds the ids of the logit bias.
    ///
    /// # Errors
    /// `Invalid`, naming the field, what is allowed and the value.
    pub fn check(&self, vocab_size: usize) -> Result<()> {
        let not_negative = |x: f32| x >= 0.0 && x.is_finite();
        let share = |x: f32| (0.0..=1.0).contains(&x);
        let rows: [(&str, f32, bool, &str); 6] = [
            (
                "temperature",
                self.temperature,
                not_negative(self.temperature),
                "0 or more",
            ),
            ("top_p", self.top_p, share(self.top_p), "between 0 and 1"),
            ("min_p", self.min_p, share(self.min_p), "between 0 and 1"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite(),
                "more than 0",
            ),
            (
                "frequency_penalty",
                self.frequency_penalty,
                self.frequency_penalty.is_finite(),
                "a finite number",
            ),
            (
                "presence_penalty",
                self.presence_penalty,
                self.presence_penalty.is_finite(),
                "a finite number",
            ),
        ];
        for (name, value, allowed, range) in rows {
            if !allowed {
                return Err(Error::invalid(format!(
                    "`{name}` must be {range}, got {value}"
                )));
            }
        }
        for &(id, bias) in &self.logit_bias {
            if id as usize >= vocab_size {
                return Err(Error::invalid(format!(
                    "`logit_bias` names token id {id}, the vocabulary has {vocab_size} tokens"
                )));
            }
            if !bias.is_finite() {
                return Err(Error::invalid(format!(
                    "`logit_bias` of token id {id} must be a finite number, got {bias}"
                )));
            }
        }
        Ok(())
    }
}

//! The numerical contract of an embedding model or reranker: a text has the same bits alone and in any company.

use super::worker::Compute;
use crate::engine::contract::Finding;
use crate::error::{Error, Result};
use crate::model::encoder::TextTokens;
use crate::ops::Context;

/// How many others stand beside a text.
const COMPANY: [usize; 4] = [1, 3, 8, 31];
/// Tokens of the longest built-in text; longer ones take more than one tile of keys and more than one chunk.
const LENGTHS: [usize; 8] = [1, 2, 7, 33, 64, 65, 130, 600];

/// Texts with their plain results, to compare with.
#[derive(Debug)]
pub struct Reference {
    texts: Vec<TextTokens>,
    bits: Vec<Vec<u32>>,
}

/// Random texts of the lengths that matter, as far as the model reads them.
pub fn built_in_texts(vocab_size: usize, max_tokens: usize) -> Vec<TextTokens> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % vocab_size as u64) as u32
    };
    let lengths = LENGTHS.iter().map(|&length| length.min(max_tokens));
    lengths
        .map(|length| TextTokens::of_ids((0..length).map(|_| next()).collect()))
        .collect()
}

impl Reference {
    /// Computes each text alone.
    ///
    /// # Errors
    /// Those of the model; `Invalid` without texts.
    pub fn compute(subject: &mut dyn Compute, ctx: &Context, texts: &[TextTokens]) -> Result<Self> {
        if texts.is_empty() {
            return Err(Error::invalid(
                "there are no texts: nothing would be checked",
            ));
        }
        let bits = texts
            .iter()
            .map(|text| Ok(bits(&subject.compute(ctx, &[text])?[0])))
            .collect::<Result<_>>()?;
        Ok(Self {
            texts: texts.to_vec(),
            bits,
        })
    }

    /// The texts of at most `tokens` tokens.
    #[must_use]
    pub fn shortened(&self, tokens: usize) -> Self {
        let kept = (0..self.texts.len()).filter(|&i| self.texts[i].ids.len() <= tokens);
        let kept: Vec<usize> = kept.collect();
        Self {
            texts: kept.iter().map(|&i| self.texts[i].clone()).collect(),
            bits: kept.iter().map(|&i| self.bits[i].clone()).collect(),
        }
    }

    /// Computes each text alone again.
    ///
    /// # Errors
    /// Those of the model.
    pub fn repeat(
        &self,
        subject: &mut dyn Compute,
        ctx: &Context,
        condition: String,
    ) -> Result<Finding> {
        let mut finding = finding(condition);
        for (index, text) in self.texts.iter().enumerate() {
            let outputs = subject.compute(ctx, &[text])?;
            self.compare(&mut finding, index, &outputs[0]);
        }
        Ok(finding)
    }

    /// Computes all texts in company; `report` is told each finding.
    ///
    /// # Errors
    /// Those of the model and of `report`.
    pub fn check(
        &self,
        subject: &mut dyn Compute,
        ctx: &Context,
        mut report: impl FnMut(Finding) -> Result<()>,
    ) -> Result<()> {
        for others in COMPANY {
            let plural = if others == 1 { "" } else { "s" };
            let mut finding = finding(format!("beside {others} other{plural}"));
            for index in 0..self.texts.len() {
                // The text stands in another place each time.
                let at = index % (others + 1);
                let mut batch: Vec<usize> = (0..others)
                    .map(|i| (index + 1 + i) % self.texts.len())
                    .collect();
                batch.insert(at, index);
                let texts: Vec<&TextTokens> = batch.iter().map(|&i| &self.texts[i]).collect();
                let outputs = subject.compute(ctx, &texts)?;
                self.compare(&mut finding, index, &outputs[at]);
            }
            report(finding)?;
        }
        let mut reversed = finding("all in reverse order".to_owned());
        let texts: Vec<&TextTokens> = self.texts.iter().rev().collect();
        let outputs = subject.compute(ctx, &texts)?;
        for (index, output) in outputs.iter().rev().enumerate() {
            self.compare(&mut reversed, index, output);
        }
        report(reversed)
    }

    fn compare(&self, finding: &mut Finding, index: usize, output: &[f32]) {
        finding.compared += 1;
        if bits(output) != self.bits[index] {
            finding.moved.push((index, 0));
        }
    }
}

fn finding(condition: String) -> Finding {
    Finding {
        condition,
        compared: 0,
        moved: Vec::new(),
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

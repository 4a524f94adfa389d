//! How many prompt tokens fit beside decodes without holding them up, from measured times.

use std::time::Duration;

use super::scheduler::Budget;

/// A prompt may lengthen a step of decodes by this much of its own time.
const STRETCH: f64 = 1.2;
/// Prompt tokens beside decodes, at least: fewer would waste the reading of the weights.
const LEAST: usize = 16;
/// Prompt tokens beside decodes as long as nothing was measured.
const FIRST: usize = 64;
/// Weight of the newest measurement.
const NEWEST: f64 = 0.3;

/// Measures steps and derives budgets. Budgets never change an answer, only when it comes.
#[derive(Debug)]
pub(super) struct Pacer {
    most: usize,
    /// Seconds of a step of decodes alone.
    decode_s: Option<f64>,
    /// Seconds that a prompt token adds to a step.
    prompt_token_s: Option<f64>,
}

impl Pacer {
    /// A pacer for steps of at most `most` tokens.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            decode_s: None,
            prompt_token_s: None,
        }
    }

    /// The budget of the next step.
    pub(super) fn budget(&self) -> Budget {
        let beside_decodes = match (self.decode_s, self.prompt_token_s) {
            (Some(decode), Some(token)) => (STRETCH * decode / token.max(1e-9)) as usize,
            _ => FIRST,
        };
        Budget {
            tokens: self.most,
            beside_decodes: beside_decodes.clamp(LEAST.min(self.most), self.most),
        }
    }

    /// Takes note of a step with so many decodes and prompt tokens.
    pub(super) fn observe(&mut self, decodes: usize, prompt_tokens: usize, time: Duration) {
        let seconds = time.as_secs_f64();
        if prompt_tokens == 0 {
            average(&mut self.decode_s, seconds);
            return;
        }
        let own = match (decodes, self.decode_s) {
            (0, _) => seconds,
            // Decodes of unknown cost: all of it would be too much, and the next step knows better.
            (_, None) => return average(&mut self.decode_s, seconds),
            (_, Some(decode)) => (seconds - decode).max(seconds * 0.1),
        };
        average(&mut self.prompt_token_s, own / prompt_tokens as f64);
    }
}

fn average(value: &mut Option<f64>, newest: f64) {
    *value = Some(match *value {
        Some(old) => old + NEWEST * (newest - old),
        None => newest,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_prompt_beside_decodes_gets_about_their_own_time() {
        let mut pacer = Pacer::new(512);
        pacer.observe(0, 500, 1000 * MS);
        pacer.observe(4, 0, 100 * MS);
        assert_eq!(pacer.budget().beside_decodes, 60);
        // The prompt became dearer: its chunks shrink.
        for _ in 0..40 {
            pacer.observe(4, 60, 500 * MS);
        }
        let beside = pacer.budget().beside_decodes;
        assert!((16..=20).contains(&beside), "{beside}");
    }

    #[test]
    fn the_budget_stays_between_its_bounds() {
        let mut pacer = Pacer::new(512);
        assert_eq!(pacer.budget().beside_decodes, FIRST);
        pacer.observe(0, 1, 1000 * MS);
        pacer.observe(1, 0, MS);
        assert_eq!(pacer.budget().beside_decodes, LEAST);
        let mut pacer = Pacer::new(512);
        pacer.observe(0, 500, MS);
        pacer.observe(1, 0, 1000 * MS);
        assert_eq!(pacer.budget().beside_decodes, 512);
    }
}

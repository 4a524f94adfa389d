//! Randomness without state: a hash of (seed, choice, position), so that nothing drawn before or beside can matter.

/// The random numbers of one position of one choice.
#[derive(Debug, Clone, Copy)]
pub(super) struct Random(u64);

/// Keeps the numbers that break ties apart from the number that draws.
const TIES: u64 = 0x7469_6573_5f6b_6579;

impl Random {
    /// Hashes the three one after the other: added instead, choice 1 would repeat the numbers of choice 0 one step later.
    pub(super) fn new(seed: u64, choice: u32, position: u64) -> Self {
        Self(mix(mix(mix(seed) ^ u64::from(choice)) ^ position))
    }

    /// A number in [0, 1) with 53 random bits.
    pub(super) fn unit(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit an f64 exactly")]
        let bits = (self.0 >> 11) as f64;
        bits * (1.0 / 9_007_199_254_740_992.0)
    }

    /// A number by which equally good tokens are put in a random order.
    pub(super) fn tie_key(&self, id: u32) -> u64 {
        mix(mix(self.0 ^ TIES) ^ u64::from(id))
    }
}

/// One step of splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mix_is_splitmix64() {
        // First outputs of the published generator for seed 1234567.
        assert_eq!(mix(1_234_567), 6_457_827_717_110_365_317);
        assert_eq!(
            mix(1_234_567_u64.wrapping_add(0x9e37_79b9_7f4a_7c15)),
            3_203_168_211_198_807_973
        );
    }

    #[test]
    fn choices_of_one_seed_do_not_share_a_shifted_sequence() {
        let sequence = |choice| {
            (0..64_u64)
                .map(move |at| Random::new(7, choice, at).0)
                .collect::<Vec<_>>()
        };
        let (first, second) = (sequence(0), sequence(1));
        assert!(first.iter().all(|x| !second.contains(x)));
        assert_ne!(Random::new(7, 0, 1).0, Random::new(8, 0, 0).0);
    }

    #[test]
    fn unit_is_uniform_below_one() {
        let numbers: Vec<f64> = (0..10_000).map(|at| Random::new(1, 0, at).unit()).collect();
        assert!(numbers.iter().all(|x| (0.0..1.0).contains(x)));
        let mean = numbers.iter().sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
    }
}

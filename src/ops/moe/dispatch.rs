//! Rows put together by expert.

use std::ops::Range;

use super::Routing;

/// Rows of one expert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The expert.
    pub expert: usize,
    /// Its places.
    pub places: Range<usize>,
}

/// Who goes where: every slot of every token has a *place*; the places of an expert lie side by side, in the order of their
/// tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dispatch {
    /// Experts that have rows, ascending.
    pub groups: Vec<Group>,
    /// Token of each place.
    pub tokens: Vec<u32>,
    /// Place of each slot: `[tokens, top_k]`.
    pub places: Vec<u32>,
}

impl Dispatch {
    /// Puts the rows of `routing` together.
    pub fn new(routing: &Routing, experts: usize) -> Self {
        let mut next = vec![0_u32; experts];
        for &expert in &routing.experts {
            next[expert as usize] += 1;
        }
        let mut groups = Vec::new();
        let mut first = 0;
        for (expert, next) in next.iter_mut().enumerate() {
            let count = std::mem::replace(next, first as u32) as usize;
            if count > 0 {
                let places = first..first + count;
                groups.push(Group { expert, places });
            }
            first += count;
        }
        let mut tokens = vec![0; first];
        let mut places = Vec::with_capacity(first);
        for (slot, &expert) in routing.experts.iter().enumerate() {
            let next = &mut next[expert as usize];
            tokens[*next as usize] = (slot / routing.top_k) as u32;
            places.push(*next);
            *next += 1;
        }
        Self {
            groups,
            tokens,
            places,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_of_an_expert_lie_side_by_side_in_the_order_of_their_tokens() {
        let routing = Routing {
            top_k: 2,
            experts: vec![3, 0, 3, 1, 0, 3],
            weights: vec![0.0; 6],
        };
        let dispatch = Dispatch::new(&routing, 5);
        let group = |expert, places| Group { expert, places };
        assert_eq!(
            dispatch.groups,
            [group(0, 0..2), group(1, 2..3), group(3, 3..6)]
        );
        assert_eq!(dispatch.tokens, [0, 2, 1, 0, 1, 2]);
        assert_eq!(dispatch.places, [3, 0, 4, 2, 1, 5]);
    }
}

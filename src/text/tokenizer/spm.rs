//! Merges for SentencePiece vocabularies: GGUF files carry scores instead of merges.
//!
//! SentencePiece merges the neighbours whose joint piece has the best score, again and again. That is byte-pair encoding whose
//! merge list is every way to divide a piece into two pieces, best score first.

use std::collections::HashMap;

/// Merges of `pieces` (spelling and score), best first. Of several ways to divide one piece the order is that of the ids of the
/// two parts, as in the conversion that wrote the families' `tokenizer.json`.
pub(super) fn merges_of_scores(pieces: &[(u32, &str, f32)]) -> Vec<(String, String)> {
    let ids: HashMap<&str, u32> = pieces.iter().map(|&(id, text, _)| (text, id)).collect();
    let mut merges: Vec<(f32, u32, u32, &str, &str)> = Vec::new();
    for &(_, text, score) in pieces {
        let from = merges.len();
        for (at, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(at);
            if let (Some(&left_id), Some(&right_id)) = (ids.get(left), ids.get(right)) {
                merges.push((score, left_id, right_id, left, right));
            }
        }
        merges[from..].sort_by_key(|&(_, left, right, ..)| (left, right));
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0));
    merges
        .into_iter()
        .map(|(.., left, right)| (left.to_string(), right.to_string()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_scores_merge_first() {
        let pieces = [
            (0, "a", -9.0),
            (1, "b", -9.0),
            (2, "c", -9.0),
            (3, "bc", -2.0),
            (4, "ab", -1.0),
            (5, "abc", -3.0),
        ];
        let merges = merges_of_scores(&pieces);
        let merges: Vec<(&str, &str)> = merges
            .iter()
            .map(|(left, right)| (&**left, &**right))
            .collect();
        assert_eq!(merges, [("a", "b"), ("b", "c"), ("a", "bc"), ("ab", "c")]);
    }
}

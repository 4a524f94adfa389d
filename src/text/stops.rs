//! [`StopMatcher`]: cuts a stream of text at the first stop string, however the stream is divided into pieces.
//!
//! Works on decoded text, so that a stop text is found whatever tokens it was made of. It sees generated text only, so that a
//! prompt that ends with half a stop text cannot end the answer. Held back is never more than the longest beginning of a stop
//! text that the text so far ends with.

use crate::error::{Error, Result};

/// A stop text that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopMatch {
    /// Text that may be shown, up to the stop text.
    pub text: String,
    /// Which stop text it was (its place in the list given to [`StopMatcher::new`]), or `None` as long as none was found.
    pub stop: Option<usize>,
}

/// Watches a stream of text for stop strings. The match that is complete first wins, as if the text came byte by byte; of
/// several that end at one place the longest. So the answer never waits for more text once a stop text is there.
///
/// ```
/// use oxydllm::text::StopMatcher;
/// let mut matcher = StopMatcher::new(vec!["\nUser:".to_string()])?;
/// assert_eq!(matcher.push("Yes.\nUs").text, "Yes.");
/// assert_eq!(matcher.push("age: 3").text, "\nUsage: 3");
/// assert_eq!(matcher.push("\nUser: next").stop, Some(0));
/// # Ok::<(), oxydllm::error::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<String>,
    longest: usize,
    held: String,
    found: Option<usize>,
}

/// The most stop texts one matcher accepts, and the longest of them in bytes.
const MAX_STOPS: usize = 256;
const MAX_STOP_BYTES: usize = 4096;

impl StopMatcher {
    /// A matcher for `stops`; with none, all text passes at once.
    ///
    /// # Errors
    /// `Invalid` for an empty stop text, one over 4096 bytes, or more than 256 of them.
    pub fn new(stops: Vec<String>) -> Result<Self> {
        if stops.len() > MAX_STOPS {
            return Err(Error::invalid(format!(
                "`stop` has {} entries, at most {MAX_STOPS} are allowed",
                stops.len()
            )));
        }
        if stops.iter().any(String::is_empty) {
            return Err(Error::invalid(
                "`stop` contains an empty string, which would end every answer at once",
            ));
        }
        let longest = stops.iter().map(String::len).max().unwrap_or(0);
        if longest > MAX_STOP_BYTES {
            return Err(Error::invalid(format!(
                "`stop` contains a string of {longest} bytes, at most {MAX_STOP_BYTES} are allowed"
            )));
        }
        Ok(Self {
            stops,
            longest,
            held: String::new(),
            found: None,
        })
    }

    /// Takes the next piece of the stream; gives the text that can be shown now, and the stop text if one is complete.
    /// After a match nothing passes any more.
    pub fn push(&mut self, piece: &str) -> StopMatch {
        if self.found.is_some() {
            return StopMatch {
                text: String::new(),
                stop: self.found,
            };
        }
        self.held.push_str(piece);
        match find_first(&self.stops, &self.held) {
            Some((start, stop)) => {
                self.found = Some(stop);
                let mut text = std::mem::take(&mut self.held);
                text.truncate(start);
                StopMatch {
                    text,
                    stop: Some(stop),
                }
            }
            None => {
                let kept = self.held.split_off(self.partial_start());
                StopMatch {
                    text: std::mem::replace(&mut self.held, kept),
                    stop: None,
                }
            }
        }
    }

    /// The end of the stream: what was held back. An unfinished stop text is text.
    pub fn finish(&mut self) -> StopMatch {
        StopMatch {
            text: std::mem::take(&mut self.held),
            stop: self.found,
        }
    }

    /// The stop text found so far.
    pub fn found(&self) -> Option<usize> {
        self.found
    }

    /// Where the longest beginning of a stop text starts that the held text ends with; its end if there is none.
    fn partial_start(&self) -> usize {
        let held = self.held.as_bytes();
        let first = held.len().saturating_sub(self.longest.saturating_sub(1));
        let begins = |start: &usize| {
            self.stops
                .iter()
                .any(|stop| stop.as_bytes().starts_with(&held[*start..]))
        };
        (first..held.len()).find(begins).unwrap_or(held.len())
    }
}

/// Start and index of the match that ends first; the longest of those that end there.
fn find_first(stops: &[String], text: &str) -> Option<(usize, usize)> {
    let matches = stops
        .iter()
        .enumerate()
        .filter_map(|(index, stop)| Some((text.find(stop.as_str())?, index)));
    matches.min_by_key(|&(start, index)| (start + stops[index].len(), start))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition: grow the text byte by byte and look whether it ends in a stop text.
    fn naive(stops: &[String], text: &str) -> (String, Option<usize>) {
        for end in 0..=text.len() {
            let ending = stops
                .iter()
                .enumerate()
                .filter(|(_, stop)| text.as_bytes()[..end].ends_with(stop.as_bytes()));
            if let Some((index, stop)) =
                ending.max_by_key(|(index, stop)| (stop.len(), usize::MAX - index))
            {
                return (text[..end - stop.len()].to_string(), Some(index));
            }
        }
        (text.to_string(), None)
    }

    fn run(stops: &[String], pieces: &[String]) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops.to_vec()).unwrap();
        let mut shown = String::new();
        for piece in pieces {
            let step = matcher.push(piece);
            shown.push_str(&step.text);
            if step.stop.is_some() {
                assert_eq!(matcher.push("more").text, "");
                break;
            }
        }
        let end = matcher.finish();
        (shown + &end.text, end.stop)
    }

    proptest! {
        #[test]
        fn pieces_give_what_the_definition_gives(
            stops in prop::collection::vec("[abé]{1,4}", 0..5),
            pieces in prop::collection::vec("[abcé]{0,5}", 0..12),
        ) {
            prop_assert_eq!(run(&stops, &pieces), naive(&stops, &pieces.concat()));
        }

        #[test]
        fn what_is_held_back_is_the_longest_possible_beginning(
            stops in prop::collection::vec("[ab]{1,5}", 1..4),
            pieces in prop::collection::vec("[abc]{0,3}", 1..8),
        ) {
            let mut matcher = StopMatcher::new(stops.clone()).unwrap();
            let (mut shown, mut given) = (String::new(), String::new());
            for piece in &pieces {
                given.push_str(piece);
                let step = matcher.push(piece);
                shown.push_str(&step.text);
                if step.stop.is_some() {
                    return Ok(());
                }
                let held = (0..given.len()).find(|&at| stops.iter().any(|stop| stop.starts_with(&given[at..])));
                prop_assert_eq!(shown.len(), held.unwrap_or(given.len()));
            }
        }
    }

    #[test]
    fn a_stop_text_over_several_pieces_is_cut_and_a_half_one_comes_back() {
        let stops = vec!["<|im_end|>".to_string(), "###".to_string()];
        assert_eq!(
            run(&stops, &["a <|im".into(), "_end".into(), "|> b".into()]),
            ("a ".into(), Some(0))
        );
        assert_eq!(
            run(&stops, &["a <|im".into(), "_e".into()]),
            ("a <|im_e".into(), None)
        );
        assert_eq!(
            run(&stops, &["##".into(), "x##".into(), "##".into()]),
            ("##x".into(), Some(1))
        );
    }

    #[test]
    fn empty_and_oversized_stop_texts_are_refused() {
        assert!(StopMatcher::new(vec![String::new()]).is_err());
        assert!(StopMatcher::new(vec!["x".repeat(5000)]).is_err());
        assert!(StopMatcher::new(vec!["x".to_string(); 300]).is_err());
    }
}

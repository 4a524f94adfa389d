//! The shapes of chat answers, whole and in chunks.

use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::logprobs::Logprobs;
use crate::engine::FinishReason;
use crate::server::generation::Total;

/// What all parts of one answer have in common.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Head {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    system_fingerprint: String,
}

impl Head {
    /// The head of a new answer to a request for `model`, as typed, by the model with the canonical `model_id`.
    pub(super) fn new(model: String, model_id: &str, streams: bool) -> Self {
        let created = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        Self {
            id: format!("chatcmpl-{}", Uuid::new_v4().simple()),
            object: if streams {
                "chat.completion.chunk"
            } else {
                "chat.completion"
            },
            created,
            model,
            system_fingerprint: fingerprint(model_id),
        }
    }
}

/// `fp_` and 12 hex digits: changes when the answers to the same seed may.
fn fingerprint(model_id: &str) -> String {
    let text = format!("{model_id}\0{}", env!("CARGO_PKG_VERSION"));
    let hash = Sha256::digest(text.as_bytes());
    let digits: String = hash[..6].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("fp_{digits}")
}

/// A whole answer.
#[derive(Debug, Serialize)]
pub(super) struct Completion<'a> {
    #[serde(flatten)]
    pub head: &'a Head,
    pub choices: Vec<WholeChoice>,
    pub usage: UsageBody,
}

/// One of its choices.
#[derive(Debug, Serialize)]
pub(super) struct WholeChoice {
    pub index: u32,
    pub message: AnswerMessage,
    pub logprobs: Option<Logprobs>,
    pub finish_reason: Reason,
}

/// What the model said.
#[derive(Debug, Serialize)]
pub(super) struct AnswerMessage {
    pub role: &'static str,
    pub content: String,
}

/// A part of a stream.
#[derive(Debug, Serialize)]
pub(super) struct Chunk<'a> {
    #[serde(flatten)]
    pub head: &'a Head,
    pub choices: Vec<ChunkChoice>,
    #[serde(skip_serializing_if = "ChunkUsage::is_unasked")]
    pub usage: ChunkUsage,
}

/// The usage of a chunk: not there, `null` before the end, or the numbers.
#[derive(Debug, Clone, Copy)]
pub(super) enum ChunkUsage {
    Unasked,
    Later,
    Now(UsageBody),
}

impl ChunkUsage {
    fn is_unasked(&self) -> bool {
        matches!(self, Self::Unasked)
    }
}

impl Serialize for ChunkUsage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Now(usage) => usage.serialize(serializer),
            Self::Unasked | Self::Later => serializer.serialize_none(),
        }
    }
}

/// What is new of one choice.
#[derive(Debug, Serialize)]
pub(super) struct ChunkChoice {
    pub index: u32,
    pub delta: DeltaBody,
    pub logprobs: Option<Logprobs>,
    pub finish_reason: Option<Reason>,
}

/// New parts of the message.
#[derive(Debug, Default, Serialize)]
pub(super) struct DeltaBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
}

/// `finish_reason`.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reason {
    Stop,
    Length,
}

impl From<FinishReason> for Reason {
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Stop => Self::Stop,
            FinishReason::Length => Self::Length,
        }
    }
}

/// `usage`.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct UsageBody {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptDetails,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct PromptDetails {
    cached_tokens: usize,
}

impl From<Total> for UsageBody {
    fn from(total: Total) -> Self {
        Self {
            prompt_tokens: total.prompt_tokens,
            completion_tokens: total.completion_tokens,
            total_tokens: total.prompt_tokens + total.completion_tokens,
            prompt_tokens_details: PromptDetails {
                cached_tokens: total.cached_tokens,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fingerprint_is_a_fixed_function_of_model_and_version() {
        let made = fingerprint("a/b");
        assert_eq!(made.len(), 15);
        assert_eq!(made, fingerprint("a/b"));
        assert_ne!(made, fingerprint("a/c"));
        let by_hand = Sha256::digest(format!("a/b\0{}", env!("CARGO_PKG_VERSION")));
        assert_eq!(made[3..5], format!("{:02x}", by_hand[0]));
    }
}

//! Messages in, text deltas out: template, tokens, engine, detokenizer, stop texts. Sees text, never tensors.
//!
//! [`turn`] is what every front end calls. Streaming and whole answers are two folds over the same [`Delta`]s
//! ([`Answer::collect`] is the second), so that they cannot differ. Read `request.rs`, then `turn.rs`.

mod conversation;
mod request;
mod scored;
mod turn;

pub use conversation::{Conversation, Fitted, Room};
pub use request::{ChatRequest, Generation, Message, Role};
pub use scored::ScoredToken;
pub use turn::{
    Answer, Delta, Deltas, PartialAnswer, complete, prompt, start, start_choices, turn,
};

//! What a front end asks for, in neutral types: a terminal line and an HTTP body become the same thing.

use serde_json::{Map, Value, json};

use crate::engine::{Cancel, SamplingParams};

/// Who says a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Instructions for the whole conversation.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
}

impl Role {
    /// The word that templates know.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// What is said.
    pub content: String,
    /// Who says it, for templates that tell participants of one role apart.
    pub name: Option<String>,
    /// What the model thought before an earlier answer, for templates that repeat it.
    pub reasoning: Option<String>,
}

impl Message {
    /// A message of `role`.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            name: None,
            reasoning: None,
        }
    }

    /// A system message.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new(Role::System, content)
    }

    /// A user message.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new(Role::User, content)
    }

    /// An answer.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new(Role::Assistant, content)
    }

    /// The form that templates read.
    pub(super) fn to_json(&self) -> Value {
        let mut message = json!({ "role": self.role.as_str(), "content": self.content });
        let optional = [("name", &self.name), ("reasoning_content", &self.reasoning)];
        for (field, text) in optional {
            if let Some(text) = text {
                message[field] = Value::from(text.as_str());
            }
        }
        message
    }
}

/// How an answer is made, whatever the prompt.
#[derive(Debug, Clone, Default)]
pub struct Generation {
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// At most this many tokens; never more than the context has room for, which is also the default.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer and are not part of it. Empty ones are ignored.
    pub stop: Vec<String>,
    /// Stops the answer from another thread.
    pub cancel: Cancel,
}

/// A conversation to continue.
#[derive(Debug, Clone, Default)]
pub struct ChatRequest {
    /// The conversation so far, oldest first.
    pub messages: Vec<Message>,
    /// Variables for the template besides the messages, such as `enable_thinking`.
    pub variables: Map<String, Value>,
    /// How the answer is made.
    pub generation: Generation,
}

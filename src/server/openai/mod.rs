//! OpenAI's dialect: what its requests and answers look like. What happens in between is the same for every dialect.

pub(super) mod chat;
pub(super) mod embeddings;
mod logprobs;
mod messages;
pub(super) mod models;
mod request;
pub(super) mod rerank;
mod response;
mod sampling;

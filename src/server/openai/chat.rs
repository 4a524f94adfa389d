//! `POST /v1/chat/completions`.
//!
//! A request is checked, its model loaded, its prompt made and queued before the response begins, so that all of these fail
//! with a status. Then the answer is folded from the deltas: into chunks, or into one body.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};

use super::logprobs::Logprobs;
use super::request::ChatCall;
use super::response::{
    AnswerMessage, Chunk, ChunkChoice, ChunkUsage, Completion, DeltaBody, Head, Reason, UsageBody,
    WholeChoice,
};
use crate::chat::{self, Delta, PartialAnswer, ScoredToken};
use crate::engine::Cancel;
use crate::host::Model;
use crate::model::ModelKind;
use crate::server::app::App;
use crate::server::body;
use crate::server::clock::Clock;
use crate::server::error::ApiError;
use crate::server::generation::{Generation, Order};
use crate::server::sse::{self, Events, Gone};

/// The last line of every stream.
const DONE: &str = "[DONE]";

/// What the answer looks like, once the request is on its way.
struct Form {
    head: Head,
    has_logprobs: bool,
    include_usage: bool,
    num_choices: u32,
}

/// The handler.
pub(in crate::server) async fn completions(
    State(app): State<Arc<App>>,
    Extension(mut clock): Extension<Clock>,
    request: Request,
) -> Result<Response, ApiError> {
    let call = body::read_json(request, &app, &clock, ChatCall::parse).await?;
    let streams = call.stream;
    let (generation, form) = start(&app, &mut clock, call).await?;
    if streams {
        let work = |events| stream(generation, form, events);
        let last_words = |events| async move { end_with(&events, &ApiError::panicked()).await };
        Ok(sse::response(&app, work, last_words))
    } else {
        whole(generation, form).await
    }
}

async fn start(
    app: &Arc<App>,
    clock: &mut Clock,
    call: ChatCall,
) -> Result<(Generation, Form), ApiError> {
    let (lease, mut record) = app.lease(&call.model, ModelKind::Chat, clock).await?;
    if let Some(keep_alive) = call.keep_alive {
        lease.set_keep_alive(keep_alive);
    }
    let model = lease.model().chat().map_err(|error| {
        let error = ApiError::wrong_kind(&error);
        record.ended_by(&error);
        error
    })?;
    let model = Arc::clone(model);
    call.sampling
        .check_vocabulary(model.engine().info().vocab_size)
        .inspect_err(|error| record.ended_by(error))?;
    let generation = chat::Generation {
        sampling: call
            .sampling
            .for_model(model.sampling_defaults(), call.logprobs),
        max_tokens: call.max_tokens,
        stop: call.stop,
        cancel: Cancel::default(),
    };
    let form = Form {
        head: Head::new(call.model, lease.id(), call.stream),
        has_logprobs: call.logprobs.is_some(),
        include_usage: call.include_usage,
        num_choices: call.num_choices,
    };
    let messages = call.messages;
    // Templates of models that can think ask for it; they are told not to.
    let variables = Map::from_iter([("enable_thinking".to_owned(), Value::Bool(false))]);
    let order = Order {
        lease,
        model,
        record,
        prompt: move |model: &Model| chat::prompt(model, &messages, &variables),
        generation,
        num_choices: call.num_choices,
    };
    Ok((Generation::start(app, *clock, order).await?, form))
}

/// The answer as one body.
async fn whole(mut generation: Generation, form: Form) -> Result<Response, ApiError> {
    let mut partial = vec![PartialAnswer::default(); form.num_choices as usize];
    let mut choices = Vec::with_capacity(partial.len());
    while let Some(next) = generation.next().await {
        let (index, delta) = next?;
        if let Some(answer) = partial[index as usize].push(delta) {
            choices.push(WholeChoice {
                index,
                message: AnswerMessage {
                    role: "assistant",
                    content: answer.content,
                },
                logprobs: form.logprobs(&answer.tokens, &generation),
                finish_reason: answer.reason.into(),
            });
        }
    }
    choices.sort_by_key(|choice| choice.index);
    let completion = Completion {
        head: &form.head,
        choices,
        usage: UsageBody::from(generation.total()),
    };
    Ok(Json(completion).into_response())
}

/// The answer as chunks.
async fn stream(mut generation: Generation, form: Form, events: Events) -> Result<(), Gone> {
    for index in 0..form.num_choices {
        let role = DeltaBody {
            role: Some("assistant"),
            content: Some(String::new()),
        };
        let chunk = form.chunk(index, role, None, None);
        generation.beside(events.json(&chunk)).await?;
    }
    while let Some(next) = generation.next().await {
        let chunk = match next {
            Ok((index, Delta::Content { text, tokens })) => {
                let delta = DeltaBody {
                    role: None,
                    content: Some(text),
                };
                let logprobs = form.logprobs(&tokens, &generation);
                form.chunk(index, delta, logprobs, None)
            }
            Ok((index, Delta::Finish { reason, .. })) => {
                form.chunk(index, DeltaBody::default(), None, Some(reason.into()))
            }
            Err(error) => return end_with(&events, &error).await,
        };
        generation.beside(events.json(&chunk)).await?;
    }
    if form.include_usage {
        let chunk = Chunk {
            head: &form.head,
            choices: Vec::new(),
            usage: ChunkUsage::Now(generation.total().into()),
        };
        events.json(&chunk).await?;
    }
    events.text(DONE).await
}

/// Ends a stream by a failure.
async fn end_with(events: &Events, error: &ApiError) -> Result<(), Gone> {
    events.json(&error.to_openai()).await?;
    events.text(DONE).await
}

impl Form {
    fn logprobs(&self, tokens: &[ScoredToken], generation: &Generation) -> Option<Logprobs> {
        let tokenizer = generation.model().tokenizer();
        self.has_logprobs.then(|| Logprobs::new(tokens, tokenizer))
    }

    fn chunk(
        &self,
        index: u32,
        delta: DeltaBody,
        logprobs: Option<Logprobs>,
        finish_reason: Option<Reason>,
    ) -> Chunk<'_> {
        let choice = ChunkChoice {
            index,
            delta,
            logprobs,
            finish_reason,
        };
        Chunk {
            head: &self.head,
            choices: vec![choice],
            usage: if self.include_usage {
                ChunkUsage::Later
            } else {
                ChunkUsage::Unasked
            },
        }
    }
}

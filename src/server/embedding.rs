//! One admitted request for vectors or scores: its texts become tokens where that holds up nobody, the model's worker computes
//! them, metrics and logs are told.
//!
//! Whoever drops the future cancels the request: that is how a client that went away frees what it held.

use std::sync::Arc;

use super::app::App;
use super::body::off_thread_if;
use super::clock::Clock;
use super::error::ApiError;
use super::generation::CancelOnDrop;
use super::record::Record;
use crate::engine::Cancel;
use crate::error::{Error, ErrorKind};
use crate::host::{EmbeddingModel, KeepAlive, Lease};
use crate::model::ModelKind;
use crate::model::encoder::TextTokens;

/// A model that was leased for a request, and what is told about it.
pub(super) struct Order {
    lease: Lease,
    model: Arc<EmbeddingModel>,
    record: Record,
}

/// What came of a request.
pub(super) struct Computed {
    /// Numbers of each text.
    pub outputs: Vec<Vec<f32>>,
    /// Tokens of all texts.
    pub num_tokens: usize,
    // The model stays until the answer is made.
    _lease: Lease,
}

impl Order {
    /// Leases the model that is called `name` and must be of `kind`.
    ///
    /// # Errors
    /// As [`App::lease`].
    pub(super) async fn new(
        app: &Arc<App>,
        clock: &mut Clock,
        name: &str,
        kind: ModelKind,
        keep_alive: Option<KeepAlive>,
    ) -> Result<Self, ApiError> {
        let (lease, mut record) = app.lease(name, kind, clock).await?;
        if let Some(keep_alive) = keep_alive {
            lease.set_keep_alive(keep_alive);
        }
        match lease.model().embedding(kind) {
            Ok(model) => Ok(Self {
                model: Arc::clone(model),
                lease,
                record,
            }),
            Err(error) => {
                let error = ApiError::wrong_kind(&error);
                record.ended_by(&error);
                Err(error)
            }
        }
    }

    /// The model.
    pub(super) fn model(&self) -> &EmbeddingModel {
        &self.model
    }

    /// Ends the request by a mistake that only the model could tell.
    pub(super) fn refuse(mut self, error: ApiError) -> ApiError {
        self.record.ended_by(&error);
        error
    }

    /// What the model makes of the texts that `tokens` gives one by one; `blamed` is the field that they came in.
    ///
    /// # Errors
    /// 400 for a text that the model cannot read, 429 when too much is waiting, 408 when the time is over, 500 when the model fails.
    pub(super) async fn compute<I>(
        self,
        app: &Arc<App>,
        clock: Clock,
        blamed: &'static str,
        tokens: I,
    ) -> Result<Computed, ApiError>
    where
        I: FnOnce(
                &EmbeddingModel,
                &dyn Fn(TextTokens) -> Result<(), ApiError>,
            ) -> Result<(), ApiError>
            + Send
            + 'static,
    {
        let Self {
            lease,
            model,
            mut record,
        } = self;
        let _in_engine = app.metrics().sequence();
        let cancel = Cancel::default();
        let _cancel = CancelOnDrop::new(cancel.clone());
        let submit = move || {
            let texts = std::cell::RefCell::new(Vec::new());
            let add = |text| {
                if cancel.is_cancelled() {
                    return Err(ApiError::from(Error::cancelled("the client went away")));
                }
                texts.borrow_mut().push(text);
                Ok(())
            };
            tokens(&model, &add)?;
            let texts: Vec<TextTokens> = texts.into_inner();
            let num_tokens = texts.iter().map(|text| text.ids.len()).sum::<usize>();
            let outputs = model.engine().submit(texts);
            let outputs = outputs.map_err(|error| blame(&error, blamed))?;
            Ok((outputs, num_tokens))
        };
        let work = async {
            let (outputs, num_tokens) = off_thread_if(true, submit).await?;
            let outputs = outputs.await.unwrap_or_else(|_| {
                Err(Error::unavailable("the model's worker has ended").with_hint("try again"))
            });
            Ok((outputs.map_err(ApiError::from)?, num_tokens))
        };
        match clock.limit(work).await.and_then(|done| done) {
            Ok((outputs, num_tokens)) => {
                record.computed(num_tokens);
                Ok(Computed {
                    outputs,
                    num_tokens,
                    _lease: lease,
                })
            }
            Err(error) => {
                record.ended_by(&error);
                Err(error)
            }
        }
    }
}

/// A text that the model cannot read is a mistake in the field that it came in.
fn blame(error: &Error, field: &'static str) -> ApiError {
    match error.kind() {
        ErrorKind::Invalid | ErrorKind::ContextLength => ApiError::from(error).with_param(field),
        _ => ApiError::from(error),
    }
}

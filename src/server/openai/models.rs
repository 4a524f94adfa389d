//! `/v1/models`: which models there are, and which are in memory.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::host::{ModelEntry, ModelState, RunningModel};
use crate::server::app::App;
use crate::server::error::ApiError;
use crate::server::fields::clipped;

/// A list as OpenAI writes it.
#[derive(Serialize)]
struct List<T> {
    object: &'static str,
    data: Vec<T>,
}

/// A model on disk.
#[derive(Serialize)]
struct ModelItem {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: String,
    architecture: String,
    kind: &'static str,
    vocab_size: u64,
    num_layers: u64,
    size_bytes: u64,
    size_gb: f64,
    last_used_secs: u64,
    /// False while files of it are missing.
    loadable: bool,
}

impl From<ModelEntry> for ModelItem {
    fn from(entry: ModelEntry) -> Self {
        let owner = entry.id.split_once('/').map_or("local", |(owner, _)| owner);
        Self {
            object: "model",
            owned_by: owner.to_owned(),
            created: entry.created_secs,
            architecture: entry.architecture,
            kind: entry.kind.name(),
            vocab_size: entry.vocab_size,
            num_layers: entry.num_layers,
            size_bytes: entry.size_bytes,
            size_gb: gigabytes(entry.size_bytes),
            last_used_secs: entry.last_used_secs,
            loadable: entry.missing.is_empty(),
            id: entry.id,
        }
    }
}

/// A model in memory, or on its way.
#[derive(Serialize)]
struct RunningItem {
    id: String,
    object: &'static str,
    state: &'static str,
    architecture: String,
    kind: &'static str,
    vocab_size: u64,
    num_layers: u64,
    idle_seconds: u64,
    weights_size_bytes: u64,
    kv_cache_bytes: u64,
    total_size_bytes: u64,
    total_size_gb: f64,
    kv_blocks: usize,
    kv_blocks_used: usize,
    kv_blocks_cached: usize,
    running_requests: usize,
    waiting_requests: usize,
}

impl From<RunningModel> for RunningItem {
    fn from(model: RunningModel) -> Self {
        Self {
            id: model.id,
            object: "model",
            state: match model.state {
                ModelState::Loading => "loading",
                ModelState::Ready => "ready",
                ModelState::Unloading => "unloading",
            },
            architecture: model.architecture,
            kind: model.kind.name(),
            vocab_size: model.vocab_size,
            num_layers: model.num_layers,
            idle_seconds: model.idle.as_secs(),
            weights_size_bytes: model.weight_bytes,
            kv_cache_bytes: model.kv_bytes,
            total_size_bytes: model.total_bytes,
            total_size_gb: gigabytes(model.total_bytes),
            kv_blocks: model.kv_blocks,
            kv_blocks_used: model.kv_blocks_used,
            kv_blocks_cached: model.kv_blocks_cached,
            running_requests: model.running,
            waiting_requests: model.waiting,
        }
    }
}

#[derive(Serialize)]
struct RunningList {
    #[serde(flatten)]
    list: List<RunningItem>,
    total_loaded_bytes: u64,
    total_loaded_gb: f64,
    #[serde(flatten)]
    budget: Option<Budget>,
}

#[derive(Serialize)]
struct Budget {
    memory_budget_bytes: u64,
    memory_budget_gb: f64,
    memory_free_bytes: u64,
}

/// `GET /v1/models`.
pub(in crate::server) async fn list(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let entries = entries(&app).await?;
    let data: Vec<ModelItem> = entries.into_iter().map(ModelItem::from).collect();
    let object = "list";
    Ok(Json(List { object, data }).into_response())
}

/// `GET /v1/models/{id}`; the id may hold slashes, encoded or not.
pub(in crate::server) async fn one(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(id) = id.map_err(|_| ApiError::body("the model id in the path is not valid UTF-8"))?;
    let entries = entries(&app).await?;
    match entries.into_iter().find(|entry| entry.id == id) {
        Some(entry) => Ok(Json(ModelItem::from(entry)).into_response()),
        None => {
            let message = format!("there is no model with the id `{}`", clipped(&id));
            let error = Error::not_found(message).with_hint("`/v1/models` lists the ids");
            Err(ApiError::unresolved(&error))
        }
    }
}

/// `GET /v1/models/running`.
pub(in crate::server) async fn running(State(app): State<Arc<App>>) -> Response {
    let models = app.host().running();
    let total = models.iter().map(|model| model.total_bytes).sum();
    let budget = app.host().memory_budget().map(|budget| Budget {
        memory_budget_bytes: budget,
        memory_budget_gb: gigabytes(budget),
        memory_free_bytes: budget.saturating_sub(total),
    });
    let list = List {
        object: "list",
        data: models.into_iter().map(RunningItem::from).collect(),
    };
    Json(RunningList {
        list,
        total_loaded_bytes: total,
        total_loaded_gb: gigabytes(total),
        budget,
    })
    .into_response()
}

/// Reads the disk, where that holds up nobody.
async fn entries(app: &Arc<App>) -> Result<Vec<ModelEntry>, ApiError> {
    let host = Arc::clone(app.host());
    let listed = tokio::task::spawn_blocking(move || host.list()).await;
    Ok(listed.map_err(|_| ApiError::panicked())??)
}

/// With two decimals, in units of 1024³ bytes.
fn gigabytes(bytes: u64) -> f64 {
    (bytes as f64 / f64::from(1 << 30) * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gigabytes_have_two_decimals() {
        assert_eq!(gigabytes(2_501_000_000), 2.33);
        assert_eq!(gigabytes(0), 0.0);
    }
}

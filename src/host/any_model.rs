//! [`AnyModel`]: a loaded model of any kind.

use std::sync::Arc;

use super::{EmbeddingModel, Model};
use crate::engine::{EngineInfo, StatsSnapshot};
use crate::error::{Error, Result};
use crate::model::ModelKind;

/// A loaded model of any kind. Clones are the same model.
#[derive(Clone)]
pub enum AnyModel {
    /// It chats.
    Chat(Arc<Model>),
    /// It makes vectors or scores.
    Embedding(Arc<EmbeddingModel>),
}

impl From<Model> for AnyModel {
    fn from(model: Model) -> Self {
        Self::Chat(Arc::new(model))
    }
}

impl From<EmbeddingModel> for AnyModel {
    fn from(model: EmbeddingModel) -> Self {
        Self::Embedding(Arc::new(model))
    }
}

impl AnyModel {
    /// What it does.
    pub fn kind(&self) -> ModelKind {
        match self {
            Self::Chat(_) => ModelKind::Chat,
            Self::Embedding(model) => model.kind(),
        }
    }

    /// Facts about it.
    pub fn info(&self) -> &EngineInfo {
        match self {
            Self::Chat(model) => model.engine().info(),
            Self::Embedding(model) => model.engine().info(),
        }
    }

    /// What its worker does at the moment.
    pub fn stats(&self) -> StatsSnapshot {
        match self {
            Self::Chat(model) => model.engine().stats(),
            Self::Embedding(model) => model.engine().stats(),
        }
    }

    /// The model that chats.
    ///
    /// # Errors
    /// `Unsupported` when it is of another kind, with what that is for.
    pub fn chat(&self) -> Result<&Arc<Model>> {
        match self {
            Self::Chat(model) => Ok(model),
            Self::Embedding(model) => Err(wrong_kind(model.kind(), ModelKind::Chat)),
        }
    }

    /// The model that makes vectors (`kind` is `Embedding`) or scores (`Reranker`).
    ///
    /// # Errors
    /// `Unsupported` when it is of another kind, with what that is for.
    pub fn embedding(&self, kind: ModelKind) -> Result<&Arc<EmbeddingModel>> {
        match self {
            Self::Embedding(model) if model.kind() == kind => Ok(model),
            other => Err(wrong_kind(other.kind(), kind)),
        }
    }
}

/// A model of kind `found` was asked for what `wanted` models do.
pub fn wrong_kind(found: ModelKind, wanted: ModelKind) -> Error {
    let what = match found {
        ModelKind::Chat => "a chat model",
        ModelKind::Embedding => "an embedding model",
        ModelKind::Reranker => "a reranker",
    };
    let cannot = match wanted {
        ModelKind::Chat => "cannot chat",
        ModelKind::Embedding => "makes no embeddings",
        ModelKind::Reranker => "does not rerank",
    };
    let place = match found {
        ModelKind::Chat => "`/v1/chat/completions`",
        ModelKind::Embedding => "`/v1/embeddings`",
        ModelKind::Reranker => "`/v1/rerank`",
    };
    Error::unsupported(format!("the model is {what} and {cannot}"))
        .with_hint(format!("it answers at {place}"))
}

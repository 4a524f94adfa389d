//! [`ModelKind`]: what a checkpoint is for, told by its description alone.

use std::path::Path;

use serde_json::Value;

use super::encoder::class_of;
use crate::formats::Weights;

/// What a model does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ModelKind {
    /// It continues texts.
    #[default]
    Chat,
    /// It makes a vector of a text.
    Embedding,
    /// It scores a document for a query.
    Reranker,
}

impl ModelKind {
    /// The word for it in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Embedding => "embedding",
            Self::Reranker => "reranker",
        }
    }

    /// The kind of the checkpoint in `folder`, whose `config.json` is `config`. Encoders are known by their class; a decoder
    /// makes vectors when sentence-transformers' `modules.json` says how.
    pub fn of_checkpoint(config: &Value, folder: &Path) -> Self {
        let has_modules = folder.join("modules.json").is_file();
        match class_of(config, has_modules) {
            Some(class) => class.kind,
            None if has_modules => Self::Embedding,
            None => Self::Chat,
        }
    }

    /// The kind of the checkpoint in `folder`. What cannot be read counts as a chat model: loading says what is wrong with it.
    pub fn of_folder(folder: &Path) -> Self {
        let config = std::fs::read(folder.join("config.json")).ok();
        let config = config.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        config.map_or(Self::Chat, |config: Value| {
            Self::of_checkpoint(&config, folder)
        })
    }

    /// The kind of opened weights.
    pub fn of_weights(weights: &Weights, path: &Path) -> Self {
        match weights {
            Weights::Gguf(_) => Self::Chat,
            Weights::Safetensors(_) => Self::of_folder(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn classes_and_modules_tell_the_kind() {
        let plain = tempfile::tempdir().unwrap();
        let modules = tempfile::tempdir().unwrap();
        std::fs::write(modules.path().join("modules.json"), "[]").unwrap();
        let kind = |class: &str, folder: &Path| {
            ModelKind::of_checkpoint(&json!({ "architectures": [class] }), folder)
        };
        assert_eq!(kind("BertModel", plain.path()), ModelKind::Embedding);
        assert_eq!(
            kind("XLMRobertaForSequenceClassification", plain.path()),
            ModelKind::Reranker
        );
        assert_eq!(kind("Qwen3ForCausalLM", plain.path()), ModelKind::Chat);
        assert_eq!(
            kind("Qwen3ForCausalLM", modules.path()),
            ModelKind::Embedding
        );
        assert_eq!(
            ModelKind::of_checkpoint(&json!([]), plain.path()),
            ModelKind::Chat
        );
    }
}

//! Which classes are encoders, and [`EncoderConfig`].

use serde_json::Value;

use crate::model::ModelKind;
use crate::ops::activate::Function;

/// How a family numbers positions and classifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Positions from 0; a score is made of the pooler's output.
    Bert,
    /// Positions behind the padding id; the classifier has a layer of its own. XLM-RoBERTa is the same model.
    Roberta,
}

/// A class that encoders are saved as.
#[derive(Debug, Clone, Copy)]
pub(in crate::model) struct EncoderClass {
    pub name: &'static str,
    pub family: Family,
    pub kind: ModelKind,
    /// Saved with the head of its training: an embedding model only when sentence-transformers' files say how.
    pub needs_modules: bool,
}

const fn class(
    name: &'static str,
    family: Family,
    kind: ModelKind,
    needs_modules: bool,
) -> EncoderClass {
    EncoderClass {
        name,
        family,
        kind,
        needs_modules,
    }
}

const CLASSES: [EncoderClass; 10] = [
    class("BertModel", Family::Bert, ModelKind::Embedding, false),
    class("RobertaModel", Family::Roberta, ModelKind::Embedding, false),
    class(
        "XLMRobertaModel",
        Family::Roberta,
        ModelKind::Embedding,
        false,
    ),
    class("BertForMaskedLM", Family::Bert, ModelKind::Embedding, true),
    class(
        "BertForPreTraining",
        Family::Bert,
        ModelKind::Embedding,
        true,
    ),
    class(
        "RobertaForMaskedLM",
        Family::Roberta,
        ModelKind::Embedding,
        true,
    ),
    class(
        "XLMRobertaForMaskedLM",
        Family::Roberta,
        ModelKind::Embedding,
        true,
    ),
    class(
        "BertForSequenceClassification",
        Family::Bert,
        ModelKind::Reranker,
        false,
    ),
    class(
        "RobertaForSequenceClassification",
        Family::Roberta,
        ModelKind::Reranker,
        false,
    ),
    class(
        "XLMRobertaForSequenceClassification",
        Family::Roberta,
        ModelKind::Reranker,
        false,
    ),
];

/// Model types of encoders, and the class that each is without a head.
const MODEL_TYPES: [(&str, &str); 3] = [
    ("bert", "BertModel"),
    ("roberta", "RobertaModel"),
    ("xlm-roberta", "XLMRobertaModel"),
];

/// The encoder class that a `model_type` stands for when the model makes vectors; with a head it may be another one.
pub(in crate::model) fn headless_class(model_type: &str) -> Option<&'static EncoderClass> {
    let found = MODEL_TYPES.iter().find(|(name, _)| *name == model_type);
    found.and_then(|(_, class)| find_class(class))
}

/// The encoder class that a `config.json` names: the first known one, or where it names none, that of its model type if a
/// `modules.json` beside it says that the model makes vectors.
pub(in crate::model) fn class_of(
    config: &Value,
    has_modules: bool,
) -> Option<&'static EncoderClass> {
    match config["architectures"].as_array() {
        Some(names) if !names.is_empty() => {
            names.iter().filter_map(Value::as_str).find_map(find_class)
        }
        _ if has_modules => headless_class(config["model_type"].as_str()?),
        _ => None,
    }
}

/// The encoder class called `name`.
pub(in crate::model) fn find_class(name: &str) -> Option<&'static EncoderClass> {
    CLASSES.iter().find(|class| class.name == name)
}

/// The names of all encoder classes of this kind.
pub(in crate::model) fn class_names(kind: ModelKind) -> impl Iterator<Item = &'static str> {
    CLASSES
        .iter()
        .filter(move |class| class.kind == kind)
        .map(|class| class.name)
}

/// Where positions begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Positions {
    /// The first token has position 0.
    FromZero,
    /// The first token has the position behind this id, and tokens of this id have its own and are not counted.
    AfterPadding(u32),
}

/// An encoder's geometry and switches.
#[derive(Debug, Clone, PartialEq)]
pub struct EncoderConfig {
    /// The class.
    pub architecture: &'static str,
    /// What it was made for.
    pub kind: ModelKind,
    /// Names of the head, and positions.
    pub family: Family,
    /// Rows of the word table.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Heads; divides `hidden_size`.
    pub num_heads: usize,
    /// Width of the feed-forward block.
    pub intermediate_size: usize,
    /// Layers.
    pub num_layers: usize,
    /// Rows of the position table.
    pub num_positions: usize,
    /// How they are used.
    pub positions: Positions,
    /// Rows of the table of token types.
    pub num_token_types: usize,
    /// Inside the root of every norm.
    pub norm_eps: f32,
    /// Activation of the feed-forward block.
    pub activation: Function,
}

impl EncoderConfig {
    /// The longest text, in tokens.
    pub fn max_tokens(&self) -> usize {
        match self.positions {
            Positions::FromZero => self.num_positions,
            Positions::AfterPadding(pad) => self.num_positions.saturating_sub(pad as usize + 1),
        }
    }

    /// Elements of a head.
    pub fn head_dim(&self) -> usize {
        self.hidden_size / self.num_heads
    }

    /// Activation bytes of a step of `tokens` tokens: the widest moment of a layer, which is attention (residual, q, k, v, the
    /// packed keys and values, what comes out) or the feed-forward block.
    pub fn activation_bytes(&self, tokens: usize) -> usize {
        let per_token = (8 * self.hidden_size).max(3 * self.hidden_size + self.intermediate_size);
        tokens * per_token * size_of::<f32>() * 5 / 4
    }
}

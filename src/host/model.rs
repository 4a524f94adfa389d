//! A loaded model as text sees it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use super::SamplingDefaults;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::text::{ChatTemplate, RenderInput, Specials, Tokenizer};

/// A model that can answer: tokenizer, template, end tokens and the handle to its engine.
pub struct Model {
    engine: Engine,
    tokenizer: Arc<Tokenizer>,
    template: Option<ChatTemplate>,
    stop_tokens: Arc<[u32]>,
    sampling_defaults: SamplingDefaults,
}

impl Model {
    /// Puts the parts together; `template` is missing for base models, which can only complete.
    pub fn new(
        engine: Engine,
        tokenizer: Arc<Tokenizer>,
        template: Option<ChatTemplate>,
        stop_tokens: impl Into<Arc<[u32]>>,
    ) -> Self {
        Self {
            engine,
            tokenizer,
            template,
            stop_tokens: stop_tokens.into(),
            sampling_defaults: SamplingDefaults::default(),
        }
    }

    /// The same with the sampling settings that the model's files give.
    #[must_use]
    pub fn with_sampling_defaults(mut self, defaults: SamplingDefaults) -> Self {
        self.sampling_defaults = defaults;
        self
    }

    /// How the model wants to be sampled where a request does not say it.
    pub fn sampling_defaults(&self) -> &SamplingDefaults {
        &self.sampling_defaults
    }

    /// The handle to the engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The tokens that end an answer.
    pub fn stop_tokens(&self) -> &Arc<[u32]> {
        &self.stop_tokens
    }

    /// Whether the model has a chat template.
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// The tokens of a conversation (messages in the form that templates read) with the beginning of an answer. The
    /// template writes the beginning-of-text token if there is to be one; none is added.
    ///
    /// # Errors
    /// `Unsupported` without a template, `Invalid` when the template refuses the messages.
    pub fn prompt(&self, messages: &[Value], variables: &Map<String, Value>) -> Result<Vec<u32>> {
        let template = self.template.as_ref().ok_or_else(|| {
            Error::unsupported("the model has no chat template: it continues texts and cannot chat")
        })?;
        let begin = Instant::now();
        let spelled = |id: Option<u32>| id.and_then(|id| self.tokenizer.find_token(id));
        let (bos, eos) = (spelled(self.tokenizer.bos()), spelled(self.tokenizer.eos()));
        let rendered = template.render(&RenderInput {
            messages,
            add_generation_prompt: true,
            bos_token: bos.as_deref(),
            eos_token: eos.as_deref(),
            extra: Some(variables),
            specials: Some(self.tokenizer.special_texts()),
            ..RenderInput::default()
        })?;
        let rendered_at = Instant::now();
        let tokens = self.tokenizer.encode_rendered(&rendered)?;
        let milliseconds = |time: Duration| time.as_secs_f64() * 1000.0;
        tracing::debug!(
            template_ms = milliseconds(rendered_at - begin),
            encode_ms = milliseconds(rendered_at.elapsed()),
            prompt_tokens = tokens.len(),
            "prompt prepared"
        );
        Ok(tokens)
    }

    /// The tokens of a plain text to continue, with the beginning-of-text token if the tokenizer asks for one. Text that
    /// spells a control token stays text.
    ///
    /// # Errors
    /// `Invalid` when the tokenizer fails on the text.
    pub fn plain_prompt(&self, text: &str) -> Result<Vec<u32>> {
        self.tokenizer.encode_framed(text, Specials::Plain)
    }
}

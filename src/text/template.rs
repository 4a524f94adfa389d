//! [`ChatTemplate`]: messages to a prompt, by the model's own Jinja template, as transformers would render it.
//!
//! Everything in the messages is outside text. Where it spells a control token, the rendered prompt remembers so
//! ([`Rendered`], `outside.rs`), and [`crate::text::Tokenizer::encode_rendered`] leaves it text. `sources.rs` says where a
//! model keeps its template, `python.rs` and `methods.rs` make minijinja print and behave as Python does.

mod fallback;
mod methods;
mod outside;
mod python;
mod sources;
mod strftime;
mod tags;

use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, ErrorKind as JinjaErrorKind, Value as Jinja};
use outside::Marker;
pub use outside::Rendered;
use serde_json::{Map, Value};
pub use sources::TemplateSources;

use crate::error::{Error, Result};
use crate::text::specials::SpecialTexts;

/// A template larger than this is refused; real ones stay under 30 kB.
const MAX_TEMPLATE_BYTES: usize = 1 << 20;
/// Work a render may do: about as many steps, or 64 bytes of data each. Grows with the messages.
const BASE_FUEL: u64 = 4_000_000;
const FUEL_PER_INPUT_BYTE: u64 = 8;

const MAIN: &str = "chat template";
const WITH_TOOLS: &str = "chat template `tool_use`";

/// A model's chat template, compiled.
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    has_tool_variant: bool,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

/// What a template renders.
#[derive(Debug, Clone, Default)]
pub struct RenderInput<'a> {
    /// Messages in OpenAI's form: objects with `role`, `content` and so on, contents already strings, arguments objects.
    pub messages: &'a [Value],
    /// Tool definitions in OpenAI's form.
    pub tools: Option<&'a [Value]>,
    /// Whether the prompt ends with the beginning of the assistant's turn.
    pub add_generation_prompt: bool,
    /// The text of the beginning-of-text token.
    pub bos_token: Option<&'a str>,
    /// The text of the end-of-text token.
    pub eos_token: Option<&'a str>,
    /// Further variables, such as `enable_thinking`.
    pub extra: Option<&'a Map<String, Value>>,
    /// What time it is for `strftime_now`, in UTC; the system's clock if absent.
    pub now: Option<SystemTime>,
    /// Texts that must not become control tokens when they come with the messages, usually
    /// [`crate::text::Tokenizer::special_texts`].
    pub specials: Option<&'a SpecialTexts>,
}

/// What `raise_exception` was called with.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl ChatTemplate {
    /// Compiles `source`.
    ///
    /// # Errors
    /// `Invalid` when it is no template, or too large.
    pub fn new(source: impl Into<String>) -> Result<Self> {
        Self::with_tool_variant(source.into(), None)
    }

    fn with_tool_variant(source: String, tool_source: Option<String>) -> Result<Self> {
        let mut environment = environment()?;
        add(&mut environment, MAIN, &source)?;
        let has_tool_variant = tool_source.is_some();
        if let Some(tool_source) = tool_source {
            add(&mut environment, WITH_TOOLS, &tool_source)?;
        }
        Ok(Self {
            environment,
            source,
            has_tool_variant,
        })
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a prompt. A template that refuses the system role gets the system text inside the first user message instead.
    ///
    /// # Errors
    /// `Invalid` with the template's own words when it refuses the messages; `Internal` when it fails otherwise, runs too long
    /// or writes too much.
    pub fn render(&self, input: &RenderInput<'_>) -> Result<Rendered> {
        match self.render_as_given(input) {
            Err(error) if error.kind() == crate::error::ErrorKind::Invalid => {
                let Some(messages) = merged_system(input.messages) else {
                    return Err(error);
                };
                let merged = RenderInput {
                    messages: &messages,
                    ..input.clone()
                };
                self.render_as_given(&merged).map_err(|_| error)
            }
            result => result,
        }
    }

    pub(super) fn render_as_given(&self, input: &RenderInput<'_>) -> Result<Rendered> {
        let marker = Marker::new(input);
        let mut context: Vec<(Jinja, Jinja)> = vec![
            (
                "messages".into(),
                input
                    .messages
                    .iter()
                    .map(|message| marker.message(message))
                    .collect(),
            ),
            (
                "tools".into(),
                optional(
                    input
                        .tools
                        .map(|tools| tools.iter().map(|tool| marker.value(tool)).collect()),
                ),
            ),
            ("documents".into(), Jinja::from(())),
            (
                "add_generation_prompt".into(),
                input.add_generation_prompt.into(),
            ),
        ];
        for (name, text) in [
            ("bos_token", input.bos_token),
            ("eos_token", input.eos_token),
        ] {
            context.extend(text.map(|text| (name.into(), text.into())));
        }
        for (name, value) in input.extra.into_iter().flatten() {
            context.push((name.as_str().into(), marker.value(value)));
        }
        let now = input.now.unwrap_or_else(SystemTime::now);
        context.push(("strftime_now".into(), strftime_now(now)));
        let name = if self.has_tool_variant && input.tools.is_some() {
            WITH_TOOLS
        } else {
            MAIN
        };
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(
            BASE_FUEL + FUEL_PER_INPUT_BYTE * marker.input_bytes() as u64,
        ));
        let template = environment
            .get_template(name)
            .map_err(|error| render_error(&error))?;
        let text = template
            .render(Jinja::from_pairs(context))
            .map_err(|error| render_error(&error))?;
        Ok(marker.unmark(&text))
    }
}

fn optional(value: Option<Jinja>) -> Jinja {
    value.unwrap_or_else(|| Jinja::from(()))
}

/// An environment with transformers' settings.
fn environment() -> Result<Environment<'static>> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build();
    environment.set_syntax(
        syntax.map_err(|error| Error::internal(format!("cannot set the syntax: {error}")))?,
    );
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(|out, _state, value| {
        python::write_str(out, value).map_err(|_| JinjaErrorKind::WriteFailure.into())
    });
    environment.add_filter("tojson", python::tojson);
    environment.add_filter("string", |value: &Jinja| python::to_str(value));
    environment.add_filter("trim", methods::trim_filter);
    environment.add_filter("indent", methods::indent_filter);
    for (name, test) in methods::TESTS {
        environment.add_test(*name, test);
    }
    environment.add_function(
        "raise_exception",
        |message: &Jinja| -> Result<Jinja, minijinja::Error> {
            let message = python::to_str(message);
            Err(
                minijinja::Error::new(JinjaErrorKind::InvalidOperation, message.clone())
                    .with_source(Raised(message)),
            )
        },
    );
    minijinja_contrib::add_to_environment(&mut environment);
    Ok(environment)
}

fn add(environment: &mut Environment<'static>, name: &'static str, source: &str) -> Result<()> {
    if source.len() > MAX_TEMPLATE_BYTES {
        return Err(Error::invalid(format!(
            "cannot use the {name}: it has {} bytes, at most {MAX_TEMPLATE_BYTES} are allowed",
            source.len()
        )));
    }
    environment
        .add_template_owned(name, tags::without_generation_tags(source))
        .map_err(|error| {
            let line = error
                .line()
                .map(|line| format!(" (line {line})"))
                .unwrap_or_default();
            Error::invalid(format!("cannot use the {name}: {error}{line}"))
        })
}

fn strftime_now(now: SystemTime) -> Jinja {
    Jinja::from_function(move |format: &str, _kwargs: Kwargs| {
        strftime::format_utc(now, format)
            .map_err(|reason| minijinja::Error::new(JinjaErrorKind::InvalidOperation, reason))
    })
}

fn render_error(error: &minijinja::Error) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref() {
            return Error::invalid(format!(
                "the model's chat template refuses the messages: {message}"
            ));
        }
        cause = current.source();
    }
    if error.kind() == JinjaErrorKind::OutOfFuel {
        return Error::internal(
            "the model's chat template does not come to an end for these messages",
        );
    }
    Error::internal(format!("the model's chat template fails: {error}"))
}

/// `messages` with the text of leading system messages put before the first user message, or `None` when there is nothing to
/// merge.
fn merged_system(messages: &[Value]) -> Option<Vec<Value>> {
    let is_system =
        |message: &&Value| matches!(message["role"].as_str(), Some("system" | "developer"));
    let num_system = messages.iter().take_while(is_system).count();
    let (system, rest) = messages.split_at(num_system);
    let mut rest = rest.to_vec();
    let user = rest
        .first_mut()
        .filter(|message| message["role"] == "user")?;
    let mut texts: Vec<&str> = system
        .iter()
        .filter_map(|message| message["content"].as_str())
        .collect();
    if texts.is_empty() {
        return None;
    }
    let own = user["content"].as_str()?.to_string();
    texts.push(&own);
    let joined = texts.join("\n\n");
    user["content"] = Value::String(joined);
    Some(rest)
}

#[cfg(test)]
mod tests;

//! `POST /v1/embeddings`.

use std::sync::Arc;

use axum::extract::{Extension, Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::Value;

use super::request::{take_keep_alive, take_model};
use crate::host::{EmbeddingModel, KeepAlive};
use crate::model::ModelKind;
use crate::model::encoder::TextTokens;
use crate::ops::pool::normalize;
use crate::server::app::App;
use crate::server::body::{off_thread_if, read_json};
use crate::server::clock::Clock;
use crate::server::embedding::Order;
use crate::server::error::ApiError;
use crate::server::fields::{Fields, Names, shown};

/// Most texts of one request, as OpenAI has it.
const MOST_INPUTS: usize = 2048;

const NAMES: Names = Names {
    known: &[
        "model",
        "input",
        "encoding_format",
        "dimensions",
        "prompt_name",
        "keep_alive",
    ],
    harmless: &["user"],
    unsupported: &[
        ("input_type", "`prompt_name` takes its place"),
        (
            "truncate",
            "nothing is cut off in silence: split long texts",
        ),
        (
            "truncate_prompt_tokens",
            "nothing is cut off in silence: split long texts",
        ),
        ("messages", "`input` takes its place"),
    ],
};

/// What is to be embedded.
#[derive(Debug, PartialEq)]
enum Inputs {
    Texts(Vec<String>),
    /// Token ids, taken as they are.
    Tokens(Vec<Vec<u32>>),
}

/// How a vector is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Floats,
    Base64,
}

/// A request.
#[derive(Debug, PartialEq)]
struct Call {
    model: String,
    inputs: Inputs,
    encoding: Encoding,
    dimensions: Option<usize>,
    prompt_name: Option<String>,
    keep_alive: Option<KeepAlive>,
}

impl Call {
    fn parse(body: Value) -> Result<Self, ApiError> {
        let mut fields = Fields::new(body, "the request body", "", &NAMES)?;
        let inputs = take_inputs(&mut fields)?;
        let model = take_model(&mut fields)?;
        let encoding = match fields.text("encoding_format")?.as_deref() {
            None | Some("float") => Encoding::Floats,
            Some("base64") => Encoding::Base64,
            Some(other) => {
                let found = shown(&Value::from(other));
                let message = format!("`encoding_format` must be `float` or `base64`, got {found}");
                return Err(fields.invalid("encoding_format", message));
            }
        };
        let call = Self {
            model,
            inputs,
            encoding,
            dimensions: fields.count("dimensions", 1)?,
            prompt_name: fields.text("prompt_name")?,
            keep_alive: take_keep_alive(&mut fields)?,
        };
        match (&call.inputs, &call.prompt_name) {
            (Inputs::Tokens(_), Some(_)) => Err(fields.invalid(
                "prompt_name",
                "`prompt_name` is for texts: token ids are taken as they are",
            )),
            _ => Ok(call),
        }
    }
}

fn take_inputs(fields: &mut Fields) -> Result<Inputs, ApiError> {
    const EXPECTED: &str =
        "a text, an array of texts, an array of token ids or an array of such arrays";
    let items = match fields.take("input") {
        None => return Err(fields.missing("input", EXPECTED)),
        Some(Value::String(text)) => return Ok(Inputs::Texts(vec![text])),
        Some(Value::Array(items)) => items,
        Some(other) => return Err(fields.wrong_type("input", EXPECTED, &other)),
    };
    let inputs = match items.first() {
        None => {
            let message = format!("`input` must be {EXPECTED}, got an empty array");
            return Err(fields.invalid("input", message));
        }
        Some(Value::String(_)) => Inputs::Texts(each(&items, |at, item| match item {
            Value::String(text) => Ok(text.clone()),
            other => {
                Err(fields.wrong_type(&format!("input[{at}]"), "a string like the first", other))
            }
        })?),
        Some(Value::Number(_)) => Inputs::Tokens(vec![token_ids(fields, "input", &items)?]),
        Some(Value::Array(_)) => Inputs::Tokens(each(&items, |at, item| {
            let name = format!("input[{at}]");
            match item {
                Value::Array(ids) if ids.is_empty() => {
                    let message =
                        format!("`{name}` must hold a token id at least, got an empty array");
                    Err(fields.invalid(&name, message))
                }
                Value::Array(ids) => token_ids(fields, &name, ids),
                other => {
                    Err(fields.wrong_type(&name, "an array of token ids like the first", other))
                }
            }
        })?),
        Some(other) => {
            return Err(fields.wrong_type("input[0]", "a string, a token id or an array", other));
        }
    };
    let count = match &inputs {
        Inputs::Texts(texts) => texts.len(),
        Inputs::Tokens(tokens) => tokens.len(),
    };
    if count > MOST_INPUTS {
        let message = format!("`input` must hold at most {MOST_INPUTS} texts, got {count}");
        return Err(fields.invalid("input", message));
    }
    Ok(inputs)
}

fn each<T>(
    items: &[Value],
    read: impl Fn(usize, &Value) -> Result<T, ApiError>,
) -> Result<Vec<T>, ApiError> {
    let read = |(at, item)| read(at, item);
    items.iter().enumerate().map(read).collect()
}

fn token_ids(fields: &Fields, name: &str, items: &[Value]) -> Result<Vec<u32>, ApiError> {
    each(items, |at, item| {
        let id = item.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| fields.wrong_type(&format!("{name}[{at}]"), "a token id", item))
    })
}

/// A vector as it is written.
#[derive(Serialize)]
#[serde(untagged)]
enum Written {
    Floats(Vec<f32>),
    Base64(String),
}

impl Written {
    fn new(mut vector: Vec<f32>, dimensions: Option<usize>, encoding: Encoding) -> Self {
        if let Some(dimensions) = dimensions {
            vector.truncate(dimensions);
            normalize(&mut vector);
        }
        match encoding {
            Encoding::Floats => Self::Floats(vector),
            Encoding::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                Self::Base64(STANDARD.encode(bytes))
            }
        }
    }
}

#[derive(Serialize)]
struct Item {
    object: &'static str,
    index: usize,
    embedding: Written,
}

#[derive(Serialize)]
struct Answer {
    object: &'static str,
    data: Vec<Item>,
    model: String,
    usage: TokenUsage,
}

/// Tokens that were read; there are no others.
#[derive(Serialize)]
pub(super) struct TokenUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

impl TokenUsage {
    pub(super) fn of(num_tokens: usize) -> Self {
        Self {
            prompt_tokens: num_tokens,
            total_tokens: num_tokens,
        }
    }
}

/// The handler.
pub(in crate::server) async fn embeddings(
    State(app): State<Arc<App>>,
    Extension(mut clock): Extension<Clock>,
    request: Request,
) -> Result<Response, ApiError> {
    let call = read_json(request, &app, &clock, Call::parse).await?;
    let kind = ModelKind::Embedding;
    let order = Order::new(&app, &mut clock, &call.model, kind, call.keep_alive).await?;
    if let Err(error) = check(order.model(), &call) {
        return Err(order.refuse(error));
    }
    let Call {
        model,
        inputs,
        encoding,
        dimensions,
        prompt_name,
        ..
    } = call;
    let tokens = move |model: &EmbeddingModel, add: &dyn Fn(TextTokens) -> Result<(), ApiError>| {
        tokenize(model, inputs, prompt_name.as_deref(), add)
    };
    let computed = order.compute(&app, clock, "input", tokens).await?;
    json(move || {
        let item = |(index, vector)| Item {
            object: "embedding",
            index,
            embedding: Written::new(vector, dimensions, encoding),
        };
        Answer {
            object: "list",
            data: computed.outputs.into_iter().enumerate().map(item).collect(),
            model,
            usage: TokenUsage::of(computed.num_tokens),
        }
    })
    .await
}

/// What only the model can tell.
fn check(model: &EmbeddingModel, call: &Call) -> Result<(), ApiError> {
    let most = model.engine().dimensions();
    if let Some(wanted) = call.dimensions.filter(|&wanted| wanted > most) {
        let message =
            format!("`dimensions` must be between 1 and {most} for this model, got {wanted}");
        return Err(ApiError::field(
            "dimensions",
            "integer_above_max_value",
            message,
        ));
    }
    let prompt = model.text().prompt(call.prompt_name.as_deref());
    prompt.map_err(|error| ApiError::from(error).with_param("prompt_name"))?;
    Ok(())
}

fn tokenize(
    model: &EmbeddingModel,
    inputs: Inputs,
    prompt_name: Option<&str>,
    add: &dyn Fn(TextTokens) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    match inputs {
        Inputs::Tokens(all) => all
            .into_iter()
            .try_for_each(|ids| add(TextTokens::of_ids(ids))),
        Inputs::Texts(texts) => {
            let prompt = model.text().prompt(prompt_name)?;
            texts
                .iter()
                .try_for_each(|text| add(model.text().tokens(text, prompt)?))
        }
    }
}

/// An answer that is made and written where that holds up nobody: vectors are long.
pub(super) async fn json<T: Serialize>(
    make: impl FnOnce() -> T + Send + 'static,
) -> Result<Response, ApiError> {
    let write = move || {
        let body = serde_json::to_vec(&make());
        body.map_err(|_| ApiError::panicked())
    };
    let body = off_thread_if(true, write).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(more: Value) -> Result<Call, String> {
        let mut body = json!({ "model": "m" });
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        Call::parse(body).map_err(|error| {
            let told = &error.to_openai()["error"];
            format!("{} {}: {}", told["param"], told["code"], error.message())
        })
    }

    #[test]
    fn every_form_of_input_is_read() {
        let inputs = |input: Value| read(json!({ "input": input })).map(|call| call.inputs);
        assert_eq!(inputs(json!("a")).unwrap(), Inputs::Texts(vec!["a".into()]));
        assert_eq!(
            inputs(json!("")).unwrap(),
            Inputs::Texts(vec![String::new()])
        );
        assert_eq!(
            inputs(json!(["a", "b"])).unwrap(),
            Inputs::Texts(vec!["a".into(), "b".into()])
        );
        assert_eq!(
            inputs(json!([1, 2])).unwrap(),
            Inputs::Tokens(vec![vec![1, 2]])
        );
        assert_eq!(
            inputs(json!([[1], [2, 3]])).unwrap(),
            Inputs::Tokens(vec![vec![1], vec![2, 3]])
        );
        for (input, told) in [
            (
                json!([]),
                "\"input\" \"invalid_value\": `input` must be a text",
            ),
            (json!(3), "\"input\" \"invalid_type\""),
            (json!(["a", 1]), "\"input[1]\" \"invalid_type\""),
            (json!([1, "a"]), "\"input[1]\" \"invalid_type\""),
            (json!([1, -1]), "\"input[1]\" \"invalid_type\""),
            (json!([[1], []]), "\"input[1]\" \"invalid_value\""),
            (json!([[1], [2.5]]), "\"input[1][0]\" \"invalid_type\""),
            (json!([true]), "\"input[0]\" \"invalid_type\""),
            (
                json!(vec!["a"; 2049]),
                "\"input\" \"invalid_value\": `input` must hold at most 2048",
            ),
        ] {
            let message = inputs(input).unwrap_err();
            assert!(message.starts_with(told), "{message}");
        }
    }

    #[test]
    fn other_fields_are_checked_by_name() {
        let call = read(
            json!({ "input": "a", "user": "u", "encoding_format": "base64", "dimensions": 5 }),
        )
        .unwrap();
        assert_eq!(
            (call.encoding, call.dimensions),
            (Encoding::Base64, Some(5))
        );
        for (more, told) in [
            (json!({}), "\"input\" \"missing_required_parameter\""),
            (
                json!({ "input": "a", "encoding_format": "int8" }),
                "\"encoding_format\" \"invalid_value\"",
            ),
            (
                json!({ "input": "a", "dimensions": 0 }),
                "\"dimensions\" \"integer_below_min_value\"",
            ),
            (
                json!({ "input": "a", "truncate": true }),
                "\"truncate\" \"unsupported_parameter\"",
            ),
            (
                json!({ "input": "a", "dimension": 3 }),
                "\"dimension\" \"unknown_parameter\"",
            ),
            (
                json!({ "input": [1], "prompt_name": "query" }),
                "\"prompt_name\" \"invalid_value\"",
            ),
        ] {
            let message = read(more).unwrap_err();
            assert!(message.starts_with(told), "{message}");
        }
    }

    #[test]
    fn a_vector_is_cut_to_unit_length_and_base64_holds_its_little_endian_bytes() {
        let vector = vec![0.6, 0.0, 0.8];
        let Written::Floats(cut) = Written::new(vector.clone(), Some(2), Encoding::Floats) else {
            panic!("asked for floats");
        };
        assert_eq!(cut, [1.0, 0.0]);
        let Written::Base64(text) = Written::new(vector.clone(), None, Encoding::Base64) else {
            panic!("asked for base64");
        };
        let bytes = STANDARD.decode(text).unwrap();
        let read: Vec<f32> = bytes
            .chunks(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        assert_eq!(read, vector);
    }
}

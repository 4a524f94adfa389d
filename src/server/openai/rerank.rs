//! `POST /v1/rerank`: documents in the order of their relevance to a query. The shape is the common one of Cohere and Jina.

use std::sync::Arc;

use axum::extract::{Extension, Request, State};
use axum::response::Response;
use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use super::embeddings::{TokenUsage, json};
use super::request::{take_keep_alive, take_model};
use crate::host::{EmbeddingModel, KeepAlive};
use crate::model::ModelKind;
use crate::model::encoder::TextTokens;
use crate::server::app::App;
use crate::server::body::read_json;
use crate::server::clock::Clock;
use crate::server::embedding::Order;
use crate::server::error::ApiError;
use crate::server::fields::{Fields, Names};

/// Most documents of one request.
const MOST_DOCUMENTS: usize = 10_000;

const CUT: &str = "nothing is cut off in silence: split long documents";

const NAMES: Names = Names {
    known: &[
        "model",
        "query",
        "documents",
        "top_n",
        "return_documents",
        "keep_alive",
    ],
    harmless: &["user"],
    unsupported: &[
        ("max_tokens_per_doc", CUT),
        ("max_chunks_per_doc", CUT),
        ("truncation", CUT),
        ("truncate", CUT),
        ("rank_fields", "documents are texts"),
    ],
};

const DOCUMENT: Names = Names {
    known: &["text"],
    harmless: &[],
    unsupported: &[],
};

/// A request.
#[derive(Debug, PartialEq)]
struct Call {
    model: String,
    query: String,
    documents: Vec<String>,
    top_n: Option<usize>,
    return_documents: bool,
    keep_alive: Option<KeepAlive>,
}

impl Call {
    fn parse(body: Value) -> Result<Self, ApiError> {
        let mut fields = Fields::new(body, "the request body", "", &NAMES)?;
        let model = take_model(&mut fields)?;
        let Some(query) = fields.text("query")? else {
            return Err(fields.missing("query", "a text"));
        };
        Ok(Self {
            model,
            query,
            documents: take_documents(&mut fields)?,
            top_n: fields.count("top_n", 1)?,
            return_documents: fields.flag("return_documents")?.unwrap_or(false),
            keep_alive: take_keep_alive(&mut fields)?,
        })
    }
}

fn take_documents(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    const EXPECTED: &str = "an array of texts";
    let items = match fields.take("documents") {
        None => return Err(fields.missing("documents", EXPECTED)),
        Some(Value::Array(items)) => items,
        Some(other) => return Err(fields.wrong_type("documents", EXPECTED, &other)),
    };
    if items.is_empty() || items.len() > MOST_DOCUMENTS {
        let message = format!(
            "`documents` must hold 1 to {MOST_DOCUMENTS} texts, got {}",
            items.len()
        );
        return Err(fields.invalid("documents", message));
    }
    let text = |(at, item)| match item {
        Value::String(text) => Ok(text),
        Value::Object(_) => {
            let (what, path) = (format!("`documents[{at}]`"), format!("documents[{at}]."));
            let mut document = Fields::new(item, &what, path, &DOCUMENT)?;
            let text = document.text("text")?;
            text.ok_or_else(|| document.missing("text", "a text"))
        }
        other => Err(fields.wrong_type(&format!("documents[{at}]"), "a text", &other)),
    };
    items.into_iter().enumerate().map(text).collect()
}

#[derive(Serialize)]
struct DocumentBody {
    text: String,
}

#[derive(Serialize)]
struct Ranked {
    index: usize,
    relevance_score: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<DocumentBody>,
}

#[derive(Serialize)]
struct Answer {
    id: String,
    model: String,
    results: Vec<Ranked>,
    usage: TokenUsage,
}

/// The handler.
pub(in crate::server) async fn rerank(
    State(app): State<Arc<App>>,
    Extension(mut clock): Extension<Clock>,
    request: Request,
) -> Result<Response, ApiError> {
    let call = read_json(request, &app, &clock, Call::parse).await?;
    let kind = ModelKind::Reranker;
    let order = Order::new(&app, &mut clock, &call.model, kind, call.keep_alive).await?;
    let Call {
        model,
        query,
        documents,
        top_n,
        return_documents,
        ..
    } = call;
    let documents = Arc::new(documents);
    let texts = Arc::clone(&documents);
    let tokens = move |model: &EmbeddingModel, add: &dyn Fn(TextTokens) -> Result<(), ApiError>| {
        let pair = |text: &String| add(model.text().pair(&query, text)?);
        texts.iter().try_for_each(pair)
    };
    let computed = order.compute(&app, clock, "documents", tokens).await?;
    json(move || {
        let logits = computed.outputs.iter().map(|output| output[0]);
        let ranked = rank(&logits.collect::<Vec<f32>>(), top_n);
        let result = |(index, relevance_score): (usize, f64)| Ranked {
            index,
            relevance_score,
            document: return_documents.then(|| DocumentBody {
                text: documents[index].clone(),
            }),
        };
        Answer {
            id: format!("rerank-{}", Uuid::new_v4().simple()),
            model,
            results: ranked.into_iter().map(result).collect(),
            usage: TokenUsage::of(computed.num_tokens),
        }
    })
    .await
}

/// Indices and scores from 0 to 1, the best first, equal ones in their order; at most `top_n`.
///
/// The order is that of the classifier's outputs: far from 0 several of them have the same score.
fn rank(logits: &[f32], top_n: Option<usize>) -> Vec<(usize, f64)> {
    let mut indices: Vec<usize> = (0..logits.len()).collect();
    indices.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    indices.truncate(top_n.unwrap_or(usize::MAX));
    let score = |index: usize| 1.0 / (1.0 + libm::exp(-f64::from(logits[index])));
    indices
        .into_iter()
        .map(|index| (index, score(index)))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn documents_are_ranked_by_the_classifier_and_ties_keep_their_order() {
        let ranked = rank(&[-2.0, 80.0, 0.0, 90.0, -2.0], None);
        let indices: Vec<usize> = ranked.iter().map(|(index, _)| *index).collect();
        assert_eq!(indices, [3, 1, 2, 0, 4]);
        assert_eq!((ranked[0].1, ranked[1].1, ranked[2].1), (1.0, 1.0, 0.5));
        assert!((ranked[3].1 - 0.119_202_922).abs() < 1e-9);
        assert_eq!(rank(&[1.0, 2.0], Some(1)).len(), 1);
        assert_eq!(rank(&[1.0, 2.0], Some(9)).len(), 2);
    }

    #[test]
    fn fields_are_read_and_mistakes_are_named() {
        let read = |more: Value| {
            let mut body =
                json!({ "model": "m", "query": "q", "documents": ["a", { "text": "b" }] });
            for (name, value) in more.as_object().unwrap() {
                body[name] = value.clone();
            }
            Call::parse(body).map_err(|error| {
                let told = &error.to_openai()["error"];
                format!("{} {}: {}", told["param"], told["code"], error.message())
            })
        };
        let call = read(json!({})).unwrap();
        assert_eq!(call.documents, ["a", "b"]);
        assert_eq!((call.top_n, call.return_documents), (None, false));
        let call = read(json!({ "top_n": 1, "return_documents": true })).unwrap();
        assert_eq!((call.top_n, call.return_documents), (Some(1), true));
        for (more, told) in [
            (
                json!({ "query": null }),
                "\"query\" \"missing_required_parameter\"",
            ),
            (
                json!({ "documents": [] }),
                "\"documents\" \"invalid_value\"",
            ),
            (
                json!({ "documents": ["a", 3] }),
                "\"documents[1]\" \"invalid_type\"",
            ),
            (
                json!({ "documents": [{ "text": 3 }] }),
                "\"documents[0].text\" \"invalid_type\"",
            ),
            (
                json!({ "documents": [{ "title": "x" }] }),
                "\"documents[0].title\" \"unknown_parameter\"",
            ),
            (
                json!({ "top_n": 0 }),
                "\"top_n\" \"integer_below_min_value\"",
            ),
            (json!({ "top_k": 3 }), "\"top_k\" \"unknown_parameter\""),
            (
                json!({ "max_tokens_per_doc": 3 }),
                "\"max_tokens_per_doc\" \"unsupported_parameter\"",
            ),
        ] {
            let message = read(more).unwrap_err();
            assert!(message.starts_with(told), "{message}");
        }
    }
}

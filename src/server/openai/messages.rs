//! `messages` of a chat request.

use serde_json::Value;

use crate::chat::{Message, Role};
use crate::server::error::ApiError;
use crate::server::fields::{Fields, Names, clipped, shown, unsupported_value};

const MESSAGE: Names = Names {
    known: &["role", "content", "name", "reasoning_content", "refusal"],
    // What clients repeat from earlier answers.
    harmless: &["annotations"],
    unsupported: &[
        ("tool_calls", "tool calls come in a later version"),
        ("tool_call_id", "tool calls come in a later version"),
        ("function_call", "tool calls come in a later version"),
        ("audio", "it takes text only"),
    ],
};

const PART: Names = Names {
    known: &["type", "text", "refusal"],
    // Prompts that begin alike are always cached.
    harmless: &["cache_control"],
    unsupported: &[],
};

/// What parts are called that hold no text.
const OTHER_MEDIA: &[&str] = &["image_url", "input_audio", "file", "video_url", "image"];

/// Takes `messages`.
///
/// # Errors
/// When there are none, or one is not understood.
pub(super) fn take_messages(fields: &mut Fields) -> Result<Vec<Message>, ApiError> {
    const EXPECTED: &str = "an array of at least one message";
    match fields.take("messages") {
        None => Err(fields.missing("messages", EXPECTED)),
        Some(Value::Array(items)) if items.is_empty() => Err(fields.invalid(
            "messages",
            format!("`messages` must be {EXPECTED}, got an empty one"),
        )),
        Some(Value::Array(items)) => items
            .into_iter()
            .enumerate()
            .map(|(index, item)| message(index, item))
            .collect(),
        Some(other) => Err(fields.wrong_type("messages", EXPECTED, &other)),
    }
}

fn message(index: usize, mut value: Value) -> Result<Message, ApiError> {
    let path = format!("messages[{index}]");
    // An empty list of calls is no call.
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|name, value| {
            !(name == "tool_calls" && value.as_array().is_some_and(Vec::is_empty))
        });
    }
    if let Some(role @ ("tool" | "function")) = value["role"].as_str() {
        let advice = "tool calls come in a later version";
        return Err(unsupported_value(format!("{path}.role"), role, advice));
    }
    let mut fields = Fields::new(value, &format!("`{path}`"), format!("{path}."), &MESSAGE)?;
    let role = role(&mut fields)?;
    let content = match fields.take("content") {
        None => None,
        Some(content) => Some(text_of(&fields, content)?),
    };
    let refusal = fields.text("refusal")?;
    let content = match (content, role) {
        (Some(content), _) => content,
        (None, Role::Assistant) => refusal.unwrap_or_default(),
        (None, _) => return Err(fields.missing("content", "a string or an array of text parts")),
    };
    let mut message = Message::new(role, content);
    message.name = fields.text("name")?;
    message.reasoning = fields.text("reasoning_content")?;
    Ok(message)
}

fn role(fields: &mut Fields) -> Result<Role, ApiError> {
    const EXPECTED: &str = "`system`, `developer`, `user` or `assistant`";
    let Some(role) = fields.text("role")? else {
        return Err(fields.missing("role", EXPECTED));
    };
    match role.as_str() {
        "system" | "developer" => Ok(Role::System),
        "user" => Ok(Role::User),
        "assistant" => Ok(Role::Assistant),
        other => {
            let param = fields.param("role");
            let message = format!("`{param}` must be {EXPECTED}, got `{}`", clipped(other));
            Err(fields.invalid("role", message))
        }
    }
}

/// The text of a content: as it is, or the text parts one after the other.
fn text_of(fields: &Fields, content: Value) -> Result<String, ApiError> {
    match content {
        Value::String(text) => Ok(text),
        Value::Array(parts) => parts
            .into_iter()
            .enumerate()
            .map(|(index, value)| part(&fields.param(&format!("content[{index}]")), value))
            .collect(),
        other => Err(fields.wrong_type("content", "a string or an array of text parts", &other)),
    }
}

fn part(path: &str, value: Value) -> Result<String, ApiError> {
    let field = match (value.is_object(), value["type"].as_str()) {
        (true, Some("refusal")) => "refusal",
        (false, _) | (true, Some("text")) => "text",
        (true, Some(kind)) if OTHER_MEDIA.contains(&kind) => {
            let param = format!("{path}.type");
            return Err(unsupported_value(param, kind, "it takes text only"));
        }
        (true, _) => {
            let message = format!(
                "`{path}.type` must be `text`, got {}",
                shown(&value["type"])
            );
            return Err(ApiError::field(
                format!("{path}.type"),
                "invalid_value",
                message,
            ));
        }
    };
    let mut fields = Fields::new(value, &format!("`{path}`"), format!("{path}."), &PART)?;
    let text = fields.text(field)?;
    text.ok_or_else(|| fields.missing(field, "a string"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const BODY: Names = Names {
        known: &["messages"],
        harmless: &[],
        unsupported: &[],
    };

    fn read(messages: Value) -> Result<Vec<Message>, String> {
        let body = json!({ "messages": messages });
        let mut fields = Fields::new(body, "the body", "", &BODY).unwrap();
        take_messages(&mut fields).map_err(|error| {
            format!(
                "{}: {}",
                error.to_openai()["error"]["param"],
                error.message()
            )
        })
    }

    #[test]
    fn roles_and_contents_in_all_their_forms() {
        let messages = read(json!([
            { "role": "developer", "content": "a" },
            { "role": "system", "content": [{ "type": "text", "text": "b" }] },
            { "role": "user", "name": "Ann", "content": [
                { "type": "text", "text": "c " },
                { "type": "text", "text": "d", "cache_control": { "type": "ephemeral" } },
            ]},
            { "role": "assistant" },
            { "role": "assistant", "content": null, "refusal": "no", "tool_calls": [], "audio": null },
            { "role": "assistant", "content": [{ "type": "refusal", "refusal": "never" }], "annotations": [] },
            { "role": "assistant", "content": "", "reasoning_content": "hm" },
            { "role": "user", "content": [] },
        ]));
        let of = |role, content: &str| Message::new(role, content);
        let mut named = of(Role::User, "c d");
        named.name = Some("Ann".to_owned());
        let mut thoughtful = of(Role::Assistant, "");
        thoughtful.reasoning = Some("hm".to_owned());
        let expected = vec![
            of(Role::System, "a"),
            of(Role::System, "b"),
            named,
            of(Role::Assistant, ""),
            of(Role::Assistant, "no"),
            of(Role::Assistant, "never"),
            thoughtful,
            of(Role::User, ""),
        ];
        assert_eq!(messages, Ok(expected));
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name() {
        let user = |content: Value| json!([{ "role": "user", "content": content }]);
        let cases = [
            json!(null),
            json!([]),
            json!("hello"),
            json!(["hello"]),
            json!([{ "content": "x" }]),
            json!([{ "role": "User", "content": "x" }]),
            json!([{ "role": 3, "content": "x" }]),
            json!([{ "role": "user" }]),
            json!([{ "role": "system", "content": null }]),
            json!([{ "role": "tool", "tool_call_id": "1", "content": "x" }]),
            json!([{ "role": "user", "content": "x" }, { "role": "assistant", "tool_calls": [{}] }]),
            json!([{ "role": "user", "content": "x", "nmae": "Ann" }]),
            user(json!(3)),
            user(json!([{ "type": "text" }])),
            user(json!([{ "text": "x" }])),
            user(json!(["x"])),
            user(
                json!([{ "type": "text", "text": "x" }, { "type": "image_url", "image_url": { "url": "x" } }]),
            ),
            user(json!([{ "type": "input_audio", "input_audio": {} }])),
            user(json!([{ "type": "thinking", "thinking": "x" }])),
        ];
        let lines: Vec<String> = cases
            .into_iter()
            .map(|messages| read(messages).unwrap_err())
            .collect();
        insta::assert_snapshot!(lines.join("\n"), @r#"
        "messages": `messages` is missing, expected an array of at least one message
        "messages": `messages` must be an array of at least one message, got an empty one
        "messages": `messages` must be an array of at least one message, got "hello"
        "messages[0]": `messages[0]` must be a JSON object, got "hello"
        "messages[0].role": `messages[0].role` is missing, expected `system`, `developer`, `user` or `assistant`
        "messages[0].role": `messages[0].role` must be `system`, `developer`, `user` or `assistant`, got `User`
        "messages[0].role": `messages[0].role` must be a string, got 3
        "messages[0].content": `messages[0].content` is missing, expected a string or an array of text parts
        "messages[0].content": `messages[0].content` is missing, expected a string or an array of text parts
        "messages[0].role": `messages[0].role` is `tool`, which this version of oxydllm does not support: tool calls come in a later version
        "messages[1].tool_calls": this version of oxydllm does not support `messages[1].tool_calls`: tool calls come in a later version
        "messages[0].nmae": unknown field `messages[0].nmae`, did you mean `messages[0].name`?
        "messages[0].content": `messages[0].content` must be a string or an array of text parts, got 3
        "messages[0].content[0].text": `messages[0].content[0].text` is missing, expected a string
        "messages[0].content[0].type": `messages[0].content[0].type` must be `text`, got null
        "messages[0].content[0]": `messages[0].content[0]` must be a JSON object, got "x"
        "messages[0].content[1].type": `messages[0].content[1].type` is `image_url`, which this version of oxydllm does not support: it takes text only
        "messages[0].content[0].type": `messages[0].content[0].type` is `input_audio`, which this version of oxydllm does not support: it takes text only
        "messages[0].content[0].type": `messages[0].content[0].type` must be `text`, got "thinking"
        "#);
    }
}

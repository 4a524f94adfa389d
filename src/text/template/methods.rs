//! Python's methods of strings and maps that templates call, on top of `minijinja-contrib`.

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Calls `method` of `value`.
pub(super) fn call(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let own = match (value.as_str(), value.kind()) {
        (Some(text), _) => string_method(text, method, args)?,
        (None, ValueKind::Map) if method == "copy" => Some(value.clone()),
        (None, ValueKind::Seq) if method == "index" => Some(list_index(value, args)?),
        _ => None,
    };
    match own {
        Some(result) => Ok(result),
        None => unknown_method_callback(state, value, method, args),
    }
}

/// What Python takes for white space: Unicode's, and four separators that only Python counts.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn trimmed<'a>(text: &'a str, chars: Option<&str>, start: bool, end: bool) -> &'a str {
    let strip = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if start {
        text.trim_start_matches(strip)
    } else {
        text
    };
    if end {
        text.trim_end_matches(strip)
    } else {
        text
    }
}

/// The `trim` filter.
pub(super) fn trim_filter(value: &Value, chars: Option<&str>) -> String {
    trimmed(&super::python::to_str(value), chars, true, true).to_string()
}

/// A test of Jinja, by name.
type Test = (&'static str, fn(&Value) -> bool);

/// Tests whose outcome is Python's own idea: everything with a length is a sequence, `None` cannot be iterated over (though an
/// undefined value can), and truth values are numbers.
pub(super) const TESTS: &[Test] = &[
    ("iterable", is_iterable),
    ("sequence", |value| {
        is_iterable(value) && value.len().is_some() || value.is_undefined()
    }),
    ("number", |value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
    }),
];

fn is_iterable(value: &Value) -> bool {
    !matches!(
        value.kind(),
        ValueKind::None | ValueKind::Bool | ValueKind::Number | ValueKind::Plain
    )
}

/// The `indent` filter: unlike the one of minijinja it keeps a line end at the end.
pub(super) fn indent_filter(
    text: &str,
    width: Option<Value>,
    first: Option<bool>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let width = width.or(kwargs.get("width")?);
    let first = first.or(kwargs.get("first")?).unwrap_or(false);
    let blank = kwargs.get::<Option<bool>>("blank")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    let indention = match &width {
        None => " ".repeat(4),
        Some(width) => match width.as_str() {
            Some(text) => text.to_string(),
            None => " ".repeat(usize::try_from(width.clone())?.min(1024)),
        },
    };
    let mut out = if first {
        indention.clone()
    } else {
        String::new()
    };
    for (index, line) in text.split('\n').enumerate() {
        if index > 0 {
            out.push('\n');
            if blank || !line.is_empty() {
                out.push_str(&indention);
            }
        }
        out.push_str(line.strip_suffix('\r').unwrap_or(line));
    }
    Ok(out)
}

fn string_method(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let result = match method {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            Value::from(trimmed(text, chars, method != "rstrip", method != "lstrip"))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "rsplit" => {
            let (separator, limit): (Option<&str>, Option<i64>) = from_args(args)?;
            rsplit(
                text,
                separator,
                limit.and_then(|limit| usize::try_from(limit).ok()),
            )?
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let found = if method == "partition" {
                text.split_once(separator)
            } else {
                text.rsplit_once(separator)
            };
            let parts = match found {
                Some((before, after)) => [before, separator, after],
                None if method == "partition" => [text, "", ""],
                None => ["", "", text],
            };
            parts.into_iter().collect()
        }
        "index" => {
            let (what,): (&str,) = from_args(args)?;
            let at = text.find(what).ok_or_else(|| not_found("substring"))?;
            Value::from(text[..at].chars().count())
        }
        "casefold" => Value::from(text.to_lowercase()),
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            Value::from(format!("{text:0>width$}", width = width.min(1024)))
        }
        _ => return Ok(None),
    };
    Ok(Some(result))
}

fn rsplit(text: &str, separator: Option<&str>, limit: Option<usize>) -> Result<Value, Error> {
    let limit = limit.map_or(usize::MAX, |limit| limit.saturating_add(1));
    let mut parts: Vec<&str> = match separator {
        Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
        Some(separator) => text.rsplitn(limit, separator).collect(),
        None => {
            let mut parts = Vec::new();
            let mut rest = text.trim_end_matches(is_space);
            while !rest.is_empty() {
                let start = if parts.len() + 1 == limit {
                    None
                } else {
                    rest.rfind(is_space)
                };
                let word_start = start.map_or(0, |at| {
                    at + rest[at..].chars().next().map_or(1, char::len_utf8)
                });
                parts.push(&rest[word_start..]);
                rest = rest[..start.unwrap_or(0)].trim_end_matches(is_space);
            }
            parts
        }
    };
    parts.reverse();
    Ok(parts.into_iter().collect())
}

fn list_index(list: &Value, args: &[Value]) -> Result<Value, Error> {
    let (what,): (&Value,) = from_args(args)?;
    let at = list.try_iter()?.position(|item| item == *what);
    at.map(Value::from).ok_or_else(|| not_found("item"))
}

fn not_found(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("{what} not found"))
}

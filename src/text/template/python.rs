//! Values as Python writes them: `str`, `repr` and `json.dumps`.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// How deep lists and maps may be nested when they are written.
const MAX_DEPTH: usize = 200;

/// `str(value)`.
pub(super) fn to_str(value: &Value) -> String {
    let mut out = String::new();
    // Writing into a string cannot fail.
    let _ = write_str(&mut out, value);
    out
}

/// Writes `str(value)`: strings as they are, everything else as `repr`; undefined values as nothing.
pub(super) fn write_str(out: &mut impl Write, value: &Value) -> std::fmt::Result {
    match value.as_str() {
        Some(text) => out.write_str(text),
        None => write_repr(out, value, 0),
    }
}

fn write_repr(out: &mut impl Write, value: &Value, depth: usize) -> std::fmt::Result {
    if depth > MAX_DEPTH {
        return out.write_str("...");
    }
    match value.kind() {
        ValueKind::String => write_quoted(out, value.as_str().unwrap_or_default()),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) => out.write_str(&float_repr(number)),
            Err(_) => write!(out, "{value}"),
        },
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = if value.is_tuple() {
                ('(', ')')
            } else {
                ('[', ']')
            };
            out.write_char(open)?;
            for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.write_str(if index > 0 { ", " } else { "" })?;
                write_repr(out, &item, depth + 1)?;
            }
            out.write_char(close)
        }
        ValueKind::Map => {
            out.write_char('{')?;
            for (index, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.write_str(if index > 0 { ", " } else { "" })?;
                write_repr(out, &key, depth + 1)?;
                out.write_str(": ")?;
                write_repr(out, &value.get_item(&key).unwrap_or_default(), depth + 1)?;
            }
            out.write_char('}')
        }
        _ => write!(out, "{value}"),
    }
}

/// A string in quotes as Python chooses and escapes them.
fn write_quoted(out: &mut impl Write, text: &str) -> std::fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.write_char(quote)?;
    for c in text.chars() {
        match c {
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            '\\' => out.write_str("\\\\")?,
            c if c == quote => write!(out, "\\{c}")?,
            c if (c as u32) < 0x20 || (0x7F..0xA1).contains(&(c as u32)) => {
                write!(out, "\\x{:02x}", c as u32)?
            }
            c => out.write_char(c)?,
        }
    }
    out.write_char(quote)
}

/// `repr(number)`: the shortest digits that read back the same, with an exponent below 1e-4 and from 1e16.
fn float_repr(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_string();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_string();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if number != 0.0 && !(-4..16).contains(&exponent) => {
            format!(
                "{digits}e{}{:02}",
                if exponent < 0 { '-' } else { '+' },
                exponent.abs()
            )
        }
        _ => format!("{number:?}"),
    }
}

/// The `tojson` filter with transformers' defaults: `json.dumps(value, ensure_ascii=False)`, not escaped for HTML.
pub(super) fn tojson(
    state: &State,
    value: &Value,
    indent: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => kwargs.get("indent")?,
    };
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) => Some(indent_text(&indent)?),
    };
    let separators: Option<Value> = kwargs.get("separators")?;
    let mut style = Style {
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        item: if indent.is_some() {
            ",".to_string()
        } else {
            ", ".to_string()
        },
        key: ": ".to_string(),
        indent,
    };
    if let Some(separators) = separators.filter(|separators| !separators.is_none()) {
        style.item = to_str(&separators.get_item_by_index(0)?);
        style.key = to_str(&separators.get_item_by_index(1)?);
    }
    kwargs.assert_all_used()?;
    let mut out = String::new();
    write_json(&mut out, value, &style, 0)?;
    state.consume_fuel(out.len() as u64 / 16)?;
    Ok(Value::from(out))
}

fn indent_text(indent: &Value) -> Result<String, Error> {
    if let Some(text) = indent.as_str() {
        return Ok(text.to_string());
    }
    let count = usize::try_from(indent.clone())?;
    if count > 64 {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "`indent` of tojson is over 64",
        ));
    }
    Ok(" ".repeat(count))
}

struct Style {
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    item: String,
    key: String,
}

impl Style {
    fn new_line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }
}

fn write_json(out: &mut String, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(
            ErrorKind::BadSerialization,
            "value is nested too deeply for JSON",
        ));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
        ValueKind::Number => {
            out.push_str(&match float_repr(f64::try_from(value.clone())?).as_str() {
                "nan" => "NaN".to_string(),
                "inf" => "Infinity".to_string(),
                "-inf" => "-Infinity".to_string(),
                number => number.to_string(),
            })
        }
        ValueKind::String => {
            write_json_string(out, value.as_str().unwrap_or_default(), style.ensure_ascii)
        }
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            let mut empty = true;
            for item in value.try_iter()? {
                out.push_str(if empty { "" } else { &style.item });
                style.new_line(out, depth + 1);
                write_json(out, &item, style, depth + 1)?;
                empty = false;
            }
            if !empty {
                style.new_line(out, depth);
            }
            out.push(']');
        }
        ValueKind::Map => write_json_map(out, value, style, depth)?,
        kind => {
            return Err(Error::new(
                ErrorKind::BadSerialization,
                format!("a value of kind {kind} cannot become JSON"),
            ));
        }
    }
    Ok(())
}

fn write_json_map(
    out: &mut String,
    value: &Value,
    style: &Style,
    depth: usize,
) -> Result<(), Error> {
    let mut keys: Vec<Value> = value.try_iter()?.collect();
    if style.sort_keys {
        keys.sort_by_key(to_str);
    }
    out.push('{');
    for (index, key) in keys.iter().enumerate() {
        out.push_str(if index > 0 { &style.item } else { "" });
        style.new_line(out, depth + 1);
        let name = match key.kind() {
            ValueKind::None => "null".to_string(),
            ValueKind::Bool => to_str(key).to_lowercase(),
            _ => to_str(key),
        };
        write_json_string(out, &name, style.ensure_ascii);
        out.push_str(&style.key);
        write_json(out, &value.get_item(key)?, style, depth + 1)?;
    }
    if !keys.is_empty() {
        style.new_line(out, depth);
    }
    out.push('}');
    Ok(())
}

fn write_json_string(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || (ensure_ascii && (c as u32) > 0x7E) => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        let cases = [
            (1.0, "1.0"),
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.25e-7, "1.25e-07"),
            (123456.789, "123456.789"),
        ];
        for (number, expected) in cases {
            assert_eq!(float_repr(number), expected);
        }
    }

    #[test]
    fn containers_print_as_python_literals() {
        let value = Value::from_pairs([
            (
                "a",
                Value::from(vec![Value::from(1), Value::from(true), Value::from(())]),
            ),
            ("it's", Value::from("say \"hi\"\n")),
            ("b", Value::from("it's")),
        ]);
        assert_eq!(
            to_str(&value),
            r#"{'a': [1, True, None], "it's": 'say "hi"\n', 'b': "it's"}"#
        );
    }
}

//! Reading a JSON body field by field. Every mistake names the field, what is allowed and what came.
//!
//! `null` means absent. A name that nobody knows is an error, with the nearest name that somebody does: a misspelt field that
//! is dropped gives wrong answers without a word.

use std::fmt;

use serde_json::{Map, Value};

use super::error::ApiError;

/// The names that an object may have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names {
    /// With a meaning here.
    pub known: &'static [&'static str],
    /// Without a meaning here, and harmless.
    pub harmless: &'static [&'static str],
    /// With a meaning elsewhere that this version does not have, and what to do.
    pub unsupported: &'static [(&'static str, &'static str)],
}

/// What other programs call our fields.
const ALIASES: &[(&str, &str)] = &[
    ("repeat_penalty", "repetition_penalty"),
    ("repeat_last_n", "repetition_window"),
    ("max_new_tokens", "max_tokens"),
    ("max_length", "max_tokens"),
    ("num_predict", "max_tokens"),
    ("n_predict", "max_tokens"),
    ("stop_sequences", "stop"),
    ("prompt", "messages"),
    ("input", "messages"),
];

/// How alike two names must be, from 0 to 1, to ask whether one was meant.
const LIKENESS: f64 = 0.6;

/// The fields of a JSON object that were not read yet.
#[derive(Debug)]
pub(super) struct Fields {
    fields: Map<String, Value>,
    /// What stands before the names: nothing, or `messages[3].`.
    path: String,
}

impl Fields {
    /// The fields of `value`, which messages call `what` and whose names follow `path`.
    ///
    /// # Errors
    /// When it is no object, or has a name that is not in `names`.
    pub(super) fn new(
        value: Value,
        what: &str,
        path: impl Into<String>,
        names: &Names,
    ) -> Result<Self, ApiError> {
        let path = path.into();
        let Value::Object(mut fields) = value else {
            let message = format!("{what} must be a JSON object, got {}", shown(&value));
            let param = path.trim_end_matches('.');
            return Err(if param.is_empty() {
                ApiError::body(message)
            } else {
                ApiError::field(param, "invalid_type", message)
            });
        };
        fields.retain(|_, value| !value.is_null());
        let fields = Self { fields, path };
        fields.check_names(names)?;
        Ok(fields)
    }

    fn check_names(&self, names: &Names) -> Result<(), ApiError> {
        for name in self.fields.keys() {
            let param = self.param(name);
            if names.known.contains(&name.as_str()) || names.harmless.contains(&name.as_str()) {
                continue;
            }
            if let Some((_, advice)) = names.unsupported.iter().find(|(known, _)| known == name) {
                return Err(unsupported(param, advice));
            }
            let mut message = format!("unknown field `{}`", clipped(&param));
            if let Some(near) = nearest(name, names.known) {
                message.push_str(&format!(", did you mean `{}`?", self.param(near)));
            }
            return Err(ApiError::field(
                clipped(&param),
                "unknown_parameter",
                message,
            ));
        }
        Ok(())
    }

    /// The full name of a field.
    pub(super) fn param(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    /// A field of any type.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.fields.remove(name)
    }

    /// A text.
    ///
    /// # Errors
    /// For another type.
    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong_type(name, "a string", &other)),
        }
    }

    /// `true` or `false`.
    ///
    /// # Errors
    /// For another type.
    pub(super) fn flag(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(other) => Err(self.wrong_type(name, "true or false", &other)),
        }
    }

    /// A number within `range`.
    ///
    /// # Errors
    /// For another type or outside of the range.
    pub(super) fn number(&mut self, name: &str, range: Range) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        let Some(number) = value.as_f64() else {
            return Err(self.wrong_type(name, &format!("a number {range}"), &value));
        };
        let rounded = number as f32;
        if rounded.is_infinite() && matches!(range, Range::Above(_)) {
            let most = format!("at most {:e}", f32::MAX);
            return Err(self.out_of_range(name, "decimal_above_max_value", most, &value));
        }
        // What is a little more than a bound may be rounded to it.
        match range
            .side(number)
            .or_else(|| range.side(f64::from(rounded)))
        {
            None => Ok(Some(rounded)),
            Some(Side::Below) => {
                Err(self.out_of_range(name, "decimal_below_min_value", range, &value))
            }
            Some(Side::Above) => {
                Err(self.out_of_range(name, "decimal_above_max_value", range, &value))
            }
        }
    }

    /// A whole number within `range`.
    ///
    /// # Errors
    /// For another type or outside of the range.
    pub(super) fn integer(
        &mut self,
        name: &str,
        range: IntRange,
    ) -> Result<Option<i128>, ApiError> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        let Some(number) = whole(&value) else {
            let of = if range.most == i128::MAX { "of " } else { "" };
            return Err(self.wrong_type(name, &format!("an integer {of}{range}"), &value));
        };
        if number < range.least {
            return Err(self.out_of_range(name, "integer_below_min_value", range, &value));
        }
        if number > range.most {
            return Err(self.out_of_range(name, "integer_above_max_value", range, &value));
        }
        Ok(Some(number))
    }

    /// A count of at least `least`; larger than any memory is as large as it gets.
    ///
    /// # Errors
    /// As [`Fields::integer`].
    pub(super) fn count(&mut self, name: &str, least: i128) -> Result<Option<usize>, ApiError> {
        let range = IntRange {
            least,
            most: i128::MAX,
        };
        let number = self.integer(name, range)?;
        Ok(number.map(|number| usize::try_from(number).unwrap_or(usize::MAX)))
    }

    /// The field `name` has a value of the wrong type.
    pub(super) fn wrong_type(&self, name: &str, expected: &str, found: &Value) -> ApiError {
        let param = self.param(name);
        let message = format!("`{param}` must be {expected}, got {}", shown(found));
        ApiError::field(param, "invalid_type", message)
    }

    /// The field `name` has a value that it must not have.
    pub(super) fn invalid(&self, name: &str, message: impl Into<String>) -> ApiError {
        ApiError::field(self.param(name), "invalid_value", message)
    }

    /// The field `name` is needed.
    pub(super) fn missing(&self, name: &str, expected: &str) -> ApiError {
        let param = self.param(name);
        let message = format!("`{param}` is missing, expected {expected}");
        ApiError::field(param, "missing_required_parameter", message)
    }

    fn out_of_range(
        &self,
        name: &str,
        code: &'static str,
        range: impl fmt::Display,
        found: &Value,
    ) -> ApiError {
        let param = self.param(name);
        let message = format!("`{param}` must be {range}, got {}", shown(found));
        ApiError::field(param, code, message)
    }
}

/// A field that this version has no answer to.
pub(super) fn unsupported(param: impl Into<String>, advice: &str) -> ApiError {
    let param = param.into();
    let mut message = format!("this version of oxydllm does not support `{param}`");
    if !advice.is_empty() {
        message.push_str(&format!(": {advice}"));
    }
    ApiError::field(param, "unsupported_parameter", message)
}

/// A value that this version has no answer to, of a field that it knows.
pub(super) fn unsupported_value(param: impl Into<String>, value: &str, advice: &str) -> ApiError {
    let param = param.into();
    let message = format!(
        "`{param}` is `{}`, which this version of oxydllm does not support: {advice}",
        clipped(value)
    );
    ApiError::field(param, "unsupported_value", message)
}

/// The numbers that a field may have; always finite ones.
#[derive(Debug, Clone, Copy)]
pub(super) enum Range {
    /// From the first to the second, both included.
    Between(f64, f64),
    /// Anything above.
    Above(f64),
}

/// Where a number lies that is not in a range.
enum Side {
    Below,
    Above,
}

impl Range {
    fn side(self, number: f64) -> Option<Side> {
        let (is_below, is_above) = match self {
            Self::Between(least, most) => (number < least, number > most),
            Self::Above(bound) => (number <= bound, false),
        };
        match (is_below, is_above) {
            (true, _) => Some(Side::Below),
            (_, true) => Some(Side::Above),
            _ => None,
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Between(least, most) => write!(f, "between {least} and {most}"),
            Self::Above(bound) => write!(f, "more than {bound}"),
        }
    }
}

/// The whole numbers that a field may have, both ends included.
#[derive(Debug, Clone, Copy)]
pub(super) struct IntRange {
    pub least: i128,
    pub most: i128,
}

impl fmt::Display for IntRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.most {
            i128::MAX => write!(f, "at least {}", self.least),
            most => write!(f, "between {} and {most}", self.least),
        }
    }
}

/// A whole number however it is written: `3` or `3.0`.
fn whole(value: &Value) -> Option<i128> {
    let number = value.as_number()?;
    if let Some(number) = number.as_i64() {
        return Some(number.into());
    }
    if let Some(number) = number.as_u64() {
        return Some(number.into());
    }
    number
        .as_f64()
        .filter(|number| number.fract() == 0.0)
        .map(|number| number as i128)
}

/// The known name that is most like `name`, if any is.
fn nearest(name: &str, known: &[&'static str]) -> Option<&'static str> {
    let name = name.to_lowercase();
    let alias = ALIASES.iter().find(|(alias, _)| *alias == name);
    if let Some(&(_, meant)) = alias
        && known.contains(&meant)
    {
        return Some(meant);
    }
    if name.len() > 64 {
        return None;
    }
    let likeness = |known: &str| strsim::normalized_damerau_levenshtein(&name, known);
    known
        .iter()
        .map(|known| (likeness(known), *known))
        .filter(|(likeness, _)| *likeness >= LIKENESS)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, known)| known)
}

/// A value as JSON, cut when it is long.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("an array of {}", items.len()),
        Value::Object(_) => "an object".to_owned(),
        other => clipped(&other.to_string()),
    }
}

/// A text that came from outside, short enough for a message.
pub(super) fn clipped(text: &str) -> String {
    const MOST: usize = 100;
    match text.char_indices().nth(MOST) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NAMES: Names = Names {
        known: &[
            "temperature",
            "top_p",
            "top_k",
            "max_tokens",
            "repetition_penalty",
            "n",
            "stop",
        ],
        harmless: &["user"],
        unsupported: &[("tools", "wait")],
    };

    fn fields(value: Value) -> Fields {
        Fields::new(value, "the body", "", &NAMES).unwrap()
    }

    /// The message of the refusal of an object.
    fn refusal(value: Value) -> String {
        let error = Fields::new(value, "the body", "", &NAMES).unwrap_err();
        error.message().to_owned()
    }

    #[test]
    fn unknown_names_are_refused_with_the_nearest_known_one() {
        let cases = [
            ("temprature", Some("temperature")),
            ("topP", Some("top_p")),
            ("max_new_tokens", Some("max_tokens")),
            ("maxTokens", Some("max_tokens")),
            ("repeat_penalty", Some("repetition_penalty")),
            ("stop_sequences", Some("stop")),
            ("grammar", None),
            ("mirostat_tau", None),
        ];
        for (name, near) in cases {
            let mut expected = format!("unknown field `{name}`");
            if let Some(near) = near {
                expected.push_str(&format!(", did you mean `{near}`?"));
            }
            assert_eq!(refusal(json!({ name: 1 })), expected);
        }
        assert_eq!(
            refusal(json!({ "tools": [] })),
            "this version of oxydllm does not support `tools`: wait"
        );
        fields(json!({ "user": "me", "grammar": null, "tools": null }));
    }

    #[test]
    fn a_body_that_is_no_object_is_refused() {
        for value in [json!([]), json!("x"), json!(3), json!(null)] {
            assert!(refusal(value).starts_with("the body must be a JSON object, got "));
        }
    }

    #[test]
    fn numbers_are_held_to_both_ends_of_their_range() {
        let read = |value: Value, range: Range| {
            let read = fields(json!({ "top_p": value })).number("top_p", range);
            read.map_err(|error| error.message().to_owned())
        };
        let share = Range::Between(0.0, 1.0);
        assert_eq!(read(json!(0), share), Ok(Some(0.0)));
        assert_eq!(read(json!(-0.0), share), Ok(Some(0.0)));
        assert_eq!(read(json!(1.0), share), Ok(Some(1.0)));
        assert_eq!(read(json!(null), share), Ok(None));
        for (value, shown) in [
            (json!(-1e-9), "-1e-9"),
            (json!(1.000_000_001), "1.000000001"),
            (json!(1e300), "1e+300"),
            (json!(u64::MAX), "18446744073709551615"),
        ] {
            let message = format!("`top_p` must be between 0 and 1, got {shown}");
            assert_eq!(read(value, share), Err(message));
        }
        let positive = Range::Above(0.0);
        assert_eq!(read(json!(0.01), positive), Ok(Some(0.01)));
        for value in [json!(0), json!(-1), json!(1e-60)] {
            let message = read(value, positive).unwrap_err();
            assert!(message.starts_with("`top_p` must be more than 0, got "));
        }
        let message = read(json!(1e39), positive).unwrap_err();
        assert!(
            message.starts_with("`top_p` must be at most 3.4028"),
            "{message}"
        );
        assert_eq!(
            read(json!("0.5"), share).unwrap_err(),
            "`top_p` must be a number between 0 and 1, got \"0.5\""
        );
    }

    #[test]
    fn integers_may_be_written_with_a_fraction_of_zero() {
        let read = |value: Value| {
            let range = IntRange {
                least: 1,
                most: 128,
            };
            let read = fields(json!({ "n": value })).integer("n", range);
            read.map_err(|error| error.message().to_owned())
        };
        assert_eq!(read(json!(1)), Ok(Some(1)));
        assert_eq!(read(json!(128.0)), Ok(Some(128)));
        for value in [json!(0), json!(129), json!(-3), json!(1e30)] {
            let message = read(value).unwrap_err();
            assert!(
                message.starts_with("`n` must be between 1 and 128, got "),
                "{message}"
            );
        }
        for value in [json!(1.5), json!("2"), json!(true), json!([2])] {
            let message = read(value).unwrap_err();
            assert!(
                message.starts_with("`n` must be an integer between 1 and 128, got "),
                "{message}"
            );
        }
    }

    #[test]
    fn counts_have_no_upper_end() {
        let read = |value: Value| fields(json!({ "max_tokens": value })).count("max_tokens", 1);
        assert_eq!(read(json!(u64::MAX)).unwrap(), Some(usize::MAX));
        assert_eq!(read(json!(1e30)).unwrap(), Some(usize::MAX));
        let message = read(json!(0)).unwrap_err().message().to_owned();
        assert_eq!(message, "`max_tokens` must be at least 1, got 0");
        let message = read(json!("5")).unwrap_err().message().to_owned();
        assert_eq!(
            message,
            "`max_tokens` must be an integer of at least 1, got \"5\""
        );
    }

    #[test]
    fn long_values_are_cut_in_messages() {
        let message = refusal(json!({ "x".repeat(5000): 1 }));
        assert!(message.chars().count() < 200, "{message}");
        assert_eq!(shown(&json!({ "a": [1, 2] })), "an object");
    }
}

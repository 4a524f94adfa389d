//! [`Fields`]: typed access to an object of a JSON description. What has a wrong type is refused by name: passed over, it would mean
//! its default, and a model that computes something else.

use serde_json::Value;

use crate::error::{Error, Result};

/// The fields of an object. `null` stands for a field that is not there, but for switches.
#[derive(Debug, Clone, Copy)]
pub(in crate::model) struct Fields<'a> {
    object: &'a Value,
    /// The field that the object is of; `None` for a whole file.
    owner: Option<&'a str>,
}

impl<'a> Fields<'a> {
    /// The fields of a whole file.
    pub fn of(file: &'a Value) -> Self {
        Self {
            object: file,
            owner: None,
        }
    }

    /// Whatever stands there.
    pub fn get(self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    /// `true` or `false`. Classes take `null` for false, whatever their default.
    pub fn flag(self, key: &str) -> Result<Option<bool>> {
        if self.object.get(key).is_some_and(Value::is_null) {
            return Ok(Some(false));
        }
        self.typed(key, "`true` or `false`", Value::as_bool)
    }

    /// A number.
    pub fn number(self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number", Value::as_f64)
    }

    /// A text, which is `what` in messages ("the name of a rotation").
    pub fn text(self, key: &str, what: &str) -> Result<Option<&'a str>> {
        self.typed(key, what, Value::as_str)
    }

    /// A list.
    pub fn list(self, key: &str) -> Result<Option<&'a [Value]>> {
        let list = self.typed(key, "a list", Value::as_array)?;
        Ok(list.map(Vec::as_slice))
    }

    /// The fields of an object in this one.
    pub fn nested(self, key: &'a str) -> Result<Option<Self>> {
        let object = self.typed(key, "an object", |value| value.is_object().then_some(value))?;
        Ok(object.map(|object| Self {
            object,
            owner: Some(key),
        }))
    }

    fn typed<T>(
        self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let wrong = || {
            let place = self.owner.map_or(String::new(), |o| format!(" in `{o}`"));
            Error::invalid(format!("`{key}`{place} is {value}, expected {expected}"))
        };
        read(value).map(Some).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn null_is_absent_and_a_wrong_type_is_refused_with_what_is_there_and_where() {
        let file = json!({"a": null, "b": "true", "c": {"d": 5}});
        let fields = Fields::of(&file);
        assert_eq!(fields.flag("a").unwrap(), Some(false));
        assert_eq!(fields.number("a").unwrap(), None);
        assert_eq!(fields.flag("x").unwrap(), None);
        let refusal = |error: Error| error.chain();
        assert_eq!(
            refusal(fields.flag("b").unwrap_err()),
            "`b` is \"true\", expected `true` or `false`"
        );
        assert_eq!(
            refusal(fields.list("c").unwrap_err()),
            "`c` is {\"d\":5}, expected a list"
        );
        assert!(fields.nested("b").is_err());
        let inner = fields.nested("c").unwrap().unwrap();
        assert_eq!(inner.number("d").unwrap(), Some(5.0));
        assert_eq!(
            refusal(inner.text("d", "a name").unwrap_err()),
            "`d` in `c` is 5, expected a name"
        );
    }
}

//! Log lines as JSON: one object a line, with `timestamp`, `level`, `target`, `message` and `fields`.
//!
//! `fields` holds the event's fields and those of the spans around it, the innermost first. `request_id` stands at the top
//! as well, for tools that look only there.

use std::fmt;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

/// The field that is repeated at the top of a line.
const REQUEST_ID: &str = "request_id";

/// Writes events as JSON objects. The span fields must be formatted as JSON too.
#[derive(Debug, Clone, Copy)]
pub(super) struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let message = fields.0.shift_remove("message").unwrap_or_default();
        for span in context.event_scope().into_iter().flatten() {
            let extensions = span.extensions();
            let text = extensions.get::<FormattedFields<N>>();
            let of_span = text.and_then(|text| serde_json::from_str(text).ok());
            for (name, value) in of_span.unwrap_or_else(Map::new) {
                fields.0.entry(name).or_insert(value);
            }
        }
        let mut timestamp = String::new();
        SystemTime.format_time(&mut Writer::new(&mut timestamp))?;
        let metadata = event.metadata();
        let mut line = Map::new();
        line.insert("timestamp".to_owned(), timestamp.into());
        line.insert("level".to_owned(), metadata.level().as_str().into());
        line.insert("target".to_owned(), metadata.target().into());
        line.insert("message".to_owned(), message);
        if let Some(id) = fields.0.get(REQUEST_ID) {
            line.insert(REQUEST_ID.to_owned(), id.clone());
        }
        line.insert("fields".to_owned(), Value::Object(fields.0));
        writeln!(writer, "{}", Value::Object(line))
    }
}

/// The fields of an event as JSON values.
#[derive(Default)]
struct Fields(Map<String, Value>);

impl Fields {
    fn insert(&mut self, field: &Field, value: impl Into<Value>) {
        let name = field.name().trim_start_matches("r#");
        self.0.insert(name.to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.insert(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.insert(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.insert(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::fmt::MakeWriter;
    use tracing_subscriber::fmt::format::JsonFields;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Lines {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    /// What `run` logs.
    fn logged(run: impl FnOnce()) -> Vec<Value> {
        let lines = Lines::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(lines.clone())
            .fmt_fields(JsonFields::new())
            .event_format(JsonLines)
            .finish();
        tracing::subscriber::with_default(subscriber, run);
        let bytes = lines.0.lock().unwrap();
        let text = String::from_utf8(bytes.clone()).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[test]
    fn the_request_id_is_at_the_top_and_among_the_fields() {
        let lines = logged(|| {
            let request = tracing::error_span!("http.request", request_id = "r-1", path = "/x");
            let _request = request.enter();
            let _inner = tracing::info_span!("inner", path = "/y", seq = 3).entered();
            tracing::info!(tokens = 7, fast = true, "done: {}", "ok");
        });
        let [line] = &lines[..] else {
            panic!("{lines:?}")
        };
        assert_eq!(line["message"], "done: ok");
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["request_id"], "r-1");
        let fields = serde_json::json!({
            "tokens": 7, "fast": true, "request_id": "r-1", "path": "/y", "seq": 3,
        });
        assert_eq!(line["fields"], fields);
        assert!(line["timestamp"].as_str().unwrap().ends_with('Z'), "{line}");
    }

    #[test]
    fn a_line_outside_of_a_request_has_no_request_id() {
        let lines = logged(|| tracing::warn!("a \"quoted\"\nline"));
        assert_eq!(lines[0]["message"], "a \"quoted\"\nline");
        assert_eq!(lines[0].get("request_id"), None);
        assert_eq!(lines[0]["fields"], serde_json::json!({}));
    }
}

//! Logs. Library code uses `tracing`; this module decides where that goes: standard error, as text or as JSON lines.
//!
//! In both forms a line within a span carries the fields of the span, so that all lines of a request have its `request_id`
//! (`json.rs` for where). [`metrics`] holds the counters of a server.
//!
//! Commands that talk to a person log warnings only ([`INTERACTIVE_FILTER`]), so that `list` and `run` stay clean;
//! a server also logs information ([`SERVER_FILTER`]). `RUST_LOG` overrides either.

mod json;
pub mod metrics;

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::JsonFields;

use crate::env;
use crate::error::{Error, Result};

pub use metrics::Metrics;

/// What is logged by commands that talk to a person, unless `RUST_LOG` says otherwise.
pub const INTERACTIVE_FILTER: &str = "oxydllm=warn,hyper=warn,tower=warn";

/// What is logged by a server, unless `RUST_LOG` says otherwise.
pub const SERVER_FILTER: &str = "oxydllm=info,hyper=warn,tower=warn";

/// Installs the log writer of the process. A second call changes nothing.
///
/// # Errors
/// `Invalid` when `RUST_LOG` is not a log filter.
pub fn init(default_filter: &str) -> Result<()> {
    let filter = parse_filter(env::RUST_LOG.text()?.as_deref().unwrap_or(default_filter))?;
    let is_json = env::LOG_FORMAT
        .text()?
        .is_some_and(|format| format.eq_ignore_ascii_case("json"));
    let use_color = std::io::stderr().is_terminal() && env::NO_COLOR.text()?.is_none();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    // An already installed subscriber (a test, an embedding program) stays in charge.
    let _ = if is_json {
        builder
            .fmt_fields(JsonFields::new())
            .event_format(json::JsonLines)
            .try_init()
    } else {
        builder.compact().with_ansi(use_color).try_init()
    };
    Ok(())
}

fn parse_filter(text: &str) -> Result<EnvFilter> {
    EnvFilter::try_new(text).map_err(|cause| {
        Error::invalid(format!("environment variable `RUST_LOG` is `{text}`, expected a log filter such as `oxydllm=debug`"))
            .with_source(cause)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_filter_is_an_error_that_names_the_variable() {
        assert!(parse_filter(INTERACTIVE_FILTER).is_ok());
        assert!(parse_filter(SERVER_FILTER).is_ok());
        let error = parse_filter("oxydllm=loud").unwrap_err();
        assert!(
            error.to_string().contains("`RUST_LOG` is `oxydllm=loud`"),
            "{error}"
        );
    }
}

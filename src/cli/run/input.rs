//! Where the prompt of a single answer comes from: the argument, standard input, or both.

use std::io::{IsTerminal, Read};
use std::path::Path;

use crate::error::{Error, Result};

/// The prompt to answer once, or `None` for a chat: nothing was given and somebody sits at the terminal.
pub(super) fn prompt(argument: Option<&str>) -> Result<Option<String>> {
    let piped = if std::io::stdin().is_terminal() {
        None
    } else {
        let mut bytes = Vec::new();
        std::io::stdin()
            .lock()
            .read_to_end(&mut bytes)
            .map_err(|cause| Error::io("read", Path::new("standard input"), cause))?;
        Some(bytes)
    };
    join(argument, piped)
}

fn join(argument: Option<&str>, piped: Option<Vec<u8>>) -> Result<Option<String>> {
    if argument.is_none() && piped.is_none() {
        return Ok(None);
    }
    let piped = String::from_utf8(piped.unwrap_or_default()).map_err(|cause| {
        let at = cause.utf8_error().valid_up_to();
        Error::invalid(format!(
            "standard input is not UTF-8 text, first at byte {at}"
        ))
    })?;
    let parts: Vec<&str> = [argument.unwrap_or_default(), piped.trim_end()]
        .into_iter()
        .filter(|part| !part.trim().is_empty())
        .collect();
    if parts.is_empty() {
        return Err(Error::invalid(
            "the prompt is empty: neither the argument nor standard input has text",
        )
        .with_hint("run it in a terminal without a prompt to chat"));
    }
    Ok(Some(parts.join("\n\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(argument: Option<&str>, piped: Option<&str>) -> Option<String> {
        join(argument, piped.map(|text| text.as_bytes().to_vec())).unwrap()
    }

    #[test]
    fn argument_comes_before_standard_input() {
        assert_eq!(
            text(Some("summarise"), Some("a\nb\n")).as_deref(),
            Some("summarise\n\na\nb")
        );
        assert_eq!(text(Some("hi"), Some("")).as_deref(), Some("hi"));
        assert_eq!(text(None, Some("  hi\n")).as_deref(), Some("  hi"));
        assert_eq!(text(Some("hi"), None).as_deref(), Some("hi"));
    }

    #[test]
    fn without_either_it_is_a_chat() {
        assert_eq!(text(None, None), None);
    }

    #[test]
    fn an_empty_prompt_and_bytes_that_are_no_text_are_errors() {
        assert!(join(None, Some(b" \n".to_vec())).is_err());
        assert!(join(Some(" "), None).is_err());
        let error = join(Some("x"), Some(b"ab\xff".to_vec())).unwrap_err();
        assert!(error.chain().contains("byte 2"), "{}", error.chain());
    }
}

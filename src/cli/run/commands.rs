//! The lines that are for the program and not for the model.

/// What a line that begins with `/` asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command<'a> {
    /// Leave.
    Exit,
    /// Forget the conversation.
    Clear,
    /// Replace the system message, or show it when there is no text.
    System(&'a str),
    /// Explain.
    Help,
    /// No such command.
    Unknown(&'a str),
}

/// The text of `/help`.
pub(super) const HELP: &str = "\
/clear          forget the conversation, keep the system message
/system TEXT    replace the system message; without TEXT show it
/help           this list
/exit, /quit    leave (also Ctrl-D, or Ctrl-C twice)

Ctrl-C stops an answer. Up recalls earlier messages, Ctrl-R searches them.
Alt-Enter begins a new line; text that is pasted stays one message.
A message that shall begin with `/` and a word needs a space before it.";

/// The command in `line`; `None` when it is a message. A path or a comment (`/usr/lib`, `/* x */`) is a message.
pub(super) fn parse(line: &str) -> Option<Command<'_>> {
    let rest = line.strip_prefix('/')?;
    let (word, text) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    if !word.chars().all(|c| c.is_ascii_alphabetic() || c == '?') {
        return None;
    }
    Some(match word {
        "exit" | "quit" | "bye" => Command::Exit,
        "clear" => Command::Clear,
        "system" => Command::System(text.trim()),
        "help" | "?" => Command::Help,
        _ => Command::Unknown(word),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_recognised_and_unknown_ones_named() {
        assert_eq!(parse("/exit"), Some(Command::Exit));
        assert_eq!(parse("/quit "), Some(Command::Exit));
        assert_eq!(parse("/clear"), Some(Command::Clear));
        assert_eq!(
            parse("/system  Speak\nLatin "),
            Some(Command::System("Speak\nLatin"))
        );
        assert_eq!(parse("/system"), Some(Command::System("")));
        assert_eq!(parse("/ext now"), Some(Command::Unknown("ext")));
        assert_eq!(parse("/"), Some(Command::Unknown("")));
    }

    #[test]
    fn other_text_goes_to_the_model() {
        for line in [
            "hello",
            " /exit",
            "/usr/lib is full",
            "/* comment */",
            "//x",
            "a /exit",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }
}

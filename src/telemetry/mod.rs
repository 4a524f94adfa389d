//! Logs: subscriber set-up.

//! The one HTTP client: time-outs, retry, resume, no token to foreign hosts.

//! Integration tests: one binary, so that it links once.

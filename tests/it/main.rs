//! Integration tests: one binary, so that it links once.
mod cli;
mod cli_pull;
mod layering;
mod support;

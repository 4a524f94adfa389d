//! Integration tests: one binary, so that it links once.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on may panic, in its helpers too"
)]

mod chat_turn;
mod cli;
mod cli_pull;
mod cli_questions;
mod devices;
mod fuzz;
mod fuzz_bodies;
mod layering;
mod models;
mod run_once;
mod run_repl;
mod support;

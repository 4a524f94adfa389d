//! Integration tests: one binary, so that it links once.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on may panic, in its helpers too"
)]

mod chat_turn;
mod fuzz;
mod fuzz_bodies;
mod layering;
mod run_once;
mod run_repl;
mod support;

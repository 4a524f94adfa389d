//! Integration tests: one binary, so that it links once.

<<<<<<< HEAD
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on may panic, in its helpers too"
)]

mod chat_turn;
mod run_once;
mod run_repl;
mod support;
=======
#![allow(clippy::unwrap_used)] // a test that cannot go on panics

mod fuzz;
mod fuzz_bodies;
>>>>>>> formats

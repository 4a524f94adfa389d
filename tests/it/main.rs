//! Integration tests: one binary, so that it links once.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on may panic, in its helpers too"
)]

mod bench;
mod chat_turn;
mod class_defaults;
mod cli;
mod cli_pull;
mod cli_questions;
mod cli_start;
mod contract;
mod devices;
mod embeddings_api;
mod encoders;
mod engine;
mod evaluation;
mod fuzz;
mod fuzz_bodies;
mod gguf_numbers;
mod host;
mod hybrid;
mod layering;
mod models;
mod openai_api;
mod planned_sequences;
mod refusals;
mod run_once;
mod run_repl;
mod server_access;
mod server_limits;
mod support;
mod unlike_layers;

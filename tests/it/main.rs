//! Integration tests: one binary, so that it links once.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics

mod fuzz;
mod fuzz_bodies;

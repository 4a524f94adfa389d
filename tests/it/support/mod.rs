//! What several test modules need: the program in a home of its own, and HTTP servers with bad habits.

pub mod http;
pub mod program;

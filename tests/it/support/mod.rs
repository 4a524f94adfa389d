//! What several test modules need: the program in a home of its own, HTTP servers with bad habits, scripted engines, terminals.

pub mod http;
pub mod loader;
pub mod program;
pub mod scripted;
pub mod terminal;

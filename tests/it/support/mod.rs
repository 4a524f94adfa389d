//! What several test modules need: the program in a home of its own, HTTP servers with bad habits, scripted engines and servers in front of
//! them, terminals.

pub mod api;
pub mod http;
pub mod loader;
pub mod program;
pub mod scripted;
pub mod terminal;

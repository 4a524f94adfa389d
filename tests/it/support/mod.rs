//! What several tests share.

pub mod scripted;
pub mod terminal;

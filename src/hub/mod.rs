//! The hub: what a repository holds, which of it to take, whether this build can read it, and getting it into the store.
//!
//! `listing.rs` asks, `choose.rs` decides, `check.rs` looks into a GGUF header before gigabytes are fetched, `fetch.rs`
//! downloads. Nothing here prints or asks a person: the command does, between these steps.

mod check;
mod choose;
mod fetch;
mod listing;

pub use check::{Checked, check_config, check_gguf};
pub use choose::{Contents, Variant, choose_default, find_variant};
pub use fetch::{Folder, Plan, Progress};
pub use listing::{Hub, Listing, RemoteFile};

//! Encoders: BERT and RoBERTa, which read a whole text at once, for vectors and for scores.
//!
//! | file | owns |
//! |---|---|
//! | `config.rs` | the classes, [`EncoderConfig`]: plain data, validated once |
//! | `read.rs` | `config.json` → `EncoderConfig` |
//! | `load.rs` | `EncoderConfig` + tensors → [`Encoder`] |
//! | `forward.rs` | the forward pass |
//!
//! Decoders that make vectors are [`super::Transformer`]s; what they and encoders share is in [`super::embedder`].

mod config;
mod forward;
mod load;
mod read;

pub use config::{EncoderConfig, Family, Positions};
pub(super) use config::{class_names, class_of, find_class, headless_class};
pub use forward::{Encoder, TextTokens};
pub use load::{load_encoder, weigh_encoder};
pub(super) use read::describe_encoder;
pub use read::read_encoder_config;

//! [`Loader`]: what turns a model on disk into a running one. The seam for tests and for devices.

use std::thread::JoinHandle;
use std::time::Duration;

use super::AnyModel;
use crate::error::{Error, Result};
use crate::store::LocalModel;

/// Turns located models into running ones.
pub trait Loader: Send + Sync {
    /// Bytes (weights, KV cache, activations) that loading `model` will take; reads headers only.
    ///
    /// # Errors
    /// Those of reading; `OutOfMemory` when it can never fit.
    fn plan(&self, model: &LocalModel) -> Result<u64>;

    /// Bytes that all models together can take on this machine, those that are loaded included; `None` when that is not
    /// known. The memory budget bounds them besides.
    fn capacity(&self) -> Option<u64> {
        None
    }

    /// Loads `model` and starts its worker. Blocks; called on a thread of its own. A panic counts as a failed load.
    ///
    /// # Errors
    /// Those of loading.
    fn load(&self, model: &LocalModel) -> Result<Loaded>;
}

/// A model that runs.
pub struct Loaded {
    /// The model. Its worker ends when the last handle to the engine is dropped.
    pub model: AnyModel,
    /// The worker's thread: the memory is returned when it has ended.
    pub ended: JoinHandle<()>,
}

/// Told about what happens to models, for metrics. Called outside of locks; must be quick.
pub trait Observer: Send + Sync {
    /// A model was loaded, in `took`.
    fn loaded(&self, id: &str, model: &AnyModel, took: Duration) {
        let _ = (id, model, took);
    }

    /// A load failed.
    fn load_failed(&self, id: &str, error: &Error) {
        let _ = (id, error);
    }

    /// A model was unloaded and its memory returned.
    fn unloaded(&self, id: &str) {
        let _ = id;
    }
}

/// Nobody listens.
impl Observer for () {}

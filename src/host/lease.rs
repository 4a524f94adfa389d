//! [`Lease`]: the right to use a loaded model.

use std::sync::{Arc, Mutex, PoisonError};

use super::models::Host;
use super::slots::SlotId;
use super::{AnyModel, KeepAlive};

/// One user of a slot, from the moment it is counted.
pub(super) struct Claim {
    host: Arc<Host>,
    slot: SlotId,
    keep_alive: Mutex<Option<KeepAlive>>,
}

impl Claim {
    /// Stands for a use that has been counted in `slot`.
    pub fn new(host: Arc<Host>, slot: SlotId) -> Self {
        Self {
            host,
            slot,
            keep_alive: Mutex::default(),
        }
    }

    pub fn slot(&self) -> SlotId {
        self.slot
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let keep_alive = *self
            .keep_alive
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        self.host.release(self.slot, keep_alive);
    }
}

/// The right to use a loaded model: it is not unloaded while a lease lives. Keep it until the answer is complete.
pub struct Lease {
    id: String,
    // Before the claim: who unloads the model when the claim is gone must not wait for this handle.
    model: AnyModel,
    claim: Claim,
}

impl Lease {
    pub(super) fn new(id: String, model: AnyModel, claim: Claim) -> Self {
        Self { id, model, claim }
    }

    /// The canonical id of the model.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The model. A clone of it that outlives the lease does not keep the model from being unloaded, but the memory is not
    /// free, and no other model gets it, until the clone is dropped.
    pub fn model(&self) -> &AnyModel {
        &self.model
    }

    /// When this lease ends the model stays for `keep_alive` from then on, unless another use ends later. Without this call
    /// the host's setting holds.
    pub fn set_keep_alive(&self, keep_alive: KeepAlive) {
        let mut own = self
            .claim
            .keep_alive
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *own = Some(keep_alive);
    }
}

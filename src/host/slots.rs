//! Who is in memory, who may come in, who must leave. Numbers only: no thread, no file, no clock but the times it is told.
//!
//! A slot goes through the phases of [`Phase`] in order and is then removed. What it takes of the memory is `bytes` from
//! the moment it is granted until its memory is really free, so loads in progress and models that are leaving count.

use std::collections::BTreeMap;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::{AnyModel, KeepAlive};
use crate::error::{Error, Result};
use crate::model::ModelKind;
use crate::store::LocalModel;
use crate::units::format_size;

/// A slot's number; the ids of two slots of one model differ. Older slots have lower ones.
pub(super) type SlotId = u64;

/// What those who wait for a load are told.
pub(super) type Outcome = Option<Result<()>>;

/// How far a slot is.
pub(super) enum Phase {
    /// It is not known yet what it will take.
    Planning,
    /// It needs `bytes` and waits until they are free.
    Waiting { since: Instant },
    /// It is being loaded.
    Loading,
    /// It answers.
    Ready {
        model: AnyModel,
        ended: JoinHandle<()>,
    },
    /// Its memory is about to be free.
    Leaving,
}

/// What is known about the model in a slot.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Facts {
    pub kind: ModelKind,
    pub vocab_size: u64,
    pub num_layers: u64,
    pub weight_bytes: u64,
    pub kv_bytes: u64,
}

/// A model in memory or on its way.
pub(super) struct Slot {
    pub id: SlotId,
    pub local: LocalModel,
    pub facts: Facts,
    pub phase: Phase,
    /// What it takes, or will take.
    pub bytes: u64,
    /// Requests that use it or wait for it.
    pub users: usize,
    /// Gives no new leases: a load that waited for long needs its memory.
    pub drains: bool,
    pub keep_alive: KeepAlive,
    /// When somebody last began or ended to use it.
    pub last_used: Instant,
    /// The same as a number that grows with every use.
    pub last_use: u64,
    /// The outcome of its load.
    pub outcome: watch::Sender<Outcome>,
}

impl Slot {
    fn holds_memory(&self) -> bool {
        matches!(
            self.phase,
            Phase::Loading | Phase::Ready { .. } | Phase::Leaving
        )
    }

    fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready { .. })
    }

    /// When it has been idle for long enough, if that comes by itself.
    fn expires(&self) -> Option<Instant> {
        match self.keep_alive {
            KeepAlive::After(time) if self.is_ready() && self.users == 0 => {
                self.last_used.checked_add(time)
            }
            _ => None,
        }
    }
}

/// What a load that waits for memory is to do.
#[derive(Debug)]
pub(super) enum Admission {
    /// The memory is its own now.
    Granted,
    /// These are to be unloaded to make room, if there are any; ask again when something has changed.
    Wait { leaving: Vec<SlotId> },
    /// Nobody wants it any more.
    Unwanted,
    /// It can never fit.
    Refused(Error),
}

/// All slots.
#[derive(Default)]
pub(super) struct Slots {
    by_model: BTreeMap<String, Slot>,
    next_id: SlotId,
    uses: u64,
}

impl Slots {
    /// A load waits politely for so long; then models that are never idle stop to take requests until it has its memory.
    pub const PATIENCE: Duration = Duration::from_secs(10);

    pub fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.by_model.values()
    }

    pub fn is_empty(&self) -> bool {
        self.by_model.is_empty()
    }

    pub fn find(&mut self, model: &str) -> Option<&mut Slot> {
        self.by_model.get_mut(model)
    }

    /// The slot with this number, if it is still there.
    pub fn find_id(&mut self, id: SlotId) -> Option<&mut Slot> {
        self.by_model.values_mut().find(|slot| slot.id == id)
    }

    /// Makes a slot for `local`, which must not have one.
    pub fn insert(&mut self, local: LocalModel, keep_alive: KeepAlive, now: Instant) -> SlotId {
        self.next_id += 1;
        let slot = Slot {
            id: self.next_id,
            facts: Facts::default(),
            phase: Phase::Planning,
            bytes: 0,
            users: 0,
            drains: false,
            keep_alive,
            last_used: now,
            last_use: 0,
            outcome: watch::Sender::new(None),
            local,
        };
        let before = self.by_model.insert(slot.local.id.clone(), slot);
        assert!(before.is_none(), "a model has one slot");
        self.next_id
    }

    /// Removes a slot. Its memory counts no longer.
    pub fn remove(&mut self, id: SlotId) -> Option<Slot> {
        let model = self.find_id(id)?.local.id.clone();
        self.stop_draining();
        self.by_model.remove(&model)
    }

    /// One more user.
    pub fn begin_use(&mut self, id: SlotId, now: Instant) {
        self.uses += 1;
        let uses = self.uses;
        if let Some(slot) = self.find_id(id) {
            slot.users += 1;
            slot.last_used = now;
            slot.last_use = uses;
        }
    }

    /// One user less; from now on the model stays for `keep_alive`.
    pub fn end_use(&mut self, id: SlotId, keep_alive: KeepAlive, now: Instant) {
        self.uses += 1;
        let uses = self.uses;
        if let Some(slot) = self.find_id(id) {
            slot.users -= 1;
            slot.keep_alive = keep_alive;
            slot.last_used = now;
            slot.last_use = uses;
        }
    }

    /// Bytes that are taken.
    pub fn used_bytes(&self) -> u64 {
        self.iter()
            .filter(|slot| slot.holds_memory())
            .map(|slot| slot.bytes)
            .sum()
    }

    /// The models that can be unloaded.
    pub fn ready(&self) -> Vec<SlotId> {
        self.iter()
            .filter(|slot| slot.is_ready())
            .map(|slot| slot.id)
            .collect()
    }

    /// The models whose workers have ended by themselves.
    pub fn dead(&self) -> Vec<SlotId> {
        let is_dead =
            |slot: &&Slot| matches!(&slot.phase, Phase::Ready { ended, .. } if ended.is_finished());
        self.iter().filter(is_dead).map(|slot| slot.id).collect()
    }

    /// The models that have been idle for long enough.
    pub fn expired(&self, now: Instant) -> Vec<SlotId> {
        let expired = |slot: &&Slot| slot.expires().is_some_and(|at| at <= now);
        self.iter().filter(expired).map(|slot| slot.id).collect()
    }

    /// When the next model will have been idle for long enough.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.iter().filter_map(Slot::expires).min()
    }

    /// Decides about a slot that waits for memory, of which there are `limit` bytes in all.
    ///
    /// What can never fit is refused before anybody leaves. Models leave in the order of their last use, only when they are
    /// idle, and only when that makes enough room. Loads may pass one that waits until it loses its patience.
    pub fn admit(&mut self, id: SlotId, limit: Option<u64>, now: Instant) -> Admission {
        let Some(slot) = self.find_id(id) else {
            return Admission::Unwanted;
        };
        let (bytes, users, model) = (slot.bytes, slot.users, slot.local.id.clone());
        if users == 0 {
            return Admission::Unwanted;
        }
        let limit = limit.unwrap_or(u64::MAX);
        if bytes > limit {
            return Admission::Refused(too_large(&model, bytes, limit));
        }
        let wait = Admission::Wait {
            leaving: Vec::new(),
        };
        if self.is_behind_others(id, now) {
            return wait;
        }
        let used = self.used_bytes();
        if used.saturating_add(bytes) <= limit {
            self.find_id(id).expect("found above").phase = Phase::Loading;
            self.stop_draining();
            return Admission::Granted;
        }
        let leaving_bytes: u64 = self
            .iter()
            .filter(|slot| matches!(slot.phase, Phase::Leaving))
            .map(|slot| slot.bytes)
            .sum();
        let missing = (used - leaving_bytes)
            .saturating_add(bytes)
            .saturating_sub(limit);
        let idle = self.oldest_first(|slot| slot.users == 0);
        if let Some(leaving) = enough(&idle, missing) {
            return Admission::Wait { leaving };
        }
        if self.has_lost_patience(id, now) {
            let all = self.oldest_first(|_| true);
            for id in enough(&all, missing).unwrap_or_default() {
                self.find_id(id).expect("listed above").drains = true;
            }
        }
        wait
    }

    /// Whether an older load has lost its patience, or may be the one for which models are leaving: then nobody passes it.
    fn is_behind_others(&self, id: SlotId, now: Instant) -> bool {
        let somebody_leaves = self.iter().any(|slot| matches!(slot.phase, Phase::Leaving));
        self.iter().any(|slot| {
            slot.id < id
                && matches!(slot.phase, Phase::Waiting { .. })
                && (somebody_leaves || self.has_lost_patience(slot.id, now))
        })
    }

    fn has_lost_patience(&self, id: SlotId, now: Instant) -> bool {
        self.iter().any(|slot| {
            slot.id == id
                && matches!(slot.phase, Phase::Waiting { since } if now >= since + Self::PATIENCE)
        })
    }

    /// Ready slots with their bytes, those not used for longest first.
    fn oldest_first(&self, which: impl Fn(&Slot) -> bool) -> Vec<(SlotId, u64)> {
        let mut slots: Vec<&Slot> = self
            .iter()
            .filter(|slot| slot.is_ready() && which(slot))
            .collect();
        slots.sort_by_key(|slot| slot.last_use);
        slots.iter().map(|slot| (slot.id, slot.bytes)).collect()
    }

    fn stop_draining(&mut self) {
        self.by_model
            .values_mut()
            .for_each(|slot| slot.drains = false);
    }
}

/// The first of `slots` that together have `missing` bytes; `None` when all together do not.
fn enough(slots: &[(SlotId, u64)], missing: u64) -> Option<Vec<SlotId>> {
    let mut sum = 0_u64;
    let mut chosen = Vec::new();
    for &(id, bytes) in slots {
        if sum >= missing {
            break;
        }
        sum += bytes;
        chosen.push(id);
    }
    (sum >= missing).then_some(chosen)
}

fn too_large(model: &str, bytes: u64, limit: u64) -> Error {
    Error::out_of_memory(format!(
        "the model `{model}` does not fit: it needs {}, and all models together may take {}",
        format_size(bytes),
        format_size(limit)
    ))
    .with_hint(
        "choose a smaller quantisation, a smaller --max-context-len or a larger --memory-budget",
    )
}

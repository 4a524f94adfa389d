//! Ctrl-C: stops the answer while there is one, leaves the program otherwise.
//!
//! At the prompt the terminal is in raw mode and Ctrl-C is a key like any other, see `repl.rs`.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::INTERRUPTED;
use crate::engine::Cancel;
use crate::error::{Error, Result};

/// What an interrupt does now.
#[derive(Debug, Default)]
enum Meaning {
    #[default]
    Leave,
    Ignore,
    Stop(Cancel),
}

/// The process's reaction to interrupts.
#[derive(Debug, Clone, Default)]
pub(super) struct Interrupts(Arc<Mutex<Meaning>>);

/// A process has one handler, so there is one of these.
static INSTALLED: OnceLock<Interrupts> = OnceLock::new();

impl Interrupts {
    /// Takes the signal over; until told otherwise it ends the process with exit code 130.
    pub(super) fn install() -> Result<Self> {
        if let Some(installed) = INSTALLED.get() {
            return Ok(installed.clone());
        }
        let interrupts = Self::default();
        let meaning = Arc::clone(&interrupts.0);
        let installed = ctrlc::set_handler(move || {
            match &*meaning.lock().unwrap_or_else(PoisonError::into_inner) {
                Meaning::Leave => std::process::exit(i32::from(INTERRUPTED)),
                Meaning::Ignore => {}
                Meaning::Stop(cancel) => cancel.cancel(),
            }
        });
        match installed {
            Ok(()) => Ok(INSTALLED.get_or_init(|| interrupts).clone()),
            Err(cause) => {
                Err(Error::internal("cannot install the handler for Ctrl-C").with_source(cause))
            }
        }
    }

    /// Interrupts do nothing until the guard is dropped.
    pub(super) fn ignore(&self) -> Guard<'_> {
        self.set(Meaning::Ignore);
        Guard(self)
    }

    /// Interrupts cancel `cancel` until the guard is dropped.
    pub(super) fn stop(&self, cancel: Cancel) -> Guard<'_> {
        self.set(Meaning::Stop(cancel));
        Guard(self)
    }

    fn set(&self, meaning: Meaning) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = meaning;
    }
}

/// Restores the default meaning when dropped.
#[derive(Debug)]
pub(super) struct Guard<'a>(&'a Interrupts);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.set(Meaning::Leave);
    }
}

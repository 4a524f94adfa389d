//! The time limit of a request: wall clock from its arrival, with the time that loading its model takes left out.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use super::error::ApiError;

/// How long a request may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    limit: Option<Duration>,
    deadline: Option<Instant>,
}

impl Clock {
    /// Starts now.
    pub(super) fn start(limit: Option<Duration>) -> Self {
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        Self { limit, deadline }
    }

    /// `work`, or a time-out when it is not done in time.
    ///
    /// # Errors
    /// 408 when the time is over.
    pub(super) async fn limit<F: Future>(&self, work: F) -> Result<F::Output, ApiError> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            error = self.over() => Err(error),
        }
    }

    /// `work`, whose time does not count.
    pub(super) async fn pause<F: Future>(&mut self, work: F) -> F::Output {
        let begin = Instant::now();
        let done = work.await;
        self.deadline = self
            .deadline
            .and_then(|deadline| deadline.checked_add(begin.elapsed()));
        done
    }

    /// Waits until the time is over, which may be never.
    pub(super) async fn over(&self) -> ApiError {
        match (self.deadline, self.limit) {
            (Some(deadline), Some(limit)) => {
                tokio::time::sleep_until(deadline).await;
                ApiError::timeout(limit)
            }
            _ => std::future::pending().await,
        }
    }
}

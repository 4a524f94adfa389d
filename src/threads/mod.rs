//! The process's compute pool: fork-join over a shared task counter, sized by what the process may really use.
//!
//! [`Pool::run`] calls a closure once for every task index. Which thread runs which task never matters to a result (the
//! numerical contract in `docs/architecture.md` sees to that), so tasks are claimed one by one: a thread that lost its
//! core holds up one task, not a fixed share of the work. Completion is counted in tasks, not in workers: a worker that
//! is asleep is not waited for. Workers spin briefly after a job and then sleep, so an idle process uses no CPU.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

mod cores;
mod count;
mod disjoint;

use cores::Seat;
pub use count::num_threads;
pub use disjoint::Disjoint;

/// How long a worker looks for the next job before it goes to sleep: a few times the gap between two operations of one
/// forward pass.
const WORKER_SPINS: Duration = Duration::from_micros(200);
/// How long the caller looks for the end of a job before it goes to sleep. Then the rest may be with a worker that has lost its core to
/// another process, and gets the caller's (`cores.rs`): spinning on would hold up the very thread that is waited for.
const CALLER_SPINS: Duration = Duration::from_micros(100);
/// The seat of the thread that calls [`Pool::run`].
const CALLER: usize = 0;
/// Looks between two looks at the clock.
const SPINS_PER_LOOK: u32 = 16;

/// The closure of a job as two words, so that workers can read it without a lock.
type Task<'a> = &'a (dyn Fn(usize) + Sync);

struct Shared {
    /// Job number in the upper half, number of unclaimed tasks in the lower half: all that decides whether there is one to claim. A
    /// count that had to be compared with the job's number of tasks could be compared with the next job's.
    state: AtomicU64,
    /// Points at the caller's `Task` (a fat reference on its stack) while a job runs.
    task: AtomicPtr<()>,
    num_tasks: AtomicUsize,
    completed: AtomicUsize,
    sleepers: AtomicUsize,
    stop: AtomicBool,
    wake: Mutex<()>,
    bell: Condvar,
    /// Whether the caller sleeps until tasks complete, for which it hears `done`.
    caller_sleeps: AtomicBool,
    done: Condvar,
    /// The caller's, then one per worker.
    seats: Vec<Seat>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// A fork-join pool; the thread that calls [`Pool::run`] works too.
pub struct Pool {
    shared: Arc<Shared>,
    /// Held by the caller of `run`: one job at a time.
    turn: Mutex<()>,
    /// Whose step it is.
    steps: Turns,
    workers: Vec<JoinHandle<()>>,
}

/// A lock that is handed on in the order of asking: with a plain one, who gives it back tends to get it again.
#[derive(Debug, Default)]
struct Turns {
    /// Next ticket to give out, ticket that is served.
    tickets: Mutex<(u64, u64)>,
    next: Condvar,
}

/// Somebody's turn; the next one's begins when it is dropped.
#[derive(Debug)]
pub struct Turn<'a>(&'a Turns);

impl Turns {
    fn wait(&self) -> Turn<'_> {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        let own = tickets.0;
        tickets.0 += 1;
        while tickets.1 != own {
            tickets = self
                .next
                .wait(tickets)
                .unwrap_or_else(PoisonError::into_inner);
        }
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut tickets = self
            .0
            .tickets
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        tickets.1 += 1;
        drop(tickets);
        self.0.next.notify_all();
    }
}

thread_local! {
    /// Set while this thread runs a task, so that a nested `run` works inline instead of waiting for itself.
    static IN_TASK: Cell<bool> = const { Cell::new(false) };
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("num_threads", &self.num_threads())
            .finish()
    }
}

impl Pool {
    /// A pool of `num_threads` threads in all (at least 1), the caller of `run` included.
    pub fn new(num_threads: usize) -> Self {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            task: AtomicPtr::new(std::ptr::null_mut()),
            num_tasks: AtomicUsize::new(0),
            completed: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            wake: Mutex::new(()),
            bell: Condvar::new(),
            caller_sleeps: AtomicBool::new(false),
            done: Condvar::new(),
            seats: (0..num_threads.max(1)).map(|_| Seat::default()).collect(),
            panic: Mutex::new(None),
        });
        let workers = (1..num_threads.max(1))
            .map(|index| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("compute-{index}"))
                    .spawn(move || shared.work(index))
                    .expect("the system refuses to start a thread")
            })
            .collect();
        Self {
            shared,
            turn: Mutex::new(()),
            steps: Turns::default(),
            workers,
        }
    }

    /// Threads that take part in a job, the caller included.
    pub fn num_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Waits until no other holder of this guard computes. Models that share the pool take it for a step each, so that
    /// their operations do not alternate and throw each other's data out of the caches. First come, first served.
    /// [`Pool::run`] does not need it.
    pub fn exclusive(&self) -> Turn<'_> {
        self.steps.wait()
    }

    /// Calls `task(i)` once for every `i` in `0..num_tasks`, on all threads, and returns when every call has returned.
    ///
    /// Called from inside a task it runs inline. A panic in a task is raised again here, after the others have finished.
    pub fn run(&self, num_tasks: usize, task: impl Fn(usize) + Sync) {
        if num_tasks <= 1 || self.workers.is_empty() || IN_TASK.get() {
            (0..num_tasks).for_each(task);
            return;
        }
        assert!(
            num_tasks < u32::MAX as usize,
            "a job has at most 2^32 tasks"
        );
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let task: Task<'_> = &task;
        let epoch = self.shared.publish(&task, num_tasks);
        self.shared.claim_and_run(epoch, CALLER);
        self.shared.wait_completed(num_tasks);
        let panic = self
            .shared
            .panic
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        drop(turn);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    /// [`Pool::run`] for tasks that read what lies behind one another: they are given out in as many stretches as there are threads,
    /// which take turns. So what a thread claims next mostly begins where its last task ended, and what was fetched ahead there is
    /// its own and not what another thread has begun with.
    pub fn run_in_stretches(&self, num_tasks: usize, task: impl Fn(usize) + Sync) {
        let threads = self.num_threads();
        self.run(num_tasks, |claim| task(nth(claim, num_tasks, threads)));
    }
}

/// Which task is given out as number `claim`: `num_tasks` in `stretches` of the same length, or one more in the first ones, that take
/// turns.
fn nth(claim: usize, num_tasks: usize, stretches: usize) -> usize {
    let (each, longer) = (num_tasks / stretches, num_tasks % stretches);
    let (place, stretch) = (claim / stretches, claim % stretches);
    stretch * each + stretch.min(longer) + place
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.ring();
        for worker in self.workers.drain(..) {
            // A worker never panics: tasks run under `catch_unwind`.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Makes a job visible and returns its number.
    fn publish(&self, task: &Task<'_>, num_tasks: usize) -> u64 {
        let epoch =
            (self.state.load(Ordering::Relaxed) >> 32).wrapping_add(1) & u64::from(u32::MAX);
        self.task.store(
            std::ptr::from_ref(task).cast_mut().cast(),
            Ordering::Relaxed,
        );
        self.num_tasks.store(num_tasks, Ordering::Relaxed);
        self.completed.store(0, Ordering::Relaxed);
        self.state
            .store(epoch << 32 | num_tasks as u64, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.ring();
        }
        epoch
    }

    fn ring(&self) {
        let guard = self.wake.lock().unwrap_or_else(PoisonError::into_inner);
        drop(guard);
        self.bell.notify_all();
    }

    /// Claims and runs tasks of job `epoch` until none is left; `seat` is this thread's.
    fn claim_and_run(&self, epoch: u64, seat: usize) {
        loop {
            let state = self.state.load(Ordering::Acquire);
            let unclaimed = (state & u64::from(u32::MAX)) as usize;
            if state >> 32 != epoch || unclaimed == 0 {
                return;
            }
            let task = self.task.load(Ordering::Relaxed).cast::<Task<'static>>();
            let num_tasks = self.num_tasks.load(Ordering::Relaxed);
            // Success proves that job `epoch` still has an unclaimed task (this one), so that what was read above belongs to
            // it: the next job's words are written only after this one's tasks have all completed.
            if self
                .state
                .compare_exchange_weak(state, state - 1, Ordering::AcqRel, Ordering::Relaxed)
                .is_err()
            {
                continue;
            }
            let index = num_tasks - unclaimed;
            // SAFETY: the claim above keeps the caller inside `run` until this task is counted as completed, so the
            // closure on its stack is alive; it is `Sync`, so calling it from here is allowed.
            #[allow(unsafe_code)]
            let task: Task<'_> = unsafe { *task };
            self.seats[seat].begin();
            IN_TASK.set(true);
            let outcome = catch_unwind(AssertUnwindSafe(|| task(index)));
            IN_TASK.set(false);
            if let Err(payload) = outcome {
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
            }
            // After this the job may be over. Sequentially consistent, as in `wait_completed`: either the caller sees that this
            // task is complete, or this thread that the caller sleeps.
            self.completed.fetch_add(1, Ordering::SeqCst);
            if self.caller_sleeps.load(Ordering::SeqCst) {
                drop(self.wake.lock().unwrap_or_else(PoisonError::into_inner));
                self.done.notify_one();
            }
            self.seats[seat].end();
        }
    }

    fn wait_completed(&self, num_tasks: usize) {
        let is_complete = || self.completed.load(Ordering::SeqCst) >= num_tasks;
        if spin(CALLER_SPINS, || is_complete().then_some(())).is_some() {
            return;
        }
        if self
            .hand_core_on(CALLER, || is_complete().then_some(()))
            .is_some()
        {
            return;
        }
        let mut guard = self.wake.lock().unwrap_or_else(PoisonError::into_inner);
        self.caller_sleeps.store(true, Ordering::SeqCst);
        while !is_complete() {
            guard = self
                .done
                .wait(guard)
                .unwrap_or_else(PoisonError::into_inner);
        }
        self.caller_sleeps.store(false, Ordering::SeqCst);
    }

    /// Gives this thread's core, which it is about to leave, to one that is inside a task and has none. Looks for it for a
    /// moment, unless there is an answer meanwhile.
    fn hand_core_on<T>(&self, own: usize, look: impl Fn() -> Option<T>) -> Option<T> {
        let others = self.seats.iter().enumerate().filter(|(i, _)| *i != own);
        let watched: Vec<_> = others
            .filter_map(|(_, seat)| Some((seat, seat.watch()?)))
            .collect();
        if watched.is_empty() {
            return None;
        }
        let found = spin(cores::WATCH, look);
        if found.is_none() {
            // One core goes to one thread.
            let _ = watched
                .into_iter()
                .any(|(seat, watched)| seat.hand_core_to(watched));
        }
        found
    }

    /// A worker's life: wait for a new job number, help, repeat.
    fn work(&self, seat: usize) {
        let mut seen = 0;
        while let Some(epoch) = self.next_epoch(seen, seat) {
            seen = epoch;
            self.claim_and_run(epoch, seat);
        }
    }

    /// Waits until the job number differs from `seen`; `None` when the pool ends.
    fn next_epoch(&self, seen: u64, seat: usize) -> Option<u64> {
        let look = || {
            (
                self.state.load(Ordering::SeqCst) >> 32,
                self.stop.load(Ordering::SeqCst),
            )
        };
        let news = || {
            let (epoch, stop) = look();
            if stop {
                Some(None)
            } else {
                (epoch != seen).then_some(Some(epoch))
            }
        };
        if let Some(found) = spin(WORKER_SPINS, news) {
            return found;
        }
        if let Some(found) = self.hand_core_on(seat, news) {
            return found;
        }
        let mut guard = self.wake.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let found = loop {
            let (epoch, stop) = look();
            if stop {
                break None;
            }
            if epoch != seen {
                break Some(epoch);
            }
            guard = self
                .bell
                .wait(guard)
                .unwrap_or_else(PoisonError::into_inner);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        found
    }
}

/// Asks `look` again and again until it has an answer, for about as long as `limit`.
fn spin<T>(limit: Duration, look: impl Fn() -> Option<T>) -> Option<T> {
    let begin = Instant::now();
    loop {
        for _ in 0..SPINS_PER_LOOK {
            if let Some(found) = look() {
                return Some(found);
            }
            std::hint::spin_loop();
        }
        if begin.elapsed() >= limit {
            return None;
        }
    }
}

#[cfg(test)]
mod tests;

//! Handing a core on: what a thread that waits for another one does, on Linux, when that one has lost its core.
//!
//! With as many threads as cores, any other busy process takes the core of one of them for a time slice, some
//! milliseconds. If that thread is in the middle of a task, all others wait for it, and the system leaves it where it is:
//! it ran a moment ago, so its caches are taken to be warm. The waiter therefore moves it to its own core, which it is about
//! to give up, and the thread goes back where it came from when its task is done. Elsewhere nothing of this happens.
#![allow(unsafe_code)]

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a thread is watched before it counts as one without a core.
pub(super) const WATCH: Duration = Duration::from_micros(20);

/// What the other threads of the pool know of one of them.
#[derive(Debug, Default)]
pub(super) struct Seat(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The thread and the core on which its task began, while it is inside one.
    at_work: Option<(system::Thread, system::Core)>,
    /// Where it may run, if somebody has moved it.
    home: Option<system::Cores>,
}

/// A thread that is inside a task on another core, and the processor time that it has had.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Watched {
    thread: system::Thread,
    time: Duration,
}

impl Seat {
    /// This thread begins a task.
    pub(super) fn begin(&self) {
        self.state().at_work = system::here();
    }

    /// This thread has ended its task, of which nobody needs to hear any more: if it was moved it goes back now, to a core that
    /// somebody else may have at the moment.
    pub(super) fn end(&self) {
        let (at_work, home) = {
            let mut state = self.state();
            (state.at_work.take(), state.home.take())
        };
        if let (Some((thread, core)), Some(home)) = (at_work, home) {
            system::confine(thread, &system::Cores::only(core));
            system::confine(thread, &home);
        }
    }

    /// The thread, if it is at work on another core than the caller's.
    pub(super) fn watch(&self) -> Option<Watched> {
        let (thread, core) = self.state().at_work?;
        let (_, own) = system::here()?;
        let time = system::processor_time(thread)?;
        (core != own).then_some(Watched { thread, time })
    }

    /// Moves the thread to the caller's core if it is still at work and has had no core since it was `watched`; whether it did.
    pub(super) fn hand_core_to(&self, watched: Watched) -> bool {
        let mut state = self.state();
        let same = state.at_work.is_some_and(|(t, _)| t == watched.thread) && state.home.is_none();
        if same
            && system::processor_time(watched.thread) == Some(watched.time)
            && let (Some((_, own)), Some(home)) = (system::here(), system::cores_of(watched.thread))
            && home.contains(own)
            && system::confine(watched.thread, &system::Cores::only(own))
        {
            state.home = Some(home);
            return true;
        }
        false
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::cell::Cell;
    use std::time::Duration;

    /// The system's number of a thread.
    pub(super) type Thread = libc::pid_t;
    pub(super) type Core = usize;

    /// A set of cores.
    #[derive(Clone, Copy)]
    pub(super) struct Cores(libc::cpu_set_t);

    impl std::fmt::Debug for Cores {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            let most = 8 * size_of::<libc::cpu_set_t>();
            f.debug_set()
                .entries((0..most).filter(|core| self.contains(*core)))
                .finish()
        }
    }

    impl Cores {
        fn none() -> Self {
            // SAFETY: an array of integers.
            Self(unsafe { std::mem::zeroed() })
        }

        /// One core.
        pub(super) fn only(core: Core) -> Self {
            let mut cores = Self::none();
            // SAFETY: the macro's function checks the index.
            unsafe { libc::CPU_SET(core, &mut cores.0) };
            cores
        }

        pub(super) fn contains(&self, core: Core) -> bool {
            // SAFETY: the macro's function checks the index.
            unsafe { libc::CPU_ISSET(core, &self.0) }
        }
    }

    thread_local! {
        static THREAD: Cell<Thread> = const { Cell::new(0) };
    }

    /// This thread and the core that it is on.
    pub(super) fn here() -> Option<(Thread, Core)> {
        if THREAD.get() == 0 {
            // SAFETY: no arguments.
            THREAD.set(unsafe { libc::gettid() });
        }
        // SAFETY: no arguments.
        let core = unsafe { libc::sched_getcpu() };
        Some((THREAD.get(), usize::try_from(core).ok()?))
    }

    /// Processor time that a thread of this process has had.
    pub(super) fn processor_time(thread: Thread) -> Option<Duration> {
        // clock_getcpuclockid(3): the clock of a thread's time, by its number.
        let clock = (!thread) << 3 | 0b110;
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the place for the answer is there.
        let failed = unsafe { libc::clock_gettime(clock, &raw mut time) } != 0;
        let nanos = u32::try_from(time.tv_nsec).ok()?;
        (!failed).then(|| Duration::new(time.tv_sec.cast_unsigned(), nanos))
    }

    /// The cores that a thread may run on.
    pub(super) fn cores_of(thread: Thread) -> Option<Cores> {
        let mut cores = Cores::none();
        // SAFETY: the place for the answer has the size that is said.
        let failed = unsafe {
            libc::sched_getaffinity(thread, size_of::<libc::cpu_set_t>(), &raw mut cores.0)
        } != 0;
        (!failed).then_some(cores)
    }

    /// Lets a thread run on these cores only; false when the system refuses.
    pub(super) fn confine(thread: Thread, cores: &Cores) -> bool {
        // SAFETY: the set has the size that is said.
        unsafe {
            libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), &raw const cores.0) == 0
        }
    }
}

/// Systems on which a thread cannot be moved.
#[cfg(not(target_os = "linux"))]
mod system {
    use std::time::Duration;

    pub(super) type Thread = i32;
    pub(super) type Core = usize;

    #[derive(Debug, Clone, Copy)]
    pub(super) struct Cores;

    impl Cores {
        pub(super) fn only(_: Core) -> Self {
            Self
        }

        pub(super) fn contains(&self, _: Core) -> bool {
            false
        }
    }

    pub(super) fn here() -> Option<(Thread, Core)> {
        None
    }

    pub(super) fn processor_time(_: Thread) -> Option<Duration> {
        None
    }

    pub(super) fn cores_of(_: Thread) -> Option<Cores> {
        None
    }

    pub(super) fn confine(_: Thread, _: &Cores) -> bool {
        false
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;

    use super::system::{Cores, Thread, confine, cores_of, here};
    use super::*;

    fn list(cores: &Cores) -> Vec<usize> {
        (0..1024).filter(|core| cores.contains(*core)).collect()
    }

    /// A thread that sits down on `core` of `home`, does `work`, gets up and says where it may run then.
    fn seated(seat: &Seat, core: usize, work: impl FnOnce(Thread)) -> Vec<usize> {
        let (thread, _) = here().unwrap();
        let home = cores_of(thread).unwrap();
        assert!(confine(thread, &Cores::only(core)));
        seat.begin();
        // Away from its core only if somebody takes it away.
        assert!(confine(thread, &home));
        work(thread);
        seat.end();
        list(&cores_of(thread).unwrap())
    }

    /// Watches and hands on from `core` what sits on the first core; says whether it was moved, and where it may run then.
    fn hand_on(seat: &Seat, core: usize, thread: Thread) -> (bool, Vec<usize>) {
        let (own, _) = here().unwrap();
        assert!(confine(own, &Cores::only(core)));
        // It may need a while to fall asleep.
        let moved = (0..1000).any(|_| {
            seat.watch().is_some_and(|watched| {
                std::thread::sleep(WATCH);
                seat.hand_core_to(watched)
            })
        });
        (moved, list(&cores_of(thread).unwrap()))
    }

    #[test]
    fn a_thread_that_has_no_core_gets_the_waiters_and_goes_home_with_its_next_step() {
        let all = list(&cores_of(here().unwrap().0).unwrap());
        let (first, last) = (all[0], all[all.len() - 1]);
        let seat = Seat::default();
        let (says, hears) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let seat = &seat;
            let worker = scope.spawn(move || {
                seated(seat, first, |thread| {
                    says.send(thread).unwrap();
                    // It has no core while it sleeps.
                    wait.recv().unwrap();
                })
            });
            let thread = hears.recv().unwrap();
            let waiter = scope.spawn(move || hand_on(seat, last, thread));
            // A machine of one core has none to hand on.
            let moved = first != last;
            let cores = if moved { vec![last] } else { all.clone() };
            assert_eq!(waiter.join().unwrap(), (moved, cores));
            go.send(()).unwrap();
            assert_eq!(worker.join().unwrap(), all);
        });
    }

    #[test]
    fn a_thread_that_computes_stays_where_it_is() {
        let all = list(&cores_of(here().unwrap().0).unwrap());
        let (seat, stop) = (Seat::default(), AtomicBool::new(false));
        let (says, hears) = mpsc::channel();
        std::thread::scope(|scope| {
            let (seat, stop) = (&seat, &stop);
            let worker = scope.spawn(move || {
                seated(seat, all[0], |thread| {
                    says.send(thread).unwrap();
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                })
            });
            let thread = hears.recv().unwrap();
            let watched = seat.state().at_work.map(|(thread, _)| Watched {
                thread,
                time: system::processor_time(thread).unwrap(),
            });
            // On a busy machine it may really have no core for a while: until it has had some time.
            while system::processor_time(thread) == watched.map(|w| w.time) {
                std::thread::yield_now();
            }
            let moved = seat.hand_core_to(watched.unwrap());
            stop.store(true, Ordering::Relaxed);
            worker.join().unwrap();
            assert!(!moved);
        });
    }

    #[test]
    fn a_thread_without_a_task_is_not_watched() {
        let seat = Seat::default();
        assert_eq!(seat.watch(), None);
        seat.begin();
        seat.end();
        assert_eq!(seat.watch(), None);
    }
}

use super::*;

#[test]
fn every_task_runs_exactly_once() {
    for num_threads in [1, 2, 5] {
        let pool = Pool::new(num_threads);
        for round in 0..200 {
            let counts: Vec<AtomicUsize> = (0..round).map(|_| AtomicUsize::new(0)).collect();
            pool.run(round, |i| {
                counts[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(
                counts.iter().all(|c| c.load(Ordering::Relaxed) == 1),
                "{num_threads} threads, round {round}"
            );
        }
    }
}

#[test]
fn stretches_take_turns_and_every_task_is_given_out_once() {
    let order = |num_tasks, stretches| -> Vec<usize> {
        (0..num_tasks)
            .map(|claim| nth(claim, num_tasks, stretches))
            .collect()
    };
    assert_eq!(order(7, 3), [0, 3, 5, 1, 4, 6, 2]);
    assert_eq!(order(2, 3), [0, 1]);
    for (num_tasks, stretches) in (0..40).flat_map(|n| (1..9).map(move |s| (n, s))) {
        let mut all = order(num_tasks, stretches);
        all.sort_unstable();
        assert!(all.into_iter().eq(0..num_tasks), "{num_tasks} {stretches}");
    }
}

#[test]
fn no_thread_claims_a_task_of_a_job_that_is_over() {
    let pool = Pool::new(3);
    for round in 0..400_000_usize {
        // A short job, then a longer one: who still looks at the first must not take its end for a task of the second.
        let num_tasks = if round.is_multiple_of(2) { 2 } else { 5 };
        let counts: [AtomicUsize; 5] = std::array::from_fn(|_| AtomicUsize::new(0));
        pool.run(num_tasks, |i| {
            counts[i].fetch_add(1, Ordering::Relaxed);
        });
        let counts = counts.map(AtomicUsize::into_inner);
        assert!(counts[..num_tasks].iter().all(|count| *count == 1));
        assert!(counts[num_tasks..].iter().all(|count| *count == 0));
    }
}

#[test]
fn sleeping_workers_wake_up() {
    let pool = Pool::new(3);
    for _ in 0..3 {
        std::thread::sleep(std::time::Duration::from_millis(60));
        let sum = AtomicUsize::new(0);
        pool.run(100, |i| {
            sum.fetch_add(i, Ordering::Relaxed);
        });
        assert_eq!(sum.load(Ordering::Relaxed), 4950);
    }
}

#[test]
fn a_caller_that_sleeps_hears_the_end_of_the_last_task() {
    let pool = Pool::new(3);
    for _ in 0..20 {
        let sum = AtomicUsize::new(0);
        pool.run(3, |i| {
            // Whoever the caller waits for takes much longer than it looks.
            std::thread::sleep(Duration::from_millis(if i == 0 { 0 } else { 3 }));
            sum.fetch_add(i, Ordering::Relaxed);
        });
        assert_eq!(sum.load(Ordering::Relaxed), 3);
    }
}

#[test]
fn a_panic_in_a_task_reaches_the_caller_and_the_pool_goes_on() {
    let pool = Pool::new(2);
    let outcome = catch_unwind(AssertUnwindSafe(|| pool.run(10, |i| assert_ne!(i, 7))));
    assert!(outcome.is_err());
    let done = AtomicUsize::new(0);
    pool.run(10, |_| {
        done.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(done.load(Ordering::Relaxed), 10);
}

#[test]
fn a_nested_run_works_inline() {
    let pool = Pool::new(2);
    let done = AtomicUsize::new(0);
    pool.run(4, |_| {
        pool.run(4, |_| {
            done.fetch_add(1, Ordering::Relaxed);
        })
    });
    assert_eq!(done.load(Ordering::Relaxed), 16);
}

#[test]
fn callers_on_several_threads_take_turns() {
    let pool = Pool::new(2);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let sum = AtomicUsize::new(0);
                    pool.run(16, |i| {
                        sum.fetch_add(i, Ordering::Relaxed);
                    });
                    assert_eq!(sum.load(Ordering::Relaxed), 120);
                }
            });
        }
    });
}

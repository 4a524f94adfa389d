//! The host of loaded models, with a loader that tests control: sharing, budget, eviction, keep-alive, failures. Time is
//! virtual: it goes on when everybody waits.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use oxydllm::error::{Error, ErrorKind, Result};
use oxydllm::host::{Host, HostSettings, KeepAlive, Lease, ModelState};
use oxydllm::store::{REGISTRY_FILE, load_registry};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::support::loader::{Act, ScriptedLoader, write_models};

/// Ends the program when a test takes minutes of real time: a model that leaves while it is used waits for ever.
struct Watchdog(#[expect(dead_code, reason = "it is dropped with the test")] mpsc::Sender<()>);

#[expect(
    clippy::print_stderr,
    reason = "the reader of a test log must learn of it"
)]
fn report(test: &str) {
    eprintln!("test {test} hangs");
}

impl Watchdog {
    fn new() -> Self {
        let (alive, ended) = mpsc::channel();
        let test = std::thread::current().name().unwrap_or("?").to_owned();
        std::thread::spawn(move || {
            if ended.recv_timeout(Duration::from_secs(120)) == Err(mpsc::RecvTimeoutError::Timeout)
            {
                report(&test);
                std::process::exit(101);
            }
        });
        Self(alive)
    }
}

/// A host over models `u/a`, `u/b` and `u/c` of 6, 6 and 3 bytes.
struct Setup {
    _watchdog: Watchdog,
    dir: tempfile::TempDir,
    loader: Arc<ScriptedLoader>,
    host: Arc<Host>,
}

const MODELS: [(&str, u64); 3] = [("u/a", 6), ("u/b", 6), ("u/c", 3)];

impl Setup {
    fn new(memory_budget: Option<u64>, keep_alive: KeepAlive) -> Self {
        let dir = tempfile::tempdir().unwrap();
        write_models(dir.path(), &MODELS.map(|(id, _)| id));
        let loader = ScriptedLoader::new(&MODELS);
        let settings = HostSettings {
            models_dir: dir.path().to_owned(),
            keep_alive,
            memory_budget,
        };
        let host = Host::new(
            settings,
            Arc::clone(&loader) as Arc<dyn oxydllm::host::Loader>,
            Arc::new(()),
        );
        Self {
            _watchdog: Watchdog::new(),
            dir,
            loader,
            host,
        }
    }

    fn with_budget(bytes: u64) -> Self {
        Self::new(Some(bytes), KeepAlive::Forever)
    }

    async fn acquire(&self, name: &str) -> Result<Lease> {
        self.host.acquire(name).await
    }

    /// An acquisition that goes on by itself.
    fn begin(&self, name: &str) -> JoinHandle<Result<Lease>> {
        let (host, name) = (Arc::clone(&self.host), name.to_owned());
        tokio::spawn(async move { host.acquire(&name).await })
    }

    /// Ids and states of what is in memory or on its way.
    fn running(&self) -> Vec<(String, ModelState)> {
        let running = self.host.running();
        running.into_iter().map(|m| (m.id, m.state)).collect()
    }

    /// Waits until so many wait for the model that is being loaded or hold it: who looks for its files first comes later than who
    /// began later.
    async fn has_users(&self, id: &str, users: usize) {
        let found = || self.host.running().into_iter().find(|m| m.id == id);
        eventually(|| found().is_some_and(|model| model.users == users)).await;
    }

    fn ids(&self) -> Vec<String> {
        self.running().into_iter().map(|(id, _)| id).collect()
    }
}

/// Waits until `holds`. Virtual time stands still meanwhile, as it does whenever a thread works.
#[track_caller]
fn eventually<'a>(holds: impl Fn() -> bool + 'a) -> impl Future<Output = ()> + 'a {
    let caller = std::panic::Location::caller();
    async move {
        for _ in 0..30_000 {
            if holds() {
                return;
            }
            real_moment().await;
        }
        panic!("it never came to be: {caller}");
    }
}

/// Lets tasks and threads go on for a moment of real time.
async fn real_moment() {
    tokio::task::yield_now().await;
    std::thread::sleep(Duration::from_millis(1));
}

/// Long enough for what must not happen to happen.
async fn settle() {
    for _ in 0..50 {
        real_moment().await;
    }
}

fn kind(outcome: Result<Lease>) -> ErrorKind {
    match outcome {
        Ok(lease) => panic!("{} was loaded", lease.id()),
        Err(error) => error.kind(),
    }
}

#[tokio::test(start_paused = true)]
async fn all_first_requests_share_one_load_however_they_spell_the_name() {
    let setup = Setup::with_budget(20);
    setup.loader.close();
    let names = ["u/a", "U/A", "a", "A", "u/a"];
    let waiters: Vec<_> = names.iter().map(|name| setup.begin(name)).collect();
    eventually(|| setup.loader.loads().len() == 1).await;
    assert_eq!(setup.running(), [("u/a".to_owned(), ModelState::Loading)]);
    setup.loader.open();
    let mut models = Vec::new();
    for waiter in waiters {
        let lease = waiter.await.unwrap().unwrap();
        assert_eq!(lease.id(), "u/a");
        models.push(Arc::as_ptr(lease.model().chat().unwrap()));
    }
    models.dedup();
    assert_eq!((models.len(), setup.loader.loads().len()), (1, 1));
    assert_eq!(setup.running(), [("u/a".to_owned(), ModelState::Ready)]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_load_tells_all_waiters_what_it_was_and_leaves_nothing_behind() {
    let setup = Setup::with_budget(6);
    let error = Error::unsupported("no kernels for `Q9_9`").with_hint("take another");
    setup.loader.script("u/a", &[Act::Fail(error)]);
    setup.loader.close();
    let waiters: Vec<_> = (0..5).map(|_| setup.begin("u/a")).collect();
    setup.has_users("u/a", 5).await;
    setup.loader.open();
    for waiter in waiters {
        let error = waiter.await.unwrap().err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(error.to_string(), "no kernels for `Q9_9`");
        assert_eq!(error.hint(), Some("take another"));
    }
    assert_eq!(setup.running(), []);
    // All of the budget is there for the next.
    setup.acquire("u/b").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_loader_fails_the_waiters_and_gives_the_memory_back() {
    let setup = Setup::with_budget(6);
    setup.loader.script("u/a", &[Act::Panic]);
    setup.loader.close();
    let (first, second) = (setup.begin("u/a"), setup.begin("a"));
    setup.has_users("u/a", 2).await;
    setup.loader.open();
    for waiter in [first, second] {
        let error = waiter.await.unwrap().err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Internal);
        assert!(error.to_string().contains("the loader stumbled"), "{error}");
    }
    drop(setup.acquire("u/b").await.unwrap());
    setup.acquire("u/a").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn models_that_fit_together_are_loaded_once_each() {
    let setup = Setup::with_budget(12);
    for name in ["u/a", "u/b", "u/a", "u/b", "a", "b"] {
        setup.acquire(name).await.unwrap();
    }
    assert_eq!(setup.loader.loads(), ["u/a", "u/b"]);
}

#[tokio::test(start_paused = true)]
async fn the_model_not_used_for_longest_leaves_and_its_memory_is_free_before_the_next_loads() {
    let setup = Setup::with_budget(12);
    for name in ["u/a", "u/b", "u/a", "u/c"] {
        setup.acquire(name).await.unwrap();
    }
    assert_eq!(setup.ids(), ["u/a", "u/c"]);
    assert_eq!(setup.loader.peak(), 12);
}

#[tokio::test(start_paused = true)]
async fn a_model_in_use_never_leaves_even_when_it_was_used_least_recently() {
    let setup = Setup::with_budget(12);
    let busy = setup.acquire("u/a").await.unwrap();
    setup.acquire("u/b").await.unwrap();
    setup.acquire("u/c").await.unwrap();
    assert_eq!(setup.ids(), ["u/a", "u/c"]);
    drop(busy);
}

#[tokio::test(start_paused = true)]
async fn nobody_leaves_in_vain_while_a_load_waits_for_a_busy_model() {
    let setup = Setup::with_budget(10);
    let busy = setup.acquire("u/a").await.unwrap();
    setup.acquire("u/c").await.unwrap();
    let waiter = setup.begin("u/b");
    sleep(Duration::from_secs(5)).await;
    assert!(!waiter.is_finished());
    assert_eq!(setup.ids(), ["u/a", "u/b", "u/c"]);
    drop(busy);
    waiter.await.unwrap().unwrap();
    assert!(setup.loader.peak() <= 10);
}

#[tokio::test(start_paused = true)]
async fn loads_at_the_same_time_keep_within_the_budget() {
    let setup = Setup::with_budget(10);
    setup.loader.close();
    let (a, b) = (setup.begin("u/a"), setup.begin("u/b"));
    eventually(|| !setup.loader.loads().is_empty()).await;
    settle().await;
    assert_eq!(setup.loader.loads().len(), 1, "the other one waits");
    setup.loader.open();
    // Each gives its model back as soon as it has it, whichever comes first.
    let give_back = async |waiter: JoinHandle<Result<Lease>>| drop(waiter.await.unwrap().unwrap());
    tokio::join!(give_back(a), give_back(b));
    assert_eq!((setup.loader.loads().len(), setup.loader.peak()), (2, 6));
}

#[tokio::test(start_paused = true)]
async fn a_model_that_can_never_fit_is_refused_with_numbers_and_nobody_leaves() {
    let setup = Setup::with_budget(5);
    setup.acquire("u/c").await.unwrap();
    let error = setup.acquire("u/a").await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(
        error.to_string().contains("needs 6 B") && error.to_string().contains("may take 5 B"),
        "{error}"
    );
    assert!(error.hint().unwrap().contains("--memory-budget"));
    assert_eq!(setup.loader.loads(), ["u/c"]);
    assert_eq!(setup.ids(), ["u/c"]);
}

#[tokio::test(start_paused = true)]
async fn without_a_budget_what_the_machine_has_is_the_limit() {
    let setup = Setup::new(None, KeepAlive::Forever);
    setup.loader.set_capacity(9);
    setup.acquire("u/a").await.unwrap();
    setup.acquire("u/b").await.unwrap();
    assert_eq!(
        (setup.ids(), setup.loader.peak()),
        (vec!["u/b".to_owned()], 6)
    );
    setup.loader.set_capacity(5);
    assert_eq!(kind(setup.acquire("u/a").await), ErrorKind::OutOfMemory);
}

#[tokio::test(start_paused = true)]
async fn an_idle_model_leaves_when_its_time_is_over_and_not_before() {
    let setup = Setup::new(None, KeepAlive::After(Duration::from_secs(100)));
    drop(setup.acquire("u/a").await.unwrap());
    sleep(Duration::from_millis(99_900)).await;
    assert_eq!(setup.ids(), ["u/a"]);
    // Used again: the time begins anew.
    drop(setup.acquire("u/a").await.unwrap());
    sleep(Duration::from_millis(99_900)).await;
    assert_eq!(setup.ids(), ["u/a"]);
    sleep(Duration::from_millis(200)).await;
    eventually(|| setup.ids().is_empty()).await;
    assert_eq!(
        (setup.loader.resident(), setup.loader.loads().len()),
        (0, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_longer_than_the_keep_alive_completes_and_the_time_counts_from_its_end() {
    let setup = Setup::new(None, KeepAlive::After(Duration::from_secs(10)));
    let lease = setup.acquire("u/a").await.unwrap();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(setup.running(), [("u/a".to_owned(), ModelState::Ready)]);
    assert_eq!(setup.host.running()[0].idle, Duration::ZERO);
    drop(lease);
    sleep(Duration::from_millis(9_900)).await;
    assert_eq!(setup.ids(), ["u/a"]);
    assert_eq!(setup.host.running()[0].idle, Duration::from_millis(9_900));
    sleep(Duration::from_millis(200)).await;
    eventually(|| setup.ids().is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn keep_alive_of_a_request_holds_after_it_and_not_for_later_ones() {
    let setup = Setup::new(None, KeepAlive::After(Duration::from_secs(10)));
    let lease = setup.acquire("u/a").await.unwrap();
    lease.set_keep_alive(KeepAlive::After(Duration::ZERO));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(setup.ids(), ["u/a"], "not under the request that said so");
    drop(lease);
    eventually(|| setup.ids().is_empty()).await;

    let lease = setup.acquire("u/a").await.unwrap();
    lease.set_keep_alive(KeepAlive::Forever);
    drop(lease);
    sleep(Duration::from_secs(1000)).await;
    assert_eq!(setup.ids(), ["u/a"]);
    drop(setup.acquire("u/a").await.unwrap());
    sleep(Duration::from_secs(11)).await;
    eventually(|| setup.ids().is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_waiting_does_not_stop_the_load_for_others_nor_the_load_itself() {
    let setup = Setup::with_budget(20);
    setup.loader.close();
    let (gone, stays) = (setup.begin("u/a"), setup.begin("u/a"));
    setup.has_users("u/a", 2).await;
    eventually(|| setup.loader.loads().len() == 1).await;
    let alone = setup.begin("u/b");
    eventually(|| setup.loader.loads().len() == 2).await;
    gone.abort();
    alone.abort();
    settle().await;
    setup.loader.open();
    stays.await.unwrap().unwrap();
    eventually(|| {
        setup
            .running()
            .iter()
            .all(|(_, state)| *state == ModelState::Ready)
    })
    .await;
    assert_eq!(setup.ids(), ["u/a", "u/b"]);
    drop(setup.acquire("u/b").await.unwrap());
    assert_eq!(setup.loader.loads().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_load_that_waits_for_memory_is_given_up_with_its_last_waiter() {
    let setup = Setup::with_budget(6);
    let busy = setup.acquire("u/a").await.unwrap();
    let waiter = setup.begin("u/b");
    eventually(|| setup.running().len() == 2).await;
    waiter.abort();
    eventually(|| setup.ids() == ["u/a"]).await;
    drop(busy);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(
        (setup.ids(), setup.loader.loads().len()),
        (vec!["u/a".to_owned()], 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_model_that_is_never_idle_makes_room_for_one_that_waited_for_long() {
    let setup = Setup::with_budget(6);
    let mut current = setup.acquire("u/a").await.unwrap();
    let waiter = setup.begin("u/b");
    // Requests overlap, so that the model always has one.
    for _ in 0..9 {
        sleep(Duration::from_secs(1)).await;
        current = setup.acquire("u/a").await.unwrap();
    }
    assert!(!waiter.is_finished());
    sleep(Duration::from_secs(2)).await;
    let late = setup.begin("u/a");
    sleep(Duration::from_secs(1)).await;
    assert!(!late.is_finished(), "it waits for its turn");
    drop(current);
    drop(waiter.await.unwrap().unwrap());
    late.await.unwrap().unwrap();
    assert_eq!(setup.loader.loads(), ["u/a", "u/b", "u/a"]);
    assert_eq!(setup.loader.peak(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_small_load_may_pass_a_large_one_that_waits_for_a_busy_model() {
    let setup = Setup::with_budget(10);
    let busy = setup.acquire("u/a").await.unwrap();
    let waiter = setup.begin("u/b");
    sleep(Duration::from_secs(1)).await;
    setup.acquire("u/c").await.unwrap();
    drop(busy);
    waiter.await.unwrap().unwrap();
    assert!(setup.loader.peak() <= 10);
}

#[tokio::test(start_paused = true)]
async fn a_model_whose_worker_died_is_loaded_again() {
    let setup = Setup::with_budget(6);
    setup.loader.script("u/a", &[Act::Mortal]);
    let old = setup.acquire("u/a").await.unwrap();
    setup.loader.kill();
    eventually(|| setup.loader.resident() == 0).await;
    let new = eventually_another(&setup, &old).await;
    drop(old);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(setup.running(), [("u/a".to_owned(), ModelState::Ready)]);
    drop(new);
    assert_eq!(setup.loader.loads().len(), 2);
}

/// The thread of a worker ends a moment after its memory is free.
async fn eventually_another(setup: &Setup, old: &Lease) -> Lease {
    for _ in 0..30_000 {
        let lease = setup.acquire("u/a").await.unwrap();
        if !Arc::ptr_eq(lease.model().chat().unwrap(), old.model().chat().unwrap()) {
            return lease;
        }
        real_moment().await;
    }
    panic!("the dead model is still served");
}

#[tokio::test(start_paused = true)]
async fn a_model_that_fails_again_and_again_is_left_alone_for_longer_and_longer() {
    let setup = Setup::with_budget(6);
    let error = Error::invalid("a tensor is missing");
    setup.loader.script("u/a", &vec![Act::Fail(error); 4]);
    let mut pauses = Vec::new();
    for attempt in 1..=4 {
        let begin = Instant::now();
        while setup.loader.loads().len() < attempt {
            let error = setup.acquire("u/a").await.err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(
                error.to_string().ends_with("a tensor is missing"),
                "{error}"
            );
            sleep(Duration::from_millis(100)).await;
        }
        pauses.push(begin.elapsed());
    }
    assert!(
        pauses[1] < Duration::from_secs(1),
        "once is an accident: {pauses:?}"
    );
    assert!(pauses[2] >= Duration::from_millis(900), "{pauses:?}");
    assert!(
        pauses[3] >= pauses[2] + Duration::from_millis(900),
        "{pauses:?}"
    );
    // After the pause, and without the fault, all is forgotten.
    sleep(Duration::from_secs(10)).await;
    setup.acquire("u/a").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_model_that_took_more_than_the_budget_is_unloaded_and_the_numbers_are_told() {
    // Planned as free of charge, found to take 6 bytes.
    struct Modest(Arc<ScriptedLoader>);
    impl oxydllm::host::Loader for Modest {
        fn plan(&self, _: &oxydllm::store::LocalModel) -> Result<u64> {
            Ok(1)
        }
        fn load(&self, model: &oxydllm::store::LocalModel) -> Result<oxydllm::host::Loaded> {
            self.0.load(model)
        }
    }
    let setup = Setup::with_budget(4);
    let settings = HostSettings {
        models_dir: setup.dir.path().to_owned(),
        keep_alive: KeepAlive::Forever,
        memory_budget: Some(4),
    };
    let loader = Arc::new(Modest(Arc::clone(&setup.loader)));
    let host = Host::new(settings, loader, Arc::new(()));
    let error = host.acquire("u/a").await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(error.to_string().contains("took 6 B"), "{error}");
    assert!(host.running().is_empty());
    assert_eq!(setup.loader.resident(), 0);
}

#[tokio::test(start_paused = true)]
async fn shutdown_unloads_all_and_tells_who_waits() {
    let setup = Setup::with_budget(12);
    setup.acquire("u/c").await.unwrap();
    let lease = setup.acquire("u/a").await.unwrap();
    let waiting = setup.begin("u/b");
    eventually(|| setup.running().len() == 2).await;
    setup.loader.close();
    let host = Arc::clone(&setup.host);
    let shutdown = tokio::spawn(async move { host.shutdown().await });
    assert_eq!(kind(waiting.await.unwrap()), ErrorKind::Unavailable);
    assert_eq!(kind(setup.acquire("u/a").await), ErrorKind::Unavailable);
    settle().await;
    assert!(!shutdown.is_finished(), "a lease is held");
    drop(lease);
    setup.loader.open();
    shutdown.await.unwrap();
    assert_eq!((setup.ids().len(), setup.loader.resident()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn shutdown_during_a_load_waits_for_it_and_its_waiters_do_not() {
    let setup = Setup::with_budget(12);
    setup.loader.close();
    let waiting = setup.begin("u/a");
    eventually(|| setup.loader.loads().len() == 1).await;
    let host = Arc::clone(&setup.host);
    let shutdown = tokio::spawn(async move { host.shutdown().await });
    assert_eq!(kind(waiting.await.unwrap()), ErrorKind::Unavailable);
    setup.loader.open();
    shutdown.await.unwrap();
    assert_eq!((setup.ids().len(), setup.loader.resident()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn names_that_could_leave_the_directory_are_refused_and_unknown_ones_not_found() {
    let setup = Setup::with_budget(12);
    for name in [
        "../x",
        "u/../../u/a",
        "/u/a",
        "u//a",
        "u\\a",
        "u/a\0",
        "",
        " ",
    ] {
        assert_eq!(
            kind(setup.acquire(name).await),
            ErrorKind::Invalid,
            "{name:?}"
        );
    }
    assert_eq!(kind(setup.acquire("u/zzz").await), ErrorKind::NotFound);
    let several = setup.acquire("u/").await.err().unwrap();
    assert_eq!(several.kind(), ErrorKind::Invalid);
    write_models(setup.dir.path(), &["v/a"]);
    let several = setup.acquire("a").await.err().unwrap();
    assert_eq!(several.kind(), ErrorKind::Invalid);
    assert!(several.to_string().contains("`u/a`, `v/a`"), "{several}");
    assert_eq!(setup.loader.loads(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn the_registry_learns_from_loads_and_forgets_what_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let old = r#"{"gone/m": {"size_bytes": 1}, "u/a": {"size_bytes": 1, "mood": "good"}}"#;
    std::fs::write(dir.path().join(REGISTRY_FILE), old).unwrap();
    write_models(dir.path(), &["u/a", "u/b"]);
    let loader = ScriptedLoader::new(&[("u/a", 8), ("u/b", 4)]);
    let settings = HostSettings {
        models_dir: dir.path().to_owned(),
        keep_alive: KeepAlive::Forever,
        memory_budget: None,
    };
    let host = Host::new(settings, loader, Arc::new(()));
    let keys = || load_registry(dir.path()).into_keys().collect::<Vec<_>>();
    assert_eq!(keys(), ["u/a"]);
    drop(host.acquire("A").await.unwrap());
    host.shutdown().await;
    // It is written beside the first requests, not before them.
    eventually(|| load_registry(dir.path())["u/a"].vocab_size > 0).await;
    let registry = load_registry(dir.path());
    let entry = &registry["u/a"];
    assert_eq!(
        (
            entry.architecture.as_str(),
            entry.vocab_size,
            entry.num_layers
        ),
        ("TestForCausalLM", 300, 2)
    );
    assert_eq!((entry.size_bytes, entry.kv_cache_bytes), (6, 2));
    assert!(entry.last_used_secs > 1_600_000_000);
    assert_eq!(entry.other["mood"], "good");
    assert_eq!(keys(), ["u/a"]);
}

#[tokio::test(start_paused = true)]
async fn the_list_shows_all_models_with_what_is_known_about_them() {
    let setup = Setup::with_budget(12);
    std::fs::write(setup.dir.path().join("u/b/model.safetensors.part"), b"x").unwrap();
    let before = setup.host.list().unwrap();
    let ids: Vec<&str> = before.iter().map(|entry| entry.id.as_str()).collect();
    assert_eq!(ids, ["u/a", "u/b", "u/c"]);
    let a = &before[0];
    assert_eq!(
        (a.architecture.as_str(), a.vocab_size, a.num_layers),
        ("TestForCausalLM", 300, 2)
    );
    assert_eq!((a.size_bytes, a.last_used_secs), (7, 0), "as on disk");
    assert!(a.created_secs > 1_600_000_000);
    let lease = setup.acquire("u/a").await.unwrap();
    eventually(|| setup.host.list().unwrap()[0].size_bytes == 5).await;
    assert!(setup.host.list().unwrap()[0].last_used_secs >= a.created_secs);
    drop(lease);
    std::fs::remove_dir_all(setup.dir.path().join("u/c")).unwrap();
    assert_eq!(setup.host.list().unwrap().len(), 2, "at once");
}

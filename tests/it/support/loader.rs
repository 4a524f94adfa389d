//! A loader without checkpoints: how large models are and how loading goes is what a test says.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use oxydllm::engine::{Engine, EngineInfo, Submission};
use oxydllm::error::{Error, Result};
use oxydllm::host::{Loaded, Loader};
use oxydllm::store::LocalModel;

use super::scripted;

/// How a load goes.
#[derive(Debug, Clone)]
pub enum Act {
    /// It succeeds.
    Load,
    /// It succeeds, but the model's worker dies when told to.
    Mortal,
    /// It fails.
    Fail(Error),
    /// It panics.
    Panic,
}

/// Writes models into a directory of their own, so that a host finds them.
pub fn write_models(models_dir: &Path, ids: &[&str]) {
    for id in ids {
        let dir = models_dir.join(id);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("model.safetensors"), b"weights").unwrap();
        let config =
            br#"{"architectures": ["TestForCausalLM"], "vocab_size": 300, "num_hidden_layers": 2}"#;
        std::fs::write(dir.join("config.json"), config).unwrap();
    }
}

/// Bytes in memory now and at most, loads in progress included.
#[derive(Debug, Default)]
struct Resident {
    now: u64,
    peak: u64,
}

#[derive(Default)]
struct State {
    sizes: BTreeMap<String, u64>,
    acts: BTreeMap<String, Vec<Act>>,
    loads: Vec<String>,
    is_closed: bool,
    capacity: Option<u64>,
    mortals: Vec<mpsc::Sender<()>>,
}

/// The loader.
#[derive(Default)]
pub struct ScriptedLoader {
    state: Mutex<State>,
    gate: Condvar,
    resident: Arc<Mutex<Resident>>,
}

impl ScriptedLoader {
    /// A loader of models of these sizes.
    pub fn new(sizes: &[(&str, u64)]) -> Arc<Self> {
        let loader = Self::default();
        loader.state.lock().unwrap().sizes = sizes
            .iter()
            .map(|(id, bytes)| ((*id).to_owned(), *bytes))
            .collect();
        Arc::new(loader)
    }

    /// What the next loads of a model do; after them all succeed.
    pub fn script(&self, id: &str, acts: &[Act]) {
        let mut acts = acts.to_vec();
        acts.reverse();
        self.state.lock().unwrap().acts.insert(id.to_owned(), acts);
    }

    /// From now on loads begin and do not go on.
    pub fn close(&self) {
        self.state.lock().unwrap().is_closed = true;
    }

    /// Lets loads go on.
    pub fn open(&self) {
        self.state.lock().unwrap().is_closed = false;
        self.gate.notify_all();
    }

    /// What the machine has for models.
    pub fn set_capacity(&self, bytes: u64) {
        self.state.lock().unwrap().capacity = Some(bytes);
    }

    /// Kills the workers of all mortal models.
    pub fn kill(&self) {
        self.state.lock().unwrap().mortals.clear();
    }

    /// The models that were loaded or were to be, in order.
    pub fn loads(&self) -> Vec<String> {
        self.state.lock().unwrap().loads.clone()
    }

    /// Bytes in memory now.
    pub fn resident(&self) -> u64 {
        self.resident.lock().unwrap().now
    }

    /// Most bytes that were in memory at once.
    pub fn peak(&self) -> u64 {
        self.resident.lock().unwrap().peak
    }

    fn size(&self, model: &LocalModel) -> u64 {
        self.state.lock().unwrap().sizes[&model.id]
    }

    fn begin(&self, model: &LocalModel) -> (u64, Act) {
        let bytes = self.size(model);
        {
            let mut resident = self.resident.lock().unwrap();
            resident.now += bytes;
            resident.peak = resident.peak.max(resident.now);
        }
        let mut state = self.state.lock().unwrap();
        state.loads.push(model.id.clone());
        while state.is_closed {
            state = self.gate.wait(state).unwrap();
        }
        let act = state.acts.get_mut(&model.id).and_then(Vec::pop);
        (bytes, act.unwrap_or(Act::Load))
    }
}

impl Loader for ScriptedLoader {
    fn capacity(&self) -> Option<u64> {
        self.state.lock().unwrap().capacity
    }

    fn plan(&self, model: &LocalModel) -> Result<u64> {
        Ok(self.size(model))
    }

    fn load(&self, model: &LocalModel) -> Result<Loaded> {
        let (bytes, act) = self.begin(model);
        let give_back = || self.resident.lock().unwrap().now -= bytes;
        let death = match act {
            Act::Fail(error) => {
                give_back();
                return Err(error);
            }
            Act::Panic => {
                give_back();
                panic!("the loader stumbled");
            }
            Act::Load => None,
            Act::Mortal => {
                let (life, death) = mpsc::channel();
                self.state.lock().unwrap().mortals.push(life);
                Some(death)
            }
        };
        let (queue, submissions) = mpsc::channel::<Submission>();
        let resident = Arc::clone(&self.resident);
        let ended = thread::spawn(move || {
            match death {
                // Blocks until the sender is dropped.
                Some(death) => drop(death.recv()),
                None => submissions.into_iter().for_each(drop),
            }
            // Memory is not free at once.
            thread::sleep(Duration::from_millis(20));
            resident.lock().unwrap().now -= bytes;
        });
        let info = EngineInfo {
            vocab_size: 300,
            max_context: 64,
            weight_bytes: (bytes - bytes / 4) as usize,
            kv_bytes: (bytes / 4) as usize,
            num_blocks: 64,
            max_num_seqs: 1,
            max_queued: 8,
        };
        let engine = Engine::from_queue(queue, info, Arc::default());
        Ok(Loaded {
            model: scripted::model(engine).into(),
            ended,
        })
    }
}

//! The worker thread of an embedding model or reranker.
//!
//! A turn of its loop: take what arrived, drop what nobody waits for, compute a step of texts. Requests take turns text by text, so
//! that a long list does not hold up a short one, and steps are short, so that other models on the same threads get theirs. Which
//! texts share a step cannot change a bit.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread::JoinHandle;

use super::handle::{EmbedEngine, Job};
use crate::engine::EngineInfo;
use crate::engine::stats::EngineStats;
use crate::engine::worker::panic_text;
use crate::error::{Error, Result};
use crate::model::embedder::{Embedder, EmbedderPlan, STEP_TOKENS};
use crate::model::encoder::TextTokens;
use crate::ops::Context;

/// What computes a step.
pub trait Compute: Send {
    /// Numbers for each text.
    ///
    /// # Errors
    /// Those of the model; they fail the requests of the step.
    fn compute(&mut self, ctx: &Context, texts: &[&TextTokens]) -> Result<Vec<Vec<f32>>>;
}

impl Compute for Embedder {
    fn compute(&mut self, ctx: &Context, texts: &[&TextTokens]) -> Result<Vec<Vec<f32>>> {
        Self::compute(self, ctx, texts)
    }
}

/// A running worker.
#[derive(Debug)]
pub struct Running {
    /// The handle to it. The worker ends when the last clone is dropped and its requests are over.
    pub engine: EmbedEngine,
    /// Ends when the worker has given its memory back.
    pub thread: JoinHandle<()>,
}

/// Starts the worker of a loaded model; at most `max_queued` requests are in its hands at once.
pub fn start(ctx: Context, embedder: Embedder, plan: &EmbedderPlan, max_queued: usize) -> Running {
    let info = EngineInfo {
        vocab_size: embedder.vocab_size(),
        max_context: plan.max_tokens,
        weight_bytes: plan.weight_bytes,
        kv_bytes: plan.kv_bytes,
        max_queued,
        ..EngineInfo::default()
    };
    let dimensions = embedder.dimensions();
    start_with(ctx, Box::new(embedder), info, dimensions)
}

/// Starts a worker around anything that computes steps.
pub fn start_with(
    ctx: Context,
    compute: Box<dyn Compute>,
    info: EngineInfo,
    dimensions: usize,
) -> Running {
    let (queue, jobs) = mpsc::channel();
    let stats = Arc::<EngineStats>::default();
    let worker = Worker {
        ctx,
        compute,
        requests: VecDeque::new(),
        stats: Arc::clone(&stats),
    };
    let thread = std::thread::Builder::new()
        .name("embed".to_owned())
        .spawn(move || worker.serve(&jobs))
        .expect("the system refuses to start a thread");
    Running {
        engine: EmbedEngine::new(queue, info, dimensions, stats),
        thread,
    }
}

/// A request with what was computed for it.
struct Request {
    job: Job,
    /// Of the first texts.
    outputs: Vec<Vec<f32>>,
}

impl Request {
    fn is_done(&self) -> bool {
        self.outputs.len() == self.job.texts.len()
    }

    fn finish(self, result: Result<()>) {
        // A receiver that is gone does not want the answer.
        let _ = self.job.reply.send(result.map(|()| self.outputs));
    }
}

struct Worker {
    ctx: Context,
    compute: Box<dyn Compute>,
    /// Whose turn is next stands first.
    requests: VecDeque<Request>,
    stats: Arc<EngineStats>,
}

impl Worker {
    fn serve(mut self, jobs: &Receiver<Job>) {
        while self.receive(jobs) {
            self.requests
                .retain(|request| !request.job.reply.is_closed());
            self.step();
            self.note_stats();
        }
    }

    /// Takes what arrived; sleeps when there is nothing else to do. `false` when all is over.
    fn receive(&mut self, jobs: &Receiver<Job>) -> bool {
        if self.requests.is_empty() {
            self.note_stats();
            match jobs.recv() {
                Ok(job) => self.add(job),
                Err(mpsc::RecvError) => return false,
            }
        }
        loop {
            match jobs.try_recv() {
                Ok(job) => self.add(job),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return !self.requests.is_empty(),
            }
        }
    }

    fn add(&mut self, job: Job) {
        let request = Request {
            outputs: Vec::with_capacity(job.texts.len()),
            job,
        };
        match request.is_done() {
            true => request.finish(Ok(())),
            false => self.requests.push_back(request),
        }
    }

    fn step(&mut self) {
        let chosen = self.choose();
        let outcome = {
            let text = |&(request, text): &(usize, usize)| &self.requests[request].job.texts[text];
            let texts: Vec<&TextTokens> = chosen.iter().map(text).collect();
            catch_unwind(AssertUnwindSafe(|| {
                let _turn = self.ctx.pool().exclusive();
                self.compute.compute(&self.ctx, &texts)
            }))
        };
        // Who was not served comes first the next time.
        let served = chosen
            .iter()
            .map(|(request, _)| request + 1)
            .max()
            .unwrap_or(0);
        let others = self.requests.split_off(served);
        let mut served = std::mem::replace(&mut self.requests, others);
        match outcome {
            Ok(Ok(outputs)) => {
                // Ascending within a request, so each output is the next of its request.
                for (&(request, _), output) in chosen.iter().zip(outputs) {
                    served[request].outputs.push(output);
                }
                served
                    .into_iter()
                    .for_each(|request| self.end_or_go_on(request));
            }
            Ok(Err(error)) => fail(served, &error.chain()),
            Err(panic) => fail(served, &panic_text(&*panic)),
        }
    }

    fn end_or_go_on(&mut self, request: Request) {
        if !request.outputs.iter().flatten().all(|x| x.is_finite()) {
            let text = "the model's output holds a number that is not finite";
            request.finish(Err(Error::internal(text)));
        } else if request.is_done() {
            request.finish(Ok(()));
        } else {
            self.requests.push_back(request);
        }
    }

    /// The texts of the next step as (request, text): round by round one of each request, as many as fit, one at least.
    fn choose(&self) -> Vec<(usize, usize)> {
        let mut chosen = Vec::new();
        let mut tokens = 0;
        for round in 0.. {
            let mut has_more = false;
            for (index, request) in self.requests.iter().enumerate() {
                let text = request.outputs.len() + round;
                let Some(next) = request.job.texts.get(text) else {
                    continue;
                };
                has_more = true;
                tokens += next.ids.len();
                if tokens > STEP_TOKENS && !chosen.is_empty() {
                    return chosen;
                }
                chosen.push((index, text));
            }
            if !has_more {
                break;
            }
        }
        chosen
    }

    fn note_stats(&self) {
        self.stats.steps.fetch_add(1, Ordering::Relaxed);
        let running = usize::from(!self.requests.is_empty());
        self.stats.running.store(running, Ordering::Relaxed);
        let waiting = self.requests.len() - running;
        self.stats.waiting.store(waiting, Ordering::Relaxed);
    }
}

/// Ends requests whose step failed.
fn fail(requests: VecDeque<Request>, why: &str) {
    tracing::error!(requests = requests.len(), error = why, "engine step failed");
    for request in requests {
        request.finish(Err(Error::internal(format!(
            "the engine failed while it computed this request: {why}"
        ))));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::Sender;

    use super::super::Outputs;
    use super::*;
    use crate::error::ErrorKind;
    use crate::ops::CpuLevel;
    use crate::threads::Pool;

    /// Says of each text how many tokens it has. Waits for leave before each step and writes down what was in it.
    struct Counter {
        leave: Receiver<()>,
        steps: Arc<Mutex<Vec<Vec<u32>>>>,
    }

    impl Compute for Counter {
        fn compute(&mut self, _: &Context, texts: &[&TextTokens]) -> Result<Vec<Vec<f32>>> {
            let _ = self.leave.recv();
            let firsts = texts.iter().map(|text| text.ids[0]).collect();
            self.steps.lock().unwrap().push(firsts);
            if texts.iter().any(|text| text.ids[0] == 98) {
                panic!("stumbled");
            }
            let number = |text: &&TextTokens| match text.ids[0] {
                99 => f32::NAN,
                _ => text.ids.len() as f32,
            };
            Ok(texts.iter().map(|text| vec![number(text)]).collect())
        }
    }

    struct Rig {
        engine: EmbedEngine,
        leave: Sender<()>,
        steps: Arc<Mutex<Vec<Vec<u32>>>>,
        thread: JoinHandle<()>,
    }

    fn rig(max_queued: usize) -> Rig {
        let (leave, permits) = mpsc::channel();
        let steps = Arc::<Mutex<Vec<Vec<u32>>>>::default();
        let counter = Counter {
            leave: permits,
            steps: Arc::clone(&steps),
        };
        let info = EngineInfo {
            vocab_size: 100,
            max_context: 600,
            max_queued,
            ..EngineInfo::default()
        };
        let ctx = Context::cpu(Arc::new(Pool::new(1)), CpuLevel::Scalar);
        let Running { engine, thread } = start_with(ctx, Box::new(counter), info, 1);
        Rig {
            engine,
            leave,
            steps,
            thread,
        }
    }

    /// A text that begins with `first`.
    fn text(first: u32, len: usize) -> TextTokens {
        let mut ids = vec![0; len];
        ids[0] = first;
        TextTokens::of_ids(ids)
    }

    fn numbers(outputs: Outputs) -> Vec<f32> {
        let outputs = outputs.blocking_recv().unwrap().unwrap();
        outputs.into_iter().flatten().collect()
    }

    #[test]
    fn requests_take_turns_and_get_their_outputs_in_order() {
        let rig = rig(9);
        // The first request begins alone; the others come meanwhile.
        let first = rig
            .engine
            .submit(vec![text(1, 500), text(2, 400), text(3, 400)])
            .unwrap();
        let second = rig.engine.submit(vec![text(4, 50), text(5, 60)]).unwrap();
        let third = rig.engine.submit(vec![text(6, 512)]).unwrap();
        for _ in 0..9 {
            rig.leave.send(()).unwrap();
        }
        assert_eq!(numbers(first), [500.0, 400.0, 400.0]);
        assert_eq!(numbers(second), [50.0, 60.0]);
        assert_eq!(numbers(third), [512.0]);
        let steps = rig.steps.lock().unwrap().clone();
        let position = |first: u32| steps.iter().position(|step| step.contains(&first)).unwrap();
        assert!(
            position(4) < position(3) && position(6) < position(3),
            "{steps:?}"
        );
        let tokens: usize = steps.iter().map(Vec::len).sum();
        assert_eq!(tokens, 6, "every text once: {steps:?}");
    }

    #[test]
    fn a_failure_ends_the_requests_that_it_belongs_to() {
        let rig = rig(9);
        let broken = rig.engine.submit(vec![text(99, 500)]).unwrap();
        let panicking = rig.engine.submit(vec![text(98, 500)]).unwrap();
        let fine = rig.engine.submit(vec![text(1, 500)]).unwrap();
        for _ in 0..3 {
            rig.leave.send(()).unwrap();
        }
        for (outputs, words) in [(broken, "not finite"), (panicking, "stumbled")] {
            let error = outputs.blocking_recv().unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Internal);
            assert!(error.to_string().contains(words), "{error}");
        }
        assert_eq!(numbers(fine), [500.0]);
    }

    #[test]
    fn the_queue_is_bounded_and_places_come_back() {
        let rig = rig(2);
        let first = rig.engine.submit(vec![text(1, 2)]).unwrap();
        let second = rig.engine.submit(vec![text(2, 3)]).unwrap();
        let refused = rig.engine.submit(vec![text(3, 4)]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Overloaded);
        rig.leave.send(()).unwrap();
        assert_eq!(numbers(first), [2.0]);
        // Nobody wants the second any more: it is dropped without being computed, if it was not computed beside the first.
        drop(second);
        rig.leave.send(()).unwrap();
        while rig.engine.submit(vec![text(4, 5)]).is_err() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_worker_ends_with_its_last_handle() {
        let Rig { engine, thread, .. } = rig(1);
        drop(engine);
        thread.join().unwrap();
    }

    #[test]
    fn what_can_never_work_is_refused_at_once() {
        let rig = rig(9);
        let refused = |text: TextTokens| rig.engine.submit(vec![TextTokens::of_ids(vec![1]), text]);
        for (text, kind, words) in [
            (
                TextTokens::default(),
                ErrorKind::Invalid,
                "text 1 has no tokens",
            ),
            (text(100, 2), ErrorKind::Invalid, "token id 100 in text 1"),
            (
                text(1, 601),
                ErrorKind::ContextLength,
                "text 1 has 601 tokens, the model reads at most 600",
            ),
        ] {
            let error = refused(text).unwrap_err();
            assert_eq!(error.kind(), kind);
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}

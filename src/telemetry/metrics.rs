//! [`Metrics`]: the numbers that a server exports in Prometheus' text format.
//!
//! Built once and passed in; nothing here is global, so that two servers in one process (or two tests) do not mix. Labels are
//! canonical model ids and never what a client typed, so that the number of series is bounded by the models there are.
//!
//! Every family has its HELP and TYPE lines from the start. Gauges of a model exist while it is loaded; its counters and
//! histograms stay, because a counter that vanishes with the model would lose what happened since the last scrape.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus::core::Collector;
use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

/// The media type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper bounds of the buckets of the time to first token, in milliseconds. Long prompts on a CPU take minutes.
const FIRST_TOKEN_BUCKETS: &[f64] = &[
    10.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 30_000.0, 60_000.0,
    120_000.0,
];

/// Upper bounds of the buckets of the decode speed, in tokens per second.
const SPEED_BUCKETS: &[f64] = &[1.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0];

/// How a request, or one of its choices, ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// With a complete answer.
    Ok,
    /// By a failure of the model, of loading it or of the server.
    Error,
    /// The time limit passed.
    Timeout,
    /// The client went away, or the server was shut down.
    Cancelled,
    /// Too much was waiting.
    Rejected,
}

impl Outcome {
    /// The value of the label `status`, and of the log field `outcome`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::Rejected => "rejected",
        }
    }
}

/// The memory of a loaded model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelMemory {
    /// Its canonical id.
    pub id: String,
    /// Bytes of weights.
    pub weight_bytes: u64,
    /// Bytes of the KV cache.
    pub kv_bytes: u64,
}

/// The metric families with their registry.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Name, help and type of every family, in the order of the page.
    families: Vec<Family>,
    first_token: HistogramVec,
    speed: HistogramVec,
    requests: IntCounterVec,
    queue_depth: IntGauge,
    prefix_lookups: IntCounterVec,
    prompt_tokens: IntCounterVec,
    completion_tokens: IntCounterVec,
    weight_bytes: IntGaugeVec,
    kv_bytes: IntGaugeVec,
    memory_bytes: IntGauge,
    /// Held while the gauges of models are replaced and read.
    scrape: Mutex<()>,
}

#[derive(Debug)]
struct Family {
    name: &'static str,
    help: &'static str,
    kind: &'static str,
}

/// Counts one sequence as long as it lives.
#[derive(Debug)]
pub struct SequenceGuard(Arc<Metrics>);

impl Drop for SequenceGuard {
    fn drop(&mut self) {
        self.0.queue_depth.dec();
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All families, without a series but for those without labels.
    pub fn new() -> Self {
        let mut page = Page::default();
        let mut metrics = Self {
            first_token: page.histogram(
                "oxydllm_ttft_milliseconds",
                "Time-to-first-token in milliseconds.",
                FIRST_TOKEN_BUCKETS,
            ),
            speed: page.histogram(
                "oxydllm_tokens_per_second",
                "Decode speed in tokens per second, from the first token to the last.",
                SPEED_BUCKETS,
            ),
            requests: page.counter(
                "oxydllm_requests_total",
                "Total completed requests.",
                &["model", "status"],
            ),
            queue_depth: page.gauge(
                "oxydllm_queue_depth",
                "Current number of sequences in the inference engine.",
            ),
            prefix_lookups: page.counter(
                "oxydllm_prefix_cache_requests_total",
                "Total prefix cache look-ups.",
                &["model", "result"],
            ),
            weight_bytes: page.gauge_of_model(
                "oxydllm_model_weights_bytes",
                "Bytes of weights of a loaded model.",
            ),
            kv_bytes: page.gauge_of_model(
                "oxydllm_kv_cache_allocated_bytes",
                "Bytes of the KV cache of a loaded model.",
            ),
            memory_bytes: page.gauge(
                "oxydllm_vram_used_bytes",
                "Total inference memory in bytes.",
            ),
            prompt_tokens: page.counter(
                "oxydllm_prompt_tokens_total",
                "Total prompt tokens of admitted requests, cached ones included.",
                &["model"],
            ),
            completion_tokens: page.counter(
                "oxydllm_completion_tokens_total",
                "Total generated tokens.",
                &["model"],
            ),
            registry: Registry::new(),
            families: Vec::new(),
            scrape: Mutex::default(),
        };
        (metrics.registry, metrics.families) = (page.registry, page.families);
        metrics
    }

    /// A sequence was handed to an engine: it counts as waiting or running until the guard is dropped.
    pub fn sequence(self: &Arc<Self>) -> SequenceGuard {
        self.queue_depth.inc();
        SequenceGuard(Arc::clone(self))
    }

    /// The first token of a sequence came `milliseconds` after it was handed to the engine.
    pub fn first_token(&self, model: &str, milliseconds: f64) {
        let series = self.first_token.with_label_values(&[model]);
        series.observe(milliseconds);
    }

    /// A sequence ended that generated `tokens` tokens, `decode_s` seconds from the first to the last. Of fewer than two
    /// tokens no speed can be told.
    pub fn speed(&self, model: &str, tokens: usize, decode_s: f64) {
        if let Some(speed) = tokens_per_second(tokens, decode_s) {
            self.speed.with_label_values(&[model]).observe(speed);
        }
    }

    /// A sequence ended, or a request before it became one.
    pub fn request_ended(&self, model: &str, outcome: Outcome) {
        let labels = [model, outcome.as_str()];
        self.requests.with_label_values(&labels).inc();
    }

    /// A prompt was looked up in the prefix cache.
    pub fn prefix_lookup(&self, model: &str, hit: bool) {
        let labels = [model, if hit { "hit" } else { "miss" }];
        self.prefix_lookups.with_label_values(&labels).inc();
    }

    /// Tokens of a request that was admitted.
    pub fn tokens(&self, model: &str, prompt: usize, completion: usize) {
        let add = |counter: &IntCounterVec, count: usize| {
            counter.with_label_values(&[model]).inc_by(count as u64);
        };
        add(&self.prompt_tokens, prompt);
        add(&self.completion_tokens, completion);
    }

    /// The page, with the gauges of exactly the models in `loaded`.
    pub fn render(&self, loaded: &[ModelMemory]) -> String {
        let _scrape = self.scrape.lock().unwrap_or_else(PoisonError::into_inner);
        self.weight_bytes.reset();
        self.kv_bytes.reset();
        let mut total = 0_i64;
        for model in loaded {
            let set = |gauge: &IntGaugeVec, bytes: u64| {
                let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
                gauge.with_label_values(&[&model.id]).set(bytes);
                bytes
            };
            total = total.saturating_add(set(&self.weight_bytes, model.weight_bytes));
            total = total.saturating_add(set(&self.kv_bytes, model.kv_bytes));
        }
        self.memory_bytes.set(total);
        self.text()
    }

    fn text(&self) -> String {
        let gathered = self.registry.gather();
        let mut page = String::new();
        for family in &self.families {
            match gathered.iter().find(|found| found.name() == family.name) {
                Some(found) => TextEncoder::new()
                    .encode_utf8(std::slice::from_ref(found), &mut page)
                    .expect("gathered families have names and series"),
                None => {
                    let Family { name, help, kind } = family;
                    page.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
                }
            }
        }
        page
    }
}

/// Decode speed: the first token belongs to the prompt. `None` when it cannot be told.
pub fn tokens_per_second(tokens: usize, decode_s: f64) -> Option<f64> {
    (tokens >= 2 && decode_s > 0.0).then(|| (tokens - 1) as f64 / decode_s)
}

/// Makes families and remembers their order.
#[derive(Default)]
struct Page {
    registry: Registry,
    families: Vec<Family>,
}

impl Page {
    fn add<C: Collector + Clone + 'static>(
        &mut self,
        family: Family,
        made: prometheus::Result<C>,
    ) -> C {
        let collector = made.expect("names and labels are valid");
        self.registry
            .register(Box::new(collector.clone()))
            .expect("no name is used twice");
        self.families.push(family);
        collector
    }

    fn histogram(
        &mut self,
        name: &'static str,
        help: &'static str,
        buckets: &[f64],
    ) -> HistogramVec {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        let kind = "histogram";
        let made = HistogramVec::new(options, &["model"]);
        self.add(Family { name, help, kind }, made)
    }

    fn counter(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &[&str],
    ) -> IntCounterVec {
        let kind = "counter";
        let made = IntCounterVec::new(Opts::new(name, help), labels);
        self.add(Family { name, help, kind }, made)
    }

    fn gauge(&mut self, name: &'static str, help: &'static str) -> IntGauge {
        let kind = "gauge";
        self.add(Family { name, help, kind }, IntGauge::new(name, help))
    }

    fn gauge_of_model(&mut self, name: &'static str, help: &'static str) -> IntGaugeVec {
        let kind = "gauge";
        let made = IntGaugeVec::new(Opts::new(name, help), &["model"]);
        self.add(Family { name, help, kind }, made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(id: &str) -> ModelMemory {
        ModelMemory {
            id: id.to_owned(),
            weight_bytes: 100,
            kv_bytes: 20,
        }
    }

    /// Samples that belong to a model.
    fn series<'a>(page: &'a str, model: &str) -> Vec<&'a str> {
        let label = format!("model=\"{model}\"");
        page.lines().filter(|line| line.contains(&label)).collect()
    }

    #[test]
    fn every_family_is_there_before_the_first_request() {
        insta::assert_snapshot!(Metrics::new().render(&[]), @r#"
        # HELP oxydllm_ttft_milliseconds Time-to-first-token in milliseconds.
        # TYPE oxydllm_ttft_milliseconds histogram
        # HELP oxydllm_tokens_per_second Decode speed in tokens per second, from the first token to the last.
        # TYPE oxydllm_tokens_per_second histogram
        # HELP oxydllm_requests_total Total completed requests.
        # TYPE oxydllm_requests_total counter
        # HELP oxydllm_queue_depth Current number of sequences in the inference engine.
        # TYPE oxydllm_queue_depth gauge
        oxydllm_queue_depth 0
        # HELP oxydllm_prefix_cache_requests_total Total prefix cache look-ups.
        # TYPE oxydllm_prefix_cache_requests_total counter
        # HELP oxydllm_model_weights_bytes Bytes of weights of a loaded model.
        # TYPE oxydllm_model_weights_bytes gauge
        # HELP oxydllm_kv_cache_allocated_bytes Bytes of the KV cache of a loaded model.
        # TYPE oxydllm_kv_cache_allocated_bytes gauge
        # HELP oxydllm_vram_used_bytes Total inference memory in bytes.
        # TYPE oxydllm_vram_used_bytes gauge
        oxydllm_vram_used_bytes 0
        # HELP oxydllm_prompt_tokens_total Total prompt tokens of admitted requests, cached ones included.
        # TYPE oxydllm_prompt_tokens_total counter
        # HELP oxydllm_completion_tokens_total Total generated tokens.
        # TYPE oxydllm_completion_tokens_total counter
        "#);
    }

    #[test]
    fn what_happened_is_on_the_page() {
        let metrics = Arc::new(Metrics::new());
        let _running = metrics.sequence();
        drop(metrics.sequence());
        metrics.first_token("a/b", 70.0);
        metrics.speed("a/b", 21, 2.0);
        metrics.request_ended("a/b", Outcome::Ok);
        metrics.request_ended("a/b", Outcome::Timeout);
        metrics.prefix_lookup("a/b", true);
        metrics.tokens("a/b", 30, 21);
        insta::assert_snapshot!(metrics.render(&[loaded("a/b"), loaded("c")]), @r#"
        # HELP oxydllm_ttft_milliseconds Time-to-first-token in milliseconds.
        # TYPE oxydllm_ttft_milliseconds histogram
        oxydllm_ttft_milliseconds_bucket{model="a/b",le="10"} 0
        oxydllm_ttft_milliseconds_bucket{model="a/b",le="50"} 0
        oxydllm_ttft_milliseconds_bucket{model="a/b",le="100"} 1
        oxydllm_ttft_milliseconds_bucket{model="a/b",le="200"} 1
        oxydllm_ttft_milliseconds_bucket{model="a/b",le="500"} 1
        oxydllm_ttft_milliseconds_bucket{model="a/b",le="1000"} 1
        oxydllm_ttft_milliseconds_bucket{model="a/b",le="2000"} 1
        oxydllm_ttft_milliseconds_bucket{model="a/b",le="5000"} 1
        oxydllm_ttft_milliseconds_bucket{model="a/b",le="10000"} 1
        oxydllm_ttft_milliseconds_bucket{model="a/b",le="30000"} 1
        oxydllm_ttft_milliseconds_bucket{model="a/b",le="60000"} 1
        oxydllm_ttft_milliseconds_bucket{model="a/b",le="120000"} 1
        oxydllm_ttft_milliseconds_bucket{model="a/b",le="+Inf"} 1
        oxydllm_ttft_milliseconds_sum{model="a/b"} 70
        oxydllm_ttft_milliseconds_count{model="a/b"} 1
        # HELP oxydllm_tokens_per_second Decode speed in tokens per second, from the first token to the last.
        # TYPE oxydllm_tokens_per_second histogram
        oxydllm_tokens_per_second_bucket{model="a/b",le="1"} 0
        oxydllm_tokens_per_second_bucket{model="a/b",le="5"} 0
        oxydllm_tokens_per_second_bucket{model="a/b",le="10"} 1
        oxydllm_tokens_per_second_bucket{model="a/b",le="20"} 1
        oxydllm_tokens_per_second_bucket{model="a/b",le="50"} 1
        oxydllm_tokens_per_second_bucket{model="a/b",le="100"} 1
        oxydllm_tokens_per_second_bucket{model="a/b",le="200"} 1
        oxydllm_tokens_per_second_bucket{model="a/b",le="+Inf"} 1
        oxydllm_tokens_per_second_sum{model="a/b"} 10
        oxydllm_tokens_per_second_count{model="a/b"} 1
        # HELP oxydllm_requests_total Total completed requests.
        # TYPE oxydllm_requests_total counter
        oxydllm_requests_total{model="a/b",status="ok"} 1
        oxydllm_requests_total{model="a/b",status="timeout"} 1
        # HELP oxydllm_queue_depth Current number of sequences in the inference engine.
        # TYPE oxydllm_queue_depth gauge
        oxydllm_queue_depth 1
        # HELP oxydllm_prefix_cache_requests_total Total prefix cache look-ups.
        # TYPE oxydllm_prefix_cache_requests_total counter
        oxydllm_prefix_cache_requests_total{model="a/b",result="hit"} 1
        # HELP oxydllm_model_weights_bytes Bytes of weights of a loaded model.
        # TYPE oxydllm_model_weights_bytes gauge
        oxydllm_model_weights_bytes{model="a/b"} 100
        oxydllm_model_weights_bytes{model="c"} 100
        # HELP oxydllm_kv_cache_allocated_bytes Bytes of the KV cache of a loaded model.
        # TYPE oxydllm_kv_cache_allocated_bytes gauge
        oxydllm_kv_cache_allocated_bytes{model="a/b"} 20
        oxydllm_kv_cache_allocated_bytes{model="c"} 20
        # HELP oxydllm_vram_used_bytes Total inference memory in bytes.
        # TYPE oxydllm_vram_used_bytes gauge
        oxydllm_vram_used_bytes 240
        # HELP oxydllm_prompt_tokens_total Total prompt tokens of admitted requests, cached ones included.
        # TYPE oxydllm_prompt_tokens_total counter
        oxydllm_prompt_tokens_total{model="a/b"} 30
        # HELP oxydllm_completion_tokens_total Total generated tokens.
        # TYPE oxydllm_completion_tokens_total counter
        oxydllm_completion_tokens_total{model="a/b"} 21
        "#);
    }

    #[test]
    fn gauges_of_an_unloaded_model_vanish_and_its_counters_stay() {
        let metrics = Metrics::new();
        metrics.request_ended("a", Outcome::Ok);
        assert_eq!(series(&metrics.render(&[loaded("a")]), "a").len(), 3);
        let page = metrics.render(&[]);
        assert_eq!(
            series(&page, "a"),
            [r#"oxydllm_requests_total{model="a",status="ok"} 1"#]
        );
        assert!(page.contains("oxydllm_vram_used_bytes 0\n"), "{page}");
    }

    #[test]
    fn one_token_has_no_speed() {
        let metrics = Metrics::new();
        metrics.speed("a", 1, 0.001);
        metrics.speed("a", 5, 0.0);
        assert_eq!(series(&metrics.render(&[]), "a"), [""; 0]);
        assert_eq!(tokens_per_second(3, 0.5), Some(4.0));
    }
}

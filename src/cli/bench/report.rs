//! What `bench` prints: rates, and their share of what the machine can do.

use serde_json::{Value, json};

use crate::cli::Printer;
use crate::cli::args::BenchArgs;
use crate::error::Result;
use crate::model::{ModelConfig, Transformer, Work};
use crate::ops::CpuLevel;
use crate::ops::ceilings::Ceilings;
use crate::units::format_size;

/// Everything that was measured.
pub(super) struct Report {
    pub threads: usize,
    pub level: CpuLevel,
    pub ceilings: Ceilings,
    pub model: Option<ModelReport>,
}

/// What was measured of a model.
pub(super) struct ModelReport {
    pub name: String,
    pub load_s: f64,
    pub prefill_tok_s: Option<f64>,
    pub ttft_ms: Option<f64>,
    /// (batch, aggregate tokens per second).
    pub decode: Vec<(usize, f64)>,
    pub peak_rss_bytes: u64,
    pub costs: Costs,
}

/// What a model has to read and multiply.
pub(super) struct Costs {
    layers: Work,
    head: Work,
    config: ModelConfig,
}

impl Costs {
    pub fn of(transformer: &Transformer) -> Self {
        Self {
            layers: transformer.layers_work(),
            head: transformer.head_work(),
            config: transformer.config().clone(),
        }
    }

    /// Seconds that the linear layers need for `tokens` tokens, `logits` of which have logits, when nothing but the machine holds them up.
    fn multiply_s(&self, ceilings: &Ceilings, tokens: usize, logits: usize) -> f64 {
        let seconds = |work: Work| {
            work.int8_macs as f64 / ceilings.int8_macs + work.f32_macs as f64 / ceilings.f32_macs
        };
        tokens as f64 * seconds(self.layers) + logits as f64 * seconds(self.head)
    }

    /// Bytes of keys, values and states that a token behind `depth` others reads.
    fn kv_bytes(&self, depth: usize) -> usize {
        let layers = self.config.layers.iter();
        let states = self.config.cache_shape().slot_bytes();
        let keys_and_values: usize = layers
            .map(|layer| layer.mixer.cache_elements(depth) * size_of::<u16>())
            .sum();
        keys_and_values + states
    }

    /// The share of the machine that a prefill reaches: 1 when it multiplies as fast as the machine can.
    fn prefill_share(&self, ceilings: &Ceilings, tokens: usize, tok_s: f64) -> f64 {
        self.multiply_s(ceilings, tokens, 1) / (tokens as f64 / tok_s)
    }

    /// The share of the machine that generation reaches: of reading memory or of multiplying, whichever holds it up more.
    fn decode_share(&self, ceilings: &Ceilings, batch: usize, depth: usize, tok_s: f64) -> f64 {
        let bytes =
            self.layers.weight_bytes + self.head.weight_bytes + batch * self.kv_bytes(depth);
        let read_s = bytes as f64 / ceilings.all_read_bytes();
        read_s.max(self.multiply_s(ceilings, batch, batch)) / (batch as f64 / tok_s)
    }
}

impl Report {
    pub fn print(&self, args: &BenchArgs, printer: &Printer) -> Result<()> {
        if args.json {
            return printer.data(self.json(args));
        }
        let Self { threads, level, .. } = self;
        if let Some(model) = &self.model {
            printer.data(format_args!("model    {}", model.name))?;
        }
        printer.data(format_args!("threads  {threads} ({level})"))?;
        if args.ceilings {
            self.print_ceilings(printer)?;
        }
        match &self.model {
            Some(model) => self.print_model(model, args, printer),
            None => Ok(()),
        }
    }

    fn print_ceilings(&self, printer: &Printer) -> Result<()> {
        let c = &self.ceilings;
        for (threads, rate) in &c.read_bytes {
            let plural = if *threads == 1 { "" } else { "s" };
            let rate = rate / 1e9;
            printer.data(format_args!(
                "ceiling  {rate:.1} GB/s read by {threads} thread{plural}"
            ))?;
        }
        let (int8, f32) = (c.int8_macs / 1e9, c.f32_macs / 1e9);
        printer.data(format_args!(
            "ceiling  {int8:.1} G multiply-accumulates/s of 4-bit weights, {f32:.1} of F32"
        ))
    }

    fn print_model(&self, model: &ModelReport, args: &BenchArgs, printer: &Printer) -> Result<()> {
        printer.data(format_args!("load     {:.2} s", model.load_s))?;
        if let (Some(rate), Some(ttft)) = (model.prefill_tok_s, model.ttft_ms) {
            let tokens = args.prompt_tokens;
            let share = 100.0 * model.costs.prefill_share(&self.ceilings, tokens, rate);
            printer.data(format_args!(
                "prefill  {rate:.1} tok/s ({tokens} tokens, first token after {ttft:.1} ms; {share:.0} % of the ceiling)"
            ))?;
        }
        for (batch, rate) in &model.decode {
            let behind = if args.depth > 0 {
                format!(" behind {} tokens", args.depth)
            } else {
                String::new()
            };
            let share = 100.0 * self.decode_share(model, args, *batch, *rate);
            printer.data(format_args!(
                "decode   {rate:.1} tok/s ({batch} at once{behind}; {share:.0} % of the ceiling)"
            ))?;
        }
        printer.data(format_args!(
            "memory   {} at most",
            format_size(model.peak_rss_bytes)
        ))
    }

    fn decode_share(&self, model: &ModelReport, args: &BenchArgs, batch: usize, rate: f64) -> f64 {
        // On average half of what is generated lies behind a token, too.
        let depth = args.depth + args.gen_tokens / 2;
        model.costs.decode_share(&self.ceilings, batch, depth, rate)
    }

    fn json(&self, args: &BenchArgs) -> Value {
        let c = &self.ceilings;
        let read = c.read_bytes.iter();
        let read: Vec<_> = read
            .map(|(threads, rate)| json!({"threads": threads, "bytes_s": rate}))
            .collect();
        let mut json = json!({
            "threads": self.threads,
            "ceilings": {"read": read, "int8_macs_s": c.int8_macs, "f32_macs_s": c.f32_macs},
        });
        let Some(model) = &self.model else {
            return json;
        };
        let decode: Vec<_> = model
            .decode
            .iter()
            .map(|(batch, rate)| {
                let share = self.decode_share(model, args, *batch, *rate);
                json!({"batch": batch, "tok_s": rate, "ceiling_share": share})
            })
            .collect();
        let share = |rate| model.costs.prefill_share(c, args.prompt_tokens, rate);
        let fields = [
            ("model", json!(model.name)),
            ("load_s", json!(model.load_s)),
            ("prefill_tok_s", json!(model.prefill_tok_s)),
            (
                "prefill_ceiling_share",
                json!(model.prefill_tok_s.map(share)),
            ),
            ("ttft_ms", json!(model.ttft_ms)),
            ("decode", json!(decode)),
            ("peak_rss_bytes", json!(model.peak_rss_bytes)),
        ];
        for (name, value) in fields {
            json[name] = value;
        }
        json
    }
}

//! The command line as data: every command and flag with its help. Parsing does no I/O.
//!
//! Values that an environment variable can supply are `Option`s with a method that applies flag, then variable, then default.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::engine::SamplingParams;
use crate::env;
use crate::error::{Error, Result};
use crate::store;

pub use super::start::StartArgs;

/// Everything that was typed.
#[derive(Debug, Parser)]
#[command(
    name = "oxydllm",
    version = super::version::text(),
    about = "Pull, chat with and serve language models from your own machine",
    disable_version_flag = true,
    arg_required_else_help = true,
    max_term_width = 100
)]
pub struct Cli {
    /// Print the version
    #[arg(short = 'V', long = "version", short_alias = 'v', action = clap::ArgAction::Version)]
    version: Option<bool>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Download a model from the hub, or add a local GGUF file or checkpoint folder
    Pull(PullArgs),
    /// List the local models
    List(ListArgs),
    /// Delete a local model
    #[command(visible_alias = "remove")]
    Rm(RmArgs),
    /// Chat with a model in the terminal, or answer one prompt
    Run(RunArgs),
    /// Serve the local models over HTTP, as OpenAI's API
    Start(StartArgs),
    /// Measure prompt processing and generation speed
    Bench(BenchArgs),
    /// Compute perplexity, logits or greedy tokens, to compare with a reference
    Eval(EvalArgs),
    /// Print the version
    Version,
}

/// `--models-dir`, shared by all commands that touch models.
#[derive(Debug, Clone, Default, Args)]
pub struct ModelsDirArgs {
    /// Directory of the local models [env: OXYDLLM_MODELS_DIR] [default: ~/.oxydllm/models]
    #[arg(long, value_name = "DIR", value_parser = parse_path)]
    models_dir: Option<PathBuf>,
}

impl ModelsDirArgs {
    /// Flag, then variable, then `~/.oxydllm/models`.
    ///
    /// # Errors
    /// `Invalid` when the variable is.
    pub fn resolve(&self) -> Result<PathBuf> {
        match &self.models_dir {
            Some(dir) => Ok(dir.clone()),
            None => Ok(env::MODELS_DIR
                .path()?
                .unwrap_or_else(store::default_models_dir)),
        }
    }
}

/// More compute threads than any machine is good for.
const MOST_THREADS: usize = 1024;
/// Tokens of the longest measurement or continuation.
const MOST_TOKENS: usize = 10_000_000;
/// Sequences of the largest measured batch.
const MOST_SEQUENCES: usize = 4096;

/// `--threads`, shared by all commands that compute.
#[derive(Debug, Clone, Default, Args)]
pub struct ThreadArgs {
    /// Number of compute threads [env: OXYDLLM_THREADS] [default: the CPUs granted to the process]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
}

impl ThreadArgs {
    /// Flag, then variable, then `None` (decide from the machine).
    ///
    /// # Errors
    /// `Invalid` when the variable is.
    pub fn resolve(&self) -> Result<Option<usize>> {
        let threads = match self.threads {
            Some(threads) => Some(threads.get()),
            None => env::THREADS.number()?,
        };
        match threads {
            Some(threads) if threads > MOST_THREADS => Err(Error::invalid(format!(
                "{threads} compute threads, expected {MOST_THREADS} at most"
            ))),
            threads => Ok(threads),
        }
    }
}

/// `--devices` and `--allow-cpu`, shared by all commands that compute.
#[derive(Debug, Clone, Default, Args)]
pub struct DeviceArgs {
    /// GPU to compute on, in builds for one [env: OXYDLLM_DEVICES] [default: the first]
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    devices: Option<Vec<usize>>,
    /// Let a GPU build compute on the CPU where no GPU can be used [env: OXYDLLM_ALLOW_CPU]
    #[arg(long)]
    allow_cpu: bool,
}

impl DeviceArgs {
    /// Flag, then variable, then `None` (the first GPU, where there is one to choose).
    ///
    /// # Errors
    /// `Invalid` when the variable is.
    pub fn devices(&self) -> Result<Option<Vec<usize>>> {
        match &self.devices {
            Some(devices) => Ok(Some(devices.clone())),
            None => env::DEVICES.numbers(),
        }
    }

    /// Flag, then variable, then no.
    ///
    /// # Errors
    /// `Invalid` when the variable is.
    pub fn allow_cpu(&self) -> Result<bool> {
        Ok(self.allow_cpu || env::ALLOW_CPU.switch()?.unwrap_or(false))
    }
}

/// Arguments of `pull`.
#[derive(Debug, Args)]
pub struct PullArgs {
    /// Repository on the hub (`user/model`), or a local `./file.gguf` or `./folder`
    #[arg(value_name = "MODEL", value_parser = parse_text)]
    pub model: String,
    #[command(flatten)]
    /// Where models are kept.
    pub models_dir: ModelsDirArgs,
    /// Local name, `name` or `user/name`, instead of the repository's
    #[arg(long, value_name = "NAME", value_parser = parse_text)]
    pub name: Option<String>,
    /// Token for gated and private repositories [env: HF_TOKEN, HUGGING_FACE_HUB_TOKEN]
    #[arg(long, value_name = "TOKEN", value_parser = parse_text, hide_env_values = true)]
    token: Option<String>,
    /// GGUF variant such as `Q4_K_M`, or `safetensors`, instead of the question
    #[arg(long, value_name = "LABEL", value_parser = parse_text)]
    pub variant: Option<String>,
    /// Branch, tag or commit of the repository
    #[arg(long, value_name = "REVISION", default_value = "main", value_parser = parse_text)]
    pub revision: String,
    /// Replace what is already there
    #[arg(long)]
    pub force: bool,
}

impl PullArgs {
    /// Flag, then variables.
    ///
    /// # Errors
    /// `Invalid` when a variable is.
    pub fn token(&self) -> Result<Option<String>> {
        match &self.token {
            Some(token) => Ok(Some(token.clone())),
            None => env::hub_token(),
        }
    }
}

/// Arguments of `list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    /// Where models are kept.
    pub models_dir: ModelsDirArgs,
}

/// Arguments of `rm`.
#[derive(Debug, Args)]
pub struct RmArgs {
    /// Exact name, as `oxydllm list` prints it
    #[arg(value_name = "MODEL", value_parser = parse_text)]
    pub model: String,
    #[command(flatten)]
    /// Where models are kept.
    pub models_dir: ModelsDirArgs,
    /// Do not ask
    #[arg(long, short)]
    pub force: bool,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Local model, a unique part of its name, a `.gguf` file or a checkpoint folder
    #[arg(value_name = "MODEL", value_parser = parse_text)]
    pub model: String,
    /// Answer this and leave; without it a chat begins (or standard input is the prompt, when it is not a terminal)
    #[arg(value_name = "PROMPT")]
    pub prompt: Option<String>,
    #[command(flatten)]
    /// Where models are kept.
    pub models_dir: ModelsDirArgs,
    /// Tokens that the conversation may hold [env: OXYDLLM_MAX_CONTEXT_LEN] [default: the model's own]
    #[arg(long, value_name = "N")]
    max_context_len: Option<NonZeroUsize>,
    /// How freely tokens are chosen, 0 to 2; 0 always takes the best
    #[arg(long, short, value_name = "X", default_value_t = 0.7, value_parser = parse_temperature)]
    pub temperature: f32,
    /// Choose among the K best tokens only; 0 is off
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: usize,
    /// Choose among the best tokens that together have this probability, above 0 up to 1; 1 is off
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = parse_top_p)]
    pub top_p: f32,
    /// Choose among tokens at least this fraction as probable as the best, 0 to 1; 0 is off
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = parse_min_p)]
    pub min_p: f32,
    /// Make tokens that occurred less likely, above 0 up to 2; 1 is off
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = parse_repeat_penalty)]
    pub repeat_penalty: f32,
    /// How many of the last tokens the repeat penalty looks at; 0 is all
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub repeat_window: usize,
    /// Longest answer in tokens [default: what the context holds]
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<NonZeroUsize>,
    /// Same seed, same answers [default: random]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// System message [default: the model's own]
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    #[command(flatten)]
    /// Compute threads.
    pub threads: ThreadArgs,
    #[command(flatten)]
    /// Where to compute.
    pub device: DeviceArgs,
    /// Print load time, token counts and speed
    #[arg(long)]
    pub verbose: bool,
}

impl RunArgs {
    /// Flag, then variable, then `None` (the model's own context).
    ///
    /// # Errors
    /// `Invalid` when the variable is.
    pub fn max_context_len(&self) -> Result<Option<usize>> {
        match self.max_context_len {
            Some(tokens) => Ok(Some(tokens.get())),
            None => env::MAX_CONTEXT_LEN.number(),
        }
    }

    /// The sampling settings that were typed; `seed` is used when none was.
    pub fn sampling(&self, seed: u64) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repeat_penalty,
            repetition_window: self.repeat_window,
            seed: self.seed.unwrap_or(seed),
            ..SamplingParams::default()
        }
    }
}

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Local model, a unique part of its name, a `.gguf` file or a checkpoint folder
    #[arg(value_name = "MODEL", value_parser = parse_text, required_unless_present = "ceilings")]
    pub model: Option<String>,
    /// Print what the machine can do at most: reading memory, multiplying. Without a model, nothing else
    #[arg(long)]
    pub ceilings: bool,
    #[command(flatten)]
    /// Where models are kept.
    pub models_dir: ModelsDirArgs,
    /// Prompt tokens, at most the context of the model; 0 skips the prompt test
    #[arg(short = 'p', long, value_name = "N", default_value_t = 512, value_parser = parse_tokens)]
    pub prompt_tokens: usize,
    /// Generated tokens, with those of `--depth` at most the context of the model; 0 skips the generation test
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128, value_parser = parse_tokens)]
    pub gen_tokens: usize,
    /// Tokens already in the context
    #[arg(short, long, value_name = "N", default_value_t = 0, value_parser = parse_tokens)]
    pub depth: usize,
    /// Sequences at once, such as `1,2,4,8`
    #[arg(
        short,
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "1",
        value_parser = parse_sequences
    )]
    pub batch: Vec<NonZeroUsize>,
    #[command(flatten)]
    /// Compute threads.
    pub threads: ThreadArgs,
    #[command(flatten)]
    /// Where to compute.
    pub device: DeviceArgs,
    /// Repetitions of each test
    #[arg(long, value_name = "N", default_value = "5")]
    pub repeat: NonZeroUsize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `eval`.
#[derive(Debug, Args)]
pub struct EvalArgs {
    /// Local model, a unique part of its name, a `.gguf` file or a checkpoint folder
    #[arg(value_name = "MODEL", value_parser = parse_text)]
    pub model: String,
    #[command(flatten)]
    /// Where models are kept.
    pub models_dir: ModelsDirArgs,
    /// Perplexity of this text
    #[arg(long, value_name = "FILE", value_parser = parse_path, conflicts_with = "tokens")]
    pub text: Option<PathBuf>,
    /// Token ids to run, as JSON (`{"prompts": [[ids…],…]}`); with `--greedy` at most the context of the model
    #[arg(long, value_name = "FILE.json", value_parser = parse_path)]
    pub tokens: Option<PathBuf>,
    /// Write the logits of every position
    #[arg(long, value_name = "OUT.safetensors", value_parser = parse_path)]
    pub logits: Option<PathBuf>,
    /// Continue greedily by this many tokens and print their ids
    #[arg(long, value_name = "N", value_parser = parse_continuation)]
    pub greedy: Option<NonZeroUsize>,
    /// Texts for an embedding model (`{"inputs": [text…]}`: prints vectors) or pairs for a reranker (`{"pairs": [[query,
    /// document]…]}`: prints scores)
    #[arg(long, value_name = "FILE.json", value_parser = parse_path, conflicts_with_all = ["text", "tokens", "logits", "greedy"])]
    pub inputs: Option<PathBuf>,
    /// Check on this machine that answers never depend on company, cache, chunks, blocks, threads or instruction set: compares
    /// the bits of the logits of built-in prompts, or of those in `--tokens`
    #[arg(long, conflicts_with_all = ["text", "logits", "greedy", "inputs"])]
    pub contract: bool,
    /// Decode weights to 32-bit floats and compute with plain code: slow and exact
    #[arg(long)]
    pub reference: bool,
    #[command(flatten)]
    /// Compute threads.
    pub threads: ThreadArgs,
    #[command(flatten)]
    /// Where to compute.
    pub device: DeviceArgs,
}

pub(super) fn parse_text(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() {
        Err("it must not be empty".to_owned())
    } else {
        Ok(text.to_owned())
    }
}

pub(super) fn parse_path(text: &str) -> Result<PathBuf, String> {
    parse_text(text).map(PathBuf::from)
}

fn parse_number(
    text: &str,
    allowed: &str,
    is_allowed: impl Fn(f32) -> bool,
) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if is_allowed(number) => Ok(number),
        _ => Err(format!("expected {allowed}")),
    }
}

fn parse_count(text: &str, allowed: std::ops::RangeInclusive<usize>) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(count) if allowed.contains(&count) => Ok(count),
        _ => Err(format!(
            "expected a whole number from {} to {}",
            allowed.start(),
            allowed.end()
        )),
    }
}

fn parse_tokens(text: &str) -> Result<usize, String> {
    parse_count(text, 0..=MOST_TOKENS)
}

fn parse_continuation(text: &str) -> Result<NonZeroUsize, String> {
    parse_nonzero(text, MOST_TOKENS)
}

fn parse_sequences(text: &str) -> Result<NonZeroUsize, String> {
    parse_nonzero(text, MOST_SEQUENCES)
}

fn parse_nonzero(text: &str, most: usize) -> Result<NonZeroUsize, String> {
    let count = parse_count(text, 1..=most)?;
    Ok(NonZeroUsize::new(count).expect("at least 1"))
}

fn parse_temperature(text: &str) -> Result<f32, String> {
    parse_number(text, "a number from 0 to 2", |x| (0.0..=2.0).contains(&x))
}

fn parse_top_p(text: &str) -> Result<f32, String> {
    parse_number(text, "a number above 0 up to 1", |x| x > 0.0 && x <= 1.0)
}

fn parse_min_p(text: &str) -> Result<f32, String> {
    parse_number(text, "a number from 0 to 1", |x| (0.0..=1.0).contains(&x))
}

fn parse_repeat_penalty(text: &str) -> Result<f32, String> {
    parse_number(text, "a number above 0 up to 2", |x| x > 0.0 && x <= 2.0)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(words: &[&str]) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once(&"oxydllm").chain(words))
    }

    fn run(words: &[&str]) -> Result<RunArgs, clap::Error> {
        match parse(&[&["run", "m"], words].concat())?.command {
            Command::Run(args) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_table_of_commands_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn run_defaults_are_the_documented_ones() {
        let args = run(&[]).unwrap();
        let sampling = args.sampling(9);
        assert_eq!(
            (
                sampling.temperature,
                sampling.top_k,
                sampling.top_p,
                sampling.min_p
            ),
            (0.7, 0, 1.0, 0.0)
        );
        assert_eq!(
            (
                sampling.repetition_penalty,
                sampling.repetition_window,
                sampling.seed
            ),
            (1.0, 0, 9)
        );
        assert_eq!(run(&["--seed=3"]).unwrap().sampling(9).seed, 3);
    }

    #[test]
    fn sampling_values_out_of_range_are_refused_at_both_ends() {
        let cases = [
            ("--temperature", ["-0.1", "2.1", "nan"], ["0", "2"]),
            ("--top-p", ["0", "1.1", "x"], ["0.001", "1"]),
            ("--min-p", ["-1", "1.01", ""], ["0", "1"]),
            ("--repeat-penalty", ["0", "2.5", "inf"], ["0.5", "2"]),
        ];
        for (flag, refused, taken) in cases {
            for value in refused {
                assert!(
                    run(&[&format!("{flag}={value}")]).is_err(),
                    "{flag}={value}"
                );
            }
            for value in taken {
                assert!(run(&[flag, value]).is_ok(), "{flag} {value}");
            }
        }
        assert!(run(&["--max-tokens", "0"]).is_err());
        assert!(run(&["--threads", "0"]).is_err());
        assert!(run(&["--max-context-len", "-4"]).is_err());
    }

    #[test]
    fn options_may_stand_in_any_order_around_the_argument() {
        for words in [
            ["rm", "--force", "a/b"],
            ["rm", "a/b", "--force"],
            ["remove", "a/b", "-f"],
        ] {
            match parse(&words).unwrap().command {
                Command::Rm(args) => assert!(args.force && args.model == "a/b"),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn list_refuses_what_it_does_not_know_and_empty_values_are_errors() {
        assert!(parse(&["list", "--all"]).is_err());
        assert!(parse(&["list", "extra"]).is_err());
        assert!(parse(&["list", "--models-dir="]).is_err());
        assert!(parse(&["pull", " "]).is_err());
    }

    #[test]
    fn counts_that_no_machine_can_hold_are_refused_with_the_bound() {
        for words in [
            &["bench", "m", "-p", "18446744073709551615"][..],
            &["bench", "m", "-n", "10000001"],
            &["bench", "m", "-d", "1e3"],
            &["bench", "m", "-b", "1,1000000000000"],
            &[
                "eval",
                "m",
                "--tokens",
                "t.json",
                "--greedy",
                "10000000000000",
            ],
        ] {
            let refusal = parse(words).unwrap_err().to_string();
            assert!(refusal.contains("a whole number from"), "{refusal}");
        }
        let threads = run(&["--threads", "100000"]).unwrap().threads.resolve();
        assert!(threads.unwrap_err().to_string().contains("1024 at most"));
    }

    #[test]
    fn bench_takes_a_list_of_batch_sizes() {
        match parse(&["bench", "m", "-b", "1,2,8", "-p", "0"])
            .unwrap()
            .command
        {
            Command::Bench(args) => {
                assert_eq!(
                    args.batch.iter().map(|n| n.get()).collect::<Vec<_>>(),
                    [1, 2, 8]
                );
                assert_eq!(
                    (
                        args.prompt_tokens,
                        args.gen_tokens,
                        args.depth,
                        args.repeat.get()
                    ),
                    (0, 128, 0, 5)
                );
            }
            other => panic!("{other:?}"),
        }
        assert!(parse(&["bench", "m", "-b", "0"]).is_err());
    }
}

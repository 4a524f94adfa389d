//! `eval --contract`: the numerical contract on this model and machine.

use std::process::ExitCode;
use std::sync::Arc;

use crate::cli::Printer;
use crate::cli::args::EvalArgs;
use crate::cli::load::context;
use crate::engine::contract::{Finding, Reference, built_in_prompts, check};
use crate::error::Result;
use crate::model::{LoadOptions, Transformer, load};
use crate::nn::WeightPath;
use crate::ops::{Context, CpuLevel};
use crate::store::Located;
use crate::threads::Pool;

/// Thread counts that are tried besides the chosen one.
pub(super) const THREADS: [usize; 3] = [1, 2, 5];
/// Tokens of a prompt on the software twin of the vector units, which is slow.
pub(super) const SCALAR_TOKENS: usize = 24;

/// Runs the battery and prints a line per condition. Exit code 1 when anything moved.
///
/// # Errors
/// Those of loading and computing.
pub(super) fn execute(
    args: &EvalArgs,
    located: &Located,
    path: WeightPath,
    prompts: Option<Vec<Vec<u32>>>,
    printer: &Printer,
) -> Result<ExitCode> {
    let ctx = context(&args.device, &args.threads, |text| printer.warn(text))?;
    let load = |ctx: &Context| -> Result<Transformer> {
        let loaded = load(ctx, &located.path, LoadOptions { path })
            .map_err(|e| e.context(format!("cannot load `{}`", located.name())))?;
        Ok(loaded.transformer)
    };
    let model = load(&ctx)?;
    let config = model.config();
    let prompts =
        prompts.unwrap_or_else(|| built_in_prompts(config.vocab_size, config.max_context));
    let reference = Reference::compute(&model, &ctx, &prompts)?;
    let mut tally = Tally::new(printer, "rows of logits");
    check(&model, &ctx, &reference, |finding| tally.add(&finding))?;
    for threads in THREADS {
        let (ctx, condition) = with_threads(&ctx, threads);
        tally.add(&reference.repeat(&model, &ctx, condition)?)?;
    }
    drop(model);
    let own = ctx.level();
    for level in CpuLevel::available()
        .into_iter()
        .filter(|level| *level != own)
    {
        let ctx = Context::cpu(Arc::new(Pool::new(ctx.pool().num_threads())), level);
        let model = load(&ctx)?;
        let condition = format!("on the {level} path");
        let finding = if level == CpuLevel::Scalar {
            let short = reference.shortened(SCALAR_TOKENS);
            short.repeat(&model, &ctx, condition)?
        } else {
            reference.repeat(&model, &ctx, condition)?
        };
        tally.add(&finding)?;
    }
    tally.conclude(&located.name())
}

/// The same context with so many threads, and that in words.
pub(super) fn with_threads(ctx: &Context, threads: usize) -> (Context, String) {
    let condition = match threads {
        1 => "with 1 thread".to_owned(),
        _ => format!("with {threads} threads"),
    };
    let pool = Arc::new(Pool::new(threads));
    (Context::cpu(pool, ctx.level()), condition)
}

/// Prints findings and counts them.
pub(super) struct Tally<'a> {
    printer: &'a Printer,
    /// What is compared.
    what: &'static str,
    compared: usize,
    moved: usize,
}

impl<'a> Tally<'a> {
    pub(super) fn new(printer: &'a Printer, what: &'static str) -> Self {
        Self {
            printer,
            what,
            compared: 0,
            moved: 0,
        }
    }

    pub(super) fn add(&mut self, finding: &Finding) -> Result<()> {
        self.compared += finding.compared;
        self.moved += finding.moved.len();
        let (condition, compared) = (&finding.condition, finding.compared);
        match finding.moved.first() {
            None if compared == 0 => self.printer.data(format_args!(
                "-      {condition:<28} nothing to compare"
            )),
            None => self
                .printer
                .data(format_args!("equal  {condition:<28} {compared} positions")),
            Some((prompt, position)) => self.printer.data(format_args!(
                "MOVED  {condition:<28} {} of {compared} positions, first: prompt {prompt} position {position}",
                finding.moved.len()
            )),
        }
    }

    pub(super) fn conclude(self, name: &str) -> Result<ExitCode> {
        let (compared, moved, what) = (self.compared, self.moved, self.what);
        if moved == 0 {
            self.printer.data(format_args!(
                "`{name}` keeps the contract: {compared} {what}, all bits equal"
            ))?;
            return Ok(ExitCode::SUCCESS);
        }
        self.printer.data(format_args!(
            "`{name}` breaks the contract: {moved} of {compared} {what} moved"
        ))?;
        Ok(ExitCode::FAILURE)
    }
}

//! The `oxydllm` executable: parse, run, exit code. Everything else is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    oxydllm::cli::main()
}

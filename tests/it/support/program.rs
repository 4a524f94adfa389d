//! The `oxydllm` executable, run in a temporary home with an empty environment.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A temporary home directory to run the program in.
pub struct Home {
    dir: tempfile::TempDir,
    env: Vec<(String, String)>,
}

/// What a run left behind.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Home {
    pub fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            env: Vec::new(),
        }
    }

    pub fn with_env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The default models directory.
    pub fn models(&self) -> PathBuf {
        self.path().join(".oxydllm/models")
    }

    /// Writes a file below the home and returns its path.
    pub fn write(&self, path: &str, content: &[u8]) -> PathBuf {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// The program with `arguments`, without standard input.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oxydllm"));
        command
            .args(arguments)
            .env_clear()
            .env("HOME", self.path())
            .current_dir(self.path())
            .stdin(Stdio::null());
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Ran {
        Ran::from(self.command(arguments).output().unwrap())
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ran {
    /// The same, after a check that the exit code was 0.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self
    }

    /// The same, after a check that the exit code was 1.
    #[track_caller]
    pub fn failed(self) -> Self {
        assert_eq!(self.code, Some(1), "{self:#?}");
        self
    }
}

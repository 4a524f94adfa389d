//! A program in a terminal of its own, made by `script(1)`, so that line editing and signals are the real ones.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running program with its screen.
pub struct Terminal {
    child: Child,
    keyboard: ChildStdin,
    screen: Arc<Mutex<Vec<u8>>>,
    read: usize,
}

impl Terminal {
    /// Starts a shell command line; `None`, said aloud, where there is no `script`.
    #[allow(
        clippy::print_stdout,
        reason = "the reader of a test log must learn of it"
    )]
    pub fn start(command_line: &str, variables: &[(&str, &str)]) -> Option<Self> {
        // The shell must not stay in between: it would get the Ctrl-C too, and some report it as their own end.
        let command_line = &format!("exec {command_line}");
        let mut command = Command::new("script");
        if cfg!(target_os = "linux") {
            command.args(["-qfec", command_line, "/dev/null"]);
        } else {
            command.args(["-q", "/dev/null", "sh", "-c", command_line]);
        }
        command.env_remove("NO_COLOR").env("TERM", "xterm-256color");
        command.envs(variables.iter().copied());
        let spawned = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut child) = spawned else {
            println!("skipped: this machine has no `script` to make a terminal with");
            return None;
        };
        let keyboard = child.stdin.take().unwrap();
        let mut output = child.stdout.take().unwrap();
        let screen = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&screen);
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                shared.lock().unwrap().extend_from_slice(&buffer[..count]);
            }
        });
        Some(Self {
            child,
            keyboard,
            screen,
            read: 0,
        })
    }

    /// Types.
    pub fn send(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
        self.keyboard.flush().unwrap();
    }

    /// Waits until `text` appears after what was waited for before; everything up to and with it.
    pub fn wait_for(&mut self, text: &str) -> String {
        let begin = Instant::now();
        loop {
            {
                let screen = self.screen.lock().unwrap();
                let new = String::from_utf8_lossy(&screen[self.read..]).into_owned();
                if let Some(at) = new.find(text) {
                    // Lossy text is as long as the bytes when the bytes are text, which these are up to here.
                    self.read += at + text.len();
                    return new[..at + text.len()].to_owned();
                }
                assert!(
                    begin.elapsed() < PATIENCE,
                    "waited for {text:?}, the screen shows {new:?}"
                );
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for the end of the program; its exit code and what it still wrote.
    pub fn wait(mut self) -> (i32, String) {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                thread::sleep(Duration::from_millis(50));
                let screen = self.screen.lock().unwrap();
                let rest = String::from_utf8_lossy(&screen[self.read..]).into_owned();
                return (status.code().unwrap_or(-1), rest);
            }
            if begin.elapsed() > PATIENCE {
                let screen = self.screen.lock().unwrap();
                panic!(
                    "the program does not end: {:?}",
                    String::from_utf8_lossy(&screen[self.read..])
                );
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Already over in a test that passed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

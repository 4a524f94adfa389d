//! Download progress: a redrawn line on a terminal, plain lines at intervals elsewhere.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::Printer;
use crate::error::Error;
use crate::hub::{Progress, RemoteFile};
use crate::units::{format_rate, format_size};

/// Columns for a file name.
const NAME_COLUMNS: usize = 40;
/// Time between two plain lines.
const PLAIN_INTERVAL: Duration = Duration::from_secs(10);

/// Shows the progress of a pull.
pub struct PullProgress<'a> {
    printer: &'a Printer,
    bar: Option<ProgressBar>,
    name: String,
    size: Option<u64>,
    first_bytes: Option<u64>,
    bytes: u64,
    begun: Instant,
    shown: Instant,
}

impl<'a> PullProgress<'a> {
    /// A display that fits the printer's standard error.
    pub fn new(printer: &'a Printer) -> Self {
        let now = Instant::now();
        Self {
            printer,
            bar: None,
            name: String::new(),
            size: None,
            first_bytes: None,
            bytes: 0,
            begun: now,
            shown: now,
        }
    }

    fn plain(&self, what: &str) {
        let total = self.size.map_or(String::new(), |size| {
            let percent = if size == 0 {
                100.0
            } else {
                self.bytes as f64 * 100.0 / size as f64
            };
            format!(" of {} ({percent:.0} %)", format_size(size))
        });
        self.printer.talk(format_args!(
            "{}: {what}{}{total}",
            self.name,
            format_size(self.bytes)
        ));
    }
}

impl Progress for PullProgress<'_> {
    fn begin(&mut self, file: &RemoteFile, number: usize, count: usize) {
        self.size = file.size;
        (self.first_bytes, self.bytes, self.begun, self.shown) =
            (None, 0, Instant::now(), Instant::now());
        if self.printer.talk_is_terminal() {
            self.name = shorten(&file.path);
            let bar =
                ProgressBar::with_draw_target(file.size, ProgressDrawTarget::stderr_with_hz(10));
            let template = "  {msg:40} [{bar:20}] {percent:>3}% {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("█▌ "));
            }
            bar.set_message(self.name.clone());
            self.bar = Some(bar);
        } else {
            self.name = format!("[{number}/{count}] {}", file.path);
        }
    }

    fn have(&mut self, bytes: u64) {
        self.first_bytes.get_or_insert(bytes);
        self.bytes = bytes;
        match &self.bar {
            Some(bar) => bar.set_position(bytes),
            None if self.shown.elapsed() >= PLAIN_INTERVAL => {
                self.shown = Instant::now();
                self.plain("");
            }
            None => {}
        }
    }

    fn retry(&mut self, why: &Error) {
        let line = format!("{}; trying again", why.chain());
        match &self.bar {
            Some(bar) => bar.suspend(|| self.printer.warn(line)),
            None => self.printer.warn(line),
        }
    }

    fn end(&mut self) {
        let fetched = self.bytes.saturating_sub(self.first_bytes.unwrap_or(0));
        let rate = format_rate(fetched, self.begun.elapsed());
        match self.bar.take() {
            Some(bar) => {
                bar.finish_and_clear();
                let size = format_size(self.bytes);
                self.printer.talk(format_args!(
                    "  {:NAME_COLUMNS$} ✓ {size} ({rate})",
                    self.name
                ));
            }
            None => self.plain("done, "),
        }
    }
}

/// Cuts a name from the left to the columns there are.
fn shorten(name: &str) -> String {
    let length = name.chars().count();
    if length <= NAME_COLUMNS {
        return name.to_owned();
    }
    let kept: String = name.chars().skip(length - (NAME_COLUMNS - 3)).collect();
    format!("...{kept}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_from_the_left() {
        assert_eq!(shorten("config.json"), "config.json");
        let cut = shorten(&format!("{}-Q4_K_M.gguf", "x".repeat(60)));
        assert_eq!(cut.chars().count(), 40);
        assert!(cut.starts_with("...x") && cut.ends_with("-Q4_K_M.gguf"));
    }
}

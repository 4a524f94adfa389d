//! Every environment variable that the program reads: name, meaning, allowed values, default. Nothing else calls `std::env::var`.
//!
//! Rules for all of them: a flag wins over the variable, the variable over the default; empty or blank means "not set";
//! a value that is not allowed is an error that names the variable, the value and what is allowed.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::str::FromStr;

use crate::error::{Error, Result};

/// What a variable may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowed {
    /// Any text.
    Text,
    /// A whole number of at least this.
    AtLeast(u64),
    /// One of these words, in any case.
    OneOf(&'static [&'static str]),
    /// An `http://` or `https://` address.
    Url,
    /// Whole numbers with commas between them.
    Numbers,
    /// Yes or no, as one of [`YES`] or [`NO`] in any case.
    Switch,
    /// A whole number of 16 bits.
    Port,
    /// Whole seconds, or -1 for ever.
    SecondsOrForever,
    /// An IP address, as [`parse_address`] reads it.
    Address,
}

/// What switches an [`Allowed::Switch`] on.
pub const YES: [&str; 4] = ["1", "true", "yes", "on"];
/// What switches an [`Allowed::Switch`] off.
pub const NO: [&str; 4] = ["0", "false", "no", "off"];

/// One environment variable.
#[derive(Debug)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What it may hold.
    pub allowed: Allowed,
    /// What holds when it is not set, in words.
    pub default: &'static str,
    /// What it is for.
    pub doc: &'static str,
}

macro_rules! variables {
    ($($ident:ident = $name:literal, $allowed:expr, $default:literal, $doc:literal;)*) => {
        $(
            #[doc = $doc]
            pub static $ident: Variable = Variable { name: $name, allowed: $allowed, default: $default, doc: $doc };
        )*
        /// All variables, in the order of the reference page.
        pub static ALL: &[&Variable] = &[$(&$ident),*];
    };
}

variables! {
    MODELS_DIR = "OXYDLLM_MODELS_DIR", Allowed::Text, "~/.oxydllm/models", "Where models are kept, for every command that takes `--models-dir`.";
    MAX_CONTEXT_LEN = "OXYDLLM_MAX_CONTEXT_LEN", Allowed::AtLeast(1), "the model's own, bounded by memory", "Tokens that one conversation may hold.";
    PORT = "OXYDLLM_PORT", Allowed::Port, "11313", "Port of the server; 0 takes a free one.";
    HOST = "OXYDLLM_HOST", Allowed::Address, "127.0.0.1, with an API key 0.0.0.0", "Address that the server listens on.";
    KEEP_ALIVE = "OXYDLLM_KEEP_ALIVE", Allowed::SecondsOrForever, "900", "Seconds that an idle model stays loaded; 0 unloads it at once, -1 never.";
    SHUTDOWN_TIMEOUT = "OXYDLLM_SHUTDOWN_TIMEOUT", Allowed::AtLeast(0), "30", "Seconds that running requests have when the server is told to stop.";
    MEMORY_BUDGET = "OXYDLLM_MEMORY_BUDGET", Allowed::AtLeast(1), "what the machine has", "Most MiB that all loaded models take together.";
    MAX_NUM_SEQS = "OXYDLLM_MAX_NUM_SEQS", Allowed::AtLeast(1), "decided from memory", "Most sequences of a model that compute at once.";
    MAX_QUEUED_REQUESTS = "OXYDLLM_MAX_QUEUED_REQUESTS", Allowed::AtLeast(1), "200", "Most requests that wait for a model; more are refused.";
    API_KEY = "OXYDLLM_API_KEY", Allowed::Text, "none", "Key that requests must bring. Better than the flag, which shows in the list of processes.";
    REQUEST_TIMEOUT = "OXYDLLM_REQUEST_TIMEOUT", Allowed::AtLeast(0), "300", "Seconds that a request may take; 0 is no limit.";
    ALLOWED_HOSTS = "OXYDLLM_ALLOWED_HOSTS", Allowed::Text, "none", "Names with commas between them that the server answers to besides loopback names, such as a reverse proxy's; `*` is all.";
    CORS_ORIGIN = "OXYDLLM_CORS_ORIGIN", Allowed::Text, "none", "Origins with commas between them whose web pages may use the server from a browser; `*` is all.";
    THREADS = "OXYDLLM_THREADS", Allowed::AtLeast(1), "the CPUs granted to the process", "Number of compute threads.";
    DEVICES = "OXYDLLM_DEVICES", Allowed::Numbers, "the first GPU", "GPU to compute on, in builds for one.";
    ALLOW_CPU = "OXYDLLM_ALLOW_CPU", Allowed::Switch, "off", "Lets a GPU build compute on the CPU where no GPU can be used.";
    CPU_LEVEL = "OXYDLLM_CPU_LEVEL", Allowed::OneOf(&["scalar", "avx2", "avx-vnni", "avx512", "neon", "neon-dotprod", "neon-i8mm"]), "the best that the CPU has", "Lowers the instruction set that the kernels use; never changes results. A level that the CPU lacks is an error.";
    GDN_DEBUG = "OXYDLLM_GDN_DEBUG", Allowed::Switch, "off", "Looks for values that are not finite after each stage of a delta rule layer, and warns of them.";
    GDN_CHUNK = "OXYDLLM_GDN_CHUNK", Allowed::AtLeast(1), "64", "Tokens of a prompt that a delta rule layer takes through a part of its memory in one go; never changes results.";
    HF_TOKEN = "HF_TOKEN", Allowed::Text, "none", "Token for gated and private repositories of the hub.";
    HUGGING_FACE_HUB_TOKEN = "HUGGING_FACE_HUB_TOKEN", Allowed::Text, "none", "Older name of `HF_TOKEN`, read after it.";
    HF_ENDPOINT = "HF_ENDPOINT", Allowed::Url, "https://huggingface.co", "Base address of the hub or of a mirror of it.";
    LOG_FORMAT = "LOG_FORMAT", Allowed::Text, "text", "`json` writes one JSON object per log line; anything else compact text.";
    RUST_LOG = "RUST_LOG", Allowed::Text, "oxydllm=warn,hyper=warn,tower=warn, for `start` oxydllm=info", "Log filter, in the syntax of the tracing crates.";
    NO_COLOR = "NO_COLOR", Allowed::Text, "not set", "Any value switches colours off.";
    HOME = "HOME", Allowed::Text, "none", "Home directory.";
    USERPROFILE = "USERPROFILE", Allowed::Text, "none", "Home directory where `HOME` is not set.";
}

const NUMBERS: &str = "whole numbers with commas between them, such as `0` or `0,1`";

fn is_word(words: &[&str], text: &str) -> bool {
    words.iter().any(|word| word.eq_ignore_ascii_case(text))
}

impl Variable {
    /// The trimmed value, `None` when the variable is not set, empty or blank.
    ///
    /// # Errors
    /// `Invalid` when the value is not Unicode or not allowed.
    pub fn text(&self) -> Result<Option<String>> {
        match std::env::var(self.name) {
            Ok(text) => self.check(&text),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(raw)) => {
                Err(self.invalid(&raw.to_string_lossy(), "valid UTF-8"))
            }
        }
    }

    /// The value as a number, for variables that allow [`Allowed::AtLeast`].
    ///
    /// # Errors
    /// `Invalid` when the value is not a number in range.
    pub fn number(&self) -> Result<Option<usize>> {
        match self.text()? {
            None => Ok(None),
            Some(text) => match text.parse() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(self.invalid(&text, "a whole number")),
            },
        }
    }

    /// The values of a variable that allows [`Allowed::Numbers`]; `None` when not set.
    ///
    /// # Errors
    /// `Invalid` when one is not a number in range.
    pub fn numbers(&self) -> Result<Option<Vec<usize>>> {
        let parse = |text: String| {
            text.split(',')
                .map(|number| number.trim().parse())
                .collect::<Result<_, _>>()
                .map_err(|_| self.invalid(&text, NUMBERS))
        };
        self.text()?.map(parse).transpose()
    }

    /// The value as what its rule allows; `None` when not set.
    ///
    /// # Errors
    /// As [`Variable::text`].
    pub fn parse<T: FromStr>(&self) -> Result<Option<T>> {
        let parse = |text: String| {
            text.parse()
                .map_err(|_| self.invalid(&text, "another value"))
        };
        self.text()?.map(parse).transpose()
    }

    /// Whether a variable that allows [`Allowed::Switch`] is on; `None` when not set.
    ///
    /// # Errors
    /// `Invalid` when the value is neither yes nor no.
    pub fn switch(&self) -> Result<Option<bool>> {
        Ok(self.text()?.map(|text| is_word(&YES, &text)))
    }

    /// Values with commas between them, blank ones left out; `None` when not set.
    ///
    /// # Errors
    /// As [`Variable::text`].
    pub fn list(&self) -> Result<Option<Vec<String>>> {
        let parts = |text: String| {
            let parts = text.split(',').map(str::trim);
            parts
                .filter(|part| !part.is_empty())
                .map(str::to_owned)
                .collect()
        };
        Ok(self.text()?.map(parts))
    }

    /// An address; `None` when not set.
    ///
    /// # Errors
    /// As [`Variable::text`].
    pub fn address(&self) -> Result<Option<IpAddr>> {
        Ok(self.text()?.as_deref().and_then(parse_address))
    }

    /// A path; `None` when not set.
    ///
    /// # Errors
    /// As [`Variable::text`].
    pub fn path(&self) -> Result<Option<PathBuf>> {
        Ok(self.text()?.map(PathBuf::from))
    }

    fn check(&self, text: &str) -> Result<Option<String>> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(None);
        }
        match self.allowed {
            Allowed::Text => Ok(Some(text.to_owned())),
            Allowed::AtLeast(least) => match text.parse::<u64>() {
                Ok(number) if number >= least && usize::try_from(number).is_ok() => {
                    Ok(Some(number.to_string()))
                }
                _ => Err(self.invalid(text, &format!("a whole number of at least {least}"))),
            },
            Allowed::OneOf(words) => {
                match words.iter().find(|word| word.eq_ignore_ascii_case(text)) {
                    Some(word) => Ok(Some((*word).to_owned())),
                    None => Err(self.invalid(text, &format!("one of {}", words.join(", ")))),
                }
            }
            Allowed::Url if text.starts_with("http://") || text.starts_with("https://") => {
                Ok(Some(text.to_owned()))
            }
            Allowed::Numbers
                if text
                    .split(',')
                    .all(|number| number.trim().parse::<usize>().is_ok()) =>
            {
                Ok(Some(text.to_owned()))
            }
            Allowed::Numbers => Err(self.invalid(text, NUMBERS)),
            Allowed::Switch if is_word(&YES, text) || is_word(&NO, text) => {
                Ok(Some(text.to_owned()))
            }
            Allowed::Switch => Err(self.invalid(
                text,
                &format!("one of {}, {}", YES.join(", "), NO.join(", ")),
            )),
            Allowed::Port if text.parse::<u16>().is_ok() => Ok(Some(text.to_owned())),
            Allowed::Port => Err(self.invalid(text, "a port from 0 to 65535")),
            Allowed::SecondsOrForever if text.parse::<i64>().is_ok_and(|secs| secs >= -1) => {
                Ok(Some(text.to_owned()))
            }
            Allowed::SecondsOrForever => {
                Err(self.invalid(text, "whole seconds from 0 on, or -1 for ever"))
            }
            Allowed::Address if parse_address(text).is_some() => Ok(Some(text.to_owned())),
            Allowed::Address => Err(self.invalid(text, ADDRESS)),
            Allowed::Url => {
                Err(self.invalid(text, "an address that begins with `https://` or `http://`"))
            }
        }
    }

    fn invalid(&self, found: &str, allowed: &str) -> Error {
        Error::invalid(format!(
            "environment variable `{}` is `{found}`, expected {allowed}",
            self.name
        ))
    }
}

/// What [`parse_address`] takes, in words.
pub const ADDRESS: &str = "an IP address such as `127.0.0.1`, `0.0.0.0` or `::`";

/// An IP address as people write it: with brackets or without, or `localhost`.
pub fn parse_address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let bare = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(text);
    if bare.eq_ignore_ascii_case("localhost") {
        return Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    bare.parse().ok()
}

/// Checks every variable, so that a wrong one is reported at start-up and not when it is first needed.
///
/// # Errors
/// `Invalid`, for the first variable with a value that is not allowed.
pub fn check_all() -> Result<()> {
    ALL.iter()
        .try_for_each(|variable| variable.text().map(drop))
}

/// The home directory: `HOME`, else `USERPROFILE`, else the current directory.
pub fn home_dir() -> PathBuf {
    let set = |variable: &Variable| variable.path().ok().flatten();
    set(&HOME)
        .or_else(|| set(&USERPROFILE))
        .unwrap_or_else(|| PathBuf::from("."))
}

/// The hub token from the environment.
///
/// # Errors
/// As [`Variable::text`].
pub fn hub_token() -> Result<Option<String>> {
    match HF_TOKEN.text()? {
        Some(token) => Ok(Some(token)),
        None => HUGGING_FACE_HUB_TOKEN.text(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_values_mean_not_set() {
        for variable in ALL {
            assert_eq!(variable.check("").unwrap(), None, "{}", variable.name);
            assert_eq!(variable.check(" \t").unwrap(), None, "{}", variable.name);
        }
    }

    #[test]
    fn a_wrong_value_names_variable_value_and_what_is_allowed() {
        let message = THREADS.check("zero").unwrap_err().to_string();
        assert_eq!(
            message,
            "environment variable `OXYDLLM_THREADS` is `zero`, expected a whole number of at least 1"
        );
        assert!(THREADS.check("0").is_err());
        assert!(THREADS.check("-1").is_err());
        assert!(THREADS.check("99999999999999999999999").is_err());
        let message = CPU_LEVEL.check("sse").unwrap_err().to_string();
        assert!(
            message.ends_with(
                "expected one of scalar, avx2, avx-vnni, avx512, neon, neon-dotprod, neon-i8mm"
            ),
            "{message}"
        );
        assert!(HF_ENDPOINT.check("huggingface.co").is_err());
    }

    #[test]
    fn numbers_and_addresses_of_the_server_are_checked_at_their_ends() {
        let cases: [(&Variable, &[&str], &[&str]); 4] = [
            (&PORT, &["0", "65535"], &["65536", "-1", "http"]),
            (&KEEP_ALIVE, &["0", "-1", "900"], &["-2", "1.5", "soon"]),
            (
                &HOST,
                &["127.0.0.1", "::", "[::1]", "localhost"],
                &["example.org", "1.2.3", "*"],
            ),
            (&MEMORY_BUDGET, &["1"], &["0", "8G"]),
        ];
        for (variable, taken, refused) in cases {
            for text in taken {
                assert!(variable.check(text).is_ok(), "{} {text}", variable.name);
            }
            for text in refused {
                let message = variable.check(text).unwrap_err().to_string();
                assert!(
                    message.contains(&format!("`{text}`, expected ")),
                    "{message}"
                );
            }
        }
        assert_eq!(parse_address("[::1]"), "::1".parse().ok());
        assert_eq!(parse_address("LocalHost"), "127.0.0.1".parse().ok());
    }

    #[test]
    fn words_match_in_any_case_and_numbers_are_trimmed() {
        assert_eq!(CPU_LEVEL.check("AVX2").unwrap().as_deref(), Some("avx2"));
        assert_eq!(THREADS.check(" 4 ").unwrap().as_deref(), Some("4"));
    }

    #[test]
    fn lists_and_switches_take_what_people_write_and_refuse_the_rest() {
        for text in ["0", "0,1", " 3 , 12 "] {
            assert!(DEVICES.check(text).is_ok(), "{text}");
        }
        for text in ["a", "0,", "-1", "0;1", "99999999999999999999999"] {
            let message = DEVICES.check(text).unwrap_err().to_string();
            assert!(message.contains("such as `0` or `0,1`"), "{message}");
        }
        for text in ["1", "TRUE", "yes", "On", "0", "False", "no", "off"] {
            assert!(ALLOW_CPU.check(text).is_ok(), "{text}");
        }
        let message = ALLOW_CPU.check("2").unwrap_err().to_string();
        assert!(
            message.ends_with("expected one of 1, true, yes, on, 0, false, no, off"),
            "{message}"
        );
    }

    #[test]
    fn no_variable_is_listed_twice_and_each_is_documented() {
        let mut names: Vec<_> = ALL.iter().map(|variable| variable.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
        assert!(
            ALL.iter()
                .all(|variable| variable.doc.ends_with('.') && !variable.default.is_empty())
        );
    }
}

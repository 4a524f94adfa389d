//! Arguments of `start`, and what they and the variables together say.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;

use clap::Args;

use crate::cli::args::{DeviceArgs, ModelsDirArgs, ThreadArgs, parse_text};
use crate::env;
use crate::error::Result;
use crate::host::{HostSettings, KeepAlive, LoadSettings};
use crate::server;

/// Arguments of `start`.
#[derive(Debug, Default, Args)]
pub struct StartArgs {
    /// Port to listen on; 0 takes a free one [env: OXYDLLM_PORT] [default: 11313]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Address to listen on, such as 0.0.0.0 or :: for all interfaces [env: OXYDLLM_HOST] [default: 127.0.0.1, with an API key
    /// 0.0.0.0]
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    host: Option<IpAddr>,
    #[command(flatten)]
    /// Where models are kept.
    pub models_dir: ModelsDirArgs,
    /// Seconds that an idle model stays loaded; 0 unloads it at once, -1 never [env: OXYDLLM_KEEP_ALIVE] [default: 900]
    #[arg(long, value_name = "SECS", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    keep_alive: Option<i64>,
    /// Seconds that running requests have when the server is told to stop [env: OXYDLLM_SHUTDOWN_TIMEOUT] [default: 30]
    #[arg(long, value_name = "SECS")]
    shutdown_timeout: Option<u64>,
    /// Most MiB that all loaded models take together (weights, KV cache, activations); those not used for longest make room
    /// [env: OXYDLLM_MEMORY_BUDGET] [default: what the machine has]
    #[arg(long, value_name = "MB")]
    memory_budget: Option<NonZeroU64>,
    /// Tokens that one sequence may hold [env: OXYDLLM_MAX_CONTEXT_LEN] [default: the model's own, bounded by memory]
    #[arg(long, value_name = "N")]
    max_context_len: Option<NonZeroUsize>,
    /// Most sequences of a model that compute at once [env: OXYDLLM_MAX_NUM_SEQS] [default: decided from memory]
    #[arg(long, value_name = "N")]
    max_num_seqs: Option<NonZeroUsize>,
    /// Most requests that wait for a model; more are refused [env: OXYDLLM_MAX_QUEUED_REQUESTS] [default: 200]
    #[arg(long, value_name = "N")]
    max_queued_requests: Option<NonZeroUsize>,
    /// Key that requests must bring. Prefer the variable: a flag shows in the list of processes [env: OXYDLLM_API_KEY]
    #[arg(long, value_name = "KEY", value_parser = parse_text, hide_env_values = true)]
    api_key: Option<String>,
    /// Seconds that a request may take, loading the model not counted; 0 is no limit [env: OXYDLLM_REQUEST_TIMEOUT]
    /// [default: 300]
    #[arg(long, value_name = "SECS")]
    request_timeout: Option<u64>,
    /// Names that the server answers to besides loopback names, such as a reverse proxy's; `*` is all
    /// [env: OXYDLLM_ALLOWED_HOSTS]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = parse_text)]
    allowed_hosts: Option<Vec<String>>,
    /// Origins such as `https://chat.example` whose web pages may use the server from a browser; `*` is all
    /// [env: OXYDLLM_CORS_ORIGIN]
    #[arg(long, value_name = "ORIGIN,...", value_delimiter = ',', value_parser = parse_text)]
    cors_origin: Option<Vec<String>>,
    #[command(flatten)]
    /// Compute threads.
    pub threads: ThreadArgs,
    #[command(flatten)]
    /// Where to compute.
    pub device: DeviceArgs,
}

/// What to do, from flags, variables and defaults.
#[derive(Debug)]
pub(super) struct Settings {
    pub address: SocketAddr,
    pub shutdown_timeout: Duration,
    pub host: HostSettings,
    pub load: LoadSettings,
    pub server: server::Settings,
}

impl StartArgs {
    /// Flag, then variable, then default, for each of them.
    ///
    /// # Errors
    /// `Invalid` when a variable is, or the API key cannot be sent in a header.
    pub(super) fn resolve(&self) -> Result<Settings> {
        let api_key = or_else(self.api_key.clone(), || env::API_KEY.text())?;
        let has_key = api_key.is_some();
        let request_timeout =
            or_else(self.request_timeout, || env::REQUEST_TIMEOUT.parse())?.unwrap_or(300);
        let shutdown_timeout =
            or_else(self.shutdown_timeout, || env::SHUTDOWN_TIMEOUT.parse())?.unwrap_or(30);
        Ok(Settings {
            address: self.address(has_key)?,
            shutdown_timeout: Duration::from_secs(shutdown_timeout),
            host: self.host_settings()?,
            load: self.load_settings()?,
            server: server::Settings {
                api_keys: server::ApiKeys::new(api_key)?,
                request_timeout: (request_timeout > 0)
                    .then(|| Duration::from_secs(request_timeout)),
                allowed_hosts: or_else(self.allowed_hosts.clone(), || env::ALLOWED_HOSTS.list())?
                    .unwrap_or_default(),
                allowed_origins: or_else(self.cors_origin.clone(), || env::CORS_ORIGIN.list())?
                    .unwrap_or_default(),
                ..server::Settings::default()
            },
        })
    }

    /// Without a key only this machine can ask, unless somebody wants it otherwise.
    fn address(&self, has_key: bool) -> Result<SocketAddr> {
        let default = if has_key {
            Ipv4Addr::UNSPECIFIED
        } else {
            Ipv4Addr::LOCALHOST
        };
        let host = or_else(self.host, || env::HOST.address())?.unwrap_or(IpAddr::V4(default));
        let port = or_else(self.port, || env::PORT.parse())?.unwrap_or(11313);
        Ok(SocketAddr::new(host, port))
    }

    fn host_settings(&self) -> Result<HostSettings> {
        let keep_alive = or_else(self.keep_alive, || env::KEEP_ALIVE.parse())?.unwrap_or(900);
        let memory_budget = or_else(self.memory_budget.map(NonZeroU64::get), || {
            env::MEMORY_BUDGET.parse()
        })?;
        Ok(HostSettings {
            models_dir: self.models_dir.resolve()?,
            keep_alive: KeepAlive::from_secs(keep_alive)?,
            memory_budget: memory_budget.map(|mebibytes: u64| mebibytes.saturating_mul(1 << 20)),
        })
    }

    fn load_settings(&self) -> Result<LoadSettings> {
        let number = |flag: Option<NonZeroUsize>, variable: &'static env::Variable| {
            or_else(flag.map(NonZeroUsize::get), || variable.number())
        };
        Ok(LoadSettings {
            max_context_len: number(self.max_context_len, &env::MAX_CONTEXT_LEN)?,
            max_num_seqs: number(self.max_num_seqs, &env::MAX_NUM_SEQS)?,
            max_queued: number(self.max_queued_requests, &env::MAX_QUEUED_REQUESTS)?.unwrap_or(200),
        })
    }
}

/// The flag, else what the variable says.
fn or_else<T>(flag: Option<T>, variable: impl FnOnce() -> Result<Option<T>>) -> Result<Option<T>> {
    flag.map_or_else(variable, |value| Ok(Some(value)))
}

fn parse_address(text: &str) -> Result<IpAddr, String> {
    env::parse_address(text).ok_or_else(|| format!("expected {}", env::ADDRESS))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::args::{Cli, Command};

    fn start(words: &[&str]) -> Result<StartArgs, clap::Error> {
        match Cli::try_parse_from([&["oxydllm", "start"], words].concat())?.command {
            Command::Start(args) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    fn resolved(words: &[&str]) -> Settings {
        start(words).unwrap().resolve().unwrap()
    }

    #[test]
    fn defaults_are_the_documented_ones() {
        let settings = resolved(&[]);
        assert_eq!(settings.address.to_string(), "127.0.0.1:11313");
        assert_eq!(settings.shutdown_timeout, Duration::from_secs(30));
        assert_eq!(
            settings.host.keep_alive,
            KeepAlive::After(Duration::from_secs(900))
        );
        assert_eq!(settings.host.memory_budget, None);
        let load = LoadSettings {
            max_context_len: None,
            max_num_seqs: None,
            max_queued: 200,
        };
        assert_eq!(settings.load, load);
        assert_eq!(
            settings.server.request_timeout,
            Some(Duration::from_secs(300))
        );
        assert!(settings.server.api_keys.is_empty());
    }

    #[test]
    fn a_key_opens_the_server_to_others_and_an_address_is_what_it_says() {
        let address = |words: &[&str]| resolved(words).address.to_string();
        assert_eq!(address(&["--api-key", "k"]), "0.0.0.0:11313");
        assert_eq!(
            address(&["--api-key", "k", "--host", "127.0.0.1"]),
            "127.0.0.1:11313"
        );
        assert_eq!(address(&["--host", "0.0.0.0"]), "0.0.0.0:11313");
        assert_eq!(address(&["--host", "::", "--port", "80"]), "[::]:80");
        assert_eq!(address(&["--host=[::1]"]), "[::1]:11313");
        assert_eq!(address(&["--host=localhost"]), "127.0.0.1:11313");
    }

    #[test]
    fn zero_seconds_and_minus_one_mean_what_the_help_says() {
        let settings = resolved(&[
            "--keep-alive",
            "-1",
            "--request-timeout=0",
            "--shutdown-timeout=0",
            "--memory-budget=24576",
        ]);
        assert_eq!(settings.host.keep_alive, KeepAlive::Forever);
        assert_eq!(settings.server.request_timeout, None);
        assert_eq!(settings.shutdown_timeout, Duration::ZERO);
        assert_eq!(settings.host.memory_budget, Some(24 << 30));
        let now = KeepAlive::After(Duration::ZERO);
        assert_eq!(resolved(&["--keep-alive=0"]).host.keep_alive, now);
    }

    #[test]
    fn the_key_is_trimmed_and_must_be_one_that_can_be_sent() {
        assert!(start(&["--api-key", ""]).is_err());
        assert!(start(&["--api-key", " \t"]).is_err());
        assert!(!resolved(&["--api-key", " k "]).server.api_keys.is_empty());
        for key in ["clé", "a b", "a\u{7}"] {
            let error = start(&["--api-key", key]).unwrap().resolve().unwrap_err();
            assert!(!error.chain().contains(key), "{error}");
        }
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for words in [
            ["--port", "65536"],
            ["--port", "-1"],
            ["--host", "example.org"],
            ["--keep-alive", "-2"],
            ["--memory-budget", "0"],
            ["--max-num-seqs", "0"],
            ["--max-queued-requests", "0"],
            ["--max-context-len", "0"],
            ["--request-timeout", "-1"],
            ["--kv-quant", "lossless"],
        ] {
            assert!(start(&words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn lists_have_commas() {
        let settings = resolved(&["--allowed-hosts", "a.example,b.example", "--cors-origin=*"]);
        assert_eq!(settings.server.allowed_hosts, ["a.example", "b.example"]);
        assert_eq!(settings.server.allowed_origins, ["*"]);
    }
}

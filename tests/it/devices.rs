//! The device choice as a person meets it: what a plain build says to GPU flags, what a GPU build says without a GPU.

use std::net::TcpListener;
use std::path::Path;

use crate::support::program::{Home, Ran};

fn model() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("tests/fixtures/models/gguf_llama_f32/model.gguf");
    path.to_str().unwrap().to_owned()
}

/// Each command that computes, in its shortest form, with `flags`.
fn each_command(home: &Home, flags: &[&str]) -> [(&'static str, Ran); 3] {
    let model = model();
    let ids = home.write("ids.json", br#"{"prompts":[[1,2,3]]}"#);
    let ids = ids.to_str().unwrap();
    let run = ["run", &model, "hi", "-t", "0", "--max-tokens", "4"];
    let bench = ["bench", &model, "-p", "4", "-n", "0", "--repeat", "1"];
    let eval = ["eval", &model, "--tokens", ids, "--greedy", "2"];
    [
        ("run", home.run(&[&run[..], flags].concat())),
        ("bench", home.run(&[&bench[..], flags].concat())),
        ("eval", home.run(&[&eval[..], flags].concat())),
    ]
}

/// `start` with `flags` on a port that is taken: it ends in any case.
fn start(home: &Home, flags: &[&str]) -> Ran {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    home.run(&[&["start", "--port", &port], flags].concat())
        .failed()
}

#[test]
fn device_values_are_checked_before_anything_is_done() {
    for (name, value, expected) in [
        ("OXYDLLM_DEVICES", "gpu", "whole numbers with commas"),
        ("OXYDLLM_ALLOW_CPU", "perhaps", "one of 1, true, yes, on"),
    ] {
        let ran = Home::new().with_env(name, value).run(&["list"]).failed();
        assert!(
            ran.stderr.contains(&format!("`{name}` is `{value}`")),
            "{ran:#?}"
        );
        assert!(ran.stderr.contains(expected), "{ran:#?}");
    }
    for devices in ["gpu", "-1", "0,", ""] {
        Home::new()
            .run(&["run", "m", &format!("--devices={devices}")])
            .failed();
    }
    for (_, ran) in each_command(&Home::new(), &["--devices", "0,1"]) {
        let ran = ran.failed();
        assert!(
            ran.stderr.starts_with("Error: 2 devices are asked for"),
            "{ran:#?}"
        );
        assert!(ran.stderr.contains("\nhint: "), "{ran:#?}");
    }
}

#[cfg(not(any(feature = "cuda", all(feature = "metal", target_os = "macos"))))]
mod plain_build {
    use super::*;

    #[test]
    fn it_computes_on_the_cpu_without_being_allowed_to_and_without_a_word() {
        for flags in [&[][..], &["--allow-cpu"]] {
            for (command, ran) in each_command(&Home::new(), flags) {
                let ran = ran.ok();
                assert!(!ran.stdout.is_empty(), "{command}");
                assert!(
                    !ran.stderr.contains("CPU") && !ran.stderr.contains("GPU"),
                    "{command}: {ran:#?}"
                );
            }
        }
    }

    #[test]
    fn it_refuses_devices_and_says_how_to_build_for_them() {
        for home in [
            Home::new(),
            Home::new().with_env("OXYDLLM_ALLOW_CPU", "yes"),
        ] {
            for (command, ran) in each_command(&home, &["--devices", "0"]) {
                let ran = ran.failed();
                assert_eq!(ran.stdout, "", "{command}");
                assert!(
                    ran.stderr.starts_with(
                        "Error: device 0 is asked for, and this build has no GPU support\nhint: build with `--features cuda`"
                    ),
                    "{command}: {ran:#?}"
                );
            }
        }
        let ran = start(&Home::new(), &["--devices", "0"]);
        assert!(ran.stderr.contains("no GPU support"), "{ran:#?}");
        let by_variable = Home::new().with_env("OXYDLLM_DEVICES", "0");
        for (_, ran) in each_command(&by_variable, &[]) {
            assert!(ran.failed().stderr.contains("no GPU support"));
        }
    }
}

#[cfg(feature = "cuda")]
mod cuda_build {
    use super::*;

    /// What the driver says where there is no GPU, or where there is one and none may be seen.
    const REASON: &str = "the NVIDIA driver finds no GPU (`CUDA_ERROR_NO_DEVICE`)";

    fn home() -> Home {
        Home::new().with_env("CUDA_VISIBLE_DEVICES", "")
    }

    #[test]
    fn it_starts_without_a_gpu() {
        assert!(
            home()
                .run(&["--version"])
                .ok()
                .stdout
                .starts_with("oxydllm ")
        );
        home().run(&["list"]).ok();
    }

    #[test]
    fn it_refuses_without_a_gpu_and_says_why_and_what_to_do() {
        let forbidden = home().with_env("OXYDLLM_ALLOW_CPU", "off");
        for (home, flags) in [
            (home(), &[][..]),
            (home(), &["--devices", "0"]),
            (forbidden, &[]),
        ] {
            for (command, ran) in each_command(&home, flags) {
                let ran = ran.failed();
                assert_eq!(ran.stdout, "", "{command}");
                assert_eq!(
                    ran.stderr,
                    format!(
                        "Error: no GPU can be used: {REASON}\nhint: `--allow-cpu` (or `OXYDLLM_ALLOW_CPU=1`) computes on the CPU instead\n"
                    ),
                    "{command}"
                );
            }
        }
    }

    #[test]
    fn a_server_does_not_begin_to_listen_without_a_gpu_unless_the_cpu_is_allowed() {
        let refused = start(&home(), &[]).stderr;
        assert!(
            refused.contains(&format!("no GPU can be used: {REASON}\n")),
            "{refused}"
        );
        let allowed = start(&home(), &["--allow-cpu"]).stderr;
        assert!(
            allowed.contains(&format!("computing on the CPU: {REASON}\n")),
            "{allowed}"
        );
        assert!(allowed.contains("cannot listen"), "{allowed}");
    }

    #[test]
    fn it_computes_on_the_cpu_when_allowed_and_says_why() {
        let allowed = home().with_env("OXYDLLM_ALLOW_CPU", "True");
        for (home, flags) in [(home(), &["--allow-cpu"][..]), (allowed, &[])] {
            for (command, ran) in each_command(&home, flags) {
                let ran = ran.ok();
                assert!(!ran.stdout.is_empty(), "{command}");
                assert!(
                    ran.stderr
                        .contains(&format!("warning: computing on the CPU: {REASON}\n")),
                    "{command}: {ran:#?}"
                );
            }
        }
    }
}

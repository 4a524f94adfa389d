//! Build script: bakes the build's date and commit into the binary.
//!
//! GPU kernels (`kernels/cuda/*.cu`, `kernels/metal/*.metal`) are compiled here when those features exist; it sets no
//! `cfg` beyond that.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

fn main() {
    println!("cargo:rerun-if-env-changed=OXYDLLM_BUILD_TS_OVERRIDE");
    println!("cargo:rerun-if-env-changed=OXYDLLM_DIST_BUILD");
    println!("cargo:rerun-if-changed=kernels/build.rs");
    println!("cargo:rerun-if-changed=.git/HEAD");
    let timestamp = match std::env::var("OXYDLLM_BUILD_TS_OVERRIDE") {
        Ok(text) if !text.trim().is_empty() => text
            .trim()
            .parse::<u64>()
            .expect("OXYDLLM_BUILD_TS_OVERRIDE must be Unix seconds"),
        _ => SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_secs()),
    };
    println!("cargo:rustc-env=OXYDLLM_BUILD_TS={timestamp}");
    let commit = Command::new("git")
        .args(["rev-parse", "--short=12", "HEAD"])
        .output()
        .ok()
        .filter(|o| o.status.success())
        .and_then(|o| String::from_utf8(o.stdout).ok())
        .unwrap_or_default();
    println!("cargo:rustc-env=OXYDLLM_BUILD_COMMIT={}", commit.trim());
}

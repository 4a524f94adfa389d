//! Which instruction set the CPU kernels use: detected once, lowered on request. Bits do not depend on it.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// An instruction-set level. All levels give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CpuLevel {
    /// Portable code: the reference, and the path of CPUs without a level of their own.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
}

impl CpuLevel {
    /// The best level of this CPU.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if ["avx2", "fma", "f16c", "bmi1", "bmi2"]
            .iter()
            .all(|f| has_feature(f))
        {
            return Self::Avx2;
        }
        Self::Scalar
    }

    /// Levels that this CPU can run, lowest first.
    pub fn available() -> Vec<Self> {
        let mut levels = vec![Self::Scalar];
        if Self::detect() != Self::Scalar {
            levels.push(Self::detect());
        }
        levels
    }

    /// The level to use when `requested` was asked for.
    ///
    /// # Errors
    /// `Unsupported` when this CPU does not have the requested level.
    pub fn choose(requested: Option<Self>) -> Result<Self> {
        match requested {
            None => Ok(Self::detect()),
            Some(level) if Self::available().contains(&level) => Ok(level),
            Some(level) => Err(Error::unsupported(format!(
                "this CPU does not have the instruction set `{level}`"
            ))
            .with_hint(format!(
                "unset OXYDLLM_CPU_LEVEL to use `{}`",
                Self::detect()
            ))),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_feature(name: &str) -> bool {
    match name {
        "avx2" => is_x86_feature_detected!("avx2"),
        "fma" => is_x86_feature_detected!("fma"),
        "f16c" => is_x86_feature_detected!("f16c"),
        "bmi1" => is_x86_feature_detected!("bmi1"),
        "bmi2" => is_x86_feature_detected!("bmi2"),
        _ => false,
    }
}

impl fmt::Display for CpuLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
        })
    }
}

impl FromStr for CpuLevel {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.trim().to_ascii_lowercase().as_str() {
            "scalar" => Ok(Self::Scalar),
            "avx2" => Ok(Self::Avx2),
            other => Err(Error::invalid(format!(
                "CPU level `{other}`: expected `scalar` or `avx2`"
            ))),
        }
    }
}

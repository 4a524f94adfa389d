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
    /// The same with AVX-VNNI.
    AvxVnni,
    /// x86-64 with AVX-512 F, BW, VL and VNNI besides.
    Avx512,
    /// aarch64 with NEON.
    Neon,
    /// aarch64 with NEON and the dot products of ARMv8.2.
    NeonDot,
    /// The same with the matrix products of ARMv8.6 (i8mm).
    NeonI8mm,
}

impl CpuLevel {
    /// All levels, of every kind of CPU.
    pub const ALL: [Self; 7] = [
        Self::Scalar,
        Self::Avx2,
        Self::AvxVnni,
        Self::Avx512,
        Self::Neon,
        Self::NeonDot,
        Self::NeonI8mm,
    ];

    /// The best level of this CPU.
    pub fn detect() -> Self {
        *Self::available()
            .last()
            .expect("every CPU has the scalar level")
    }

    /// Levels that this CPU can run, lowest first.
    pub fn available() -> Vec<Self> {
        Self::ALL
            .into_iter()
            .filter(|level| level.is_available())
            .collect()
    }

    /// The level to use when `requested` was asked for.
    ///
    /// # Errors
    /// `Unsupported` when this CPU does not have the requested level.
    pub fn choose(requested: Option<Self>) -> Result<Self> {
        match requested {
            None => Ok(Self::detect()),
            Some(level) if level.is_available() => Ok(level),
            Some(level) => Err(Error::unsupported(format!(
                "CPU level `{level}` was asked for, which needs {}: this CPU does not have all of that",
                level.needs()
            ))
            .with_hint(format!(
                "unset OXYDLLM_CPU_LEVEL to use `{}`",
                Self::detect()
            ))),
        }
    }

    fn is_available(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
                    && is_x86_feature_detected!("bmi1")
                    && is_x86_feature_detected!("bmi2")
            }
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => Self::Avx2.is_available() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "aarch64")]
            Self::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "aarch64")]
            Self::NeonDot => {
                Self::Neon.is_available() && std::arch::is_aarch64_feature_detected!("dotprod")
            }
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mm => {
                Self::NeonDot.is_available() && std::arch::is_aarch64_feature_detected!("i8mm")
            }
            _ => false,
        }
    }

    /// What a CPU must have for this level, in words.
    fn needs(self) -> &'static str {
        match self {
            Self::Scalar => "nothing",
            Self::Avx2 => "x86-64 with AVX2, FMA, F16C, BMI1 and BMI2",
            Self::AvxVnni => "x86-64 with AVX2, FMA, F16C, BMI1, BMI2 and AVX-VNNI",
            Self::Avx512 => {
                "x86-64 with AVX2, FMA, F16C, BMI1, BMI2 and AVX-512 F, BW, VL and VNNI"
            }
            Self::Neon => "aarch64 with NEON",
            Self::NeonDot => "aarch64 with NEON and dot products",
            Self::NeonI8mm => "aarch64 with NEON, dot products and i8mm",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avx-vnni",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
            Self::NeonDot => "neon-dotprod",
            Self::NeonI8mm => "neon-i8mm",
        }
    }
}

impl fmt::Display for CpuLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CpuLevel {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let name = text.trim().to_ascii_lowercase();
        Self::ALL
            .into_iter()
            .find(|level| level.name() == name)
            .ok_or_else(|| {
                let known = Self::ALL.map(|level| format!("`{level}`")).join(", ");
                Error::invalid(format!("CPU level `{name}`: expected one of {known}"))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{Allowed, CPU_LEVEL};
    use crate::error::ErrorKind;

    #[test]
    fn levels_are_found_by_the_names_that_they_show() {
        for level in CpuLevel::ALL {
            assert_eq!(level.to_string().parse::<CpuLevel>().unwrap(), level);
        }
        assert_eq!(" AVX512 ".parse::<CpuLevel>().unwrap(), CpuLevel::Avx512);
        let message = "sse".parse::<CpuLevel>().unwrap_err().to_string();
        assert!(
            message.contains("`sse`") && message.contains("`neon-dotprod`"),
            "{message}"
        );
    }

    #[test]
    fn the_variable_takes_the_names_of_all_levels() {
        let names = CpuLevel::ALL.map(CpuLevel::name);
        let Allowed::OneOf(taken) = CPU_LEVEL.allowed else {
            panic!("one of a list");
        };
        assert_eq!(taken, names);
    }

    #[test]
    fn a_level_of_another_cpu_is_refused_with_what_it_needs_and_the_one_to_use() {
        assert_eq!(CpuLevel::choose(None).unwrap(), CpuLevel::detect());
        let own = CpuLevel::available();
        assert_eq!(own[0], CpuLevel::Scalar);
        for level in CpuLevel::ALL {
            let chosen = CpuLevel::choose(Some(level));
            if own.contains(&level) {
                assert_eq!(chosen.unwrap(), level);
                continue;
            }
            let error = chosen.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains(level.needs()), "{error}");
            assert!(
                error
                    .hint()
                    .is_some_and(|hint| hint.contains(&format!("`{}`", CpuLevel::detect())))
            );
        }
    }
}

//! Where a model runs: which device, decided once, before anything is loaded.
//!
//! A build without a GPU feature has the CPU and nothing to decide. A GPU build opens the GPU for real, and where that fails
//! it refuses with the driver's reason, or computes on the CPU and says why when that was allowed. It never falls back in
//! silence. `cuda` and `metal` below this file open devices; kernels live in [`crate::ops`], and `missing_kernels`
//! says what they cannot do yet.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(all(feature = "metal", target_os = "macos"))]
mod metal;

use std::fmt;

use crate::error::{Error, Result};

#[cfg(all(feature = "cuda", feature = "metal", target_os = "macos"))]
compile_error!("on macOS a build has `metal` or `cuda`, not both");

/// A place to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// This machine's processors.
    Cpu,
    /// An NVIDIA GPU.
    Cuda {
        /// Its number, as the driver counts them.
        index: usize,
    },
    /// The GPU of a Mac.
    Metal,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("the CPU"),
            Self::Cuda { index } => write!(f, "CUDA device {index}"),
            Self::Metal => f.write_str("the Metal device"),
        }
    }
}

/// What [`choose`] decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Where to compute.
    pub device: Device,
    /// Why it is the CPU although this build is for a GPU: something to tell people.
    pub fallback: Option<String>,
}

impl Choice {
    fn device(device: Device) -> Self {
        Self {
            device,
            fallback: None,
        }
    }
}

/// Chooses the device: the first GPU or the one in `devices`, the CPU in a build without GPU support and, when `allow_cpu`,
/// wherever the GPU cannot be used.
///
/// # Errors
/// `Unsupported` when a GPU is asked for that this build or this machine does not have, or when no GPU can be used and the
/// CPU is not allowed; `Invalid` for an empty list of devices.
pub fn choose(devices: Option<&[usize]>, allow_cpu: bool) -> Result<Choice> {
    let index = match devices {
        None => None,
        Some([index]) => Some(*index),
        Some([]) => return Err(Error::invalid("the list of devices is empty")),
        Some(several) => {
            return Err(Error::unsupported(format!(
                "{} devices are asked for, and a model runs on one",
                several.len()
            ))
            .with_hint("name one, such as `--devices 0`"));
        }
    };
    match (open_gpu(index.unwrap_or(0)), index) {
        (Some(opened), _) => decide(opened.and_then(check_kernels), allow_cpu),
        (None, None) => Ok(Choice::device(Device::Cpu)),
        (None, Some(index)) => Err(Error::unsupported(format!(
            "device {index} is asked for, and this build has no GPU support"
        ))
        .with_hint(
            "build with `--features cuda` (NVIDIA) or, on a Mac, `--features metal`; without `--devices` and `OXYDLLM_DEVICES` this one computes on the CPU",
        )),
    }
}

/// Opens GPU `index`: `None` in a build without GPU support, a reason in words when it cannot be opened.
fn open_gpu(index: usize) -> Option<Result<Device, String>> {
    #[cfg(feature = "cuda")]
    let opened = Some(cuda::open(index));
    #[cfg(all(feature = "metal", target_os = "macos"))]
    let opened = Some(metal::open(index));
    #[cfg(not(any(feature = "cuda", all(feature = "metal", target_os = "macos"))))]
    let opened = {
        let _ = index;
        None
    };
    opened
}

/// What [`crate::ops`] lacks to compute on `device`, in words. The place to change when kernels come.
fn missing_kernels(device: Device) -> Option<&'static str> {
    match device {
        Device::Cpu => None,
        Device::Cuda { .. } | Device::Metal => {
            Some("this version of oxydllm has no kernels for it yet")
        }
    }
}

fn check_kernels(device: Device) -> Result<Device, String> {
    match missing_kernels(device) {
        None => Ok(device),
        Some(missing) => Err(format!("{device} is there, but {missing}")),
    }
}

/// The GPU if it can be used, else the CPU if that is allowed.
fn decide(gpu: Result<Device, String>, allow_cpu: bool) -> Result<Choice> {
    match gpu {
        Ok(device) => Ok(Choice::device(device)),
        Err(reason) if allow_cpu => Ok(Choice {
            device: Device::Cpu,
            fallback: Some(reason),
        }),
        Err(reason) => Err(Error::unsupported(format!("no GPU can be used: {reason}"))
            .with_hint("`--allow-cpu` (or `OXYDLLM_ALLOW_CPU=1`) computes on the CPU instead")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const GPU: Device = Device::Cuda { index: 1 };

    #[test]
    fn a_gpu_that_can_be_used_is_used_whether_the_cpu_is_allowed_or_not() {
        for allow_cpu in [false, true] {
            let choice = decide(Ok(GPU), allow_cpu).unwrap();
            assert_eq!((choice.device, choice.fallback), (GPU, None));
        }
    }

    #[test]
    fn without_a_usable_gpu_the_cpu_must_be_allowed_and_the_reason_is_told_either_way() {
        let broken = || Err("the driver is on fire".to_owned());
        let error = decide(broken(), false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(
            error.to_string(),
            "no GPU can be used: the driver is on fire"
        );
        assert!(error.hint().unwrap().contains("`--allow-cpu`"));
        let choice = decide(broken(), true).unwrap();
        assert_eq!(choice.device, Device::Cpu);
        assert_eq!(choice.fallback.as_deref(), Some("the driver is on fire"));
    }

    #[test]
    fn a_gpu_without_kernels_is_refused_by_name_and_the_cpu_never_is() {
        for device in [GPU, Device::Metal] {
            let reason = check_kernels(device).unwrap_err();
            assert!(reason.starts_with(&device.to_string()), "{reason}");
            assert!(reason.contains("no kernels"), "{reason}");
        }
        assert_eq!(check_kernels(Device::Cpu), Ok(Device::Cpu));
    }

    #[test]
    fn a_list_of_devices_names_exactly_one() {
        for allow_cpu in [false, true] {
            let error = choose(Some(&[0, 1]), allow_cpu).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().starts_with("2 devices"), "{error}");
            let error = choose(Some(&[]), allow_cpu).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
        }
    }

    #[cfg(not(any(feature = "cuda", all(feature = "metal", target_os = "macos"))))]
    #[test]
    fn a_build_without_gpu_support_computes_on_the_cpu_in_silence_and_refuses_devices() {
        for allow_cpu in [false, true] {
            let choice = choose(None, allow_cpu).unwrap();
            assert_eq!((choice.device, choice.fallback), (Device::Cpu, None));
            let error = choose(Some(&[0]), allow_cpu).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("no GPU support"), "{error}");
            assert!(error.hint().unwrap().contains("`--features cuda`"));
        }
    }
}

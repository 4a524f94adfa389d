//! Opening an NVIDIA GPU, and the driver's reasons in words.

use candle_core::cuda_backend::cudarc::driver::sys::CUresult;
use candle_core::cuda_backend::cudarc::driver::{CudaContext, DriverError};

use super::Device;

/// Opens GPU `index` with its BLAS and random generator, and closes it again.
///
/// # Errors
/// Why that is not possible, in words.
pub(super) fn open(index: usize) -> Result<Device, String> {
    let count = CudaContext::device_count().map_err(reason)?;
    if !usize::try_from(count).is_ok_and(|count| index < count) {
        return Err(format!(
            "there is no CUDA device {index}, the driver counts {count} from 0"
        ));
    }
    match candle_core::Device::new_cuda(index) {
        Ok(_) => Ok(Device::Cuda { index }),
        Err(error) => Err(format!("CUDA device {index} cannot be opened: {error}")),
    }
}

/// What the driver says, for people, with its code for whoever looks it up.
fn reason(error: DriverError) -> String {
    let text = match error.0 {
        CUresult::CUDA_ERROR_NO_DEVICE => "the NVIDIA driver finds no GPU".into(),
        CUresult::CUDA_ERROR_STUB_LIBRARY => {
            "the NVIDIA driver is not installed, a stub of its library is".into()
        }
        CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => {
            "library and kernel module of the NVIDIA driver have different versions".into()
        }
        _ => match error.error_string() {
            Ok(text) => text.to_string_lossy(),
            Err(_) => "the NVIDIA driver cannot be used".into(),
        },
    };
    format!("{text} (`{:?}`)", error.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_words_and_keep_the_code() {
        assert_eq!(
            reason(DriverError(CUresult::CUDA_ERROR_NO_DEVICE)),
            "the NVIDIA driver finds no GPU (`CUDA_ERROR_NO_DEVICE`)"
        );
        let other = reason(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        assert!(other.ends_with(" (`CUDA_ERROR_OUT_OF_MEMORY`)"), "{other}");
    }

    #[test]
    fn a_device_that_nobody_has_is_refused_with_a_reason() {
        for index in [4096, usize::MAX] {
            assert!(!open(index).unwrap_err().is_empty());
        }
    }
}

//! Opening the GPU of a Mac.

use candle_metal_kernels::metal::Device as Listed;

use super::Device;

/// Opens the GPU and closes it again; `index` must be 0.
///
/// # Errors
/// Why that is not possible, in words.
pub(super) fn open(index: usize) -> Result<Device, String> {
    if index != 0 {
        return Err(format!("there is no Metal device {index}, only 0"));
    }
    // candle takes the first of this list without looking whether there is one.
    if Listed::all().is_empty() {
        return Err("macOS lists no Metal device".to_owned());
    }
    match candle_core::Device::new_metal(0) {
        Ok(_) => Ok(Device::Metal),
        Err(error) => Err(format!("the Metal device cannot be opened: {error}")),
    }
}

//! The tensor handle that model code passes around: rows of activations, on the CPU in buffers that are used again.
//!
//! A forward pass makes the same tensors at every step. [`Arena`] keeps the buffers that were dropped and hands them out
//! again, so that a step allocates nothing once it has run. On a GPU the storage will be a candle tensor (the variant
//! belongs in [`Storage`]); model code cannot tell.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::aligned::Aligned;

/// Buffers that were used and are free: at most this many are kept.
const MAX_FREE_BUFFERS: usize = 64;

/// Free buffers of one model's forward pass. Clones share them.
#[derive(Clone, Default)]
pub struct Arena {
    free: Arc<Mutex<Vec<Aligned<f32>>>>,
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena")
            .field("free_bytes", &self.free_bytes())
            .finish()
    }
}

impl Arena {
    /// A buffer of `len` floats with unspecified (but initialised) values: the smallest free one that fits, else a new one.
    fn take(&self, len: usize) -> Aligned<f32> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let best = (0..free.len())
            .filter(|&i| free[i].capacity() >= len)
            .min_by_key(|&i| free[i].capacity());
        let mut buffer = best.map(|i| free.swap_remove(i)).unwrap_or_default();
        drop(free);
        buffer.set_len(len);
        buffer
    }

    fn give_back(&self, buffer: Aligned<f32>) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(buffer);
        if free.len() > MAX_FREE_BUFFERS {
            let smallest = (0..free.len())
                .min_by_key(|&i| free[i].capacity())
                .expect("not empty");
            free.swap_remove(smallest);
        }
    }

    /// Bytes held by free buffers.
    pub fn free_bytes(&self) -> usize {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.iter().map(|b| b.capacity() * size_of::<f32>()).sum()
    }
}

/// A CPU buffer that returns to its arena when dropped.
struct CpuBuffer {
    values: Aligned<f32>,
    arena: Arena,
}

impl Drop for CpuBuffer {
    fn drop(&mut self) {
        self.arena.give_back(std::mem::take(&mut self.values));
    }
}

/// Where the elements live.
enum Storage {
    Cpu(CpuBuffer),
}

/// Activations: `rows` × `cols` elements, row after row. F32 on the CPU.
pub struct Tensor {
    rows: usize,
    cols: usize,
    storage: Storage,
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor[{}, {}]", self.rows, self.cols)
    }
}

impl Tensor {
    /// A CPU tensor with unspecified values.
    pub(crate) fn uninit_cpu(arena: &Arena, rows: usize, cols: usize) -> Self {
        let values = arena.take(
            rows.checked_mul(cols)
                .expect("an activation fits the address space"),
        );
        Self {
            rows,
            cols,
            storage: Storage::Cpu(CpuBuffer {
                values,
                arena: arena.clone(),
            }),
        }
    }

    /// Number of rows (tokens, in most places).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements per row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The elements of a CPU tensor, row after row.
    pub fn as_slice(&self) -> &[f32] {
        let Storage::Cpu(buffer) = &self.storage;
        &buffer.values
    }

    /// The elements of a CPU tensor, for writing.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        let Storage::Cpu(buffer) = &mut self.storage;
        &mut buffer.values
    }

    /// One row of a CPU tensor.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.as_slice()[row * self.cols..(row + 1) * self.cols]
    }
}

/// Rows of a tensor that a product reads: all, or some in any order.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    x: &'a Tensor,
    picked: Option<&'a [u32]>,
}

impl<'a> Rows<'a> {
    /// Every row of `x`.
    pub fn all(x: &'a Tensor) -> Self {
        Self { x, picked: None }
    }

    /// The rows `picked` of `x`, in that order.
    pub fn picked(x: &'a Tensor, picked: &'a [u32]) -> Self {
        Self {
            x,
            picked: Some(picked),
        }
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.picked.map_or(self.x.rows(), <[u32]>::len)
    }

    /// Elements per row.
    pub fn cols(&self) -> usize {
        self.x.cols()
    }

    /// The i-th of them.
    pub fn row(&self, i: usize) -> &'a [f32] {
        self.x.row(self.picked.map_or(i, |rows| rows[i] as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_buffer_is_used_again_and_the_smallest_that_fits_is_taken() {
        let arena = Arena::default();
        let large = Tensor::uninit_cpu(&arena, 10, 100);
        let small = Tensor::uninit_cpu(&arena, 10, 10);
        let address = small.as_slice().as_ptr();
        drop(large);
        drop(small);
        let again = Tensor::uninit_cpu(&arena, 9, 10);
        assert_eq!(again.as_slice().as_ptr(), address);
        assert_eq!(again.as_slice().len(), 90);
    }
}

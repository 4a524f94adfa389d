//! Large byte buffers that live as long as a model: huge pages where the system has them.
//!
//! Weights are read from beginning to end for every token. With pages of 4 KiB each of them costs an address translation and
//! stops the hardware's prefetching; with pages of 2 MiB hardly any does, and committing the memory is quicker too.

use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

/// Buffers from this size on get pages of their own. What is rounded up is a small part of it.
const LARGE: usize = 8 << 20;

/// Bytes, zero at first.
#[derive(Debug)]
pub(super) enum Buffer {
    Heap(Vec<u8>),
    Pages(MmapMut),
}

impl Buffer {
    /// A buffer of `len` zeros.
    pub(super) fn zeroed(len: usize) -> Self {
        if len >= LARGE
            && let Ok(pages) = MmapMut::map_anon(len)
        {
            #[cfg(target_os = "linux")]
            // Where the system has none, small pages do as well.
            let _ = pages.advise(memmap2::Advice::HugePage);
            return Self::Pages(pages);
        }
        Self::Heap(vec![0; len])
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Pages(pages) => pages,
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Pages(pages) => pages,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_large_buffers_are_zero_and_writable() {
        for len in [0, 5, LARGE - 1, LARGE + 3] {
            let mut buffer = Buffer::zeroed(len);
            assert_eq!(buffer.len(), len);
            assert!(buffer.iter().all(|byte| *byte == 0));
            if let Some(last) = buffer.last_mut() {
                *last = 7;
            }
            assert_eq!(buffer.last().copied().unwrap_or(7), 7);
        }
    }
}

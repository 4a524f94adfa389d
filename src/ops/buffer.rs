//! Large byte buffers that live as long as a model: huge pages where the system has them.
//!
//! Weights are read from beginning to end for every token. With pages of 4 KiB each of them costs an address translation and
//! stops the hardware's prefetching; with pages of 2 MiB hardly any does, and committing the memory is quicker too.

#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

/// Buffers from this size on get pages of their own. What is rounded up is a small part of it.
const LARGE: usize = 8 << 20;

/// Bytes, zero at first; they begin at a multiple of eight.
#[derive(Debug)]
pub(super) enum Buffer {
    /// Words, and how many bytes of them count.
    Heap(Vec<u64>, usize),
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
        Self::Heap(vec![0; len.div_ceil(size_of::<u64>())], len)
    }

    /// The same memory as 16-bit words; an odd byte at the end is left out.
    pub(super) fn halves(&self) -> &[u16] {
        let bytes: &[u8] = self;
        // SAFETY: both kinds of memory begin at a multiple of eight, and `len / 2` words lie in `len` bytes.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<u16>()) }
    }

    /// As [`Self::halves`], to write.
    pub(super) fn halves_mut(&mut self) -> &mut [u16] {
        let bytes: &mut [u8] = self;
        let len = bytes.len() / size_of::<u16>();
        // SAFETY: as above; the borrow of the bytes is handed on.
        unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), len) }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            // SAFETY: the words hold `len` bytes, and a byte has no alignment.
            Self::Heap(words, len) => unsafe {
                std::slice::from_raw_parts(words.as_ptr().cast(), *len)
            },
            Self::Pages(pages) => pages,
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            // SAFETY: as above.
            Self::Heap(words, len) => unsafe {
                std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), *len)
            },
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
            assert_eq!(buffer.halves().len(), len / 2);
            if let Some(first) = buffer.halves_mut().first_mut() {
                *first = 0x0201;
                assert_eq!(buffer[..2], 0x0201_u16.to_ne_bytes());
            }
        }
    }
}

//! Large byte buffers that live as long as a model: huge pages where the system has them.
//!
//! Weights are read from beginning to end for every token. With pages of 4 KiB each of them costs an address translation and
//! stops the hardware's prefetching; with pages of 2 MiB hardly any does, and committing the memory is quicker too. So that
//! small matrices have them as well, several lie in one piece of memory ([`Chunks`]).
#![allow(unsafe_code)]

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use memmap2::MmapMut;

/// Bytes of a chunk; larger buffers get memory of their own.
const CHUNK: usize = 16 << 20;
/// Where buffers in a chunk begin: on a cache line.
const ALIGN: usize = 64;

/// Bytes, zero at first; they begin at a multiple of [`ALIGN`].
pub(super) struct Buffer {
    start: *mut u8,
    len: usize,
    /// Keeps the memory.
    _memory: Arc<Memory>,
}

// SAFETY: a buffer owns its part of the memory; nobody else reads or writes it.
unsafe impl Send for Buffer {}
// SAFETY: as above, and a shared buffer is only read.
unsafe impl Sync for Buffer {}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer[{}]", self.len)
    }
}

/// A piece of zeroed memory that buffers have parts of.
struct Memory {
    start: *mut u8,
    len: usize,
    _map: MmapMut,
}

// SAFETY: the pointers are used through buffers only, each of which has its own part.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Panics when the system refuses: allocations do the same.
    fn new(len: usize) -> Arc<Self> {
        let mut map = MmapMut::map_anon(len.max(1))
            .unwrap_or_else(|e| panic!("the system refuses {len} bytes of memory: {e}"));
        #[cfg(target_os = "linux")]
        // Where the system has none, small pages do as well.
        let _ = map.advise(memmap2::Advice::HugePage);
        Arc::new(Self {
            start: map.as_mut_ptr(),
            len,
            _map: map,
        })
    }

    /// The part from `start` on, which nobody else may have.
    fn part(self: &Arc<Self>, start: usize, len: usize) -> Buffer {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.len));
        Buffer {
            // SAFETY: inside the memory by the assertion.
            start: unsafe { self.start.add(start) },
            len,
            _memory: Arc::clone(self),
        }
    }
}

impl Buffer {
    /// A buffer of `len` zeros with memory of its own; pages are committed when they are first written.
    pub(super) fn zeroed(len: usize) -> Self {
        Memory::new(len).part(0, len)
    }

    /// The same memory as 16-bit words; an odd byte at the end is left out.
    pub(super) fn halves(&self) -> &[u16] {
        // SAFETY: buffers begin at a multiple of 64, and `len / 2` words lie in `len` bytes.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.len / size_of::<u16>()) }
    }

    /// As [`Self::halves`], to write.
    pub(super) fn halves_mut(&mut self) -> &mut [u16] {
        // SAFETY: as above; the buffer is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.len / size_of::<u16>()) }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: this part of the memory is the buffer's, and lives as long.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the buffer is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

/// Hands out buffers that lie side by side. Clones share the chunk in use; its memory lives as long as one of its buffers.
#[derive(Clone, Default)]
pub(super) struct Chunks {
    /// The chunk and how much of it is given away.
    current: Arc<Mutex<(Weak<Memory>, usize)>>,
}

impl fmt::Debug for Chunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Chunks")
    }
}

impl Chunks {
    /// A buffer of `len` zeros.
    pub(super) fn zeroed(&self, len: usize) -> Buffer {
        if len > CHUNK / 2 {
            return Buffer::zeroed(len);
        }
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let (memory, used) = match current.0.upgrade() {
            Some(memory) if current.1 + len <= CHUNK => (memory, current.1),
            _ => (Memory::new(CHUNK), 0),
        };
        *current = (
            Arc::downgrade(&memory),
            (used + len).next_multiple_of(ALIGN),
        );
        memory.part(used, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zero_writable_and_nobody_elses() {
        let chunks = Chunks::default();
        let lens = [0, 5, 1 << 20, CHUNK / 2, CHUNK / 2, 3, CHUNK + 3, 70, 64];
        let mut buffers: Vec<Buffer> = lens.iter().map(|&len| chunks.zeroed(len)).collect();
        for (i, buffer) in buffers.iter_mut().enumerate() {
            assert!(buffer.iter().all(|byte| *byte == 0));
            buffer.fill(i as u8 + 1);
        }
        for (i, (buffer, len)) in buffers.iter().zip(lens).enumerate() {
            assert_eq!(buffer.len(), len);
            assert!(buffer.iter().all(|byte| *byte == i as u8 + 1), "buffer {i}");
            assert!(buffer.as_ptr().addr().is_multiple_of(ALIGN));
        }
    }

    #[test]
    fn a_chunk_is_given_back_with_its_last_buffer() {
        let chunks = Chunks::default();
        let (a, b) = (chunks.zeroed(100), chunks.zeroed(100));
        let memory = Arc::downgrade(&a._memory);
        assert!(Arc::ptr_eq(&a._memory, &b._memory));
        drop(a);
        assert!(memory.upgrade().is_some());
        drop(b);
        assert!(memory.upgrade().is_none());
        assert!(chunks.zeroed(100).iter().all(|byte| *byte == 0));
    }

    #[test]
    fn halves_are_the_same_memory() {
        for len in [0, 5, 64] {
            let mut buffer = Buffer::zeroed(len);
            assert_eq!(buffer.halves().len(), len / 2);
            if let Some(first) = buffer.halves_mut().first_mut() {
                *first = 0x0201;
                assert_eq!(buffer[..2], 0x0201_u16.to_ne_bytes());
            }
        }
    }
}

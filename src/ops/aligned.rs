//! Numbers that begin on a cache line.
//!
//! What a `Vec` gets of the system begins at any multiple of 16 bytes, so that every other vector of 32 bytes may lie on two
//! cache lines and be read twice: a fifth of the speed of a kernel that does little else.

use std::ops::{Deref, DerefMut};

/// Bytes of a cache line.
const LINE: usize = 64;

/// A vector of plain numbers that begins on a cache line.
#[derive(Debug)]
pub(super) struct Aligned<T> {
    /// The numbers and what lies before and behind them.
    memory: Vec<T>,
    start: usize,
    len: usize,
}

impl<T> Default for Aligned<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Aligned<T> {
    /// How many numbers a cache line has, which is also what is lost where memory begins.
    const PER_LINE: usize = LINE / size_of::<T>();

    /// No number.
    pub const fn new() -> Self {
        Self {
            memory: Vec::new(),
            start: 0,
            len: 0,
        }
    }

    /// How many numbers it can have without new memory.
    pub fn capacity(&self) -> usize {
        self.memory.len().saturating_sub(Self::PER_LINE)
    }
}

impl<T: Copy + Default> Aligned<T> {
    /// `len` numbers with unspecified values: new memory only where there are more of them than ever before.
    pub fn set_len(&mut self, len: usize) {
        if len > self.capacity() {
            // Not resized, which would copy.
            self.memory = Vec::new();
            self.memory = vec![T::default(); len + Self::PER_LINE];
            self.start = self.memory.as_ptr().align_offset(LINE);
            assert!(
                self.start < Self::PER_LINE,
                "numbers lie at their multiples"
            );
        }
        self.len = len;
    }

    /// At least `len` numbers; where they were fewer, all have unspecified values.
    pub fn grow_to(&mut self, len: usize) {
        self.set_len(self.len.max(len));
    }
}

impl Aligned<f32> {
    /// `len` zeros, whose memory the system commits when they are first written.
    pub fn zeroed(len: usize) -> Self {
        let mut zeros = Self::new();
        zeros.set_len(len);
        zeros
    }
}

impl<T> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.memory[self.start..][..self.len]
    }
}

impl<T> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.memory[self.start..][..self.len]
    }
}

/// An array on the stack that begins on a cache line.
#[repr(align(64))]
pub(super) struct Lined<T>(pub T);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begins_on_a_cache_line_whatever_its_length() {
        let mut kept = Vec::new();
        for len in (0..200).chain([1 << 12, (1 << 16) + 3, 1 << 20]) {
            let mut floats = Aligned::zeroed(len);
            let mut bytes = Aligned::<u8>::new();
            bytes.set_len(len);
            assert_eq!((floats.len(), bytes.len()), (len, len));
            assert!(floats.iter().all(|x| x.to_bits() == 0));
            if len > 0 {
                assert!(floats.as_ptr().addr().is_multiple_of(LINE), "{len} floats");
                assert!(bytes.as_ptr().addr().is_multiple_of(LINE), "{len} bytes");
            }
            floats.fill(1.0);
            kept.push(floats);
        }
        assert!(
            kept.iter()
                .flat_map(|floats| floats.iter())
                .all(|x| *x == 1.0)
        );
    }

    #[test]
    fn memory_is_kept_as_it_shrinks_and_grows_again() {
        let mut floats = Aligned::zeroed(100);
        let (address, capacity) = (floats.as_ptr(), floats.capacity());
        assert!(capacity >= 100);
        floats.set_len(3);
        floats.grow_to(2);
        assert_eq!(floats.len(), 3);
        floats.grow_to(100);
        assert_eq!((floats.len(), floats.as_ptr()), (100, address));
        floats.set_len(capacity);
        assert_eq!((floats.as_ptr(), floats.capacity()), (address, capacity));
    }
}

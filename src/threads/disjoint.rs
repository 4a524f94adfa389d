//! A slice that tasks write to in parts.

/// A slice that several tasks write to, each its own part.
pub struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    owner: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: the pointer stands for an exclusive borrow of `[T]` that is handed out in parts; with `T: Send` the parts may be
// used on any thread. That parts do not overlap is the duty of callers of `part`.
#[allow(unsafe_code)]
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    /// Borrows `slice` for writing in parts.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            owner: std::marker::PhantomData,
        }
    }

    /// Elements `start..start + len`. Panics when they leave the slice.
    ///
    /// # Safety
    /// Parts that are alive at the same time must not overlap.
    #[allow(unsafe_code, clippy::mut_from_ref)]
    pub unsafe fn part(&self, start: usize, len: usize) -> &mut [T] {
        assert!(
            start.checked_add(len).is_some_and(|end| end <= self.len),
            "part {start}+{len} of {}",
            self.len
        );
        // SAFETY: inside the borrowed slice by the assertion; not aliased by the caller's duty.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "part 3+2 of 4")]
    #[allow(unsafe_code)]
    fn a_part_outside_the_slice_panics() {
        let mut data = [0; 4];
        // SAFETY: the only part.
        unsafe { Disjoint::new(&mut data).part(3, 2) };
    }
}

//! Block numbers: free or in use, with reference counts. Integers only.

/// Hands out blocks and takes them back. A block with a reference is never handed out again.
#[derive(Debug)]
pub struct BlockPool {
    free: Vec<u32>,
    references: Vec<u32>,
}

impl BlockPool {
    /// A pool of blocks `0..num_blocks`, all free.
    pub fn new(num_blocks: usize) -> Self {
        let count = u32::try_from(num_blocks).expect("block numbers have 32 bits");
        Self {
            free: (0..count).rev().collect(),
            references: vec![0; num_blocks],
        }
    }

    /// All blocks.
    pub fn num_blocks(&self) -> usize {
        self.references.len()
    }

    /// Blocks that nobody holds.
    pub fn num_free(&self) -> usize {
        self.free.len()
    }

    /// A free block with one reference, or `None`.
    pub fn take(&mut self) -> Option<u32> {
        let block = self.free.pop()?;
        self.references[block as usize] = 1;
        Some(block)
    }

    /// One more reference to a block in use. Panics when it is free: that would be a defect.
    pub fn share(&mut self, block: u32) {
        let count = &mut self.references[block as usize];
        assert!(*count > 0, "block {block} is free and cannot be shared");
        *count += 1;
    }

    /// One reference less; the last one frees the block. Panics when it is free already: that would be a defect.
    pub fn give_back(&mut self, block: u32) {
        let count = &mut self.references[block as usize];
        assert!(*count > 0, "block {block} was given back twice");
        *count -= 1;
        if *count == 0 {
            self.free.push(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_block_is_lost_and_none_is_shared_by_accident(actions in proptest::collection::vec(0_u8..3, 0..300)) {
            let mut pool = BlockPool::new(7);
            let mut held: Vec<u32> = Vec::new();
            for (i, action) in actions.into_iter().enumerate() {
                match action {
                    0 => match pool.take() {
                        Some(block) => {
                            prop_assert!(!held.contains(&block));
                            held.push(block);
                        }
                        None => prop_assert!((0..7).all(|b| held.contains(&b))),
                    },
                    1 if !held.is_empty() => {
                        let block = held[i % held.len()];
                        pool.share(block);
                        held.push(block);
                    }
                    2 if !held.is_empty() => pool.give_back(held.swap_remove(i % held.len())),
                    _ => {}
                }
                let mut distinct = held.clone();
                distinct.sort_unstable();
                distinct.dedup();
                prop_assert_eq!(pool.num_free() + distinct.len(), 7);
            }
        }
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn giving_back_twice_is_caught() {
        let mut pool = BlockPool::new(1);
        let block = pool.take().unwrap();
        pool.give_back(block);
        pool.give_back(block);
    }
}

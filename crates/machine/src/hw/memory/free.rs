//! What is free, in the order in which it is used again.

use std::collections::VecDeque;

/// Indices of free frames or regions.
#[derive(Debug)]
pub(super) struct FreeList {
    indices: VecDeque<usize>,
    /// What was freed last is used first, instead of last.
    reuses_at_once: bool,
}

impl FreeList {
    pub(super) fn new(count: usize) -> Self {
        Self { indices: (0..count).collect(), reuses_at_once: false }
    }

    pub(super) fn reuse_at_once(&mut self, at_once: bool) {
        self.reuses_at_once = at_once;
    }

    pub(super) fn take(&mut self) -> Option<usize> {
        self.indices.pop_front()
    }

    pub(super) fn put(&mut self, index: usize) {
        if self.reuses_at_once {
            self.indices.push_front(index);
        } else {
            self.indices.push_back(index);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.indices.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        self.indices.iter().copied()
    }
}

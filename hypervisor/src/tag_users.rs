//! The last user of each of a processor's TLB tags, as an auditor notes them.

use arrayvec::ArrayVec;

/// Tags that are noted. Emulated processors have 16 ASIDs, and as many VMIDs are used as there are
/// guests.
const COUNT: usize = 64;

/// Notes by tag. Their number has a limit, so that an auditor takes no memory.
#[derive(Debug)]
pub struct TagUsers<T>(ArrayVec<(u32, T), COUNT>);

impl<T> Default for TagUsers<T> {
    fn default() -> Self {
        Self(ArrayVec::new_const())
    }
}

impl<T> TagUsers<T> {
    /// The note of a tag.
    pub fn get(&self, tag: u32) -> Option<&T> {
        self.0.iter().find(|(noted, _)| *noted == tag).map(|(_, user)| user)
    }

    /// Notes the user of a tag. With too many tags the oldest note is lost: the auditor then knows
    /// less, and finds nothing that is not there.
    pub fn set(&mut self, tag: u32, user: T) {
        if let Some((_, noted)) = self.0.iter_mut().find(|(noted, _)| *noted == tag) {
            *noted = user;
            return;
        }
        if self.0.is_full() {
            self.0.remove(0);
        }
        self.0.push((tag, user));
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_note_is_lost_when_there_are_too_many() {
        let mut users = TagUsers::default();
        for tag in 0..COUNT as u32 {
            users.set(tag, tag + 1);
        }
        users.set(3, 0);
        assert_eq!((users.get(0), users.get(3)), (Some(&1), Some(&0)));
        users.set(1000, 7);
        assert_eq!((users.get(0), users.get(1), users.get(1000)), (None, Some(&2), Some(&7)));
        users.clear();
        assert_eq!(users.get(1), None);
    }
}

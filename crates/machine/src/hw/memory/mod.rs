//! Physical memory: frames for page tables, and regions that back guest memory.
//!
//! It is real memory, because the crates under test access it by address. A physical address of the
//! model is an address of this process. The owner of each frame, and the time since when, are
//! known; free memory is poisoned. The earlier contents of tables are known: the crates write them
//! by atomics that are not intercepted, so [`Memory::sync`] compares the frame with its last known
//! contents.

mod free;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use paging::{ENTRY_COUNT, Entries};

use free::FreeList;

use super::bytes::Bytes;
use super::history::History;
use super::lives::{Lives, Presence};

pub(crate) const FRAME_SIZE: u64 = 4096;
/// Bytes of a region, and its alignment: the largest page of the model.
pub(crate) const REGION_SIZE: u64 = 2 << 20;
pub(crate) const REGION_FRAMES: usize = (REGION_SIZE / FRAME_SIZE) as usize;
/// The contents of free memory. To page tables it is an absent entry, so that nothing goes wrong
/// before it is detected.
pub(crate) const POISON: u64 = 0x0dea_d0dd_ba11_0000;
/// Words of a free region's frame that are poisoned: no access reads more.
const POISONED_WORDS: usize = 16;
/// Moments of change that are remembered: how far back a processor of the model reaches.
const MOMENTS_MAX: usize = 96;

/// All of physical memory, and the time.
#[derive(Debug)]
pub(crate) struct Memory {
    bytes: Rc<Bytes>,
    tables: Vec<Lives>,
    free_tables: FreeList,
    regions: Vec<Lives>,
    free_regions: FreeList,
    /// By frame: of tables, and of a region's frames that hold a guest's page tables.
    histories: Vec<Option<Box<History>>>,
    /// By frame: whether a region's frame has been written to.
    touched: Vec<bool>,
    now: u64,
    /// Times at which tables changed, in order.
    moments: VecDeque<u64>,
}

impl Memory {
    /// Memory with room for `tables` tables, and `regions` regions.
    pub(crate) fn new(tables: usize, regions: usize) -> Self {
        let table_bytes = (tables as u64 * FRAME_SIZE).next_multiple_of(REGION_SIZE);
        let all_bytes = table_bytes + regions as u64 * REGION_SIZE;
        let frames = (all_bytes / FRAME_SIZE) as usize;
        Self {
            bytes: Rc::new(Bytes::new(all_bytes)),
            tables: (0..tables).map(|_| Lives::default()).collect(),
            free_tables: FreeList::new(tables),
            regions: (0..regions).map(|_| Lives::default()).collect(),
            free_regions: FreeList::new(regions),
            histories: (0..frames).map(|_| None).collect(),
            touched: vec![false; frames],
            now: 1,
            moments: VecDeque::new(),
        }
    }

    /// The same; if `at_once`, what was freed last is allocated first.
    #[must_use]
    pub(crate) fn reusing(mut self, at_once: bool) -> Self {
        self.free_tables.reuse_at_once(at_once);
        self.free_regions.reuse_at_once(at_once);
        self
    }

    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    pub(crate) fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// Times at which something changed that a processor may hold, the earliest first.
    pub(crate) fn moments(&self) -> &VecDeque<u64> {
        &self.moments
    }

    fn moment(&mut self) -> u64 {
        let time = self.tick();
        if self.moments.len() == MOMENTS_MAX {
            self.moments.pop_front();
        }
        self.moments.push_back(time);
        time
    }

    fn start(&self) -> u64 {
        self.bytes.start()
    }

    /// The bytes, for a caller that must access them while other parts of the memory are borrowed.
    pub(crate) fn bytes(&self) -> Rc<Bytes> {
        Rc::clone(&self.bytes)
    }

    fn regions_start(&self) -> u64 {
        self.start() + (self.tables.len() as u64 * FRAME_SIZE).next_multiple_of(REGION_SIZE)
    }

    /// The number of the frame of `pa`; none has this number if it is no memory.
    fn frame(&self, pa: u64) -> usize {
        (pa.wrapping_sub(self.start()) / FRAME_SIZE) as usize
    }

    fn table_index(&self, pa: u64) -> Option<usize> {
        Some(self.frame(pa)).filter(|index| *index < self.tables.len())
    }

    fn region_index(&self, pa: u64) -> Option<usize> {
        let index = (pa.checked_sub(self.regions_start())? / REGION_SIZE) as usize;
        (index < self.regions.len()).then_some(index)
    }

    /// Number of the frame of `pa`, for messages.
    pub(crate) fn name(&self, pa: u64) -> String {
        match (self.table_index(pa), self.region_index(pa)) {
            (Some(index), _) => format!("table {index}"),
            (_, Some(index)) => format!("region {index}+{:#x}", (pa - self.regions_start()) % REGION_SIZE),
            _ => format!("nothing at {pa:#x}"),
        }
    }

    fn word(&self, pa: u64) -> Option<&AtomicU64> {
        self.bytes.word(pa)
    }

    /// The contents of memory at `pa`; poison where there is none.
    pub(crate) fn load(&self, pa: u64) -> u64 {
        self.word(pa).map_or(POISON, |word| word.load(Relaxed))
    }

    /// A zeroed table; `None` if there is none.
    ///
    /// # Errors
    ///
    /// The table was written to while it was free.
    pub(crate) fn allocate_table(&mut self) -> Result<Option<u64>, String> {
        let Some(index) = self.free_tables.take() else { return Ok(None) };
        let pa = self.start() + index as u64 * FRAME_SIZE;
        self.check_free(index)?;
        self.fill(pa, ENTRY_COUNT, 0);
        let time = self.moment();
        self.tables[index].begin(time);
        History::begin(&mut self.histories[index], time);
        Ok(Some(pa))
    }

    /// Checks that no free table has been written to.
    ///
    /// # Errors
    ///
    /// One has.
    pub(crate) fn check_free_tables(&self) -> Result<(), String> {
        self.free_tables.iter().try_for_each(|index| self.check_free(index))
    }

    fn check_free(&self, index: usize) -> Result<(), String> {
        let pa = self.start() + index as u64 * FRAME_SIZE;
        let expected = if self.tables[index].has_none() { 0 } else { POISON };
        match self.entries(pa).is_some_and(|words| words.iter().all(|word| word.load(Relaxed) == expected)) {
            true => Ok(()),
            false => Err(format!("{} was written to after it was freed", self.name(pa))),
        }
    }

    /// Takes back a table and poisons it; false if it is not a table, or free already. Its contents
    /// are remembered.
    pub(crate) fn free_table(&mut self, pa: u64) -> bool {
        let Some(index) = self.table_index(pa) else { return false };
        self.sync([pa]);
        let time = self.moment();
        if !self.tables[index].end(time) {
            return false;
        }
        self.fill(pa, ENTRY_COUNT, POISON);
        self.free_tables.put(index);
        true
    }

    pub(crate) fn regions_in_use(&self) -> usize {
        self.regions.len() - self.free_regions.len()
    }

    pub(crate) fn entries(&self, pa: u64) -> Option<&Entries> {
        self.table_index(pa)?;
        self.bytes.entries(pa)
    }

    /// A region, all zero. Its frames whose numbers are in `tracked` hold page tables.
    pub(crate) fn allocate_region(&mut self, tracked: &[usize]) -> Option<u64> {
        let index = self.free_regions.take()?;
        let pa = self.regions_start() + index as u64 * REGION_SIZE;
        let first = self.frame(pa);
        for frame in 0..REGION_FRAMES {
            if core::mem::take(&mut self.touched[first + frame]) {
                self.fill(pa + frame as u64 * FRAME_SIZE, ENTRY_COUNT, 0);
            }
        }
        let time = self.moment();
        self.regions[index].begin(time);
        for (frame, history) in self.histories[first..][..REGION_FRAMES].iter_mut().enumerate() {
            match tracked.contains(&frame) {
                true => History::begin(history, time),
                false => *history = None,
            }
        }
        tracked.iter().for_each(|&frame| self.touched[first + frame] = true);
        Some(pa)
    }

    /// Takes back a region and poisons it; false if it is not a region, or free already.
    pub(crate) fn free_region(&mut self, pa: u64) -> bool {
        let Some(index) = self.region_index(pa) else { return false };
        let time = self.moment();
        if !self.regions[index].end(time) {
            return false;
        }
        let start = self.regions_start() + index as u64 * REGION_SIZE;
        for frame in (start..start + REGION_SIZE).step_by(FRAME_SIZE as usize) {
            if self.touched[self.frame(frame)] {
                self.fill(frame, POISONED_WORDS, POISON);
            }
        }
        self.free_regions.put(index);
        true
    }

    /// Declares that software will write the word at `pa`; it is poisoned and zeroed with the
    /// region.
    pub(crate) fn touch(&mut self, pa: u64) {
        let frame = self.frame(pa);
        if self.region_index(pa).is_some() {
            self.touched[frame] = true;
        }
    }

    /// The words of a region's frame at `pa`, up to the last one that is not zero.
    pub(crate) fn copy(&self, pa: u64) -> Vec<u64> {
        let is_touched = self.touched.get(self.frame(pa)).is_some_and(|touched| *touched);
        let words = self.bytes.entries(pa).filter(|_| is_touched);
        let mut words: Vec<_> = words.into_iter().flatten().map(|word| word.load(Relaxed)).collect();
        words.truncate(words.iter().rposition(|&word| word != 0).map_or(0, |last| last + 1));
        words
    }

    fn fill(&self, pa: u64, words: usize, value: u64) {
        for word in 0..words as u64 {
            if let Some(word) = self.word(pa + word * 8) {
                word.store(value, Relaxed);
            }
        }
    }

    /// Whether the frame of `pa` was in use at `time`.
    pub(crate) fn presence(&self, pa: u64, time: u64) -> Presence {
        let lives = match (self.table_index(pa), self.region_index(pa)) {
            (Some(index), _) => &self.tables[index],
            (_, Some(index)) => &self.regions[index],
            _ => return Presence::Free,
        };
        lives.at(time)
    }

    fn history(&self, pa: u64) -> Option<&History> {
        self.histories.get(self.frame(pa))?.as_deref()
    }

    fn history_mut(&mut self, pa: u64) -> Option<&mut History> {
        let frame = self.frame(pa);
        self.histories.get_mut(frame)?.as_deref_mut()
    }

    /// The word at `pa` at `time`; `None` if that is not known. Memory without tables has its
    /// current value.
    pub(crate) fn value_at(&self, pa: u64, time: u64) -> Option<u64> {
        match self.history(pa) {
            Some(history) => history.value_at(index_of(pa), time),
            None => Some(self.load(pa)),
        }
    }

    /// The time when the word at `pa`, as it was at `time`, became one for which `is_replaced` is
    /// true.
    pub(crate) fn replaced_at(&self, pa: u64, time: u64, is_replaced: impl Fn(u64) -> bool) -> u64 {
        self.history(pa).map_or(u64::MAX, |history| history.replaced_at(index_of(pa), time, is_replaced))
    }

    /// The last few times at which the word at `pa` changed.
    pub(crate) fn changes_of(&self, pa: u64) -> impl Iterator<Item = u64> {
        self.history(pa).into_iter().flat_map(move |history| history.changes(index_of(pa)).take(3))
    }

    /// A processor stores `value`. The caller must check whether the frame is in use.
    pub(crate) fn store(&mut self, pa: u64, value: u64) {
        self.store_together([(pa, value)]);
    }

    /// The same for several words, all at one moment.
    pub(crate) fn store_together(&mut self, stores: impl IntoIterator<Item = (u64, u64)>) {
        let mut moment = None;
        for (pa, value) in stores {
            self.touch(pa);
            if self.history(pa).is_some() && self.load(pa) != value {
                let time = *moment.get_or_insert_with(|| self.moment());
                if let Some(history) = self.history_mut(pa) {
                    history.change(time, index_of(pa), value);
                }
            }
            if let Some(word) = self.word(pa) {
                word.store(value, Relaxed);
            }
        }
    }

    /// Reads what the software has written to these tables, all at one moment; true if there are
    /// changes.
    pub(crate) fn sync(&mut self, tables: impl IntoIterator<Item = u64>) -> bool {
        let mut time = None;
        for pa in tables {
            if self.differs(pa) {
                let time = *time.get_or_insert_with(|| self.moment());
                self.learn(pa, time);
            }
        }
        time.is_some()
    }

    fn table_words(&self, pa: u64) -> Option<(&[u64; ENTRY_COUNT], &History)> {
        let lives = &self.tables[self.table_index(pa)?];
        let is_alive = matches!(lives.at(self.now), Presence::Alive(_));
        let entries = self.entries(pa).filter(|_| is_alive)?;
        // SAFETY: atomics have the layout of their integers, and nothing runs at the same time.
        let words = unsafe { &*core::ptr::from_ref(entries).cast() };
        Some((words, self.history(pa)?))
    }

    fn differs(&self, pa: u64) -> bool {
        self.table_words(pa).is_some_and(|(words, history)| words != history.words())
    }

    fn learn(&mut self, pa: u64, time: u64) {
        let Some((words, history)) = self.table_words(pa) else { return };
        let changed: Vec<_> = (0..ENTRY_COUNT)
            .filter(|&index| words[index] != history.words()[index])
            .map(|index| (index, words[index]))
            .collect();
        if let Some(history) = self.history_mut(pa) {
            changed.iter().for_each(|&(index, word)| history.change(time, index, word));
        }
    }
}

const fn index_of(pa: u64) -> usize {
    (pa % FRAME_SIZE / 8) as usize
}

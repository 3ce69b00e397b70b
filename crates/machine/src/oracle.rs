//! The guarantees, and the check of each access against them.
//!
//! The hardware does whatever it may. Each promise states that from now on nothing is used that was
//! replaced before a certain time: by a flush that has returned, or an update of the slots that has
//! ended. An access reports the entries that translated it; the tables know when each of them was
//! replaced.

use std::collections::HashMap;

use crate::hw::format::Stage;
use crate::hw::memory::Memory;
use crate::hw::walk::Step;
use crate::layout::{AREA_PAGES, AREAS, PAGE_SIZE, PAGES, SPACES, VA_PAGES, area_of, va, window};
use paging::Level;

/// Times before which every replaced entry is out of use, for one vCPU, by space and page.
type GuestPromises = [[u64; VA_PAGES]; SPACES];

/// Of the dirty log of one slot's memory: the earliest store to each page that no fetch has
/// reported yet.
type Unreported = Vec<Option<u64>>;

/// The guarantees for one virtual machine.
#[derive(Debug)]
struct VmPromises {
    /// When it was created, and each of its vCPUs.
    born: u64,
    vcpus_born: Vec<u64>,
    nested_all: u64,
    nested: Vec<[u64; AREA_PAGES]>,
    /// Of tables for devices alone.
    devices: u64,
    vcpus: Vec<GuestPromises>,
}

#[derive(Debug)]
pub(crate) struct Oracle {
    vms: Vec<VmPromises>,
    /// By the first address of the slot's memory.
    logs: HashMap<u64, Unreported>,
}

impl Oracle {
    /// No guarantees yet, for `vms` machines of `vcpus` each.
    pub(crate) fn new(vms: usize, vcpus: usize) -> Self {
        let vm = |_| VmPromises {
            born: 0,
            vcpus_born: vec![0; vcpus],
            nested_all: 0,
            nested: vec![[0; AREA_PAGES]; AREAS],
            devices: 0,
            vcpus: vec![[[0; VA_PAGES]; SPACES]; vcpus],
        };
        Self { vms: (0..vms).map(vm).collect(), logs: HashMap::new() }
    }

    /// A guest is created where another one was: it uses nothing that was loaded before.
    pub(crate) fn begin_vm(&mut self, vm: usize, time: u64) {
        let promises = &mut self.vms[vm];
        promises.born = time;
        promises.vcpus_born.fill(time);
    }

    /// A vCPU is added where another one was. It may use nested translations of its guest's, but
    /// nothing from the guest's tables that was loaded before.
    pub(crate) fn begin_vcpu(&mut self, vm: usize, vcpu: usize, time: u64) {
        self.vms[vm].vcpus_born[vcpu] = time;
    }

    /// Nested translations of `start` and the `len` bytes from there that were replaced before
    /// `time` are out of use.
    pub(crate) fn promise_nested(&mut self, vm: usize, start: u64, len: u64, time: u64) {
        for (number, pages) in self.vms[vm].nested.iter_mut().enumerate() {
            for (page, promised) in pages.iter_mut().enumerate() {
                let gpa = crate::layout::area(number) + page as u64 * PAGE_SIZE;
                if gpa + PAGE_SIZE > start && gpa < start.saturating_add(len) {
                    *promised = (*promised).max(time);
                }
            }
        }
    }

    /// All nested translations that were replaced before `time` are out of use.
    pub(crate) fn promise_nested_all(&mut self, vm: usize, time: u64) {
        let promised = &mut self.vms[vm].nested_all;
        *promised = (*promised).max(time);
    }

    /// All translations by tables for devices alone that were replaced before `time` are out of
    /// use.
    pub(crate) fn promise_devices(&mut self, vm: usize, time: u64) {
        let promised = &mut self.vms[vm].devices;
        *promised = (*promised).max(time);
    }

    /// A vCPU's translations of `pages` (bits) in `space`, or in all, that were replaced before
    /// `time` are out of use.
    pub(crate) fn promise_guest(
        &mut self,
        vm: usize,
        vcpu: usize,
        space: Option<usize>,
        pages: u16,
        time: u64,
    ) {
        for (number, promises) in self.vms[vm].vcpus[vcpu].iter_mut().enumerate() {
            if space.is_some_and(|space| space != number) {
                continue;
            }
            for (page, promised) in promises.iter_mut().enumerate() {
                if pages >> page & 1 != 0 {
                    *promised = (*promised).max(time);
                }
            }
        }
    }

    /// Whether an access of a vCPU in `space` through these entries keeps all promises.
    ///
    /// # Errors
    ///
    /// The violation.
    pub(crate) fn check(
        &self,
        memory: &Memory,
        vm: usize,
        vcpu: usize,
        space: usize,
        steps: &[Step],
    ) -> Result<(), String> {
        for step in steps {
            self.check_age(vm, vcpu, step)?;
            let promised = match step.format.stage {
                Stage::Nested | Stage::NestedOfDevices => self.nested_promise(vm, step.address),
                Stage::Device => self.vms[vm].devices,
                Stage::Guest => self.guest_promise(vm, vcpu, space, step),
            };
            // Most entries are unchanged, or were replaced after the promised time.
            if promised <= step.time {
                continue;
            }
            let is_replaced = |word| step.format.is_replaced(step.entry, word, step.level);
            let replaced = memory.replaced_at(step.word, step.time, is_replaced);
            if replaced <= promised {
                return Err(format!(
                    "{:?} entry for {:#x} ({:?}, in {}) was loaded at {} and replaced at {replaced}; \
                     what was replaced until {promised} must be out of use",
                    step.format.stage,
                    step.address,
                    step.level,
                    memory.name(step.word),
                    step.time,
                ));
            }
        }
        Ok(())
    }

    /// Whether an entry was loaded since the guest and the vCPU were created.
    fn check_age(&self, vm: usize, vcpu: usize, step: &Step) -> Result<(), String> {
        let VmPromises { born, vcpus_born, .. } = &self.vms[vm];
        let (since, whose) = match step.format.stage {
            _ if step.time < *born => (*born, "guest"),
            Stage::Guest if step.time < vcpus_born[vcpu] => (vcpus_born[vcpu], "vCPU"),
            _ => return Ok(()),
        };
        Err(format!(
            "{:?} entry for {:#x} was loaded at {}, for the {whose} that was here before {since}",
            step.format.stage, step.address, step.time
        ))
    }

    fn nested_promise(&self, vm: usize, gpa: u64) -> u64 {
        let vm = &self.vms[vm];
        area_of(gpa).map_or(0, |(area, page)| vm.nested[area][page]).max(vm.nested_all)
    }

    /// An address in a large page stands for the whole page.
    fn guest_promise(&self, vm: usize, vcpu: usize, space: usize, step: &Step) -> u64 {
        let promises = &self.vms[vm].vcpus[vcpu][space];
        let is_large_leaf = step.level == Level::Page2M
            && matches!(step.format.decode(step.entry, step.level), crate::hw::format::Entry::Leaf { .. });
        let is_meant = |page: usize| match is_large_leaf {
            true => {
                window(page / PAGES.len()) >> Level::Page2M.shift() == step.address >> Level::Page2M.shift()
            }
            false => va(page) / PAGE_SIZE == step.address / PAGE_SIZE,
        };
        (0..VA_PAGES).filter(|&page| is_meant(page)).map(|page| promises[page]).max().unwrap_or(0)
    }

    /// From now on stores to the memory at `host` must be in the log.
    pub(crate) fn start_log(&mut self, host: u64, pages: usize) {
        self.logs.insert(host, vec![None; pages]);
    }

    /// From now on they need not be logged.
    pub(crate) fn stop_log(&mut self, host: u64) {
        self.logs.remove(&host);
    }

    /// There was a store to the memory at `pa`.
    pub(crate) fn stored(&mut self, pa: u64, time: u64) {
        for (host, log) in &mut self.logs {
            let page = pa.checked_sub(*host).map(|offset| (offset / PAGE_SIZE) as usize);
            if let Some(unreported) = page.and_then(|page| log.get_mut(page)) {
                unreported.get_or_insert(time);
            }
        }
    }

    /// A fetch that began at `begin` has ended and reported the pages whose bits are in `words`.
    ///
    /// # Errors
    ///
    /// A page that it should have reported.
    pub(crate) fn fetched(&mut self, host: u64, words: &[u64], begin: u64) -> Result<(), String> {
        let Some(log) = self.logs.get_mut(&host) else { return Ok(()) };
        for (page, unreported) in log.iter_mut().enumerate() {
            if words[page / 64] >> (page % 64) & 1 != 0 {
                *unreported = None;
            } else if let Some(time) = unreported.filter(|&time| time < begin) {
                return Err(format!(
                    "page {page} was stored to at {time}, and the fetch from {begin} lacks it"
                ));
            }
        }
        Ok(())
    }
}

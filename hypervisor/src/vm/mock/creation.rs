//! Creates boards and their guests.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use baremetal::HardwareId;
use baremetal::random::Random;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64};
use hostlink::bundle::{self, BundleError, Member, Reader};
use hostlink::config::{self, Config, Console};
#[cfg(test)]
use hostlink::counters::Counter;
use memmap2::MmapMut;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, OnceLock};

use super::{CpuLines, HERE, MockBoard, TURNS_MAX, Turns};
use crate::free_memory::FreeMemory;
use crate::sched::{CpuIndex, VcpuIndex};
use crate::vm::arch::Arch;
use crate::vm::files::{Bundle, CreateError, Files};
use crate::vm::host::Host;
use crate::vm::percpu::PerCpu;

/// The counters of exits.
#[cfg(test)]
pub(crate) const EXITS: [Counter; 14] = [
    Counter::ExitCpuid,
    Counter::ExitWait,
    Counter::ExitPause,
    Counter::ExitIo,
    Counter::ExitRegisterRead,
    Counter::ExitRegisterWrite,
    Counter::ExitHypercall,
    Counter::ExitNested,
    Counter::ExitInterrupt,
    Counter::ExitWindow,
    Counter::ExitControl,
    Counter::ExitSvm,
    Counter::ExitInner,
    Counter::ExitOther,
];

thread_local! {
    static LAST: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    /// What the thread's machines have had: freed with it, when none of them is used any more.
    static MAPPED: RefCell<Vec<MmapMut>> = const { RefCell::new(Vec::new()) };
}

/// The next machine of the calling thread has this memory, if it has so much.
pub(super) fn use_memory(memory: &Range<u64>) {
    LAST.set((memory.start, memory.end - memory.start));
}

/// Host memory that serves as a machine's physical memory: that of the calling thread's last
/// machine if it has the same size. That machine is no longer in use, and the new one must clear
/// what it left behind.
fn memory(bytes: u64) -> Range<u64> {
    let (last, size) = LAST.get();
    if size == bytes {
        return last..last + bytes;
    }
    // Aligned to a large page.
    const ALIGNMENT: u64 = 2 << 20;
    let mut map = MmapMut::map_anon((bytes + ALIGNMENT) as usize).expect("no memory for a test");
    let start = (map.as_mut_ptr().expose_provenance() as u64).next_multiple_of(ALIGNMENT);
    MAPPED.with_borrow_mut(|all| all.push(map));
    LAST.set((start, bytes));
    start..start + bytes
}

/// The board's CPUs have odd ids, with gaps.
fn hardware_id(index: CpuIndex) -> HardwareId {
    HardwareId(u64::from(2 * index.0 + 1))
}

/// The index of the CPU with this id.
pub(crate) fn index_of(id: HardwareId) -> CpuIndex {
    assert!(id.0 % 2 == 1, "no CPU has id {id}");
    CpuIndex(id.0 as u32 / 2)
}

impl<A: Arch> MockBoard<A> {
    /// A machine for this configuration on a board with these CPUs and `bytes` of memory; the
    /// calling thread is CPU 0.
    pub(crate) fn create(
        cpus: impl IntoIterator<Item = A::CpuData>,
        bytes: u64,
        config: &'static str,
    ) -> Result<&'static Self, CreateError> {
        let member = Member::Named(bundle::CONFIG);
        let wrong = |error| CreateError::Bundle(BundleError::Config { member, error });
        let config = Config::parse(config).map_err(wrong)?;
        let files = Files { kernel: &[], initrd: None, config };
        Self::create_from(cpus, bytes, files)
    }

    pub(crate) fn create_several(
        cpus: impl IntoIterator<Item = A::CpuData>,
        bytes: u64,
        configs: &[&'static str],
    ) -> Result<&'static Self, CreateError> {
        Self::create_several_with(&[], cpus, bytes, configs)
    }

    pub(crate) fn create_several_with(
        kernel: &'static [u8],
        cpus: impl IntoIterator<Item = A::CpuData>,
        bytes: u64,
        configs: &[&'static str],
    ) -> Result<&'static Self, CreateError> {
        let member = |name: &str| match name.strip_prefix("guests/") {
            Some(number) => {
                number.parse().ok().and_then(|number: usize| configs.get(number)).map(|text| text.as_bytes())
            }
            None if name == config::KERNEL => Some(kernel),
            None => Some(&[][..]).filter(|_| name == bundle::CONFIG),
        };
        let bundle = Bundle::of(&Reader::new(member).map_err(CreateError::Bundle)?)?;
        let board = Self::board(cpus);
        board.found(bytes, bundle)?;
        board.host().create_guests()?;
        Ok(board)
    }

    pub(crate) fn create_from(
        cpus: impl IntoIterator<Item = A::CpuData>,
        bytes: u64,
        files: Files,
    ) -> Result<&'static Self, CreateError> {
        let board = Self::board(cpus);
        let config = Config { console: Console::Machine, ..files.config };
        let bundle = Bundle { config, symbols: None, guests: alloc::vec![files] };
        board.found(bytes, bundle)?;
        // Its rows differ from its vCPUs' indices.
        let (vm, planned) = board.host().create_guest_in(0, VcpuIndex(7), &files)?;
        vm.load_at_once(planned.map_err(CreateError::Load)?);
        Ok(board)
    }

    /// Gives the board what its guests share.
    fn found(&self, bytes: u64, bundle: Bundle) -> Result<(), CreateError> {
        let mut free = FreeMemory::default();
        free.add(memory(bytes));
        assert!(self.host.set(Host::new(bundle, &mut free, Some(1_700_000_000))?).is_ok());
        Ok(())
    }

    /// A board without guests; the calling thread is CPU 0.
    fn board(cpus: impl IntoIterator<Item = A::CpuData>) -> &'static Self {
        let cpus: Vec<_> = (0..)
            .map(CpuIndex)
            .zip(cpus)
            .map(|(index, data)| PerCpu::new(index, hardware_id(index), data))
            .collect();
        let lines = CpuLines { timer: u64::MAX, ..CpuLines::default() };
        let board: &'static Self = Box::leak(Box::new(Self {
            host: OnceLock::new(),
            clock: AtomicU64::new(1000),
            turns: Mutex::new(Turns {
                running: 0,
                lines: alloc::vec![lines; cpus.len()],
                random: Random::new(1),
                left: TURNS_MAX,
                is_live: false,
                end: None,
                asked: VecDeque::new(),
                to_hypervisor: VecDeque::new(),
                answers: Vec::new(),
                answered_at: Vec::new(),
                answered: 0,
                line: String::new(),
                hung_up: None,
                enough: None,
                tool: None,
                outside: None,
                is_ended: false,
            }),
            turned: cpus.iter().map(|_| Condvar::new()).collect(),
            kicks: AtomicU64::new(0),
            kicks_until: AtomicU64::new(u64::MAX),
            heap_left: AtomicU64::new(1 << 30),
            page_ticks: AtomicU64::new(0),
            turns_since: cpus.iter().map(|_| AtomicU32::new(0)).collect(),
            turns_most: AtomicU32::new(0),
            console: Mutex::new(VecDeque::new()),
            chosen: Mutex::default(),
            screen: Mutex::default(),
            cpus,
        }));
        for cpu in &board.cpus {
            assert!(cpu.presence.come_online());
        }
        HERE.set(Some((board, 0)));
        board
    }
}

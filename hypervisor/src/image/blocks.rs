//! The block of each CPU: its stacks, with guard pages under them, and its own data.
//!
//! A block is aligned to its size, so a CPU finds its data from its stack pointer alone, on any of
//! its stacks. No segment base is involved: between #VMEXIT and the reload of the host's state FS,
//! GS and TR are still the guest's, and QEMU has been seen to deliver an interrupt there.
//!
//! ```text
//! 0x00000  guard page
//! 0x01000  stack for faults of the hypervisor itself: double faults, machine checks
//! 0x03000  guard page
//! 0x04000  stack for NMIs, where there are any
//! 0x06000  guard page
//! 0x07000  main stack
//! 0x1f000  PerCpu
//! ```

use baremetal::HardwareId;
use baremetal::pages::PAGE;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{Bare, Local, On, PerCpu, heap};
use crate::free_memory::FreeMemory;
use crate::sched::CpuIndex;
use crate::vm;
use crate::vm::percpu::{self, MAX_CPUS};

pub(crate) const BLOCK_SIZE: u64 = 128 << 10;
/// Offset in a block of the top of the stack on which faults of the hypervisor itself are reported.
pub(crate) const FAULT_STACK_TOP: u64 = 0x3000;
const DATA_OFFSET: u64 = 0x1f000;
pub(crate) const GUARD_PAGES: [u64; 3] = [0, 0x3000, 0x6000];
/// Offset of the lowest word of the main stack.
const MAIN_STACK: u64 = GUARD_PAGES[2] + PAGE;

/// Address of the first block; zero before there are any.
static BLOCKS: AtomicU64 = AtomicU64::new(0);
static COUNT: AtomicU32 = AtomicU32::new(0);

const _: () = assert!(size_of::<PerCpu>() as u64 <= BLOCK_SIZE - DATA_OFFSET);

impl<V: 'static> vm::PerCpu<On<V>> {
    pub(crate) fn current() -> &'static Self {
        let stack = Local::stack_pointer();
        debug_assert!(Self::on_block_stack(stack));
        // SAFETY: all code after `enter_block` runs on a stack in a block, which is aligned to its
        // size. `create` initialised its data, and it is never freed.
        unsafe { &*data_of(stack & !(BLOCK_SIZE - 1)) }
    }

    /// The calling CPU's data, or `None` this early in the boot.
    pub(crate) fn try_current() -> Option<&'static Self> {
        let marker = 0u8;
        Self::on_block_stack((&raw const marker).addr() as u64).then(Self::current)
    }

    fn on_block_stack(address: u64) -> bool {
        let first = BLOCKS.load(Ordering::Relaxed);
        let end = first + u64::from(COUNT.load(Ordering::Relaxed)) * BLOCK_SIZE;
        (first..end).contains(&address)
    }

    /// The data of CPU `index`, if there is such a CPU.
    pub(crate) fn get(index: CpuIndex) -> Option<&'static Self> {
        // Pairs with `create`: the blocks are initialised.
        if index.0 >= COUNT.load(Ordering::Acquire) {
            return None;
        }
        // Pairs with `create`.
        let block = BLOCKS.load(Ordering::Acquire) + u64::from(index) * BLOCK_SIZE;
        // SAFETY: as in `current`: `create` initialised it before it raised the count.
        Some(unsafe { &*data_of(block) })
    }

    /// All CPUs that the firmware lists, including those that did not come up.
    pub(crate) fn all() -> impl Iterator<Item = &'static Self> {
        percpu::all()
    }

    pub(crate) fn online() -> impl Iterator<Item = &'static Self> {
        percpu::online()
    }

    /// The same, where it does not matter what virtualizes the processor.
    #[inline(always)]
    pub(crate) fn plain(&self) -> &PerCpu {
        // SAFETY: `PerCpu` is `repr(C)` and its layout depends on `CpuData` alone, which is the
        // same type for all kinds.
        unsafe { &*core::ptr::from_ref(self).cast() }
    }

    pub(crate) fn block(&self) -> u64 {
        core::ptr::from_ref(self).addr() as u64 - DATA_OFFSET
    }

    /// Top of the stack that normal code runs on.
    pub(crate) fn main_stack_top(&self) -> u64 {
        self.block() + DATA_OFFSET
    }
}

/// The least number of bytes that a CPU's main stack has had left so far. Stacks begin as zeros, so
/// what was reserved and never written counts as left.
pub(crate) fn stack_left() -> u64 {
    let left = |cpu: &PerCpu| {
        let first = (cpu.block() + MAIN_STACK) as *const u64;
        let is_zero = |word: &usize| {
            // SAFETY: inside a block, which is mapped and never freed. Its CPU may change the word
            // at the same time: whether it is found before or after does not matter.
            unsafe { first.add(*word).read_volatile() == 0 }
        };
        let words = (DATA_OFFSET - MAIN_STACK) as usize / size_of::<u64>();
        ((0..words).take_while(is_zero).count() * size_of::<u64>()) as u64
    };
    PerCpu::online().map(left).min().unwrap_or(0)
}

fn data_of<V: 'static>(block: u64) -> *mut vm::PerCpu<On<V>> {
    (block + DATA_OFFSET) as *mut vm::PerCpu<On<V>>
}

/// Takes memory below `reach` for the blocks of all CPUs and lays them out; the boot CPU's is
/// first. Returns their range.
///
/// # Safety
///
/// The free memory below `reach` is RAM and mapped. Called once.
pub(crate) unsafe fn create(
    free: &mut FreeMemory,
    ids: &[HardwareId],
    reach: u64,
) -> Result<Range<u64>, &'static str> {
    assert!(ids.len() <= MAX_CPUS);
    let size = ids.len() as u64 * BLOCK_SIZE;
    let base = free.take(size, BLOCK_SIZE, reach).ok_or("no room for the CPUs' stacks")?;
    // SAFETY: the memory is free RAM, mapped, and ours from here on.
    unsafe { core::ptr::write_bytes(base as *mut u8, 0, size as usize) };
    for (index, &id) in ids.iter().enumerate() {
        let data = data_of(base + index as u64 * BLOCK_SIZE);
        // SAFETY: inside the block, aligned, without any reference yet.
        unsafe {
            data.write(PerCpu::new(CpuIndex(index as u32), id, Default::default()));
        }
    }
    // Both pair with `get`: the data is written above.
    BLOCKS.store(base, Ordering::Release);
    COUNT.store(ids.len() as u32, Ordering::Release);
    heap::set_stacks(base..base + size);
    Ok(base..base + size)
}

/// Calls `main` on the main stack of CPU `index` and never returns.
///
/// # Safety
///
/// The blocks exist, and the stack is not in use.
pub(crate) unsafe fn enter_block(cpu: &'static PerCpu, main: extern "C" fn() -> !) -> ! {
    // SAFETY: the caller vouches for the stack.
    unsafe { Local::switch_stack(cpu.main_stack_top(), main) }
}

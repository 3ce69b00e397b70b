//! A KVM machine with one vCPU, and a memory slot that is added and removed.

use crate::guest::{self, LOW_AT, LOW_PAGES, MEMORY_AT, PAGE_BYTES, Pass, Stop};
use kvm_bindings::{
    KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE, KVM_MEM_LOG_DIRTY_PAGES,
    kvm_clear_dirty_log, kvm_clear_dirty_log__bindgen_ty_1, kvm_enable_cap, kvm_userspace_memory_region,
};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::Advice;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use workloads::mapping::{Mapping, page_bytes};

const LOW_SLOT: u32 = 0;
const SLOT: u32 = 1;
const ELSEWHERE_SLOT: u32 = 2;

/// KVM_CLEAR_DIRTY_LOG, which the library does not have.
const CLEAR_DIRTY_LOG: Opcode = opcode::read_write::<kvm_clear_dirty_log>(0xae, 0xc0);

/// How pages are write-protected again after their stores were logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogWay {
    /// When the log is fetched.
    Simple,
    /// By a separate call.
    Manual,
}

impl LogWay {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Simple => "simple",
            Self::Manual => "manual",
        }
    }
}

/// The machine. Its memory belongs to this process and is unmapped last: fields drop in order.
pub(crate) struct Machine {
    vcpu: VcpuFd,
    vm: VmFd,
    log: LogWay,
    /// The memory of the slot that is added and removed.
    memory: Mapping,
    /// Memory that stays, if there is any.
    elsewhere: Option<Mapping>,
    _low: Mapping,
    passes: u32,
}

/// Small pages, touched in advance: the cost of the guest's first stores is that of KVM alone.
fn touched(pages: usize) -> io::Result<Mapping> {
    let mut memory = Mapping::anonymous(pages)?;
    memory.advise(memory.all(), Advice::LinuxNoHugepage)?;
    for page in 0..pages {
        memory.write(page, 0, 0);
    }
    Ok(memory)
}

impl Machine {
    /// Makes it without the slot, but with pages that stay `elsewhere`, and runs it until it waits.
    pub(crate) fn start(pages: usize, elsewhere: usize, log: LogWay) -> io::Result<Self> {
        if page_bytes() != PAGE_BYTES {
            return Err(io::Error::other("the kernel's pages are larger than the guest's"));
        }
        let kvm = Kvm::new().map_err(|error| {
            let hint = "are KVM's modules loaded?";
            io::Error::other(format!("cannot open /dev/kvm: {}; {hint}", io::Error::from(error)))
        })?;
        let vm = kvm.create_vm().map_err(|error| failed("KVM_CREATE_VM", error.into()))?;
        if log == LogWay::Manual {
            let capability = kvm_enable_cap {
                cap: KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2,
                args: [KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE.into(), 0, 0, 0],
                ..kvm_enable_cap::default()
            };
            let enabled = vm.enable_cap(&capability);
            enabled.map_err(|error| failed("KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2", error.into()))?;
        }
        let mut low = Mapping::anonymous(LOW_PAGES)?;
        for (at, chunk) in guest::code().chunks(size_of::<u64>()).enumerate() {
            low.write(0, at, guest::value_of(chunk));
        }
        let memory = touched(pages)?;
        let elsewhere = if elsewhere == 0 { None } else { Some(touched(elsewhere)?) };
        let vcpu = vm.create_vcpu(0).map_err(|error| failed("KVM_CREATE_VCPU", error.into()))?;
        guest::prepare(&vm, &vcpu, &mut low).map_err(|error| failed("setting the vCPU up", error))?;
        let mut machine = Self { vcpu, vm, log, memory, elsewhere, _low: low, passes: 0 };
        machine.set_slot(LOW_SLOT, LOW_AT, &machine._low, LOW_PAGES, 0)?;
        if let Some(memory) = &machine.elsewhere {
            machine.set_slot(ELSEWHERE_SLOT, MEMORY_AT, memory, memory.pages(), 0)?;
        }
        machine.expect(Stop::Waits)?;
        Ok(machine)
    }

    pub(crate) fn pages(&self) -> usize {
        self.memory.pages()
    }

    /// Pages that stay.
    pub(crate) fn pages_elsewhere(&self) -> usize {
        self.elsewhere.as_ref().map_or(0, Mapping::pages)
    }

    /// The address of the slot: it follows the memory that stays.
    fn slot_at(&self) -> u64 {
        MEMORY_AT + (self.pages_elsewhere() * PAGE_BYTES) as u64
    }

    pub(crate) fn log_way(&self) -> LogWay {
        self.log
    }

    /// Adds the slot, or changes whether stores to it are logged.
    pub(crate) fn add(&self, is_logged: bool) -> io::Result<()> {
        let flags = if is_logged { KVM_MEM_LOG_DIRTY_PAGES } else { 0 };
        self.set_slot(SLOT, self.slot_at(), &self.memory, self.pages(), flags)
    }

    pub(crate) fn delete(&self) -> io::Result<()> {
        self.set_slot(SLOT, self.slot_at(), &self.memory, 0, 0)
    }

    fn set_slot(&self, slot: u32, at: u64, memory: &Mapping, pages: usize, flags: u32) -> io::Result<()> {
        let region = kvm_userspace_memory_region {
            slot,
            flags,
            guest_phys_addr: at,
            memory_size: (pages * PAGE_BYTES) as u64,
            userspace_addr: memory.address() as u64,
        };
        // SAFETY: the mapping is as long as the slot, lives longer, and has no reference into it.
        let set = unsafe { self.vm.set_user_memory_region(region) };
        set.map_err(|error| failed("KVM_SET_USER_MEMORY_REGION", error.into()))
    }

    /// The stores of the next pass, from page `first` of the slot on.
    pub(crate) fn next_pass(&mut self, first: usize, count: usize) -> Pass {
        self.pass_at(self.slot_at() + (first * PAGE_BYTES) as u64, count)
    }

    /// The stores of the next pass, to each page that stays.
    pub(crate) fn next_pass_elsewhere(&mut self) -> Pass {
        self.pass_at(MEMORY_AT, self.pages_elsewhere())
    }

    fn pass_at(&mut self, at: u64, count: usize) -> Pass {
        self.passes = self.passes.wrapping_add(1);
        Pass { at, count: count as u64, salt: self.passes }
    }

    /// Tells the waiting guest what to do when it continues.
    pub(crate) fn tell(&self, pass: Pass) -> io::Result<()> {
        guest::tell(&self.vcpu, pass).map_err(|error| failed("setting registers", error))
    }

    /// Lets the guest continue until it stops; the stop must be the expected one.
    pub(crate) fn expect(&mut self, expected: Stop) -> io::Result<()> {
        loop {
            let (stop, exit) = match self.vcpu.run() {
                Ok(exit) => (guest::stop_of(&exit), format!("{exit:?}")),
                Err(error) if [libc::EINTR, libc::EAGAIN].contains(&error.errno()) => continue,
                Err(error) => return Err(failed("KVM_RUN", error.into())),
            };
            if stop == Some(expected) {
                return Ok(());
            }
            return Err(wrong(format!("the guest stops by {exit} instead of {expected:x?}")));
        }
    }

    /// Checks that each of the pass's stores is in memory.
    pub(crate) fn check_stores(&self, pass: Pass) -> io::Result<()> {
        let (memory, start) = match &self.elsewhere {
            Some(memory) if pass.at < self.slot_at() => (memory, MEMORY_AT),
            _ => (&self.memory, self.slot_at()),
        };
        let first = (pass.at - start) as usize / PAGE_BYTES;
        for page in first..first + pass.count as usize {
            let at = start + (page * PAGE_BYTES) as u64;
            let (found, stored) = (memory.read(page, 0), pass.value(at));
            if found != stored {
                return Err(wrong(format!("{at:#x} has {found:#x}, and the guest stored {stored:#x}")));
            }
        }
        Ok(())
    }

    /// Fetches the log of stores: a bit for each page.
    pub(crate) fn fetch_log(&self) -> io::Result<Vec<u64>> {
        let log = self.vm.get_dirty_log(SLOT, self.pages() * PAGE_BYTES);
        log.map_err(|error| failed("KVM_GET_DIRTY_LOG", error.into()))
    }

    /// Starts logging again for the pages that a log names.
    pub(crate) fn clear_log(&self, log: &mut [u64]) -> io::Result<()> {
        let mut request = kvm_clear_dirty_log {
            slot: SLOT,
            num_pages: self.pages() as u32,
            first_page: 0,
            __bindgen_anon_1: kvm_clear_dirty_log__bindgen_ty_1 { dirty_bitmap: log.as_mut_ptr().cast() },
        };
        // SAFETY: the descriptor lives as long as `self`.
        let vm = unsafe { BorrowedFd::borrow_raw(self.vm.as_raw_fd()) };
        // SAFETY: the call reads the request and the bitmap, which has a bit for each page.
        let cleared = unsafe { ioctl(vm, Updater::<CLEAR_DIRTY_LOG, _>::new(&mut request)) };
        cleared.map_err(|error| failed("KVM_CLEAR_DIRTY_LOG", error.into()))
    }
}

fn failed(what: &str, error: io::Error) -> io::Error {
    io::Error::other(format!("{what}: {error}"))
}

pub(crate) fn wrong(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

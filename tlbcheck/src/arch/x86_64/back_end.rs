//! Flushes of other processors: the engine of [`coherence::shootdown`] on this machine, by
//! interrupts in each of its modes, and by hypercalls.
//!
//! Participating processors have loaded the one [`AddressSpace`], of [`window::space`]. [`join`]
//! and [`leave`] inform the engine; rows that change CR3 return to it.

use core::cell::LazyCell;
use core::ops::ControlFlow;

use arrayvec::ArrayVec;
use baremetal::x86_64::interrupts::{self, VECTOR_FREE};
use baremetal::x86_64::processors::MAX_PROCESSORS;
use baremetal::x86_64::{apic, clock, processors, tables};
use coherence::TargetSet;
use coherence::shootdown::{
    AddressSpace, Async, Batch, ByInterrupt, Concurrent, CpuSlot, Cpus, Inline, LocalCpu, NoUserAccess,
    PageRange, Pages, RangeCell, Remote, Serial, ShootdownOutcome, Spaces, Tag, Tlb,
};
use pvflush::{ByHypercall, VpIndex};
use spin::{Mutex, Once};
use tlbcheck::ensure;
use tlbcheck::report::{Stop, Verdict, fail};
use tlfs::encode::Interface;
use tlfs::{HvResult, PAGE_WORDS, Status};

use super::machine;
use super::{hypercall, window};
use crate::arch::console;
use crate::arch::testbed::PATIENCE_MS;

/// Maximum number of ranges of one flush: that of a hypercall's list.
pub(super) const RANGES_MAX: usize = 509;

#[derive(Clone, Copy, Debug)]
pub(super) enum Scope<'a> {
    /// Everything except global translations.
    Everything,
    /// The pages at these addresses.
    Pages(&'a [u64]),
}

/// A method to flush the TLBs of processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::arch) enum BackEnd {
    /// By interrupts: first the initiator's own TLB.
    Serial,
    /// The initiator's own TLB while the others flush theirs.
    Concurrent,
    /// The same, with the request in each target's own cache line.
    Inline,
    /// The same, acknowledged before the flush.
    Async,
    /// By hypercall; the initiator's own TLB by the processor's instructions.
    Hypercall,
}

const BANKS: usize = MAX_PROCESSORS / 64;
type Set = TargetSet<BANKS>;
type BankedSpace = AddressSpace<BANKS>;
type Local = LocalCpu<'static, &'static BankedSpace, BANKS, 1>;

const VECTOR_FLUSH: u8 = VECTOR_FREE;

static SLOTS: [CpuSlot; MAX_PROCESSORS] = [const { CpuSlot::new() }; MAX_PROCESSORS];
/// Only the first processor lends long lists, but each may.
static CELLS: [RangeCell; MAX_PROCESSORS * RANGES_MAX] =
    [const { RangeCell::new() }; MAX_PROCESSORS * RANGES_MAX];
static SPACES: Spaces = Spaces::new();
static SPACE: Once<BankedSpace> = Once::new();
/// Each processor's own state; taken by it alone, with interrupts off.
static LOCALS: [Mutex<Option<Local>>; MAX_PROCESSORS] = [const { Mutex::new(None) }; MAX_PROCESSORS];

fn space() -> &'static BankedSpace {
    SPACE.call_once(|| SPACES.create(window::space()))
}

struct Own {
    /// When the wait for another processor is given up.
    patience_ends: LazyCell<u64>,
}

impl Own {
    fn new() -> Self {
        Self { patience_ends: LazyCell::new(|| clock::now() + clock::ticks(PATIENCE_MS * 1000)) }
    }
}

impl Tlb for Own {
    fn load(&mut self, root: u64, _: Tag, _: bool) {
        window::enter_space(root);
    }

    /// The other space has the window's pages, too. A CPU that has left reads nothing through it,
    /// and no table of it is ever freed. Any translations cached nevertheless are dropped by the
    /// write to CR3 of the next [`load`](Tlb::load).
    fn load_none(&mut self) {
        window::enter_space(window::other_space());
    }

    fn flush_everything(&mut self) {
        window::enter_space(window::space());
    }

    fn flush_range(&mut self, range: PageRange, _: bool) {
        range.addresses().for_each(window::invlpg);
    }

    /// As many as requested: the cost of a long list is to be measured.
    fn pages_max(&self) -> u64 {
        u64::MAX
    }

    fn relax(&mut self, _: u64) -> ControlFlow<()> {
        core::hint::spin_loop();
        if clock::now() < *self.patience_ends { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

/// Makes all processors serve requests.
pub(super) fn listen() {
    interrupts::handle(
        VECTOR_FLUSH,
        Some(|_| {
            // Not contended: its processor takes no interrupts while it holds it.
            if let Some(Some(local)) = LOCALS[tables::number()].try_lock().as_deref_mut() {
                local.serve(&mut Own::new());
            }
        }),
    );
}

pub(super) fn join(number: usize) {
    x86_64::instructions::interrupts::without_interrupts(|| {
        let mut local = LOCALS[number].lock();
        if local.is_none() {
            *local = Cpus::new(&SLOTS, &CELLS).claim(number);
        }
        match &mut *local {
            Some(local) => _ = local.switch_to(space(), &mut Own::new()),
            None => console::bail(format_args!("processor {number} has no slot")),
        }
    });
}

pub(super) fn leave(number: usize) {
    x86_64::instructions::interrupts::without_interrupts(|| {
        if let Some(local) = &mut *LOCALS[number].lock() {
            local.unload(&mut Own::new());
        }
        window::enter_space(window::space());
    });
}

/// Makes the processors, and the calling one, participate while `work` runs.
pub(super) fn among(others: &[usize], work: impl FnOnce() -> Verdict) -> Verdict {
    let all = || core::iter::once(0).chain(others.iter().copied());
    all().try_for_each(|number| machine::on(number, join))?;
    let result = work();
    all().try_for_each(|number| machine::on(number, leave))?;
    result
}

impl BackEnd {
    pub(super) const ALL: [Self; 5] =
        [Self::Serial, Self::Concurrent, Self::Inline, Self::Async, Self::Hypercall];
    /// The back ends that use interrupts.
    pub(super) const BY_IPI: [Self; 4] = [Self::Serial, Self::Concurrent, Self::Inline, Self::Async];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Serial => "ipi-serial",
            Self::Concurrent => "ipi-concurrent",
            Self::Inline => "ipi-inline",
            Self::Async => "ipi-async",
            Self::Hypercall => "hypercall",
        }
    }

    /// Flushes the TLBs of all participating processors: the calling one, and `others`. When it
    /// returns, none of them uses a translation that was replaced before the call, and all effects
    /// of such translations are visible.
    ///
    /// Only one processor changes entries and flushes, so a batch may be opened after the change.
    ///
    /// # Errors
    ///
    /// A processor does not respond, other processors participate, or the hypervisor refuses.
    pub(super) fn flush(self, others: &[usize], scope: Scope<'_>) -> Verdict {
        let by_hypercall = if self == Self::Hypercall { Some(machine::flushes()?.interface()) } else { None };
        let outcome =
            x86_64::instructions::interrupts::without_interrupts(|| self.carry_out(scope, by_hypercall))?;
        let ShootdownOutcome { targets, direct, .. } = outcome;
        ensure!(targets as usize == others.len(), "{targets} were asked instead of {}", others.len());
        let by_call = if self == Self::Hypercall { targets } else { 0 };
        ensure!(direct == by_call, "{direct} processors were flushed by hypercall, not {by_call}");
        Ok(())
    }

    fn carry_out(self, scope: Scope<'_>, by_hypercall: Option<Interface>) -> Result<ShootdownOutcome, Stop> {
        let mut local = LOCALS[tables::number()].lock();
        let Some(local) = &mut *local else {
            return Err(fail(format_args!("the calling processor does not take part")));
        };
        let mut ranges = RANGES.lock();
        let mut batch = space().batch(&mut ranges[..], ());
        match scope {
            Scope::Everything => batch.add_everything(),
            Scope::Pages(pages) => pages.iter().for_each(|page| batch.add(PageRange::small(*page, 1))),
        }
        let mut interrupts = ByInterrupt(|set: &Set| {
            set.iter().for_each(|number| apic::send_fixed(processors::id(number), VECTOR_FLUSH));
        });
        let Some(interface) = by_hypercall else { return self.by(local, batch, &mut interrupts) };
        let mut page = INPUT.lock();
        let execute = |call: &tlfs::encode::EncodedCall, page: &[u64; PAGE_WORDS]| {
            let refused = HvResult::of(Status::OPERATION_DENIED, 0);
            hypercall::call_with(call.control, call.words(page)).unwrap_or(refused)
        };
        let mut remote =
            ByHypercall::new(&mut page, vp_indices(), interface, interrupts, execute).naming_the_space();
        self.by(local, batch, &mut remote)
    }

    fn by(
        self,
        local: &mut Local,
        batch: Batch<'_, Pages, (), BANKS>,
        remote: &mut impl Remote<BANKS>,
    ) -> Result<ShootdownOutcome, Stop> {
        let own = &mut Own::new();
        // SAFETY: the serving handler accesses no address of the window. The only handler that
        // disabled interrupts do not hold back, that of `nmi-handler-sees-stale-page`, is installed
        // for flushes by hypercall alone.
        let token = unsafe { NoUserAccess::assert() };
        let done = match self {
            Self::Serial => local.flush(batch, Serial, remote, own),
            Self::Concurrent | Self::Hypercall => local.flush(batch, Concurrent, remote, own),
            Self::Inline => local.flush(batch, Inline, remote, own),
            Self::Async => local.flush(batch, Async::new(token), remote, own),
        };
        done.map(|done| done.receipt.outcome()).map_err(|stalled| fail(format_args!("{stalled}")))
    }
}

/// Buffers for the calls' input and for the batch's ranges; used by the flushing CPU.
static INPUT: Mutex<[u64; PAGE_WORDS]> = Mutex::new([0; PAGE_WORDS]);
static RANGES: Mutex<[PageRange; RANGES_MAX]> =
    Mutex::new([PageRange { first: 0, pages: 0, shift: 12 }; RANGES_MAX]);

fn vp_indices() -> &'static [VpIndex] {
    static INDICES: Once<ArrayVec<VpIndex, MAX_PROCESSORS>> = Once::new();
    INDICES.call_once(|| (0..machine::get().processors).map(|number| VpIndex(machine::vp(number))).collect())
}

pub(super) fn others(count: usize) -> ArrayVec<usize, MAX_PROCESSORS> {
    (1..machine::get().processors).take(count).collect()
}

//! An emulated SMMUv3 keeps translations, descriptors and entries until told, and logs refusals.
//!
//! QEMU 7.2 has stage 1 only, and no access flag. Before 9.1 it encodes CLASS wrongly (see
//! `iommu::smmu::event`); that field is looked at from 9.1 on.

use super::smmu::{DESCRIPTOR, DEVICE, OUTSIDER, ROOTS, Smmu};
use crate::machine::emulator::{Version, version};
use crate::test::prelude::*;
use iommu::smmu::command::{Depth, cfgi_cd, cfgi_ste, cfgi_ste_range};
use iommu::smmu::event::{Access, Class, Fault, Kind, Stage};
use iommu::smmu::registers::CommandError;
use iommu::smmu::stream::{Reads, Split, Tables};
use iommu::smmu::{Asid, ContextDescriptor, Granule, LeafLevel, Setup, Stale, StreamEntry, StreamId, plan};
use iommu::{Command, Stuck};
use std::cell::Cell;

const ASID: Asid = Asid(7);
const OTHER_ASID: Asid = Asid(8);
const NEIGHBOUR: StreamId = StreamId(DEVICE.0 + 1);

/// Device-visible addresses: a page that the device reads; those that it writes to; a block.
const SOURCE: u64 = 0x0804_2000;
const TARGET: u64 = 0x0804_5000;
const PAGES: u64 = 8;
const LAST: u64 = TARGET + (PAGES - 1) * PAGE;
const BLOCK: u64 = 0x0820_0000;
const BLOCK_SIZE: u64 = 2 << 20;
const PAGE: u64 = 0x1000;
/// Memory.
const PATTERN: u64 = 0x4030_0000;
const NEW: u64 = 0x4030_1000;
const OLD: u64 = 0x4031_0000;
const OLD_LAST: u64 = OLD + (PAGES - 1) * PAGE;
const OLD_BLOCK: u64 = 0x4060_0000;
/// Nothing is there.
const NO_MEMORY: u64 = 0x7_0000_0000;

/// A machine, and what the checks have in common.
struct Run {
    smmu: Smmu,
    /// Its events have CLASS.
    has_class: bool,
    values: Cell<u64>,
}

impl Run {
    /// A value that was not used yet.
    fn fresh(&self) -> u64 {
        self.values.set(self.values.get() + 1);
        self.values.get()
    }

    /// The device writes to an address, and the value is found in `page`.
    fn reaches(&self, address: u64, page: u64, when: &str) -> Result<()> {
        self.is_copied(SOURCE, address, page, when)
    }

    /// The same with a value that it has read at `source`, which leads to [`PATTERN`].
    fn is_copied(&self, source: u64, address: u64, page: u64, when: &str) -> Result<()> {
        let value = self.fresh();
        self.smmu.told.board.write(PATTERN, value);
        self.smmu.device.load(source)?;
        self.smmu.device.store(address)?;
        self.smmu.told.expect(page, value, when)?;
        self.logged(DEVICE, None, when)
    }

    /// The device writes to an address; `page`, where that led to, stays as it is; the log says so.
    fn is_refused(&self, address: u64, page: u64, kind: Option<Kind>, when: &str) -> Result<()> {
        let value = self.fresh();
        self.smmu.told.board.write(page, value);
        self.smmu.device.store(address)?;
        self.smmu.told.expect(page, value, when)?;
        self.logged(DEVICE, kind, when)
    }

    /// An access in two parts has two events.
    fn logged(&self, stream: StreamId, kind: Option<Kind>, when: &str) -> Result<()> {
        let events = self.smmu.events()?;
        let is_expected = events.iter().all(|event| {
            (event.stream, event.substream) == (stream, None)
                && Some(whole(event.kind, self.has_class)) == kind
        });
        let (found, expected) = (events.len(), usize::from(kind.is_some()));
        let is_count_right = found >= expected && found <= 2 * expected;
        ensure!(is_expected && is_count_right, "{when}: {events:x?} instead of {kind:x?}");
        Ok(())
    }

    /// Tells the SMMU what is stale, and waits.
    fn forget(&self, setup: &Setup, asid: Asid, stale: Stale) -> Result<()> {
        self.smmu.told.wait_for(plan(setup, asid, [stale]))
    }

    /// An SMMU of which everything is used; 64 commands at most.
    fn setup(&self) -> Setup {
        Setup::new(&self.smmu.features, Granule::Size4K, 64)
    }

    fn descriptor(&self, asid: Asid, table: u64) -> Result<ContextDescriptor> {
        let tables = Tables {
            asid,
            table,
            t0sz: 64 - 39,
            granule: Granule::Size4K,
            reads: Reads::Coherent,
            size: self.smmu.features.output.context("a reserved size of addresses")?,
            mair: 0xff,
        };
        ContextDescriptor::new(&tables).context("the descriptor is refused")
    }
}

/// The event as that of the access's first part; with the right CLASS unless it has its own.
fn whole(kind: Kind, has_class: bool) -> Kind {
    let plain = |fault: Fault, class| Fault {
        address: fault.address & !7,
        class: if has_class { fault.class } else { class },
        ..fault
    };
    match kind {
        Kind::Translation(fault) => Kind::Translation(plain(fault, Class::Input)),
        Kind::Permission(fault) => Kind::Permission(plain(fault, Class::Input)),
        Kind::WalkAbort { fault, address } => Kind::WalkAbort { fault: plain(fault, Class::Walk), address },
        other => other,
    }
}

const fn fault(address: u64, access: Access) -> Fault {
    let (class, stage) = (Class::Input, Stage::One);
    Fault { address, access, is_privileged: false, class, stage, ipa: None, stalled: None }
}

const fn not_mapped(address: u64) -> Option<Kind> {
    Some(Kind::Translation(fault(address, Access::Write)))
}

/// Pages from `start` on.
const fn leaves(start: u64, count: u64) -> Stale {
    Stale { start, len: count * PAGE, leaf: Some(LeafLevel::Three), tables: false }
}

pub(super) fn keeps_until_told(room: &Room<'_>) -> Result<()> {
    for split in [None, Some(Split::Bits6)] {
        let smmu = Smmu::start(room.directory, split)?;
        ensure!(smmu.features.stage_1 && smmu.features.has_ranges, "{:?}", smmu.features);
        let has_class = version(Arch::Aarch64)? >= Version { major: 9, minor: 1 };
        let run = Run { smmu, has_class, values: Cell::new(0) };
        run.nothing_passes_at_first()?;
        run.pages()?;
        run.faults()?;
        for has_ranges in [true, false] {
            run.ranges(&Setup { has_ranges, ..run.setup() })?;
        }
        run.descriptors()?;
        run.entries()?;
        run.a_command_that_there_is_not()?;
    }
    Ok(())
}

impl Run {
    /// An SMMU that is on, with an empty table: no entry, no descriptor, then both.
    fn nothing_passes_at_first(&self) -> Result<()> {
        let Self { smmu, .. } = self;
        self.is_refused(TARGET, OLD, Some(Kind::BadEntry), "no entry")?;
        smmu.outsider.store(TARGET)?;
        self.logged(OUTSIDER, Some(Kind::BadStreamId), "beyond the table")?;
        let entry = StreamEntry::stage_1(DESCRIPTOR, Reads::Coherent);
        smmu.set_entry(entry.context("the entry is refused")?)?;
        self.is_refused(TARGET, OLD, Some(Kind::BadDescriptor), "no descriptor")?;
        smmu.set_descriptor(self.descriptor(ASID, ROOTS[0])?)?;
        self.is_refused(TARGET, OLD, not_mapped(TARGET), "nothing is mapped")
    }

    fn pages(&self) -> Result<()> {
        let Self { smmu, .. } = self;
        let map = |page, to| smmu.map(ROOTS[0], page, to);
        let forget = |asid, page| self.forget(&self.setup(), asid, leaves(page, 1));
        map(SOURCE, Some((PATTERN, false)));
        map(TARGET, Some((OLD, true)));
        self.reaches(TARGET, OLD, "a page that is mapped")?;
        map(TARGET, None);
        self.reaches(TARGET, OLD, "unmapped, without an invalidation: the SMMU keeps the translation")?;
        forget(OTHER_ASID, TARGET)?;
        self.reaches(TARGET, OLD, "after an invalidation of another ASID")?;
        forget(ASID, TARGET + PAGE)?;
        self.reaches(TARGET, OLD, "after an invalidation of another page")?;
        forget(ASID, TARGET)?;
        self.is_refused(TARGET, OLD, not_mapped(TARGET), "after the invalidation")?;

        map(TARGET, Some((NEW, true)));
        self.reaches(TARGET, NEW, "mapped to another page")?;
        map(TARGET, Some((NEW, false)));
        self.reaches(TARGET, NEW, "read-only, without an invalidation")?;
        forget(ASID, TARGET)?;
        let refused = Kind::Permission(fault(TARGET, Access::Write));
        self.is_refused(TARGET, NEW, Some(refused), "read-only")?;
        smmu.device.load(TARGET)?;
        self.is_refused(TARGET, NEW, Some(refused), "read-only, and kept by a read")?;

        let whole = Setup { commands_max: 0, ..self.setup() };
        map(TARGET, None);
        map(SOURCE, None);
        self.forget(&whole, OTHER_ASID, leaves(TARGET, 1))?;
        let secret = self.fresh();
        smmu.told.board.write(PATTERN, secret);
        smmu.device.load(SOURCE)?;
        self.logged(DEVICE, None, "after an invalidation of another whole ASID")?;
        self.forget(&whole, ASID, leaves(TARGET, 1))?;
        let secret = self.fresh();
        smmu.told.board.write(PATTERN, secret);
        smmu.device.load(SOURCE)?;
        let read = Kind::Translation(fault(SOURCE, Access::Read));
        self.logged(DEVICE, Some(read), "after an invalidation of the whole ASID")?;
        map(TARGET, Some((OLD, true)));
        smmu.device.store(TARGET)?;
        ensure!(smmu.told.board.read(OLD) != secret, "the device has read what it must not");
        map(SOURCE, Some((PATTERN, false)));
        self.reaches(TARGET, OLD, "mapped again")
    }

    /// An error in the tables themselves.
    fn faults(&self) -> Result<()> {
        self.smmu.map_table(BLOCK, NO_MEMORY);
        let fault = Fault { class: Class::Walk, ..fault(BLOCK, Access::Write) };
        let expected = Kind::WalkAbort { fault, address: NO_MEMORY };
        self.is_refused(BLOCK, OLD_BLOCK, Some(expected), "a table that is not there")
    }

    /// Several pages, of which the last is the one that is looked at; and a block.
    fn ranges(&self, setup: &Setup) -> Result<()> {
        let Self { smmu, .. } = self;
        let map_all = |is_mapped: bool| {
            for offset in (0..PAGES).map(|page| page * PAGE) {
                smmu.map(ROOTS[0], TARGET + offset, is_mapped.then_some((OLD + offset, true)));
            }
        };
        map_all(true);
        self.reaches(LAST, OLD_LAST, "the last page")?;
        self.reaches(TARGET, OLD, "the first page")?;
        map_all(false);
        self.forget(setup, ASID, leaves(TARGET, PAGES - 1))?;
        self.reaches(LAST, OLD_LAST, "after an invalidation of a page too few")?;
        self.forget(setup, ASID, leaves(TARGET - PAGE, PAGES))?;
        self.reaches(LAST, OLD_LAST, "after an invalidation that begins a page early")?;
        self.is_refused(TARGET, OLD, not_mapped(TARGET), "within those")?;
        self.forget(setup, ASID, leaves(TARGET, PAGES))?;
        self.is_refused(LAST, OLD_LAST, not_mapped(LAST), "after the invalidation of all pages")?;
        smmu.map(ROOTS[0], TARGET, Some((OLD, true)));

        let block = |start| Stale { start, len: BLOCK_SIZE, leaf: Some(LeafLevel::Two), tables: false };
        let (within, page) = (BLOCK + 0x12_3000, OLD_BLOCK + 0x12_3000);
        smmu.map_block(BLOCK, Some(OLD_BLOCK));
        self.reaches(within, page, "a block")?;
        smmu.map_block(BLOCK, None);
        self.forget(setup, ASID, block(BLOCK + BLOCK_SIZE))?;
        self.reaches(within, page, "after an invalidation of the next block")?;
        self.forget(setup, ASID, block(BLOCK))?;
        self.is_refused(within, page, not_mapped(within), "after the invalidation of the block")
    }

    /// Another context descriptor, with other tables.
    fn descriptors(&self) -> Result<()> {
        let Self { smmu, .. } = self;
        smmu.map(ROOTS[1], SOURCE, Some((PATTERN, false)));
        smmu.map(ROOTS[1], TARGET, Some((NEW, true)));
        self.reaches(TARGET, OLD, "by the first tables")?;
        smmu.set_descriptor_silently(self.descriptor(OTHER_ASID, ROOTS[1])?);
        self.reaches(TARGET, OLD, "the SMMU keeps the descriptor")?;
        smmu.told.wait_for([cfgi_cd(NEIGHBOUR)])?;
        self.reaches(TARGET, OLD, "after an invalidation for another stream")?;
        smmu.told.wait_for([cfgi_cd(DEVICE)])?;
        self.reaches(TARGET, NEW, "by the second tables")?;
        smmu.set_descriptor(self.descriptor(ASID, ROOTS[0])?)?;
        self.reaches(TARGET, OLD, "by the first tables again")
    }

    /// An entry that aborts, one that lets everything pass, and one that is not valid.
    fn entries(&self) -> Result<()> {
        let Self { smmu, .. } = self;
        smmu.set_entry_silently(StreamEntry::ABORT);
        self.reaches(TARGET, OLD, "the SMMU keeps the entry")?;
        smmu.told.wait_for([cfgi_ste(NEIGHBOUR, Depth::Leaf), cfgi_ste_range(StreamId(0), 3)])?;
        self.reaches(TARGET, OLD, "after invalidations for other streams")?;
        smmu.told.wait_for([cfgi_ste(DEVICE, Depth::Leaf)])?;
        self.is_refused(TARGET, OLD, None, "the stream is aborted")?;
        smmu.set_entry(StreamEntry::bypass(smmu.features.attributes_overridable))?;
        self.is_copied(PATTERN, NEW, NEW, "the stream passes as it is")?;
        smmu.set_entry(StreamEntry::ABORT)?;
        self.is_refused(NEW, NEW, None, "the stream is aborted again")?;
        smmu.set_entry(StreamEntry::INVALID)?;
        self.is_refused(TARGET, OLD, Some(Kind::BadEntry), "the entry is not valid")
    }

    /// A wait behind an illegal command ends, and says so.
    fn a_command_that_there_is_not(&self) -> Result<()> {
        ensure!(self.smmu.stopped_by().is_none(), "the command queue has stopped before");
        let result = self.smmu.told.wait_for([Command([0xff, 0])]);
        let is_stuck = result.is_err_and(|error| error.is::<Stuck>());
        ensure!(is_stuck, "an illegal command is said to be complete");
        let error = self.smmu.stopped_by();
        ensure!(error == Some(CommandError::Illegal), "{error:?} instead of an illegal command");
        Ok(())
    }
}

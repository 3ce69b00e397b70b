//! An SMMUv3 and the devices behind it, on a [`Board`].

use super::board::{Board, Kind};
use super::edu::Edu;
use super::ring::{ENTRIES, ORDER, Ring, RingIommu};
use crate::test::prelude::*;
use iommu::smmu::command::{cfgi_cd, cfgi_ste, sync_poll};
use iommu::smmu::event_queue::{RECORD_BYTES, Reader};
use iommu::smmu::registers::{
    CMDQ_CONS, CMDQ_ERR, CMDQ_PROD, CommandError, EVENTQ_CONS, EVENTQ_PROD, GERROR, GERRORN, Register,
};
use iommu::smmu::start::{Places, Ring as RingPlace, Step, StreamTable, forget_all, steps};
use iommu::smmu::stream::{Split, first_level};
use iommu::smmu::{ContextDescriptor, Event, Features, StreamEntry, StreamId, change, command};
use iommu::{Command, Port};
use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;
use std::rc::Rc;

/// Where QEMU has its registers.
const REGISTERS: u64 = 0x0905_0000;
/// How often a register is read until it acknowledges a change.
const READS_MAX: u32 = 1_000;

/// Places in memory. The queues are as long as they are aligned: 4 KiB each.
const FIRST_LEVEL: u64 = 0x4020_0000;
const STREAMS: u64 = 0x4020_1000;
const CONTEXT: u64 = 0x4020_2000;
const COMMANDS: u64 = 0x4020_3000;
const EVENTS: u64 = 0x4020_4000;
const EVENTS_ORDER: u32 = 7;
/// Two page tables for addresses of 39 bits: of each the tables of levels 1, 2 and 3.
pub(super) const ROOTS: [u64; 2] = [0x4021_0000, 0x4022_0000];
/// The address of the context descriptor, for the entry.
pub(super) const DESCRIPTOR: u64 = CONTEXT;

/// The device: function 0 of device 3. Another one is beyond the stream table.
pub(super) const DEVICE: StreamId = StreamId(3 << 3);
pub(super) const OUTSIDER: StreamId = StreamId(8 << 3);
/// Binary logarithm of the entries in the stream table.
const STREAMS_ORDER: u32 = 6;

/// Registers of the devices.
const EDU: u32 = 0x1000_0000;
const OTHER_EDU: u32 = 0x1010_0000;

/// Entries of stage-1 tables (Arm ARM, DDI 0487, D8.3): memory of attribute 0, inner shareable,
/// accessed, not global, for unprivileged accesses.
const LEAF: u64 = 1 << 11 | 1 << 10 | 0b11 << 8 | 1 << 6;
const READ_ONLY: u64 = 1 << 7;
/// Bits 1:0 of a page or the next table, and of a block.
const PAGE_OR_TABLE: u64 = 0b11;
const BLOCK: u64 = 0b01;

fn read(board: &Board, register: Register) -> u32 {
    board.read_u32(REGISTERS + u64::from(register.offset))
}

fn write(board: &Board, register: Register, value: u64) {
    let address = REGISTERS + u64::from(register.offset);
    if register.is_wide { board.write(address, value) } else { board.write_u32(address, value as u32) }
}

fn has_stopped(board: &Board) -> bool {
    (read(board, GERROR) ^ read(board, GERRORN)) & CMDQ_ERR != 0
}

/// The SMMU's side of the ring.
pub(super) struct Registers(Ring);

impl Port for Registers {
    fn set_tail(&self, position: u64) {
        self.0.send(position);
        write(&self.0.board, CMDQ_PROD, position % (2 * ENTRIES));
    }

    fn head(&self) -> u32 {
        read(&self.0.board, CMDQ_CONS)
    }

    fn sync(&self, _position: u64) -> Command {
        sync_poll()
    }

    fn reported(&self) -> Option<u64> {
        None
    }

    fn relax(&self, turns: u64) -> ControlFlow<()> {
        if has_stopped(&self.0.board) { ControlFlow::Break(()) } else { self.0.relax(turns) }
    }
}

pub(super) struct Smmu {
    pub(super) told: RingIommu<Registers>,
    pub(super) features: Features,
    pub(super) device: Edu,
    pub(super) outsider: Edu,
    events: RefCell<Reader>,
    entry: Cell<StreamEntry>,
    descriptor: Cell<ContextDescriptor>,
}

impl Smmu {
    /// Starts a machine whose SMMU is on, with a stream table of one level or two that is empty.
    pub(super) fn start(directory: &Path, split: Option<Split>) -> Result<Self> {
        // They address all memory of the board, which begins beyond 28 bits.
        let edu = |StreamId(stream)| format!("edu,dma_mask=0xffffffff,addr={:#x}", stream >> 3);
        let [edu, other] = [DEVICE, OUTSIDER].map(edu);
        let board = Rc::new(Board::start(directory, Kind::Virt, &[&edu, &other])?);
        let device = Edu::attach(&board, DEVICE.0 as u16, EDU);
        let outsider = Edu::attach(&board, OUTSIDER.0 as u16, OTHER_EDU);
        if let Some(split) = split {
            let first = first_level(STREAMS, STREAMS_ORDER, split).expect("it is aligned");
            board.write(FIRST_LEVEL, first);
        }
        for root in ROOTS {
            board.write(root, (root + 0x1000) | PAGE_OR_TABLE);
            board.write(root + 0x1000 + 8 * 0x40, (root + 0x2000) | PAGE_OR_TABLE);
        }
        let smmu = Self {
            features: Features::read(|register| read(&board, register)),
            told: RingIommu::new(Ring::new(&board, COMMANDS), Registers),
            device,
            outsider,
            events: RefCell::new(Reader::new(EVENTS_ORDER)),
            entry: Cell::new(StreamEntry::INVALID),
            descriptor: Cell::new(ContextDescriptor::INVALID),
        };
        smmu.bring_up(split)?;
        Ok(smmu)
    }

    fn bring_up(&self, split: Option<Split>) -> Result<()> {
        let streams = match split {
            None => StreamTable { address: STREAMS, order: STREAMS_ORDER, split },
            // Twice as many: nothing in the second half.
            Some(_) => StreamTable { address: FIRST_LEVEL, order: STREAMS_ORDER + 1, split },
        };
        let places = Places {
            streams,
            commands: RingPlace { address: COMMANDS, order: ORDER },
            events: RingPlace { address: EVENTS, order: EVENTS_ORDER },
        };
        let board = &self.told.board;
        for step in steps(&self.features, &places).map_err(|refusal| anyhow!("{refusal:?}"))? {
            match step {
                Step::Write(register, value) => write(board, register, value),
                Step::Await { register, mask, value } => {
                    let is_done = (0..READS_MAX).any(|_| read(board, register) & mask == value);
                    ensure!(is_done, "{step:x?} does not end");
                }
                Step::AcknowledgeErrors => write(board, GERRORN, read(board, GERROR).into()),
                Step::Forget => self.told.wait_for(forget_all(&self.features))?,
            }
        }
        board.check()
    }

    pub(super) fn set_entry(&self, new: StreamEntry) -> Result<()> {
        let tell = cfgi_ste(DEVICE, command::Depth::Leaf);
        self.change(entry_address(), self.entry.replace(new).change_to(new), tell)
    }

    pub(super) fn set_descriptor(&self, new: ContextDescriptor) -> Result<()> {
        self.change(CONTEXT, self.descriptor.replace(new).change_to(new), cfgi_cd(DEVICE))
    }

    fn change(&self, to: u64, steps: impl Iterator<Item = change::Step>, tell: Command) -> Result<()> {
        for step in steps {
            for (index, word) in step.writes() {
                self.told.board.write(to + 8 * index as u64, word);
            }
            self.told.wait_for([tell])?;
        }
        Ok(())
    }

    /// Writes the entry as it must not be done: nobody is told.
    pub(super) fn set_entry_silently(&self, new: StreamEntry) {
        self.entry.set(new);
        self.write_words(entry_address(), new.0);
    }

    pub(super) fn set_descriptor_silently(&self, new: ContextDescriptor) {
        self.descriptor.set(new);
        self.write_words(CONTEXT, new.0);
    }

    fn write_words(&self, to: u64, words: change::Words) {
        (0..).zip(words).for_each(|(index, word)| self.told.board.write(to + 8 * index, word));
    }

    /// Maps a page of 0x0800_0000 to 0x081f_ffff to a page of memory, which the device may write to
    /// or not; or unmaps it. In the table at `root`.
    pub(super) fn map(&self, root: u64, page: u64, to: Option<(u64, bool)>) {
        let access = |is_writable| if is_writable { 0 } else { READ_ONLY };
        let entry = to.map_or(0, |(page, is_writable)| page | LEAF | access(is_writable) | PAGE_OR_TABLE);
        self.told.board.write(root + 0x2000 + 8 * (page >> 12 & 511), entry);
    }

    /// Maps 2 MiB from an address below 1 GiB on to a block of memory, or unmaps them.
    pub(super) fn map_block(&self, from: u64, to: Option<u64>) {
        let entry = to.map_or(0, |block| block | LEAF | BLOCK);
        self.told.board.write(ROOTS[0] + 0x1000 + 8 * (from >> 21 & 511), entry);
    }

    /// Leads the walk for 2 MiB to a table at this address.
    pub(super) fn map_table(&self, from: u64, table: u64) {
        self.told.board.write(ROOTS[0] + 0x1000 + 8 * (from >> 21 & 511), table | PAGE_OR_TABLE);
    }

    pub(super) fn events(&self) -> Result<Vec<Event>> {
        let board = &self.told.board;
        let mut reader = self.events.borrow_mut();
        let prod = read(board, EVENTQ_PROD);
        let record = |index| {
            let at = EVENTS + u64::from(index) * RECORD_BYTES;
            Event::decode([0, 8, 16, 24].map(|word| board.read(at + word)))
        };
        let events = reader.unread(prod).map(record).collect();
        let advance = reader.advance(prod);
        write(board, EVENTQ_CONS, advance.cons.into());
        ensure!(!advance.has_lost, "events were lost");
        board.check()?;
        Ok(events)
    }

    pub(super) fn stopped_by(&self) -> Option<CommandError> {
        let board = &self.told.board;
        has_stopped(board).then(|| CommandError::decode(read(board, CMDQ_CONS)))
    }
}

const fn entry_address() -> u64 {
    STREAMS + 64 * DEVICE.0 as u64
}

//! Registers (IHI 0070, 6.3), by their offset from the SMMU's first page of 64 KiB.
//!
//! A change of CR0 and IRQ_CTRL is complete when the register for acknowledgements shows it, one
//! of GBPA when its bit UPDATE is clear again; [`start`](super::start) waits for that. Those of the
//! event queue's ends are in the second page, all others in the first.

/// A register. All accesses are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// Offset in bytes.
    pub offset: u32,
    /// It has 64 bits, else 32.
    pub is_wide: bool,
}

impl Register {
    const fn narrow(offset: u32) -> Self {
        Self { offset, is_wide: false }
    }

    const fn wide(offset: u32) -> Self {
        Self { offset, is_wide: true }
    }
}

/// What there is, decoded in [`Features`](super::Features).
pub const IDR0: Register = Register::narrow(0x00);
/// The same: sizes.
pub const IDR1: Register = Register::narrow(0x04);
/// The same: extensions.
pub const IDR3: Register = Register::narrow(0x0c);
/// The same: addresses and granules.
pub const IDR5: Register = Register::narrow(0x14);

/// What is enabled.
pub const CR0: Register = Register::narrow(0x20);
/// What of it has taken effect.
pub const CR0ACK: Register = Register::narrow(0x24);
/// CR0: the SMMU; without it [`GBPA`] decides about all accesses.
pub const SMMUEN: u32 = 1 << 0;
/// CR0: the queue of page requests.
pub const PRIQEN: u32 = 1 << 1;
/// CR0: the event queue.
pub const EVENTQEN: u32 = 1 << 2;
/// CR0: the command queue.
pub const CMDQEN: u32 = 1 << 3;
/// CR0: accesses with addresses that a device has had translated need an entry that allows ATS.
/// Without it they all pass.
pub const ATSCHK: u32 = 1 << 4;

/// How queues and tables are accessed: shareability, outer and inner cacheability, of tables in
/// bits 11:6, of queues in bits 5:0.
pub const CR1: Register = Register::narrow(0x28);
/// Settings of the whole SMMU.
pub const CR2: Register = Register::narrow(0x2c);
/// CR2: C_BAD_STREAMID is recorded.
pub const RECINVSID: u32 = 1 << 1;
/// CR2: TLB invalidations that processors broadcast are ignored.
pub const PTM: u32 = 1 << 2;

/// What becomes of accesses while the SMMU is off.
pub const GBPA: Register = Register::narrow(0x44);
/// GBPA: accesses are aborted.
pub const GBPA_ABORT: u32 = 1 << 20;
/// GBPA: written as 1 with the other fields; 0 again when they have taken effect.
pub const GBPA_UPDATE: u32 = 1 << 31;

/// Which interrupts are enabled.
pub const IRQ_CTRL: Register = Register::narrow(0x50);
/// Which of them have taken effect.
pub const IRQ_CTRL_ACK: Register = Register::narrow(0x54);
/// IRQ_CTRL: for errors.
pub const GERROR_IRQEN: u32 = 1 << 0;
/// IRQ_CTRL: for the queue of page requests.
pub const PRIQ_IRQEN: u32 = 1 << 1;
/// IRQ_CTRL: for the event queue.
pub const EVENTQ_IRQEN: u32 = 1 << 2;

/// Errors: those whose bits differ from [`GERRORN`] are active.
pub const GERROR: Register = Register::narrow(0x60);
/// Acknowledged errors.
pub const GERRORN: Register = Register::narrow(0x64);
/// GERROR: the command queue has stopped, see [`CommandError`].
pub const CMDQ_ERR: u32 = 1 << 0;
/// Address of the stream table. Not changed while [`SMMUEN`] is set; nor is the next.
pub const STRTAB_BASE: Register = Register::wide(0x80);
/// Its shape.
pub const STRTAB_BASE_CFG: Register = Register::narrow(0x88);
/// Address and size of the command queue. Not changed while [`CMDQEN`] is set.
pub const CMDQ_BASE: Register = Register::wide(0x90);
/// Its tail: where commands are put in.
pub const CMDQ_PROD: Register = Register::narrow(0x98);
/// Its head: which command is next, and why it has stopped.
pub const CMDQ_CONS: Register = Register::narrow(0x9c);
/// Address and size of the event queue. Not changed while [`EVENTQEN`] is set.
pub const EVENTQ_BASE: Register = Register::wide(0xa0);
/// The event queue's tail.
pub const EVENTQ_PROD: Register = Register::narrow(0x1_00a8);
/// Its head, written by software.
pub const EVENTQ_CONS: Register = Register::narrow(0x1_00ac);

/// Bytes from the beginning of the first page to the end of the second.
pub const LENGTH: u32 = 0x2_0000;

/// Why the command queue has stopped: CMDQ_CONS.ERR, while [`CMDQ_ERR`] is active (7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommandError {
    /// CERROR_NONE.
    None,
    /// CERROR_ILL: the command at the head does not exist, or this SMMU does not have it.
    Illegal,
    /// CERROR_ABT: memory returned an error for the command at the head.
    Abort,
    /// CERROR_ATC_INV_SYNC: a device did not answer an ATC_INV in time. The sync at the head is
    /// not complete.
    AtcTimeout,
    /// Another one.
    Other(u8),
}

impl CommandError {
    /// From the value of [`CMDQ_CONS`].
    pub const fn decode(cons: u32) -> Self {
        match (cons >> 24 & 0x7f) as u8 {
            0 => Self::None,
            1 => Self::Illegal,
            2 => Self::Abort,
            3 => Self::AtcTimeout,
            other => Self::Other(other),
        }
    }
}

//! The end of a run, as one byte that the hypervisor writes to QEMU's `isa-debug-exit` device.
//!
//! The device turns a value `v` into QEMU's exit status `2 v + 1`. Our values start at 0x20 so that
//! none of them is mistaken for a failure of QEMU itself, which has status 1.
//!
//! Arm machines have no such device. There the hypervisor stores the code in the
//! [beacon](crate::counters::Beacon::exit) and switches the machine off by PSCI.

/// I/O port of the `isa-debug-exit` device (`iobase=0xf4,iosize=0x04`).
pub const PORT: u16 = 0xf4;

/// The reason why the hypervisor stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitCode {
    /// The guest switched itself off.
    GuestPowerOff = 0x20,
    /// The guest came into a state that the processor refuses; its registers are in the log.
    GuestInvalid = 0x21,
    /// The hypervisor panicked; the report is in the log.
    Panic = 0x22,
    /// The bundle or its configuration is not usable; the reason is in the log.
    BadConfig = 0x23,
    /// The machine lacks what the hypervisor needs (SVM, memory, …); the reason is in the log.
    Unsupported = 0x24,
    /// The guest requested a reset and the configuration says `reset=exit`.
    GuestReset = 0x25,
    /// A processor did not leave guest mode when it was told to, and the guest's memory may still
    /// be in use; details are in the log.
    GuestStalled = 0x26,
    /// No page was left for a nested page table that the guest's access needed.
    GuestOutOfTables = 0x27,
}

impl ExitCode {
    /// Every code, for tables and lookup.
    pub const ALL: [Self; 8] = [
        Self::GuestPowerOff,
        Self::GuestInvalid,
        Self::Panic,
        Self::BadConfig,
        Self::Unsupported,
        Self::GuestReset,
        Self::GuestStalled,
        Self::GuestOutOfTables,
    ];

    /// QEMU's exit status for this code.
    pub const fn qemu_status(self) -> i32 {
        ((self as i32) << 1) | 1
    }

    /// The code of QEMU's exit status; `None` if the status is QEMU's own.
    pub fn from_qemu_status(status: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.qemu_status() == status)
    }

    /// The code with this value, as used for QEMU's status on Arm machines; `None` if there is
    /// none.
    pub fn from_code(value: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|code| *code as i32 == value)
    }

    /// What happened, as a clause about the guest.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::GuestPowerOff => "it switched itself off",
            Self::GuestInvalid => "the processor refuses its state",
            Self::Panic => "the hypervisor panicked",
            Self::BadConfig => "it cannot be started",
            Self::Unsupported => "the machine lacks what the hypervisor needs",
            Self::GuestReset => "it asked for a reset, and resets end it",
            Self::GuestStalled => "a processor did not leave it, so it was ended",
            Self::GuestOutOfTables => "there was no page left for a nested page table",
        }
    }

    /// Exit status of `./quell run` for this code.
    pub const fn tool_status(self) -> i32 {
        match self {
            Self::GuestPowerOff => 0,
            Self::GuestInvalid => 65,
            Self::BadConfig => 66,
            Self::Unsupported => 69,
            Self::Panic => 70,
            Self::GuestReset => 71,
            Self::GuestStalled => 72,
            Self::GuestOutOfTables => 73,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u3_a_stalled_guest_is_no_panic() {
        let mut statuses: std::vec::Vec<_> = ExitCode::ALL.into_iter().map(ExitCode::tool_status).collect();
        assert!(statuses.contains(&ExitCode::GuestStalled.tool_status()));
        statuses.sort_unstable();
        statuses.dedup();
        assert_eq!(statuses.len(), ExitCode::ALL.len(), "two ends look alike");
    }

    #[test]
    fn statuses_round_trip_and_spare_qemus_own() {
        for code in ExitCode::ALL {
            assert_eq!(ExitCode::from_qemu_status(code.qemu_status()), Some(code));
            assert!(code.qemu_status() > 1);
        }
        for code in ExitCode::ALL {
            assert_eq!(ExitCode::from_code(code as i32), Some(code));
            assert_eq!(ExitCode::from_code(code.qemu_status()), None);
        }
        assert_eq!((ExitCode::from_code(0), ExitCode::from_code(1)), (None, None));
        assert_eq!(ExitCode::from_qemu_status(1), None);
        assert_eq!(ExitCode::from_qemu_status(0), None);
    }
}

//! The end of a run, as one byte that the hypervisor writes to QEMU's `isa-debug-exit` device.
//!
//! The device turns a value `v` into QEMU's exit status `2 v + 1`. Our values start at 0x20 so that
//! none of them is mistaken for a failure of QEMU itself, which has status 1.
//!
//! Arm machines have no such device. There the hypervisor stores the code in the
//! [beacon](crate::counters::Beacon::exit) and switches the machine off by PSCI.

/// I/O port of the `isa-debug-exit` device (`iobase=0xf4,iosize=0x04`).
pub const PORT: u16 = 0xf4;

/// The codes: value, exit status of `./quell run`, and what happened.
macro_rules! codes {
    ($($(#[$about:meta])* $variant:ident = $code:literal, $status:literal, $reason:literal;)+) => {
        /// The reason why the hypervisor stopped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum ExitCode {
            $($(#[$about])* $variant = $code,)+
        }

        impl ExitCode {
            /// Every code, for tables and lookup.
            pub const ALL: [Self; [$($code),+].len()] = [$(Self::$variant),+];

            /// What happened, as a clause about the guest.
            pub const fn reason(self) -> &'static str {
                match self { $(Self::$variant => $reason,)+ }
            }

            /// Exit status of `./quell run` for this code.
            pub const fn tool_status(self) -> i32 {
                match self { $(Self::$variant => $status,)+ }
            }
        }
    };
}

codes! {
    /// The guest switched itself off.
    GuestPowerOff = 0x20, 0, "it switched itself off";
    /// The guest came into a state that the processor refuses; its registers are in the log.
    GuestInvalid = 0x21, 65, "the processor refuses its state";
    /// The hypervisor panicked; the report is in the log.
    Panic = 0x22, 70, "the hypervisor panicked";
    /// The bundle or its configuration is not usable; the reason is in the log.
    BadConfig = 0x23, 66, "it cannot be started";
    /// The machine lacks what the hypervisor needs (SVM, memory, …); the reason is in the log.
    Unsupported = 0x24, 69, "the machine lacks what the hypervisor needs";
    /// The guest requested a reset and the configuration says `reset=exit`.
    GuestReset = 0x25, 71, "it asked for a reset, and resets end it";
    /// A processor did not leave guest mode when it was told to, and the guest's memory may still
    /// be in use; details are in the log.
    GuestStalled = 0x26, 72, "a processor did not leave it, so it was ended";
    /// No page was left for a nested page table that the guest's access needed.
    GuestOutOfTables = 0x27, 73, "there was no page left for a nested page table";
}

impl ExitCode {
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

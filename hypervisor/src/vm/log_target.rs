//! Whom a line of the log is charged to.

use arrayvec::ArrayString;
use core::fmt::Write;
use hostlink::name::{NAME_BYTES, Name};

use super::arch::Arch;
use super::host::Host;
use crate::sched::VcpuIndex;

/// The target of log lines that a guest can cause as often as it likes: they have a quota
/// (`quota.rs`), that of the guest whose vCPU is on the CPU. Where that is another one's, as in an
/// interrupt, the target is [`caused_by`].
pub const GUEST: &str = "guest";

/// The target of a line that the guest of this name has caused, on whatever CPU.
pub fn caused_by(guest: Name) -> ArrayString<{ GUEST.len() + NAME_BYTES }> {
    let mut target = ArrayString::new();
    // It has room for each name.
    let _ = write!(target, "{GUEST} {guest}");
    target
}

/// Who has caused a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charged {
    /// The guest's number; `None` if it is no guest's.
    pub guest: Option<usize>,
    /// Its name, if there are several guests and the line does not have it.
    pub name: Option<Name>,
    /// The row whose counters count it when it is left out.
    pub row: Option<VcpuIndex>,
}

impl Charged {
    /// No guest.
    pub const NOBODY: Self = Self { guest: None, name: None, row: None };
}

impl<A: Arch> Host<A> {
    /// Who has caused a line with this target, on a CPU with a vCPU of this row. `None` if it has
    /// no quota.
    pub fn charged(&self, target: &str, here: Option<VcpuIndex>) -> Option<Charged> {
        let rest = target.strip_prefix(GUEST)?;
        let Some(wanted) = rest.strip_prefix(' ') else {
            let Some(row) = here.filter(|_| rest.is_empty()) else { return Some(Charged::NOBODY) };
            let (guest, name) = self.guest_of(row);
            return Some(Charged { guest: Some(guest), name, row: Some(row) });
        };
        let guest = self.bundle.guests.iter().position(|files| files.config.name.as_str() == wanted);
        let row = guest.and_then(|guest| self.a_row_of(guest));
        Some(Charged { guest, name: None, row })
    }
}

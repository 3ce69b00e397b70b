//! The hand-over: a guest runs on exactly one of two machines, whatever breaks between them.
//!
//! Each machine's hypervisor has one of these. The tools and the connection between them only carry
//! what they say, and may lose it: a connection is cut at any byte, in both directions, and a tool
//! may end. Within a connection nothing is reordered or said twice.
//!
//! ```text
//! source                                          target
//!
//!    Here ── the guest stands still ──▶ Offered
//!                          ··· pages and state ···▶ R  all is there, and checked: Ready
//! G  Offered, hears Ready: Given  ◀····· Ready ·····
//!      says Go                     ······ Go ······▶ S  Ready, hears Go: it runs, and is Running
//! E  Given, hears Runs: Away      ◀····· Runs ······
//!
//!    Offered, and cut:  it runs again, Here          Ready, or before it, and cut: Dropped
//!    Given, and cut:    it waits, and asks again  ···▶ Running says Runs, Dropped says Absent
//! H  Given, hears Absent: it runs again, Here
//! ```
//!
//! | must hold | because |
//! |---|---|
//! | they never both run | the source stands still from Offered on and forgets it only at a cut before G, or at H. Before G nobody has said Go, so the target is not at S. Absent is said by a target that is Dropped, which stays so, or for one whose machine is gone |
//! | one of them runs in the end, if the source lives | Given is left by Runs or by Absent; a target that was cut is Running or Dropped, and says which, as often as it is asked; it drops before S only, and by itself |
//! | a Go that was under way at a cut counts, or is lost, for good | the target answers on a new connection only when it has read the former one to its end |
//!
//! A machine that is gone has dropped its guest, whether it ran or not: `Absent` may be said for it
//! by whoever *knows* that it is gone.

#[cfg(all(test, not(loom)))]
mod model;

/// Where the guest is, for the machine that it leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Source {
    /// It runs here, or may.
    #[default]
    Here,
    /// It stands still, and the target has or gets all of it.
    Offered,
    /// The target may run it: here it stands still.
    Given,
    /// It runs there: here it is to be destroyed.
    Away,
}

/// For the machine at which it arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Target {
    /// It is not complete yet.
    #[default]
    Arriving,
    /// It is complete, and may not run yet.
    Ready,
    /// It runs here.
    Running,
    /// It is to be destroyed, and never runs here.
    Dropped,
}

/// What a machine hears from the other, or from its own tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Heard {
    /// The target has all of the guest.
    Ready,
    /// The target may run the guest.
    Go,
    /// The guest runs at the target.
    Runs,
    /// The guest does not run at the target, and never will.
    Absent,
    /// The connection is cut, or the hand-over is cancelled.
    Cut,
}

/// What a machine does about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    /// Nothing.
    Wait,
    /// It lets the guest run; then it says this, if anything.
    Run(Option<Heard>),
    /// It says this.
    Say(Heard),
    /// It destroys the guest.
    Destroy,
}

impl Source {
    /// The guest stands still, for its last pages and its state to be sent.
    pub const fn offer(&mut self) {
        if let Self::Here = self {
            *self = Self::Offered;
        }
    }

    /// Whether it may be cancelled: nobody else may run the guest.
    pub const fn may_cancel(self) -> bool {
        matches!(self, Self::Here | Self::Offered)
    }

    /// What follows from what it hears. Whatever does not belong here changes nothing.
    pub const fn hear(&mut self, heard: Heard) -> Act {
        match (*self, heard) {
            (Self::Offered, Heard::Ready) => {
                *self = Self::Given;
                Act::Say(Heard::Go)
            }
            (Self::Offered, Heard::Cut | Heard::Absent) | (Self::Given, Heard::Absent) => {
                *self = Self::Here;
                Act::Run(None)
            }
            (Self::Given, Heard::Runs) => {
                *self = Self::Away;
                Act::Destroy
            }
            _ => Act::Wait,
        }
    }
}

impl Target {
    /// All of the guest is there, and checked.
    pub const fn complete(&mut self) -> Act {
        match *self {
            Self::Arriving => {
                *self = Self::Ready;
                Act::Say(Heard::Ready)
            }
            _ => Act::Wait,
        }
    }

    /// What follows from what it hears.
    pub const fn hear(&mut self, heard: Heard) -> Act {
        match (*self, heard) {
            (Self::Ready, Heard::Go) => {
                *self = Self::Running;
                Act::Run(Some(Heard::Runs))
            }
            (Self::Arriving | Self::Ready, Heard::Cut) => {
                *self = Self::Dropped;
                Act::Destroy
            }
            _ => Act::Wait,
        }
    }

    /// What it says to a source that asks on a new connection, after the former one was read to its
    /// end.
    pub const fn answer(self) -> Option<Heard> {
        match self {
            Self::Running => Some(Heard::Runs),
            Self::Dropped => Some(Heard::Absent),
            Self::Arriving | Self::Ready => None,
        }
    }
}

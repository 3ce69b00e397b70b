//! The hand-over: a guest never runs on two machines at once, whatever breaks between them.
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
//!    Given, and cut:    it waits, and asks again  ···▶ its tool says what it knows: Known
//! H  Given, hears Absent: it runs again, Here
//! ```
//!
//! | must hold | because |
//! |---|---|
//! | they never both run | the source stands still from Offered on and forgets it only at a cut before G, or at H. Before G nobody has said Go, so the target is not at S. H follows from the word of the machine that has accepted the session and dropped its guest for good ([`SessionStatus::Absent`]), or from the operator's that this machine is gone |
//! | one of them runs in the end, if the source lives | Given is left by Runs or by Absent; a target that was cut is Running or Dropped, and its tool says which, as often as it is asked; it drops before S only, and by itself. If its tool does not know, or nobody answers, the guest is in doubt until the operator decides |
//! | a Go that was under way at a cut counts, or is lost, for good | the target's tool answers [`SessionStatus::Pending`] until the request by which the guest arrives has ended, and that ends when the former connection was read to its end |
//!
//! A session is 64 random bits that the source has drawn: a machine that does not know a session is
//! another one, which proves nothing. Nor does an address at which nobody listens: only the way
//! there may be gone.

#[cfg(all(test, not(loom)))]
mod model;

/// The state of a hand-over at the machine that the guest leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SourceState {
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

/// The state of a hand-over at the machine at which the guest arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TargetState {
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

/// What a machine hears: from the other, or, of a cut, from its own tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message {
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
pub enum Action {
    /// Nothing.
    Wait,
    /// It lets the guest run; then it says this, if anything.
    Run(Option<Message>),
    /// It says this.
    Say(Message),
    /// It destroys the guest.
    Destroy,
}

impl SourceState {
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
    pub const fn hear(&mut self, heard: Message) -> Action {
        match (*self, heard) {
            (Self::Offered, Message::Ready) => {
                *self = Self::Given;
                Action::Say(Message::Go)
            }
            (Self::Offered, Message::Cut | Message::Absent) | (Self::Given, Message::Absent) => {
                *self = Self::Here;
                Action::Run(None)
            }
            (Self::Given, Message::Runs) => {
                *self = Self::Away;
                Action::Destroy
            }
            _ => Action::Wait,
        }
    }
}

impl TargetState {
    /// All of the guest is there, and checked.
    pub const fn complete(&mut self) -> Action {
        match *self {
            Self::Arriving => {
                *self = Self::Ready;
                Action::Say(Message::Ready)
            }
            _ => Action::Wait,
        }
    }

    /// What follows from what it hears.
    pub const fn hear(&mut self, heard: Message) -> Action {
        match (*self, heard) {
            (Self::Ready, Message::Go) => {
                *self = Self::Running;
                Action::Run(Some(Message::Runs))
            }
            (Self::Arriving | Self::Ready, Message::Cut) => {
                *self = Self::Dropped;
                Action::Destroy
            }
            _ => Action::Wait,
        }
    }
}

/// How the request by which a guest arrives has ended, for the target's tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The guest runs.
    Well,
    /// The hypervisor has dropped it, and says so.
    Refused,
    /// The conversation with the hypervisor broke off.
    Broken,
}

/// What the target's tool knows of a session that it has accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Known {
    /// The guest is arriving.
    #[default]
    Pending,
    /// It runs here, or ran here and has left or ended since.
    Ran,
    /// It was dropped, and never runs here.
    Dropped,
    /// The conversation with the hypervisor broke off before that was known.
    Lost,
}

impl Known {
    /// The hypervisor says that the guest runs.
    pub const fn runs(&mut self) {
        *self = Self::Ran;
    }

    /// The request has ended. What the hypervisor said before counts.
    pub const fn end(&mut self, how: Ended) {
        *self = match (*self, how) {
            (Self::Pending, Ended::Well) => Self::Ran,
            (Self::Pending, Ended::Refused) => Self::Dropped,
            (Self::Pending, Ended::Broken) => Self::Lost,
            (known, _) => known,
        };
    }
}

/// What a source's tool is told of its session at a target's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum SessionStatus {
    /// By the machine that has accepted it: the guest runs there, or ran there.
    Runs,
    /// By that machine: it does not run there, and never will.
    Absent,
    /// By that machine: the guest is arriving.
    Pending,
    /// By that machine: its tool does not know.
    Lost,
    /// By a machine that has never heard of the session.
    Stranger,
    /// Nothing that proves to be of a machine with the secret.
    Nobody,
}

impl SessionStatus {
    /// What a machine says of a session: what it knows if it has accepted that.
    pub const fn of(known: Option<Known>) -> Self {
        match known {
            Some(Known::Ran) => Self::Runs,
            Some(Known::Dropped) => Self::Absent,
            Some(Known::Pending) => Self::Pending,
            Some(Known::Lost) => Self::Lost,
            None => Self::Stranger,
        }
    }

    /// What the source's hypervisor hears of it; nothing while that leaves the guest in doubt.
    /// `is_gone`: the operator vouches that the machine which has accepted the session is gone.
    pub const fn decides(self, is_gone: bool) -> Option<Message> {
        match self {
            Self::Runs => Some(Message::Runs),
            Self::Absent => Some(Message::Absent),
            Self::Stranger | Self::Nobody if is_gone => Some(Message::Absent),
            // What answers is not gone.
            Self::Pending | Self::Lost | Self::Stranger | Self::Nobody => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Message; 5] = [Message::Ready, Message::Go, Message::Runs, Message::Absent, Message::Cut];

    #[test]
    fn m2_the_diagram_has_all_steps_of_the_source() {
        use SourceState::{Away, Given, Here, Offered};
        for from in [Here, Offered, Given, Away] {
            for heard in ALL {
                let (to, act) = match (from, heard) {
                    (Offered, Message::Ready) => (Given, Action::Say(Message::Go)),
                    (Offered, Message::Cut | Message::Absent) | (Given, Message::Absent) => {
                        (Here, Action::Run(None))
                    }
                    (Given, Message::Runs) => (Away, Action::Destroy),
                    (same, _) => (same, Action::Wait),
                };
                let mut now = from;
                assert_eq!((now.hear(heard), now), (act, to), "{from:?} hears {heard:?}");
            }
            let mut now = from;
            now.offer();
            assert_eq!(now, if from == Here { Offered } else { from });
            assert_eq!(from.may_cancel(), matches!(from, Here | Offered));
        }
    }

    #[test]
    fn m2_the_diagram_has_all_steps_of_the_target() {
        use TargetState::{Arriving, Dropped, Ready, Running};
        for from in [Arriving, Ready, Running, Dropped] {
            for heard in ALL {
                let (to, act) = match (from, heard) {
                    (Ready, Message::Go) => (Running, Action::Run(Some(Message::Runs))),
                    (Arriving | Ready, Message::Cut) => (Dropped, Action::Destroy),
                    (same, _) => (same, Action::Wait),
                };
                let mut now = from;
                assert_eq!((now.hear(heard), now), (act, to), "{from:?} hears {heard:?}");
            }
            let mut now = from;
            let expected =
                if from == Arriving { (Action::Say(Message::Ready), Ready) } else { (Action::Wait, from) };
            assert_eq!((now.complete(), now), expected);
        }
    }

    #[test]
    fn m2_what_the_tool_knows_is_what_it_heard_first() {
        use Known::{Dropped, Lost, Pending, Ran};
        for (known, how, then) in [
            (Pending, Ended::Well, Ran),
            (Pending, Ended::Refused, Dropped),
            (Pending, Ended::Broken, Lost),
            (Ran, Ended::Broken, Ran),
            (Dropped, Ended::Well, Dropped),
            (Lost, Ended::Refused, Lost),
        ] {
            let mut now = known;
            now.end(how);
            assert_eq!(now, then, "{known:?} {how:?}");
        }
        let mut now = Pending;
        now.runs();
        assert_eq!(now, Ran);
        for (known, told, decided, if_gone) in [
            (Some(Ran), SessionStatus::Runs, Some(Message::Runs), Some(Message::Runs)),
            (Some(Dropped), SessionStatus::Absent, Some(Message::Absent), Some(Message::Absent)),
            (Some(Pending), SessionStatus::Pending, None, None),
            (Some(Lost), SessionStatus::Lost, None, None),
            (None, SessionStatus::Stranger, None, Some(Message::Absent)),
        ] {
            assert_eq!(SessionStatus::of(known), told);
            assert_eq!([told.decides(false), told.decides(true)], [decided, if_gone]);
        }
        assert_eq!(
            [false, true].map(|gone| SessionStatus::Nobody.decides(gone)),
            [None, Some(Message::Absent)]
        );
    }
}

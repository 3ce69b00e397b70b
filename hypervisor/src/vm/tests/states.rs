//! What guests do, by what was requested and answered: from the documentation of requests and
//! states (`hostlink::ctl::Request`, `hostlink::guests::GuestState`), not from their
//! implementation.

use alloc::string::String;
use alloc::vec::Vec;
use hostlink::guests::GuestState::{self, *};

/// A request about one guest, or a look at it.
#[derive(Clone, Debug)]
pub(super) struct Event<'a> {
    pub(super) asked: u64,
    pub(super) answered: u64,
    pub(super) what: What<'a>,
}

#[derive(Clone, Debug)]
pub(super) enum What<'a> {
    Request(&'a str, &'a str),
    /// It was listed with this state.
    Is(GuestState),
    /// It was listed, or not, with those that there are.
    Exists(bool),
}

/// What a guest may do after each of its requests.
#[derive(Clone, Debug)]
pub(super) struct States {
    may_be: Vec<GuestState>,
    /// How it may end by itself while it runs.
    ends: &'static [GuestState],
}

impl States {
    /// It is created by a request.
    pub(super) fn new(ends: &'static [GuestState]) -> Self {
        Self { may_be: Vec::from([Empty]), ends }
    }

    /// Compares it with all that is known of the guest; returns the number of looks.
    pub(super) fn check(&mut self, mut events: Vec<Event<'_>>) -> Result<usize, String> {
        events.sort_by_key(|event| event.answered);
        let mut looks = 0;
        for Event { asked, answered, what } in &events {
            let meets = |other: &Event<'_>| {
                matches!(other.what, What::Request(..)) && other.asked < *answered && other.answered > *asked
            };
            let before = self.clone();
            match what {
                What::Request(line, answer) => self.answered(line, answer),
                // It was listed before or after that request did something.
                _ if events.iter().any(meets) => continue,
                What::Is(state) => self.may_be.retain(|may| may == state),
                What::Exists(exists) => self.may_be.retain(|may| (*may != Empty) == *exists),
            }
            if self.may_be.is_empty() {
                return Err(alloc::format!("{what:?}, asked at {asked}: it may be {:?}", before.may_be));
            }
            if !matches!(what, What::Request(..)) {
                looks += 1;
                // Other looks at the same time may have been earlier.
                *self = before;
            }
        }
        Ok(looks)
    }

    fn answered(&mut self, line: &str, answer: &str) {
        const THERE: &[GuestState] = &[Loaded, Running, Paused, Off, Failed];
        let request = line.split(' ').next().unwrap_or_default();
        let (of, to): (&[GuestState], Option<&[GuestState]>) = match (request, answer) {
            // The refusal names the state. Nothing has changed.
            (_, answer) if answer.contains("this is for a guest that is") => (&GuestState::ALL, None),
            (_, "error there is no such guest") => (&[Empty], None),
            ("input", answer) if answer.starts_with("error the machine's file") => (&[Empty], None),
            ("guest-create", "ok") => (&[Empty], Some(&[Loaded])),
            ("guest-start", "ok") => (&[Loaded, Off, Failed], Some(&[Running])),
            ("guest-start", _) => (&[Off, Failed], Some(&[Failed])),
            ("guest-pause", "ok") => (&[Running], Some(&[Paused])),
            ("guest-resume", "ok") => (&[Paused], Some(&[Running])),
            ("guest-wake" | "guest-reset", "ok") => (&[Running], None),
            ("guest-destroy", "ok") => (THERE, Some(&[Empty])),
            ("guest-send", "error the guest has ended") => (&[Running], Some(self.ends)),
            // The tool leaves before the end: the guest stays as it was, or has not come.
            ("guest-send", _) => (&[Running, Paused], None),
            ("guest-create" | "guest-receive", answer) if answer != "ok" => (&[Empty], None),
            (request, _) if request.starts_with('@') || request == "input" => (THERE, None),
            _ => (&[], None),
        };
        let is_named = |may: &GuestState| answer.contains(&alloc::format!(" is {may}: "));
        self.may_be.retain(|may| of.contains(may) && (of != GuestState::ALL || is_named(may)));
        if let Some(to) = to.filter(|_| !self.may_be.is_empty()) {
            self.may_be = to.to_vec();
        }
        // It may have ended before the answer, or ends later.
        if !self.may_be.is_empty() && (of == [Running] || self.may_be.contains(&Running)) {
            self.may_be.extend_from_slice(self.ends);
        }
    }
}

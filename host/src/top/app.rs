//! The state of the view that keys change: the watched machine, and how it is shown.

use super::rates::{COLUMNS, Column, Rates, waits};
use super::source::{Sample, Source};
use crate::machine::control::Found;
use crate::prelude::*;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::borrow::Cow;

/// A request by key that the state alone cannot fulfil.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Nothing,
    Quit,
    /// Another machine, this many places further on.
    Machine(isize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// Its hypervisor has not begun to count.
    Starts,
    Runs,
    Ended,
}

pub(super) struct App {
    pub(super) machine: Found,
    /// The machine's figures, while it can be watched and after its end.
    pub(super) source: Option<Source>,
    pub(super) life: Life,
    /// Why nothing can be shown, if so.
    pub(super) trouble: Option<String>,
    pub(super) names: Vec<String>,
    pub(super) last: Option<Sample>,
    pub(super) rates: Option<Rates>,
    /// Index of the column that rows are sorted by.
    pub(super) sort: usize,
    pub(super) is_falling: bool,
    /// The first row shown, and the number of rows that fit.
    pub(super) first: usize,
    page: usize,
    pub(super) is_paused: bool,
    pub(super) has_help: bool,
    /// Whether the waits are those since the machine's start, not those of the interval.
    pub(super) has_all_waits: bool,
    /// Whether the rows are vCPUs even if there are several guests.
    has_vcpus: bool,
}

impl App {
    pub(super) fn new(machine: Found) -> Self {
        let mut app = Self {
            machine,
            source: None,
            life: Life::Starts,
            trouble: None,
            names: Vec::new(),
            last: None,
            rates: None,
            sort: 0,
            is_falling: false,
            first: 0,
            page: 1,
            is_paused: false,
            has_help: false,
            has_all_waits: false,
            has_vcpus: false,
        };
        app.open();
        app
    }

    /// The machine's position among the running ones, from 1, and their number.
    pub(super) fn place(&self) -> Option<(usize, usize)> {
        let place = self.names.iter().position(|name| *name == self.machine.name)?;
        Some((place + 1, self.names.len()))
    }

    pub(super) fn ended(&self) -> Option<String> {
        (self.life == Life::Ended).then(|| format!("machine {} has ended", self.machine.name))
    }

    pub(super) fn column(&self) -> &'static Column {
        &COLUMNS[self.sort]
    }

    /// The rates to show: of guests if there are several, unless vCPUs are wanted.
    pub(super) fn shown(&self) -> Option<Cow<'_, Rates>> {
        let rates = self.rates.as_ref()?;
        let by_guest = rates.has_guests() && !self.has_vcpus;
        Some(if by_guest { Cow::Owned(rates.by_guest()) } else { Cow::Borrowed(rates) })
    }

    pub(super) fn waits(&self) -> [u64; Counter::WAITS.len()] {
        let all = self.last.as_ref().filter(|_| self.has_all_waits).map(|sample| waits(&sample.counters));
        let interval = self.rates.as_ref().filter(|_| !self.has_all_waits).map(Rates::waits);
        all.or(interval).unwrap_or_default()
    }

    fn open(&mut self) {
        (self.source, self.last, self.rates) = (None, None, None);
        (self.life, self.trouble, self.first) = (Life::Starts, None, 0);
        match Source::open(&self.machine) {
            Ok(Some(source)) => self.source = Some(source),
            Ok(None) if self.machine.is_alive() => {
                self.trouble = Some("it does not say where its counters are".to_owned());
            }
            Ok(None) => self.life = Life::Ended,
            Err(error) => self.trouble = Some(format!("{error:#}")),
        }
    }

    pub(super) fn refresh(&mut self, machines: Vec<Found>) {
        self.names = machines.into_iter().map(|machine| machine.name).collect();
        if self.life == Life::Ended {
            return;
        }
        let Some(source) = &self.source else {
            // Its notice may have been about to appear.
            return self.open();
        };
        // Checked first: if the machine ends after that, the next refresh notices.
        let is_running = source.is_running();
        if !self.is_paused || !is_running {
            match source.sample() {
                Ok(Some(sample)) => {
                    let rates = self.last.as_ref().and_then(|last| Rates::between(last, &sample));
                    self.rates = rates.or(self.rates.take());
                    self.last = Some(sample);
                    (self.life, self.trouble) = (Life::Runs, None);
                }
                Ok(None) => {}
                Err(error) => self.trouble = Some(format!("{error:#}")),
            }
        }
        if !is_running {
            self.life = Life::Ended;
        }
    }

    /// Watches another of `machines`: the one `step` places further on.
    pub(super) fn turn_to(&mut self, step: isize, machines: Vec<Found>) {
        let here = machines.iter().position(|machine| machine.name == self.machine.name);
        let count = machines.len().cast_signed();
        let next = here.map_or(0, |here| (here.cast_signed() + step).rem_euclid(count).cast_unsigned());
        if Some(next) != here
            && let Some(machine) = machines.get(next)
        {
            self.machine = machine.clone();
            self.is_paused = false;
            self.open();
        }
        self.refresh(machines);
    }

    /// Sets the number of vCPU rows that fit.
    pub(super) fn fit(&mut self, page: usize) {
        self.page = page.max(1);
        let vcpus = self.shown().map_or(0, |rates| rates.vcpus());
        self.first = self.first.min(vcpus.saturating_sub(self.page));
    }

    pub(super) fn press(&mut self, key: KeyEvent) -> Wish {
        let columns = COLUMNS.len();
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Wish::Quit,
            KeyCode::Char('q') => return Wish::Quit,
            KeyCode::Esc if !self.has_help => return Wish::Quit,
            KeyCode::Tab => return Wish::Machine(1),
            KeyCode::BackTab => return Wish::Machine(-1),
            KeyCode::Esc => self.has_help = false,
            KeyCode::Char('?' | 'h') => self.has_help = !self.has_help,
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('g') => self.has_vcpus = !self.has_vcpus,
            KeyCode::Char('r') => self.is_falling = !self.is_falling,
            KeyCode::Char('w') => self.has_all_waits = !self.has_all_waits,
            KeyCode::Right | KeyCode::Char('s') => self.sort_by((self.sort + 1) % columns),
            KeyCode::Left | KeyCode::Char('S') => self.sort_by((self.sort + columns - 1) % columns),
            KeyCode::Up => self.first = self.first.saturating_sub(1),
            KeyCode::Down => self.first = self.first.saturating_add(1),
            KeyCode::PageUp => self.first = self.first.saturating_sub(self.page),
            KeyCode::PageDown => self.first = self.first.saturating_add(self.page),
            KeyCode::Home => self.first = 0,
            KeyCode::End => self.first = usize::MAX,
            _ => {}
        }
        self.fit(self.page);
        Wish::Nothing
    }

    /// Sorts by a column: ascending by vCPU number, descending by all other columns.
    fn sort_by(&mut self, column: usize) {
        (self.sort, self.is_falling) = (column, column != 0);
    }

    #[cfg(test)]
    pub(super) fn with_rates(mut self, rates: Rates) -> Self {
        (self.rates, self.life) = (Some(rates), Life::Runs);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::super::rates::tests::rates;
    use super::super::source::made::MockMachine;
    use super::*;

    fn press(app: &mut App, code: KeyCode) -> Wish {
        app.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn a_machine_that_ends_keeps_its_last_figures() {
        let mut machine = MockMachine::new(2);
        let (mut app, found) = (App::new(machine.found.clone()), machine.found.clone());
        app.refresh(vec![found.clone()]);
        assert!(app.life == Life::Starts && app.rates.is_none() && app.place() == Some((1, 1)));
        machine.begin();
        for io in [10, 30] {
            machine.set(0, Counter::ExitIo, io);
            app.refresh(vec![found.clone()]);
        }
        let counted = |app: &App| {
            let rates = app.rates.as_ref().expect("two samples");
            (rates.exits() * rates.seconds).round()
        };
        assert!(app.life == Life::Runs && (counted(&app) - 20.0).abs() < 0.5 && app.ended().is_none());

        press(&mut app, KeyCode::Char('p'));
        machine.set(0, Counter::ExitIo, 90);
        app.refresh(vec![found.clone()]);
        assert!((counted(&app) - 20.0).abs() < 0.5, "it is paused");
        machine.end();
        app.refresh(Vec::new());
        assert!((counted(&app) - 60.0).abs() < 0.5, "the last look is at what there was");
        app.refresh(Vec::new());
        assert!(app.ended().is_some_and(|said| said.contains("has ended")) && app.rates.is_some());
        app.turn_to(1, Vec::new());
        assert_eq!(app.life, Life::Ended, "there is no other");
    }

    #[test]
    fn tab_goes_round_the_machines() {
        let (one, two) = (MockMachine::new(1), MockMachine::new(3));
        two.begin();
        let mut other = two.found.clone();
        other.name = format!("{}-1", other.name);
        let all = || vec![one.found.clone(), other.clone()];
        let mut app = App::new(one.found.clone());
        app.refresh(all());
        assert_eq!(
            (press(&mut app, KeyCode::Tab), press(&mut app, KeyCode::BackTab)),
            (Wish::Machine(1), Wish::Machine(-1))
        );
        app.turn_to(1, all());
        assert_eq!((&app.machine.name, app.place()), (&other.name, Some((2, 2))));
        app.turn_to(1, all());
        assert_eq!(app.machine.name, one.found.name);
        app.turn_to(-1, all());
        assert_eq!(app.machine.name, other.name);
    }

    #[test]
    fn one_that_says_nothing_is_no_end_of_the_view() {
        let machine = MockMachine::new(1);
        let directory = tempfile::tempdir().expect("makes");
        let silent = Found::made_up(&machine.found.name, directory.path());
        let mut app = App::new(silent.clone());
        assert!(app.trouble.as_ref().is_some_and(|said| said.contains("does not say")));
        app.refresh(vec![silent]);
        assert!(app.life == Life::Starts && app.trouble.is_some());
    }

    #[test]
    fn keys_sort_and_scroll_within_what_there_is() {
        let counts = vec![&[][..]; 20];
        let machine = MockMachine::new(20);
        let mut app = App::new(machine.found.clone()).with_rates(rates(&counts));
        app.fit(8);
        assert_eq!((app.column().title, app.is_falling), ("vcpu", false));
        press(&mut app, KeyCode::Right);
        assert_eq!((app.column().title, app.is_falling), ("exits", true));
        press(&mut app, KeyCode::Char('r'));
        assert!(!app.is_falling);
        for _ in 0..2 {
            press(&mut app, KeyCode::Left);
        }
        assert_eq!(app.column().title, "steal");
        press(&mut app, KeyCode::Char('s'));
        assert_eq!((app.column().title, app.is_falling), ("vcpu", false));

        for (key, first) in [
            (KeyCode::Up, 0),
            (KeyCode::Down, 1),
            (KeyCode::PageDown, 9),
            (KeyCode::PageDown, 12),
            (KeyCode::Down, 12),
            (KeyCode::PageUp, 4),
            (KeyCode::End, 12),
            (KeyCode::Home, 0),
        ] {
            press(&mut app, key);
            assert_eq!(app.first, first, "{key:?}");
        }
        press(&mut app, KeyCode::Char('?'));
        assert!(app.has_help);
        assert_eq!(press(&mut app, KeyCode::Esc), Wish::Nothing, "it leads back");
        assert!(!app.has_help);
        assert_eq!(press(&mut app, KeyCode::Esc), Wish::Quit);
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(app.press(control_c), Wish::Quit);
    }
}

//! Shows and logs the consoles of a machine's guests while it runs, on a thread of its own.

use super::lines::{Lines, QUIET};
use super::logs::Logs;
use super::screen::Screen;
use crate::machine::guests::{Entries, Follower, GuestSeen, Identity};
use crate::machine::reports::Stream;
use crate::poll::Poll;
use crate::prelude::*;
use hostlink::guests::{CONSOLES, GuestState};
use rustix::termios::tcgetwinsize;

const PERIOD: Duration = Duration::from_millis(10);

/// How the first consoles are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// As lines, each after its guest's name.
    Rows {
        /// On a terminal.
        has_colours: bool,
    },
    /// Byte by byte: there is only one guest.
    Raw,
}

/// What is known of a guest when the machine has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Last {
    pub(crate) state: GuestState,
    /// The status of its `exec` command, if it reported one.
    pub(crate) status: Option<u64>,
}

/// What is known when the machine has ended.
pub(crate) struct Seen {
    pub(crate) guests: BTreeMap<Name, Last>,
    /// What could not be written of what was to be shown and logged, and why.
    pub(crate) unwritten: Vec<String>,
}

/// The thread. Finish it when the machine has ended.
pub(crate) type Viewer = Poll<Seen>;

impl Viewer {
    /// Begins to show a machine's consoles on standard output. `names` are guests to come.
    pub(crate) fn start(machine: &Machine, look: Look, names: &[Name], logs: Logs) -> Result<Self> {
        let (ram, beacon) = machine.shared()?;
        let has_colours = look == Look::Rows { has_colours: true };
        let screen = Screen::new(Box::new(std::io::stdout()), has_colours, names).on_terminal(columns);
        let look_at = move |all: &mut Consoles| all.look(&ram, beacon, Instant::now());
        Ok(Self::spawn(PERIOD, Consoles::new(look, screen, logs), look_at, |all| Ok(all.finish())))
    }
}

fn columns() -> Option<usize> {
    let size = tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

struct Consoles {
    look: Look,
    screen: Screen,
    logs: Logs,
    entries: Option<Entries>,
    /// By number of the entry.
    guests: BTreeMap<u32, Followed>,
    last: BTreeMap<Name, Last>,
}

struct Followed {
    id: Identity,
    state: GuestState,
    consoles: [Option<Follower>; CONSOLES],
    lines: Lines,
    reports: Stream,
}

impl Consoles {
    fn new(look: Look, screen: Screen, logs: Logs) -> Self {
        Self { look, screen, logs, entries: None, guests: BTreeMap::new(), last: BTreeMap::new() }
    }

    fn look(&mut self, ram: &Ram, beacon: u64, now: Instant) -> Result<()> {
        if self.entries.is_none() {
            self.entries = Entries::find(ram, beacon)?;
        }
        let Some(entries) = self.entries else { return Ok(()) };
        for guest in entries.guests(ram)? {
            self.follow(ram, &entries, &guest, now)?;
        }
        let known: Vec<u32> = self.guests.keys().copied().collect();
        for index in known {
            if entries.is_free(ram, index)? {
                self.forget(index);
            }
        }
        self.screen.flush();
        Ok(())
    }

    fn forget(&mut self, index: u32) {
        let Some(mut guest) = self.guests.remove(&index) else { return };
        self.screen.rows(guest.id.name, guest.lines.finish());
        if self.look != Look::Raw {
            self.screen.remark(guest.id.name, "destroyed");
        }
    }

    fn follow(&mut self, ram: &Ram, entries: &Entries, seen: &GuestSeen, now: Instant) -> Result<()> {
        let known = self.guests.get(&seen.index);
        if known.is_none_or(|guest| guest.id != seen.identity()) {
            self.forget(seen.index);
            let has_colours = self.look == Look::Rows { has_colours: true };
            self.guests.insert(seen.index, Followed::new(seen, has_colours));
        }
        let Some(guest) = self.guests.get_mut(&seen.index) else { return Ok(()) };
        let (id, state) = (guest.id, guest.state);
        for (port, follower) in guest.consoles.iter_mut().enumerate() {
            let Some(follower) = follower else { continue };
            let is_there = follower.follow(ram, entries, id, |lost, bytes| {
                if lost != 0 {
                    let note = format!("{lost} bytes of its console came too fast, and are not shown");
                    self.screen.remark(id.name, &note);
                }
                self.logs.append(id.name, port, bytes);
                match (port, self.look) {
                    (0, Look::Raw) => self.screen.raw(bytes),
                    (0, Look::Rows { .. }) => self.screen.rows(id.name, guest.lines.feed(bytes, now)),
                    _ => {
                        let last = self.last.entry(id.name).or_insert(Last { state, status: None });
                        let reports = guest.reports.feed(bytes);
                        let ends = reports.iter().filter(|report| report["event"] == "exit");
                        ends.for_each(|report| last.status = report["status"].as_u64());
                    }
                }
                Ok(())
            })?;
            if !is_there {
                return Ok(());
            }
        }
        self.screen.rows(guest.id.name, guest.lines.quiet(now));
        self.note_state(seen);
        Ok(())
    }

    /// Shows a change of a guest's state, after what its console showed before that.
    fn note_state(&mut self, seen: &GuestSeen) {
        let Some(guest) = self.guests.get_mut(&seen.index) else { return };
        let last = self.last.entry(seen.name).or_insert(Last { state: seen.state, status: None });
        last.state = seen.state;
        let before = std::mem::replace(&mut guest.state, seen.state);
        if before == seen.state || self.look == Look::Raw {
            return;
        }
        let mut said = seen.state.to_string();
        if matches!(seen.state, GuestState::Off | GuestState::Failed) {
            self.screen.rows(guest.id.name, guest.lines.finish());
            said += &seen.exit.map_or_else(String::new, |code| format!(": {}", code.reason()));
        }
        self.screen.remark(seen.name, &said);
    }

    fn finish(mut self) -> Seen {
        for guest in self.guests.values_mut() {
            self.screen.rows(guest.id.name, guest.lines.finish());
        }
        self.screen.flush();
        let unwritten = self.screen.failure().into_iter().chain(self.logs.failures()).collect();
        Seen { guests: self.last, unwritten }
    }
}

impl Followed {
    fn new(seen: &GuestSeen, has_colours: bool) -> Self {
        Self {
            id: seen.identity(),
            state: GuestState::Empty,
            consoles: seen.consoles.map(|place| place.map(Follower::new)),
            lines: Lines::new(has_colours),
            reports: Stream::default(),
        }
    }
}

// A prompt is shown soon after it has come.
const _: () = assert!(PERIOD.as_millis() < QUIET.as_millis());

#[cfg(test)]
mod tests {
    use super::super::screen::made::Paper;
    use super::*;
    use crate::machine::guests::made::{BEACON, MockGuests};

    fn consoles(look: Look, directory: &std::path::Path) -> (Consoles, Paper) {
        let names = ["web", "db"].map(|name| Name::parse(name).expect("is one"));
        let paper = Paper::default();
        let logs = Logs::create(directory, std::iter::empty()).expect("creates");
        (Consoles::new(look, Screen::new(Box::new(paper.clone()), false, &names), logs), paper)
    }

    /// Those of a machine with one guest, which runs.
    fn alone(look: Look) -> (Consoles, Paper, MockGuests, TempDir) {
        let (directory, made) = (tempfile::tempdir().expect("makes"), MockGuests::new(1));
        let (all, paper) = consoles(look, directory.path());
        made.fill(0, "web", GuestState::Running);
        (all, paper, made, directory)
    }

    #[test]
    fn consoles_are_shown_line_by_line_and_logged_byte_by_byte() {
        let directory = tempfile::tempdir().expect("makes");
        let (mut all, paper) = consoles(Look::Rows { has_colours: false }, directory.path());
        let begin = Instant::now();
        let empty = Ram::new(0x4000, 0).expect("makes");
        all.look(&empty, BEACON, begin).expect("is not filled in");
        let made = MockGuests::new(2);
        let mut look = |ms| all.look(&made.ram, BEACON, begin + Duration::from_millis(ms)).expect("reads");
        look(0);
        made.fill(0, "web", GuestState::Running);
        made.fill(1, "db", GuestState::Loaded);
        look(1);
        made.write(0, 0, b"boot\r\n# ");
        look(2);
        made.write(1, 0, b"\x1b[2Jhello\r\n");
        made.set_state(1, GuestState::Running, 0);
        look(3);
        look(400);
        made.write(0, 0, b"poweroff\r\n");
        made.write(0, 1, b"{\"event\":\"boot\"}\n{\"event\":\"exit\",\"status\":3}\n");
        made.set_state(0, GuestState::Off, ExitCode::GuestPowerOff as u32);
        look(401);
        made.write(1, 0, b"unfinished");
        look(402);
        let last = all.finish().guests;
        let expected = "web  * running\ndb   * loaded\nweb  | boot\ndb   | hello\ndb   * running\n\
                        web  | #\nweb  + poweroff\nweb  * off: it switched itself off\ndb   | unfinished\n";
        assert_eq!(paper.text(), expected);
        let log = |name: &str| fs::read(directory.path().join(name)).expect("is there");
        assert_eq!(log("web.log"), b"boot\r\n# poweroff\r\n");
        assert_eq!(log("db.log"), b"\x1b[2Jhello\r\nunfinished");
        assert!(log("web.1.log").starts_with(b"{\"event\":\"boot\"}"));
        let web = &last[&Name::parse("web").expect("is one")];
        assert_eq!(*web, Last { state: GuestState::Off, status: Some(3) });
    }

    #[test]
    fn another_guest_in_an_entry_is_followed_from_its_beginning() {
        let (mut all, paper, made, _logs) = alone(Look::Rows { has_colours: false });
        made.write(0, 0, b"one");
        all.look(&made.ram, BEACON, Instant::now()).expect("reads");
        made.fill(0, "other", GuestState::Running);
        made.write(0, 0, b"two\n");
        all.look(&made.ram, BEACON, Instant::now()).expect("reads");
        made.write(0, 0, b"three");
        made.clear(0);
        all.look(&made.ram, BEACON, Instant::now()).expect("reads");
        all.look(&made.ram, BEACON, Instant::now()).expect("reads");
        all.finish();
        let expected = "web  * running\nweb  | one\nweb  * destroyed\n\
                        other  | two\nother  * running\nother  * destroyed\n";
        assert_eq!(paper.text(), expected, "what was in the ring of the destroyed one is not believed");
    }

    #[test]
    fn what_came_too_fast_is_said() {
        let (mut all, paper, made, _logs) = alone(Look::Rows { has_colours: false });
        made.write(0, 0, &[b'x'; 200]);
        made.write(0, 0, b"\nend\n");
        all.look(&made.ram, BEACON, Instant::now()).expect("reads");
        assert!(
            paper.text().starts_with("web  * 142 bytes of its console came too fast"),
            "{}",
            paper.text()
        );
        assert!(paper.text().contains("web  | end\n"), "{}", paper.text());
    }

    #[test]
    fn the_only_guests_console_is_shown_as_it_is() {
        let (mut all, paper, made, _logs) = alone(Look::Raw);
        made.write(0, 0, b"\x1b[2J# ");
        all.look(&made.ram, BEACON, Instant::now()).expect("reads");
        all.finish();
        assert_eq!(paper.text(), "\x1b[2J# ");
    }
}

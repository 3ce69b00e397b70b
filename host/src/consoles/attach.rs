//! `quell console`: attaches to a console of a guest of a running machine.

use super::keyboard::{Keyboard, ToGuest};
use super::lines::Lines;
use super::typing::{RawTerminal, Typing};
use crate::cli::ConsoleArgs;
use crate::machine::control::{self, Found, Notice};
use crate::machine::guests::{Entries, Follower, GuestSeen};
use crate::prelude::*;
use hostlink::guests::GuestState;
use std::io::{IsTerminal, Write};

/// The time between two reads of the ring.
const PERIOD: Duration = Duration::from_millis(10);
/// The time between two looks whether the machine still runs, in periods.
const ALIVE_PERIODS: u32 = 50;
/// The key that leaves, after Ctrl-A.
const LEAVE: u8 = b'd';

/// Shows the console and types on it until the user leaves; returns the exit status.
pub(crate) fn console(args: &ConsoleArgs, signals: &Signals) -> Result<u8> {
    let machine = control::choose(args.vm.as_deref(), &control::running()?)?;
    let notice = machine.notice()?.ok_or_else(|| anyhow!("machine {} has ended", machine.name))?;
    let mut attached = Attached::to(machine, &notice, args)?;
    let mut stdout = io::stdout();
    if args.once {
        let is_terminal = stdout.is_terminal();
        attached.once(&mut stdout, is_terminal)?;
        return Ok(0);
    }
    attached.follow(&mut stdout, signals)
}

struct Attached {
    machine: Found,
    ram: Ram,
    entries: Entries,
    port: u16,
    guest: GuestSeen,
    follower: Follower,
}

impl Attached {
    fn to(machine: Found, notice: &Notice, args: &ConsoleArgs) -> Result<Self> {
        let ram = notice.open_ram(false).with_context(|| format!("machine {}", machine.name))?;
        let entries = Entries::find(&ram, notice.beacon)?;
        let entries = entries.ok_or_else(|| anyhow!("machine {} has not begun yet", machine.name))?;
        ensure!(
            !entries.is_empty(),
            "machine {} has one guest, whose console is where the machine was started",
            machine.name
        );
        let guests = entries.guests(&ram)?;
        let guest = find(&guests, args.guest.as_deref())?.clone();
        let place = guest.consoles.get(usize::from(args.port)).copied().flatten();
        let place = place.ok_or_else(|| anyhow!("guest {} has no console {}", guest.name, args.port))?;
        Ok(Self { machine, ram, entries, port: args.port, follower: Follower::new(place), guest })
    }

    /// Passes on what there is: on a terminal as lines, which have no lasting effect there.
    fn once(&mut self, sink: &mut impl Write, is_terminal: bool) -> Result<()> {
        if !is_terminal {
            return self.pass(sink);
        }
        let (mut bytes, mut lines) = (Vec::new(), Lines::new(console::colors_enabled()));
        self.pass(&mut bytes)?;
        let rows = lines.feed(&bytes, Instant::now());
        for row in rows.into_iter().chain(lines.finish()) {
            writeln!(sink, "{}", row.text).context("cannot write")?;
        }
        sink.flush().context("cannot write")
    }

    fn pass(&mut self, sink: &mut impl Write) -> Result<()> {
        self.follower.follow(&self.ram, &self.entries, self.guest.identity(), |lost, bytes| {
            // What was overwritten before this tool attached is no loss that it could have avoided.
            if lost != 0 {
                write!(sink, "[{lost} bytes before this are not kept]\r\n").context("cannot write")?;
            }
            sink.write_all(bytes).context("cannot write")
        })?;
        sink.flush().context("cannot write")
    }

    fn follow(&mut self, sink: &mut impl Write, signals: &Signals) -> Result<u8> {
        let name = self.guest.name;
        if io::stdin().is_terminal() {
            eprintln!("quell: attached to {name}; Ctrl-A d leaves, Ctrl-A a sends Ctrl-A");
        }
        let guest = ToGuest { machine: self.machine.clone(), guest: name, port: self.port };
        let typing = Typing::on(RawTerminal::enter(), guest, LEAVE);
        let end = self.until_end(sink, &typing.keyboard, signals);
        drop(typing);
        match end? {
            Ok(why) => eprintln!("\nquell: {why}"),
            Err(signal) => return Ok(u8::try_from(128 + signal).unwrap_or(128)),
        }
        Ok(0)
    }

    /// Returns why it ends, or the signal that ends it.
    fn until_end(
        &mut self,
        sink: &mut impl Write,
        keyboard: &Keyboard,
        signals: &Signals,
    ) -> Result<Result<String, i32>> {
        let name = self.guest.name;
        let mut state = self.guest.state;
        for period in 1_u32.. {
            self.pass(sink)?;
            if keyboard.has_left() {
                return Ok(Ok(format!("left {name}, which goes on")));
            }
            if let Some(signal) = signals.caught() {
                return Ok(Err(signal));
            }
            let failure = keyboard.failure();
            let must_look = failure.is_some() || period.is_multiple_of(ALIVE_PERIODS);
            if must_look && !self.machine.is_alive() {
                self.pass(sink)?;
                return Ok(Ok(format!("machine {} has ended", self.machine.name)));
            }
            if let Some(why) = failure {
                write!(sink, "\r\n[not typed: {why}]\r\n").context("cannot write")?;
            }
            match self.look()? {
                Some(now) if now != state => {
                    state = now;
                    write!(sink, "\r\n[{name} is {state}]\r\n").context("cannot write")?;
                }
                Some(_) => {}
                None => return Ok(Ok(format!("guest {name} was destroyed"))),
            }
            thread::sleep(PERIOD);
        }
        bail!("the console was followed for years")
    }

    /// The guest's state; `None` if it is there no longer.
    fn look(&self) -> Result<Option<GuestState>> {
        let guests = self.entries.guests(&self.ram)?;
        Ok(guests.iter().find(|it| it.identity() == self.guest.identity()).map(|guest| guest.state))
    }
}

fn find<'g>(guests: &'g [GuestSeen], name: Option<&str>) -> Result<&'g GuestSeen> {
    let names = || guests.iter().map(|guest| guest.name.to_string()).collect::<Vec<_>>().join(", ");
    match (name, guests) {
        (_, []) => bail!("the machine has no guest"),
        (None, [guest]) => Ok(guest),
        (None, _) => bail!("the machine has several guests: say which: {}", names()),
        (Some(name), _) => {
            let wanted = Name::parse(name);
            let found = guests.iter().find(|guest| Some(guest.name) == wanted);
            found.ok_or_else(|| anyhow!("there is no guest '{name}'; there are {}", names()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::guests::made::{BEACON, MockGuests};

    fn guests(made: &MockGuests) -> Vec<GuestSeen> {
        let entries = Entries::find(&made.ram, BEACON).expect("reads").expect("is filled in");
        entries.guests(&made.ram).expect("reads")
    }

    #[test]
    fn a_guest_is_found_by_its_name_or_as_the_only_one() {
        let made = MockGuests::new(2);
        let refused =
            |made: &MockGuests, name| find(&guests(made), name).expect_err("is refused").to_string();
        assert_eq!(refused(&made, None), "the machine has no guest");
        made.fill(0, "web", GuestState::Running);
        assert_eq!(find(&guests(&made), None).expect("is the only one").name.as_str(), "web");
        made.fill(1, "db", GuestState::Off);
        assert_eq!(refused(&made, None), "the machine has several guests: say which: web, db");
        assert_eq!(refused(&made, Some("Web")), "there is no guest 'Web'; there are web, db");
        assert_eq!(find(&guests(&made), Some("db")).expect("is there").index, 1);
    }

    #[test]
    fn what_the_ring_has_is_passed_on_with_what_it_has_lost() {
        let made = MockGuests::new(1);
        made.fill(0, "web", GuestState::Running);
        made.write(0, 0, &[b'x'; 70]);
        made.write(0, 0, b"\x1b[2Jend");
        let guest = guests(&made)[0].clone();
        let entries = Entries::find(&made.ram, BEACON).expect("reads").expect("is filled in");
        let follower = Follower::new(guest.consoles[0].expect("has one"));
        let directory = tempfile::tempdir().expect("makes");
        let machine = Found::made_up("1", directory.path());
        let MockGuests { ram } = made;
        let mut attached = Attached { machine, ram, entries, port: 0, guest, follower };
        let mut shown = Vec::new();
        attached.pass(&mut shown).expect("writes");
        let expected = format!("[14 bytes before this are not kept]\r\n{}\x1b[2Jend", "x".repeat(56));
        assert_eq!(String::from_utf8_lossy(&shown), expected);
        assert_eq!(attached.look().expect("reads"), Some(GuestState::Running));
        attached.follower = Follower::new(attached.guest.consoles[0].expect("has one"));
        let mut shown = Vec::new();
        attached.once(&mut shown, true).expect("writes");
        assert_eq!(String::from_utf8_lossy(&shown), expected.replace("\r", "").replace("\x1b[2J", "") + "\n");
        attached.guest.generation += 2;
        assert_eq!(attached.look().expect("reads"), None, "another guest is there");
    }
}

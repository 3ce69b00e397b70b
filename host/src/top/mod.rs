//! `quell top`: a live view of the work that running machines cause for their hypervisors.
//!
//! Another process runs the machine. Its [`crate::machine::control::Notice`] says how to find the
//! machine's memory, which is mapped for reading. [`source`] reads the counters there, [`rates`]
//! computes rates from two samples, [`app`] is the state that keys change, [`view`] draws it.

mod app;
mod once;
pub(crate) mod rates;
mod source;
mod view;

use crate::cli::TopArgs;
use crate::machine::control;
use crate::prelude::*;
use app::{App, Wish};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use std::io::IsTerminal;

/// How often signals are checked while no key is pressed.
const POLL_PERIOD: Duration = Duration::from_millis(100);

pub(crate) fn top(args: &TopArgs, signals: &Signals) -> Result<u8> {
    if args.once {
        return once::once(args, signals);
    }
    ensure!(
        io::stdin().is_terminal() && io::stdout().is_terminal(),
        "the live view needs a terminal; --once prints a table"
    );
    let machines = control::running()?;
    // The first one is enough: the others are a key press away.
    let first = &machines[..machines.len().min(1)];
    let among = if args.vm.is_some() { &machines[..] } else { first };
    let mut app = App::new(control::choose(args.vm.as_deref(), among)?);
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let shown = show(&mut terminal, &mut app, args, signals);
    ratatui::restore();
    let status = shown?;
    if let Some(ended) = app.ended() {
        println!("{ended}");
    }
    Ok(status)
}

fn show(terminal: &mut DefaultTerminal, app: &mut App, args: &TopArgs, signals: &Signals) -> Result<u8> {
    let has_colours = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    app.refresh(control::running()?);
    let (mut due, mut intervals) = (Instant::now() + args.interval(), 0);
    loop {
        let drawn = terminal.draw(|frame| {
            app.fit(view::rows(frame.area()));
            view::draw(frame, app, has_colours);
        });
        if let Some(signal) = signals.caught() {
            return Ok(u8::try_from(128 + signal).unwrap_or(128));
        }
        drawn.context("cannot draw")?;
        let left = due.saturating_duration_since(Instant::now());
        if event::poll(left.min(POLL_PERIOD)).context("cannot wait for a key")? {
            match event::read().context("cannot read a key")? {
                Event::Key(key) if key.kind != KeyEventKind::Release => match app.press(key) {
                    Wish::Nothing => {}
                    Wish::Quit => return Ok(0),
                    Wish::Machine(step) => app.turn_to(step, control::running()?),
                },
                _ => {}
            }
        }
        if Instant::now() >= due {
            due = Instant::now() + args.interval();
            app.refresh(control::running()?);
            intervals += 1;
            if args.count.is_some_and(|count| intervals >= count) {
                return Ok(0);
            }
        }
    }
}

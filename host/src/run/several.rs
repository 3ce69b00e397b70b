//! The guests of a machine file: their consoles on the terminal, one below the other, and in logs.

use super::{Recorder, conclude};
use crate::cli::RunArgs;
use crate::consoles::{Last, Logs, Look, Seen, Typing, Viewer};
use crate::machine::spec::Console;
use crate::machine_file::MachineFile;
use crate::migration::Arrivals;
use crate::prelude::*;
use std::io::IsTerminal;
use std::rc::Rc;

pub(super) fn run(
    file: &MachineFile,
    mut spec: Spec,
    mut arrivals: Arrivals,
    args: &RunArgs,
    signals: &Signals,
) -> Result<u8> {
    let consoles = file.guests.iter().map(|guest| (guest.name(), guest.console.value.clone()));
    let logs = Logs::create(&file.machine.logs, consoles)?;
    spec.console = Console::Capture;
    spec.log.get_or_insert_with(|| file.hypervisor_log());
    let mut machine = Machine::start(&spec, signals)?;
    arrivals.begin(&mut machine)?;
    let recorder = Recorder::start(args, &mut machine)?;
    let names: Vec<Name> = file.guests.iter().map(|guest| guest.name()).collect();
    eprintln!("quell: {}", first_line(&names, &file.machine.logs, can_type(&names)));
    let look = match can_type(&names) {
        true => Look::Raw,
        false => Look::Rows { has_colours: console::colors_enabled() },
    };
    let viewer = Viewer::start(&machine, look, &names, logs)?;
    let found = machine.found().filter(|_| look == Look::Raw);
    let typing = found.and_then(|found| Typing::start(found, names[0])).map(Rc::new);
    if let Some(typing) = typing.clone() {
        machine.end_when(move || typing.ends_machine());
    }
    let mut outcome = machine.run(|_, _| Ok(Flow::Continue))?;
    let Seen { guests: last, unwritten } = viewer.finish()?;
    // All is shown, so the terminal stays as it is restored.
    drop(typing);
    arrivals.finish()?;
    outcome.unwritten.extend(unwritten);
    let status = conclude(&outcome, false);
    recorder.finish(&outcome)?;
    Ok(if status == 0 { status_of(&names, &last) } else { status })
}

/// Whether the user types on the console of the only guest.
fn can_type(names: &[Name]) -> bool {
    names.len() == 1 && io::stdin().is_terminal() && io::stdout().is_terminal()
}

fn first_line(names: &[Name], logs: &Path, can_type: bool) -> String {
    let logs = logs.display();
    match names {
        [name] if can_type => {
            format!("guest {name}; its console is logged in {logs}; Ctrl-A x ends the machine")
        }
        [name] => format!(
            "guest {name}; its console is logged in {logs}; attach with ./quell console {name}; \
             Ctrl-C ends the machine"
        ),
        _ => format!(
            "{} guests; their consoles are logged in {logs}; attach with ./quell console NAME; \
             Ctrl-C ends the machine",
            names.len()
        ),
    }
}

/// The status of the guests' commands: the first one that is not 0, in the order of the file.
fn status_of(names: &[Name], last: &BTreeMap<Name, Last>) -> u8 {
    let statuses = names.iter().filter_map(|name| last.get(name)?.status);
    let first = statuses.into_iter().find(|status| *status != 0).unwrap_or(0);
    u8::try_from(first).unwrap_or(u8::MAX)
}

pub(super) fn show(file: &MachineFile, json: Option<&Path>) -> Result<()> {
    let text = || format!("{:#}\n", file.json());
    match json {
        Some(path) if path == Path::new("-") => print!("{}", text()),
        Some(path) => {
            println!("{}", file.table());
            fs::write(path, text()).with_context(|| format!("cannot write {}", path.display()))?;
        }
        None => println!("{}", file.table()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostlink::guests::GuestState;

    fn names(of: &[&str]) -> Vec<Name> {
        of.iter().map(|name| Name::parse(name).expect("is one")).collect()
    }

    #[test]
    fn the_first_line_says_how_to_type() {
        let two = first_line(&names(&["web", "db"]), Path::new("l"), false);
        assert_eq!(
            two,
            "2 guests; their consoles are logged in l; attach with ./quell console NAME; Ctrl-C ends the machine"
        );
        assert!(first_line(&names(&["web"]), Path::new("l"), false).contains("./quell console web"));
        assert!(first_line(&names(&["web"]), Path::new("l"), true).contains("Ctrl-A x"));
    }

    #[test]
    fn the_status_is_that_of_the_first_command_that_failed() {
        let names = names(&["a", "b", "c", "d"]);
        let last = |status| Last { state: GuestState::Off, status };
        let mut all: BTreeMap<_, _> =
            names.iter().copied().zip([None, Some(0), Some(3), Some(4)].map(last)).collect();
        assert_eq!(status_of(&names, &all), 3);
        all.insert(names[0], last(Some(1000)));
        assert_eq!(status_of(&names, &all), 255);
        assert_eq!(status_of(&names[1..2], &all), 0);
        assert_eq!(status_of(&names, &BTreeMap::new()), 0);
    }
}

//! `quell ctl guest`: the life of the guests of a machine with several.

use super::{fields, print};
use crate::cli::{CtlArgs, GuestCommand, OfGuest};
use crate::machine::control::Control;
use crate::prelude::*;
use crate::table::table;
use hostlink::ctl::Request;
use hostlink::ctl::record::Guest;

/// A guest's memory is zeroed or cleaned meanwhile.
const PATIENCE: Duration = Duration::from_secs(120);

pub(super) fn run(args: &CtlArgs, control: Control, command: GuestCommand) -> Result<()> {
    use GuestCommand::{Create, Destroy, List, Pause, Reset, Resume, Start, Wake};
    let mut control = control.with_patience(PATIENCE);
    let (request, name, done) = match command {
        List => {
            let guests: Vec<Guest> = control.ask_for(&Request::Guests)?;
            print(args, json!(guests.iter().map(fields).collect::<Vec<_>>()), || listed(&guests));
            return Ok(());
        }
        Create(OfGuest { name }) => (Request::Create { guest: name }, name, "is created: start it next"),
        Start(OfGuest { name }) => (Request::Start { guest: name }, name, "runs"),
        Pause(OfGuest { name }) => (Request::Pause { guest: name }, name, "is paused"),
        Resume(OfGuest { name }) => (Request::Resume { guest: name }, name, "goes on"),
        Wake(OfGuest { name }) => (Request::Wake { guest: name }, name, "is told to wake"),
        Reset(OfGuest { name }) => (Request::Reset { guest: name }, name, "restarts"),
        Destroy(OfGuest { name }) => (Request::Destroy { guest: name }, name, "is gone, its memory is free"),
    };
    control.ask(&request)?;
    print(args, json!({"guest": name.as_str()}), || format!("{name} {done}"));
    Ok(())
}

fn listed(guests: &[Guest]) -> String {
    let rows = guests.iter().map(|guest| {
        let Guest { guest, state, vcpus, memory, weight, .. } = guest;
        [guest.to_string(), state.to_string(), vcpus.to_string(), size::display(*memory), weight.to_string()]
    });
    table(["guest", "state", "vCPUs", "memory", "weight"], rows).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostlink::guests::GuestState;

    #[test]
    fn guests_are_listed_with_what_they_do() {
        let (guest, state) = (Name::GUEST, GuestState::Paused);
        let text = listed(&[Guest { guest, state, vcpus: 2, memory: 256 << 20, weight: 100, used: 7 }]);
        assert!(text.contains("guest") && text.contains("paused") && text.contains("256 MiB"), "{text}");
    }
}

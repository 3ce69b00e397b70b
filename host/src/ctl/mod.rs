//! `quell ctl`: talks to the hypervisor of a running machine.

use crate::cli::{CtlArgs, CtlCommand, GuestCommand, LogCommand, OfGuest, OfSlot};
use crate::machine::control::{self, Control};
use crate::prelude::*;
use baremetal::pages::PAGE as PAGE_SIZE;
use hostlink::ctl::record::{Added, Deleted, Dirty, Guest, Memory, Record, Runs, Slot, Vm};
use hostlink::ctl::{Access, Request, parse_number};
use serde::Serializer;

mod migration;

pub(crate) fn ctl(args: &CtlArgs) -> Result<u8> {
    if let CtlCommand::Vms = args.command {
        let machines = vms()?;
        let fields = |vm: &Option<Vm>| vm.as_ref().map_or_else(Fields::default, fields);
        let all: Vec<_> = machines.iter().map(|(name, vm)| fields(vm).with("machine", name)).collect();
        print(args, json!(all), || vms_table(&machines));
        return Ok(0);
    }
    let machine = control::choose(args.vm.as_deref(), &control::running()?)?;
    let mut control = Control::open(&machine)?.about(args.guest);
    match &args.command {
        CtlCommand::Vms => {}
        CtlCommand::Slots => {
            let slots: Vec<Slot> = control.ask_for(&Request::Slots)?;
            print(args, json!(slots.iter().map(fields).collect::<Vec<_>>()), || slots_table(&slots));
        }
        CtlCommand::Add { gpa, size, read_only } => {
            let access = Access::read_only(*read_only);
            let added: Added = control.ask_one(&Request::Add { gpa: *gpa, size: *size, access })?;
            print(args, json!(fields(&added)), || {
                let slot = added.slot;
                format!("slot {slot}: the guest is not told, its tables and maps stay as they are")
            });
        }
        CtlCommand::Delete(OfSlot { slot }) => {
            let gone = control.delete(*slot)?;
            print(args, json!(fields(&gone)), || {
                let Deleted { visited, tables, .. } = gone;
                format!("slot {slot} is gone: {visited} entries visited, {tables} tables freed")
            });
        }
        CtlCommand::Log(LogCommand::Start { slot, way }) => {
            control.ask(&Request::LogStart { slot: *slot, way: *way })?;
            print(args, json!({"slot": slot}), || format!("stores to slot {slot} are logged"));
        }
        CtlCommand::Log(LogCommand::Fetch(OfSlot { slot })) => {
            let runs = dirty_runs(&mut control, *slot)?;
            let pages: u64 = runs.iter().map(|run| run.end - run.start).sum();
            let list: Vec<_> = runs.iter().map(|run| json!([run.start, run.end - run.start])).collect();
            print(args, json!({"slot": slot, "pages": pages, "runs": list}), || dirty_text(pages, &runs));
        }
        CtlCommand::Log(LogCommand::Stop(OfSlot { slot })) => {
            control.ask(&Request::LogStop { slot: *slot })?;
            print(args, json!({"slot": slot}), || format!("stores to slot {slot} are no longer logged"));
        }
        CtlCommand::Guest(GuestCommand::Save(of)) => migration::save(args, &machine, of)?,
        CtlCommand::Guest(GuestCommand::Migrate(of)) => migration::migrate(args, &machine, of)?,
        CtlCommand::Guest(command) => on_guest(args, control, command)?,
        CtlCommand::Memory => {
            let memory: Memory = control.ask_one(&Request::Memory)?;
            print(args, json!(fields(&memory)), || {
                let Memory { free, heap, stack } = memory;
                let [free, heap, stack] = [free, heap, stack].map(size::display);
                format!("{free} free, {heap} of the heap in use, {stack} of each stack never used")
            });
        }
        CtlCommand::Stats => {
            let mut all = Fields::default();
            for counter in control.ask(&Request::Stats)? {
                all.extend(Fields::parse(&counter)?);
            }
            print(args, json!(all), || stats_table(&all));
        }
    }
    Ok(0)
}

fn print(args: &CtlArgs, json: Value, text: impl FnOnce() -> String) {
    if args.json {
        println!("{json:#}");
    } else {
        println!("{}", text());
    }
}

fn fields(record: &impl Record) -> Fields {
    Fields::parse(&record.to_string()).unwrap_or_default()
}

/// The virtual machines of all machines that answer, each with its machine's name; none of a
/// machine that has no guest now, such as one that awaits its first one.
fn vms() -> Result<Vec<(String, Option<Vm>)>> {
    let mut all = Vec::new();
    for machine in control::running()? {
        // It may end at any time, or be in another conversation.
        let answer = Control::open(&machine).and_then(|mut control| control.ask_for(&Request::Vms));
        match answer {
            Ok(vms) => all.extend(of_machine(&machine.name, vms)),
            Err(error) => eprintln!("quell: machine {}: {error:#}", machine.name),
        }
    }
    Ok(all)
}

fn of_machine(name: &str, vms: Vec<Vm>) -> impl Iterator<Item = (String, Option<Vm>)> {
    let nobody = if vms.is_empty() { Some(None) } else { None };
    vms.into_iter().map(Some).chain(nobody).map(|vm| (name.to_owned(), vm))
}

fn vms_table(vms: &[(String, Option<Vm>)]) -> String {
    let rows = vms.iter().map(|(name, vm)| match vm {
        Some(vm) => [name.clone(), vm.vcpus.to_string(), size::display(vm.memory), vm.generation.to_string()],
        None => [name, "no guest", "", ""].map(str::to_owned),
    });
    table(["machine", "vCPUs", "memory", "slot generation"], rows).to_string()
}

fn slots_table(slots: &[Slot]) -> String {
    let rows = slots.iter().map(|Slot { slot, gpa, size, access, log, .. }| {
        let (slot, gpa, size) = (slot.to_string(), format!("{gpa:#x}"), size::display(*size));
        [slot, gpa, size, access.to_string(), log.to_string()]
    });
    table(["slot", "guest address", "size", "access", "log"], rows).to_string()
}

fn stats_table(stats: &Fields) -> String {
    let rows = stats.iter().filter(|(_, value)| *value != "0").map(|(name, value)| [name, value]);
    table(["counter", "value"], rows).to_string()
}

pub(crate) fn dirty_runs(control: &mut Control, slot: u16) -> Result<Vec<Range<u64>>> {
    let records: Vec<Dirty> = control.ask_for(&Request::LogFetch { slot })?;
    Ok(joined(records.iter().flat_map(|Dirty { dirty: Runs(runs) }| runs)))
}

fn joined<'a>(found: impl Iterator<Item = &'a (u64, u64)>) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for &(first, count) in found {
        match runs.last_mut() {
            Some(last) if last.end == first => last.end += count,
            _ => runs.push(first..first + count),
        }
    }
    runs
}

fn dirty_text(pages: u64, runs: &[Range<u64>]) -> String {
    const SHOWN_MAX: usize = 16;
    let mut text = format!("{pages} pages ({}) in {} runs", size::display(pages * PAGE_SIZE), runs.len());
    for run in runs.iter().take(SHOWN_MAX) {
        text += &format!("\n  {:#x} to {:#x} of the slot", run.start * PAGE_SIZE, run.end * PAGE_SIZE);
    }
    if runs.len() > SHOWN_MAX {
        text += &format!("\n  and {} more (--json has all)", runs.len() - SHOWN_MAX);
    }
    text
}

/// A record's fields, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields(Vec<(String, String)>);

impl Fields {
    pub(crate) fn parse(record: &str) -> Result<Self> {
        let pair = |word: &str| {
            let (key, value) =
                word.split_once('=').with_context(|| format!("unexpected answer '{record}'"))?;
            Ok((key.to_owned(), value.to_owned()))
        };
        record.split_ascii_whitespace().map(pair).collect::<Result<_>>().map(Self)
    }

    pub(crate) fn with(mut self, key: &str, value: &str) -> Self {
        self.0.insert(0, (key.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    pub(crate) fn number(&self, key: &str) -> Option<u64> {
        let (_, value) = self.iter().find(|(name, _)| *name == key)?;
        parse_number(value).ok()
    }
}

/// As an object, in which numbers are numbers.
impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(key, value)| {
            let number = parse_number(value).map(serde_json::Value::from);
            (key, number.unwrap_or_else(|_| value.into()))
        }))
    }
}

/// A guest's memory is zeroed or cleaned meanwhile.
const PATIENCE: Duration = Duration::from_secs(120);

fn on_guest(args: &CtlArgs, control: Control, command: &GuestCommand) -> Result<()> {
    use GuestCommand::{Create, Destroy, List, Migrate, Pause, Reset, Resume, Save, Start, Wake};
    let mut control = control.with_patience(PATIENCE);
    let (request, name, done) = match *command {
        Save(_) | Migrate(_) => return Ok(()),
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
    use hostlink::ctl::Log;
    use hostlink::guests::GuestState;

    #[test]
    fn runs_that_touch_are_one() {
        let runs = joined([(0, 2), (2, 1), (16, 3), (19, 1)].iter());
        assert_eq!(runs, [0..3, 16..20]);
        assert_eq!(dirty_text(7, &runs).lines().count(), 3);
    }

    #[test]
    fn a_machine_without_a_guest_is_listed() {
        let vm = Vm { vm: 0, vcpus: 2, memory: 512 << 20, generation: 2 };
        let machines: Vec<_> = of_machine("7", vec![vm]).chain(of_machine("8-1", vec![])).collect();
        assert_eq!(machines.len(), 2);
        let table = vms_table(&machines);
        let line = |name: &str| table.lines().find(|line| line.contains(name)).expect("is there");
        assert!(line("7").contains("512 MiB") && line("8-1").contains("no guest"), "{table}");
    }

    #[test]
    fn slots_are_shown_as_a_table_and_as_json() {
        let (access, log) = (Access::ReadWrite, Log::Off);
        let slot = Slot { slot: 0, gpa: 0, size: 512 << 20, host: 0x3000, access, log };
        let json = json!(fields(&slot));
        assert_eq!((&json["size"], &json["access"]), (&(512 << 20).into(), &"rw".into()));
        let text = slots_table(&[slot]);
        assert!(text.contains("512 MiB") && text.contains("rw"), "{text}");
    }

    #[test]
    fn numbers_become_numbers_and_order_stays() {
        let fields = Fields::parse("slot=3 gpa=0x1000 access=ro").expect("parses").with("machine", "12-1");
        let json = serde_json::to_string(&fields).expect("writes");
        assert_eq!(json, r#"{"machine":"12-1","slot":3,"gpa":4096,"access":"ro"}"#);
        assert_eq!(["gpa", "access", "none"].map(|key| fields.number(key)), [Some(4096), None, None]);
        assert!(Fields::parse("nothing here").is_err());
    }

    #[test]
    fn guests_are_listed_with_what_they_do() {
        let (guest, state) = (Name::GUEST, GuestState::Paused);
        let text = listed(&[Guest { guest, state, vcpus: 2, memory: 256 << 20, weight: 100, used: 7 }]);
        assert!(text.contains("guest") && text.contains("paused") && text.contains("256 MiB"), "{text}");
    }
}

//! `quell ctl`: talks to the hypervisor of a running machine.

pub(crate) mod fields;
mod guests;
pub(crate) mod migrate;

use crate::cli::{CtlArgs, CtlCommand, LogCommand, OfSlot};
use crate::machine::control::{self, Control};
use crate::prelude::*;
use crate::table::table;
use baremetal::pages::PAGE as PAGE_SIZE;
use fields::Fields;
use hostlink::ctl::record::{Added, Deleted, Dirty, Memory, Record, Runs, Slot, Vm};
use hostlink::ctl::{Access, Request};
use migrate::Migrated;

pub(crate) fn ctl(args: &CtlArgs) -> Result<u8> {
    if let CtlCommand::Vms = args.command {
        let machines = vms()?;
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
            control.ask(&Request::LogStart { slot: *slot, way: (*way).into() })?;
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
        CtlCommand::Migrate { slot, rounds, way } => {
            let migrated = Migrated::ask(control, *slot, (*way).into(), *rounds, |_| Ok(()))?;
            print(args, json!(migrated), || migrated.table());
        }
        CtlCommand::Guest(command) => guests::run(args, control, *command)?,
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

/// The virtual machines of all machines that answer, each with its machine's name.
fn vms() -> Result<Vec<(String, Vm)>> {
    let mut all = Vec::new();
    for machine in control::running()? {
        // It may end at any time, or be in another conversation.
        let answer = Control::open(&machine).and_then(|mut control| control.ask_for(&Request::Vms));
        match answer {
            Ok(vms) => all.extend(vms.into_iter().map(|vm| (machine.name.clone(), vm))),
            Err(error) => eprintln!("quell: machine {}: {error:#}", machine.name),
        }
    }
    Ok(all)
}

fn vms_table(vms: &[(String, Vm)]) -> String {
    let rows = vms.iter().map(|(name, vm)| {
        [name.clone(), vm.vcpus.to_string(), size::display(vm.memory), vm.generation.to_string()]
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
    /// Runs that are shown individually.
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

#[cfg(test)]
mod tests {
    use super::*;
    use hostlink::ctl::Log;

    #[test]
    fn runs_that_touch_are_one() {
        let runs = joined([(0, 2), (2, 1), (16, 3), (19, 1)].iter());
        assert_eq!(runs, [0..3, 16..20]);
        assert_eq!(dirty_text(7, &runs).lines().count(), 3);
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
}

//! `quell ctl`: talks to the hypervisor of a machine that runs.

pub(crate) mod fields;
pub(crate) mod migrate;

use crate::cli::{CtlArgs, CtlCommand, LogCommand};
use crate::machine::control::{self, Control, Found};
use crate::size;
use crate::table::table;
use anyhow::{Context, Result, bail, ensure};
use baremetal::pages::PAGE as PAGE_SIZE;
use fields::Fields;
use hostlink::ctl::{Request, parse_number};
use migrate::Migrated;
use serde_json::{Value, json};
use std::ops::Range;

/// Does it; the result is the exit status.
pub(crate) fn ctl(args: &CtlArgs) -> Result<u8> {
    if let CtlCommand::Vms = args.command {
        let machines = vms()?;
        print(args, json!(machines), || vms_table(&machines));
        return Ok(0);
    }
    let machine = choose(args.vm.as_deref(), control::running()?)?;
    let mut control = Control::open(&machine)?;
    match &args.command {
        CtlCommand::Vms => {}
        CtlCommand::Slots => {
            let slots = ask(&mut control, &Request::Slots)?;
            print(args, json!(slots), || slots_table(&slots));
        }
        CtlCommand::Add { gpa, size, read_only } => {
            let request = Request::Add { gpa: *gpa, size: *size, read_only: *read_only };
            let answer = only(ask(&mut control, &request)?)?;
            print(args, json!(answer), || {
                format!(
                    "slot {}: the guest is not told, its tables and maps stay as they are",
                    &answer["slot"]
                )
            });
        }
        CtlCommand::Delete { slot } => {
            let answer = only(ask(&mut control, &Request::Delete { slot: *slot })?)?;
            print(args, json!(answer), || {
                let (visited, tables) = (&answer["visited"], &answer["tables"]);
                format!("slot {slot} is gone: {visited} entries visited, {tables} tables freed")
            });
        }
        CtlCommand::Log(LogCommand::Start { slot, way }) => {
            ask(&mut control, &Request::LogStart { slot: *slot, way: (*way).into() })?;
            print(args, json!({"slot": slot}), || format!("stores to slot {slot} are logged"));
        }
        CtlCommand::Log(LogCommand::Fetch { slot }) => {
            let runs = dirty_runs(&control.ask(&Request::LogFetch { slot: *slot })?)?;
            let pages: u64 = runs.iter().map(|run| run.end - run.start).sum();
            let list: Vec<_> = runs.iter().map(|run| json!([run.start, run.end - run.start])).collect();
            print(args, json!({"slot": slot, "pages": pages, "runs": list}), || dirty_text(pages, &runs));
        }
        CtlCommand::Log(LogCommand::Stop { slot }) => {
            ask(&mut control, &Request::LogStop { slot: *slot })?;
            print(args, json!({"slot": slot}), || format!("stores to slot {slot} are no longer logged"));
        }
        CtlCommand::Migrate { slot, rounds, way } => {
            let migrated = Migrated::ask(control, *slot, (*way).into(), *rounds, |_| Ok(()))?;
            print(args, json!(migrated), || migrated.table());
        }
        CtlCommand::Stats => {
            let mut all = Fields::default();
            for fields in ask(&mut control, &Request::Stats)? {
                all.extend(fields);
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

fn ask(control: &mut Control, request: &Request) -> Result<Vec<Fields>> {
    control.ask(request)?.iter().map(|record| Fields::parse(record)).collect()
}

fn only(mut records: Vec<Fields>) -> Result<Fields> {
    ensure!(records.len() == 1, "the hypervisor's answer has {} records instead of one", records.len());
    records.pop().context("there is one")
}

/// The machine that is meant: the one of this name, or the only one.
fn choose(name: Option<&str>, machines: Vec<Found>) -> Result<Found> {
    let names = || machines.iter().map(|machine| machine.name.as_str()).collect::<Vec<_>>().join(", ");
    match (name, &machines[..]) {
        (_, []) => bail!("no machine is running; start one with ./quell run"),
        (None, [machine]) => Ok(machine.clone()),
        (None, _) => bail!("several machines are running: say which by --vm: {}", names()),
        (Some(name), all) => match all.iter().find(|machine| machine.name == name) {
            Some(machine) => Ok(machine.clone()),
            None => bail!("there is no machine {name}; running: {}", names()),
        },
    }
}

/// The virtual machines of all machines that answer.
fn vms() -> Result<Vec<Fields>> {
    let mut all = Vec::new();
    for machine in control::running()? {
        // It may end at any time, or be in conversation with somebody else.
        let answer = Control::open(&machine).and_then(|mut control| ask(&mut control, &Request::Vms));
        match answer {
            Ok(records) => {
                all.extend(records.into_iter().map(|fields| fields.with("machine", &machine.name)))
            }
            Err(error) => eprintln!("quell: machine {}: {error:#}", machine.name),
        }
    }
    Ok(all)
}

fn vms_table(vms: &[Fields]) -> String {
    let rows = vms.iter().map(|vm| {
        let memory = vm.number("memory").map_or_else(String::new, size::display);
        [vm["machine"].to_owned(), vm["vcpus"].to_owned(), memory, vm["generation"].to_owned()]
    });
    table(["machine", "vCPUs", "memory", "slot generation"], rows).to_string()
}

fn slots_table(slots: &[Fields]) -> String {
    let rows = slots.iter().map(|slot| {
        let size = slot.number("size").map_or_else(String::new, size::display);
        [
            slot["slot"].to_owned(),
            slot["gpa"].to_owned(),
            size,
            slot["access"].to_owned(),
            slot["log"].to_owned(),
        ]
    });
    table(["slot", "guest address", "size", "access", "log"], rows).to_string()
}

fn stats_table(stats: &Fields) -> String {
    let rows = stats.iter().filter(|(_, value)| *value != "0").map(|(name, value)| [name, value]);
    table(["counter", "value"], rows).to_string()
}

pub(crate) fn dirty_runs(records: &[String]) -> Result<Vec<Range<u64>>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for record in records {
        let list = record.strip_prefix("dirty=").with_context(|| format!("unexpected answer '{record}'"))?;
        for run in list.split(',') {
            let (first, count) = run.split_once('+').with_context(|| format!("unexpected run '{run}'"))?;
            let (first, count) = (parse_number(first)?, parse_number(count)?);
            match runs.last_mut() {
                Some(last) if last.end == first => last.end += count,
                _ => runs.push(first..first + count),
            }
        }
    }
    Ok(runs)
}

fn dirty_text(pages: u64, runs: &[Range<u64>]) -> String {
    /// Runs that are shown one by one.
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

    #[test]
    fn the_machine_that_is_meant_is_the_only_one_or_named() {
        let error = |name| format!("{:#}", choose(name, Vec::new()).expect_err("there is none"));
        assert!(error(None).contains("./quell run") && error(Some("1")).contains("./quell run"));
    }

    #[test]
    fn runs_that_touch_are_one() {
        let records = ["dirty=0+2,2+1,0x10+3".to_owned(), "dirty=19+1".to_owned()];
        let runs = dirty_runs(&records).expect("parses");
        assert_eq!(runs, [0..3, 16..20]);
        assert_eq!(dirty_text(7, &runs).lines().count(), 3);
        assert!(dirty_runs(&["dirty=1".to_owned()]).is_err());
        assert!(dirty_runs(&["x".to_owned()]).is_err());
    }

    #[test]
    fn slots_are_shown_as_a_table() {
        let slot = Fields::parse("slot=0 gpa=0x0 size=0x20000000 access=rw log=off").expect("parses");
        let text = slots_table(&[slot]);
        assert!(text.contains("512 MiB") && text.contains("rw"), "{text}");
    }
}

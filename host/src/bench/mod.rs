//! `quell bench`: measurements, and their limits.
//!
//! | module | contents |
//! |---|---|
//! | `lab` | the parts of machines, and how they are run |
//! | `limits` | figures that have a limit: their table, and what is missed |
//! | `load` | a bare guest that uses memory which was added to it; of `unmap` and `migrate` |
//! | `phases` | the counts of QEMU's plugin |
//! | `all` | cases on Quell, most of them on Linux KVM as well, in turn |
//! | `counts` | the budgets of cases of `all` |
//! | `paging` | a benchmark of its own, on the host |
//! | the others | what cases of `all` measure |

pub(crate) mod all;
mod boot;
mod counts;
mod devices;
pub(crate) mod isolation;
pub(crate) mod lab;
pub(crate) mod limits;
pub(crate) mod load;
mod memslot;
pub(crate) mod migrate;
mod paging;
pub(crate) mod phases;
mod running;
mod shootdown;
mod unmap;

use crate::check::On;
use crate::cli::{
    AllArgs, BenchCommand as Bench, BootArgs, DevicesArgs, IsolationArgs, MemslotArgs, MigrateArgs, RUNS,
    ShootdownArgs, SizeArgs,
};
use crate::prelude::*;
use all::own::name_on as on;
pub(crate) use all::record;
use clap::ValueEnum;

pub(crate) fn run(command: &Bench, signals: &Signals) -> Result<u8> {
    let status = match command {
        Bench::All(args) => all::all(args, signals),
        Bench::Devices(DevicesArgs { options, on, runs, output }) => {
            let on = if on.is_empty() { On::value_variants().to_vec() } else { on.clone() };
            all::all(&AllArgs { on, devices: options.clone(), ..output.only(["devices"], *runs) }, signals)
        }
        Bench::Exits(args) => {
            let case = args.platform.platform().map(|platform| on(platform, "exits"));
            case.and_then(|case| all::all(&args.output.only([case], RUNS), signals))
        }
        Bench::Flush(output) => all::all(&output.only(["flush-254", "flush-running"], RUNS), signals),
        Bench::Isolation(IsolationArgs { platform, options, runs, output }) => {
            platform.platform().and_then(|platform| {
                let all = output.only([on(platform, "isolation")], *runs);
                all::all(&AllArgs { isolation: options.clone(), ..all }, signals)
            })
        }
        Bench::Memslot(MemslotArgs { memory, runs, output }) => {
            let size = Some(SizeArgs { vcpus: memslot::THREADS, cpus: memslot::CPUS, memory: *memory });
            all::all(&AllArgs { size, ..output.only(["memslot", "memslot-wall"], *runs) }, signals)
        }
        Bench::Migrate(args) => migrations(args).and_then(|args| all::all(&args, signals)),
        Bench::Paging(args) => paging::paging(args),
        Bench::Shootdown(args) => all::all(&shootdowns(args), signals),
        Bench::Unmap(args) => {
            let cpus = if args.cpu.is_empty() { &ArmCpu::ALL[..] } else { &args.cpu };
            let on = |cpu: &ArmCpu| ["unmap", "unmap-wall"].map(|case| on(Platform::Aarch64(*cpu), case));
            all::all(&args.output.only(cpus.iter().flat_map(on), args.runs), signals)
        }
        Bench::Boot(args) => boots(args).and_then(|args| all::all(&args, signals)),
    };
    match (status, signals.caught()) {
        (Err(_), Some(signal)) => Ok(u8::try_from(128 + signal).unwrap_or(128)),
        (status, _) => status,
    }
}

/// `bench boot`: by the clock, and on Arm in instructions as well.
fn boots(args: &BootArgs) -> Result<AllArgs> {
    let platform = args.platform.platform()?;
    let counted = (platform.arch() == Arch::Aarch64).then(|| on(platform, "boot-count"));
    let all = args.output.only([on(platform, "boot")].into_iter().chain(counted), args.runs);
    Ok(AllArgs { size: Some(args.size), append: args.append.clone(), ..all })
}

fn migrations(args: &MigrateArgs) -> Result<AllArgs> {
    let platform = args.platform.platform()?;
    let cases = ["migrate", "migrate-wall"].map(|case| on(platform, case));
    Ok(AllArgs { migrate: args.options, ..args.output.only(cases, args.runs) })
}

fn shootdowns(args: &ShootdownArgs) -> AllArgs {
    let case = if args.halted { "shootdown-halted" } else { "shootdown-native" };
    let tlbcheck = Some([args.cpus, args.samples]);
    AllArgs { on: vec![args.on], tlbcheck, ..args.output.only([case], args.runs) }
}

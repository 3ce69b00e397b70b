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
pub(crate) mod counts;
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
pub(crate) mod unmap;

use crate::cli::{AllArgs, BenchCommand as Bench, DeviceOptions, Short, SizeArgs};
use crate::debian;
use crate::prelude::*;
use all::own::name_on as on;
pub(crate) use all::record;
use clap::ValueEnum;

pub(crate) fn run(command: &Bench, signals: &Signals) -> Result<u8> {
    let status = match command {
        Bench::Paging(args) => paging::paging(args),
        cases => asked(cases).and_then(|args| all::all(&args, signals)),
    };
    match (status, signals.caught()) {
        (Err(_), Some(signal)) => Ok(u8::try_from(128 + signal).unwrap_or(128)),
        (status, _) => status,
    }
}

/// What `bench all` is asked for.
fn asked(command: &Bench) -> Result<AllArgs> {
    Ok(match command {
        Bench::All(args) => (**args).clone(),
        // By the clock, and on Arm in instructions as well.
        Bench::Boot(Short { options, output }) => {
            let platform = options.platform.platform()?;
            let counted = (platform.arch() == Arch::Aarch64).then(|| on(platform, "boot-count"));
            let all = output.only([on(platform, "boot")].into_iter().chain(counted));
            AllArgs { size: Some(options.size), append: options.append.clone(), ..all }
        }
        Bench::Devices(Short { options, output }) => {
            let is_all = options.on.is_empty();
            let on = if is_all { Subject::value_variants().to_vec() } else { options.on.clone() };
            let disk = options.disk.clone().map_or_else(|| debian::usual_disk(Arch::X86_64), Ok)?;
            let devices = DeviceOptions { disk: Some(disk), ..options.clone() };
            AllArgs { on, devices, ..output.only(["devices"]) }
        }
        Bench::Exits(Short { options, output }) => output.only([on(options.platform()?, "exits")]),
        Bench::Flush(Short { options, output }) => match options.platform()? {
            Platform::X86_64 => output.only(["flush-254", "flush-running"]),
            platform @ (Platform::Kvm(_) | Platform::Bochs(_)) => output.only([on(platform, "flush-254")]),
            Platform::Aarch64(_) => bail!("guests on Arm flush without the hypervisor"),
        },
        Bench::Isolation(Short { options, output }) => {
            let case = on(options.platform.emulated()?, "isolation");
            AllArgs { isolation: options.clone(), ..output.only([case]) }
        }
        Bench::Memslot(Short { options, output }) => {
            let (vcpus, cpus, memory) = (memslot::THREADS, memslot::CPUS, options.memory);
            let size = Some(SizeArgs { vcpus, cpus, memory });
            AllArgs { size, ..output.only(["memslot", "memslot-wall"]) }
        }
        Bench::Migrate(Short { options, output }) => {
            let platform = options.platform.emulated()?;
            let cases = ["migrate", "migrate-wall"].map(|case| on(platform, case));
            AllArgs { migrate: *options, ..output.only(cases) }
        }
        Bench::Paging(_) => bail!("bench paging is no case of bench all"),
        Bench::Shootdown(Short { options, output }) => {
            let case = if options.halted { "shootdown-halted" } else { "shootdown-native" };
            let tlbcheck = Some([options.cpus, options.samples]);
            AllArgs { on: vec![options.on], tlbcheck, ..output.only([case]) }
        }
        Bench::Unmap(Short { options, output }) => {
            let cpus = if options.cpu.is_empty() { &ArmCpu::ALL[..] } else { &options.cpu };
            let on = |cpu: &ArmCpu| ["unmap", "unmap-wall"].map(|case| on(Platform::Aarch64(*cpu), case));
            output.only(cpus.iter().flat_map(on))
        }
    })
}

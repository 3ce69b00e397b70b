//! The host tool behind `./quell`: builds the images, fetches the guest's files, starts QEMU,
//! measures and prints results.

mod arch;
mod bench;
mod book;
mod browser;
mod bzimage;
mod check;
mod cli;
mod consoles;
mod ctl;
mod debian;
mod demo;
mod guest;
mod image;
mod machine;
mod machine_file;
mod release;
mod report;
mod results;
mod run;
mod size;
mod steps;
mod table;
mod test;
mod top;
mod trace;
mod vm;
mod workspace;

use anyhow::Result;
use clap::Parser;
use cli::{Cli, Command};
use machine::emulator;
use machine::signals::Signals;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match emulator::choose(&cli.qemu).and_then(|()| dispatch(&cli.command)) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("quell: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the command; returns this process's exit status.
fn dispatch(command: &Command) -> Result<u8> {
    let signals = match command {
        // It holds nothing that needs cleaning up, so a signal may end it wherever it waits.
        Command::Ctl(_) => Signals::default(),
        _ => Signals::install()?,
    };
    match command {
        Command::Run(args) => run::run(args, &signals),
        Command::Demo(args) => demo::demo(args, &signals),
        Command::Bench(command) => bench::run(command, &signals),
        Command::Check(args) => check::check(args, &signals),
        Command::Image(args) => image::image(args),
        Command::ImageDebian(args) => debian::image(args, &signals),
        Command::Book => book::book(),
        Command::Report(args) => report::report(args),
        Command::Release(args) => release::release(args, &signals),
        Command::Ctl(args) => ctl::ctl(args),
        Command::Top(args) => top::top(args, &signals),
        Command::Console(args) => consoles::console(args, &signals),
        Command::Test(args) => test::test(args, &signals),
        Command::Fetch(args) => {
            let files = guest::cache::guest_files(args.arch, args.refresh)?;
            println!("{}\n{}", files.versions.kernel, files.versions.busybox);
            Ok(0)
        }
    }
}

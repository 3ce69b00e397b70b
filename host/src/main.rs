//! The host tool behind `./quell`: builds the images, fetches the guest's files, starts QEMU,
//! measures and prints results.

mod arch;
mod bench;
mod book;
mod browser;
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
mod migration;
mod poll;
mod prelude;
mod release;
mod report;
mod results;
mod run;
mod size;
mod steps;
mod table;
mod test;
mod text;
mod top;
mod trace;
mod vm;
mod workspace;

use anyhow::Result;
use clap::Parser;
use cli::{Cli, Command};
use machine::emulator;
use machine::signals::Signals;
use migration::InDoubt;
use std::panic;
use std::process::{self, ExitCode};

fn main() -> ExitCode {
    end_without_output();
    let cli = Cli::parse();
    match emulator::choose(&cli.qemu).and_then(|()| dispatch(&cli.command)) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("quell: {}", text::foreign_lines(&format!("{error:#}")));
            if error.is::<InDoubt>() { ExitCode::from(IN_DOUBT) } else { ExitCode::FAILURE }
        }
    }
}

/// Status when a guest was given away, and it is not known what came of it.
const IN_DOUBT: u8 = 3;
/// The beginning of the message with which `println!` panics.
const NOT_PRINTED: &str = "failed printing to stdout: ";
/// Status of a program whose reader has left: that of SIGPIPE.
const READER_LEFT: i32 = 128 + 13;

/// Makes output that cannot be written an error of this program, which has no backtrace.
fn end_without_output() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| match info.payload_as_str().and_then(not_printed) {
        Some((status, message)) => {
            eprint!("{message}");
            process::exit(status);
        }
        None => before(info),
    }));
}

/// The status and the message of this program after a panic, if that was about its output.
fn not_printed(panic: &str) -> Option<(i32, String)> {
    let why = panic.strip_prefix(NOT_PRINTED)?;
    if why.starts_with("Broken pipe") {
        return Some((READER_LEFT, String::new()));
    }
    Some((1, format!("quell: standard output: {why}\n")))
}

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
        Command::CheckStyle(args) => test::check_style(args),
        Command::Fetch(args) => {
            let files = guest::cache::guest_files(args.arch, args.refresh)?;
            println!("{}\n{}", files.versions.kernel, files.versions.busybox);
            Ok(0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::io::Write;

    #[test]
    fn u51_output_that_cannot_be_printed_is_an_error_and_a_reader_that_has_left_is_none() {
        let mut full = OpenOptions::new().write(true).open("/dev/full").expect("opens");
        let full = full.write(b"x").expect_err("is full");
        let expected = "quell: standard output: No space left on device (os error 28)\n".to_owned();
        assert_eq!(not_printed(&format!("{NOT_PRINTED}{full}")), Some((1, expected)));
        let (source, mut sink) = std::io::pipe().expect("makes");
        drop(source);
        let left = sink.write(b"x").expect_err("nobody reads");
        assert_eq!(not_printed(&format!("{NOT_PRINTED}{left}")), Some((141, String::new())));
        assert_eq!(not_printed("index out of bounds"), None);
    }
}

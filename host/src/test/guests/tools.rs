//! tlbcheck, bootable images, and the host tool itself.

use super::expect::{judge_check, judge_tool, with_console};
use super::{BOOT_TIMEOUT, Lab};
use crate::check;
use crate::cli::{self, ImageArgs};
use crate::guest::cache::XenVersion;
use crate::image::{self, Entry};
use crate::machine::bochs::Complaints;
use crate::machine::emulator;
use crate::machine::payload::Payload;
use crate::test::checks::Check;
use crate::test::prelude::*;
use std::fs::File;

/// Longest time for a run of tlbcheck.
const CHECK_TIMEOUT: Duration = Duration::from_secs(180);

/// Status of `quell run` when its time is over.
const TIMED_OUT: i32 = 124;

/// What `{arm}` and `{seven}` stand for in arguments: a guest's command, and one that ends with 7.
const ARM: &str = "run --arch aarch64 --timeout 120 --exec";
const SEVEN: &str = "'test $(nproc) = 2 && test $(uname -m) = aarch64 && exit 7'";

impl Lab<'_> {
    pub(super) fn check(&self, case: &Case, check: &Check) -> Result<()> {
        let (switches, cpus) = (switches(case.settings)?, check.cpus.unwrap_or(4));
        let is_wrong = switches.defect.is_some() || check.omission.is_some();
        let run = check::Run {
            platform: case.platform,
            on: check.on,
            xen: XenVersion::default(),
            cpus,
            vcpus: check.vcpus.unwrap_or(cpus),
            switches,
            only: check.rows.as_deref(),
            omission: check.omission,
            timeout: CHECK_TIMEOUT,
        };
        let (rows, outcome) = match run.start(self.signals, |_| {}) {
            // A mistake was planted, and the machine has noticed it.
            Err(error) if is_wrong && error.is::<Complaints>() => return Ok(()),
            run => run?,
        };
        let outcome = self.ended(outcome);
        check::ended(&outcome, &rows)?;
        judge_check(&rows, check, is_wrong)
    }

    pub(in crate::test) fn disc(
        &self,
        platform: Platform,
        entry: Entry,
        uefi: bool,
        shows: &str,
    ) -> Result<()> {
        let args = ImageArgs {
            output: self.directory.join("quell.iso"),
            default: Some(entry),
            timeout: 0,
            exec: Some(format!("echo {shows}")),
            // The machine has one CPU (docs/qemu.md): spinning vCPUs would wait for each other.
            vcpus: Some(1),
            ..cli::arguments(&[])?
        };
        image::make(&args, None)?;
        let mut spec = image::spec(platform, &args.output, uefi)?;
        spec.timeout = Some(BOOT_TIMEOUT);
        let outcome = self.alone(&spec)?;
        with_console(&outcome, || {
            ensure!(outcome.console.contains(shows), "the console does not show '{shows}'");
            outcome.ended_by(&[End::PowerOff, OFF])
        })
    }

    /// Starts tlbcheck's bzImage by QEMU's loader for Linux kernels, without Quell.
    pub(in crate::test) fn bzimage(&self, cmdline: &str) -> Result<()> {
        let kernel = self.directory.join("tlbcheck.bzimage");
        image::write_bzimage(&workspace::build(workspace::TLBCHECK, Arch::X86_64)?, &kernel)?;
        let payload = Payload::Bare { kernel, initrd: None, cmdline: cmdline.to_owned() };
        let mut spec = Spec::new(Platform::X86_64, payload, 2, 256 * MIB);
        spec.timeout = Some(BOOT_TIMEOUT);
        let outcome = self.alone(&spec)?;
        let rows: Vec<_> = outcome.reports.iter().filter_map(|report| check::row(report, "bare")).collect();
        check::ended(&outcome, &rows)?;
        judge_check(&rows, &Check { rows: Some(String::new()), ..Check::default() }, false)?;
        with_console(&outcome, || {
            let said = |key: &str| outcome.report("start").map_or(Value::Null, |said| said[key].clone());
            ensure!(said("protocol") == "linux", "the protocol is {}", said("protocol"));
            ensure!(said("processors") == 2, "{} processors", said("processors"));
            Ok(())
        })
    }

    pub(super) fn tool(&self, args: &str, status: i32, message: &str) -> Result<()> {
        let [text, zeroes] = ["text", "zeroes"].map(|name| self.directory.join(name));
        if args.contains("{text}") {
            fs::write(&text, "This is no kernel.\n".repeat(1000))?;
        }
        if args.contains("{zeroes}") {
            File::create(&zeroes)?.set_len(65 * MIB)?;
        }
        let files = |word: &str| {
            word.replace("{text}", &text.to_string_lossy()).replace("{zeroes}", &zeroes.to_string_lossy())
        };
        let args = args.replace("{arm}", ARM).replace("{seven}", SEVEN);
        // What is in quotes is one word.
        let parts = args.split('\'').enumerate();
        let words = parts.flat_map(|(index, part)| match index % 2 {
            0 => part.split_whitespace().collect(),
            _ => vec![part],
        });
        let args: Vec<_> = words.map(files).collect();
        let mut command = Command::new(env::current_exe()?);
        if !args.iter().any(|arg| arg == "--qemu") {
            command.args(emulator::wanted().arguments());
        }
        let output = command.args(args).stdin(Stdio::null()).output()?;
        self.hung.set(output.status.code() == Some(TIMED_OUT) && status != TIMED_OUT);
        judge_tool(&output, status, message)
    }
}

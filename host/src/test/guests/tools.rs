//! tlbcheck, bootable images, and the host tool itself.

use super::expect::with_console;
use super::{BOOT_TIMEOUT, Lab};
use crate::check::{self, Verdict};
use crate::cli::ImageArgs;
use crate::image::{self, Entry};
use crate::machine::bochs::Complaints;
use crate::machine::emulator::{self, describe};
use crate::machine::spec::Payload;
use crate::run::tail;
use crate::test::checks::Check;
use crate::test::prelude::*;
use std::env;
use std::fs::File;

/// Longest time for a run of tlbcheck, and how many rows pass at least without a defect.
const CHECK_TIMEOUT: Duration = Duration::from_secs(180);
const ROWS_MIN: usize = 10;

/// Status of `quell run` when its time is over.
const TIMED_OUT: i32 = 124;

/// What `{arm}` and `{seven}` stand for in arguments: a guest's command, and one that ends with 7.
const ARM: &str = "run --arch aarch64 --timeout 120 --exec";
const SEVEN: &str = "'test $(nproc) = 2 && test $(uname -m) = aarch64 && exit 7'";

impl Lab<'_> {
    pub(super) fn check(&self, case: &Case, check: &Check) -> Result<()> {
        let switches = switches(case.settings)?;
        let switches = Switches { defect: check.defect.or(switches.defect), ..switches };
        let is_wrong = switches.defect.is_some() || check.omission.is_some();
        let run = check::Run {
            platform: case.platform,
            on: check.on,
            cpus: check.cpus,
            vcpus: check.vcpus,
            switches,
            only: check.rows,
            omission: check.omission,
            timeout: CHECK_TIMEOUT,
        };
        let (rows, outcome) = match run.start(self.signals, |_| {}) {
            // A mistake was planted, and the machine has noticed it.
            Err(error) if is_wrong && error.is::<Complaints>() => return Ok(()),
            run => run?,
        };
        self.hung.set(matches!(outcome.end, End::TimedOut));
        check::ended(&outcome)?;
        let of = |verdict| rows.iter().filter(move |row| row.result == verdict);
        if let Some(may_skip) = check.may_skip {
            let may = |row: &check::Row| may_skip.iter().any(|beginning| row.row.starts_with(beginning));
            let skipped: Vec<_> = of(Verdict::Skip).filter(|row| !may(row)).map(|row| &*row.row).collect();
            ensure!(skipped.is_empty(), "these are skipped: {}", skipped.join(", "));
        }
        match (check.rows, is_wrong) {
            (Some(wanted), true) => {
                ensure!(of(Verdict::Fail).next().is_some(), "none of the rows {wanted} fails");
            }
            (wanted, _) => {
                let failed: Vec<_> =
                    of(Verdict::Fail).map(|row| format!("{}: {}", row.row, row.why)).collect();
                ensure!(failed.is_empty(), "these fail:\n{}", failed.join("\n"));
                let least = if wanted.is_some() { 1 } else { ROWS_MIN };
                ensure!(of(Verdict::Pass).count() >= least, "only {} rows pass", of(Verdict::Pass).count());
            }
        }
        Ok(())
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
            default: entry,
            timeout: 0,
            exec: Some(format!("echo {shows}")),
            // The machine has one CPU (docs/qemu.md): spinning vCPUs would wait for each other.
            vcpus: 1,
            memory: 512 * MIB,
            bzimage: None,
        };
        image::make(&args, None)?;
        let mut spec = image::spec(platform, &args.output, uefi)?;
        spec.timeout = Some(BOOT_TIMEOUT);
        let outcome = Machine::start(&spec, self.signals)?.run(|_, _| Ok(Flow::Continue))?;
        self.hung.set(matches!(outcome.end, End::TimedOut));
        with_console(&outcome, || {
            ensure!(outcome.console.contains(shows), "the console does not show '{shows}'");
            match outcome.end {
                End::PowerOff | End::Hypervisor(ExitCode::GuestPowerOff) => Ok(()),
                end => bail!("the machine ended with {end:?}"),
            }
        })
    }

    /// Starts tlbcheck's bzImage by QEMU's loader for Linux kernels, without Quell.
    pub(in crate::test) fn bzimage(&self, cmdline: &str) -> Result<()> {
        let kernel = self.directory.join("tlbcheck.bzimage");
        image::write_bzimage(&workspace::build(workspace::TLBCHECK, Arch::X86_64)?, &kernel)?;
        let payload = Payload::Bare { kernel, initrd: None, cmdline: cmdline.to_owned() };
        let mut spec = Spec::new(Platform::X86_64, payload, 2, 256 * MIB);
        spec.timeout = Some(BOOT_TIMEOUT);
        let outcome = Machine::start(&spec, self.signals)?.run(|_, _| Ok(Flow::Continue))?;
        self.hung.set(matches!(outcome.end, End::TimedOut));
        check::ended(&outcome)?;
        with_console(&outcome, || {
            let said =
                |event: &str, key: &str| outcome.report(event).map_or(Value::Null, |said| said[key].clone());
            ensure!(said("start", "protocol") == "linux", "the protocol is {}", said("start", "protocol"));
            ensure!(said("start", "processors") == 2, "{} processors", said("start", "processors"));
            ensure!(said("end", "failed") == 0, "{} rows fail", said("end", "failed"));
            ensure!(said("end", "passed").as_u64() > Some(0), "no row passes");
            ensure!(outcome.end == End::PowerOff, "the machine ended with {:?}", outcome.end);
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
        let errors = String::from_utf8_lossy(&output.stderr);
        if output.status.code() != Some(status) {
            self.hung.set(output.status.code() == Some(TIMED_OUT));
            let said = String::from_utf8_lossy(&output.stdout);
            let ended = describe(output.status);
            bail!("ended with {ended} instead of status {status}:\n{}\n{}", tail(&said), tail(&errors));
        }
        ensure!(errors.contains(message), "the message is not '{message}' but:\n{}", tail(&errors));
        Ok(())
    }
}

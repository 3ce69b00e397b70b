//! An emulated PC without a program: the test itself reads and writes its memory and its devices,
//! through QEMU's qtest protocol (docs/devel/qtest.rst of QEMU 7.2). Its one CPU halts.

use crate::arch::Arch;
use crate::machine::child;
use crate::machine::emulator;
use anyhow::{Context, Result, anyhow, ensure};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// The machine is ended after this time, if the test has not done so.
const TIMEOUT: Duration = Duration::from_secs(120);

/// PCI's configuration mechanism #1.
const CONFIG_ADDRESS: u16 = 0xcf8;
const CONFIG_DATA: u16 = 0xcfc;

/// The machine.
pub(super) struct Board {
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// Dropped when the machine is no longer needed.
    _needed: Sender<()>,
    /// The first error. Nothing is done after it.
    failed: Option<anyhow::Error>,
}

impl Board {
    /// Starts a machine with these devices, and files in `directory`.
    pub(super) fn start(directory: &Path, devices: &[&str]) -> Result<Self> {
        // Firmware of one instruction: HLT, with interrupts off since reset.
        let firmware = directory.join("halt.bin");
        fs::write(&firmware, vec![0xf4; 64 << 10]).context("the firmware")?;
        let mut command = emulator::chosen().command(Arch::X86_64);
        command.args(["-machine", "q35", "-accel", "tcg", "-m", "64M", "-nodefaults", "-display", "none"]);
        command.args(["-qtest", "stdio", "-qtest-log", "none", "-bios"]).arg(&firmware);
        for device in devices {
            command.args(["-device", device]);
        }
        child::end_with_us(&mut command);
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut machine = started.context("cannot start QEMU")?;
        let (to, from) = (machine.stdin.take(), machine.stdout.take());
        let (to, from) = to.zip(from).context("QEMU has no standard streams")?;
        let (needed, is_needed) = channel();
        thread::spawn(move || {
            let _timeout = matches!(is_needed.recv_timeout(TIMEOUT), Err(RecvTimeoutError::Timeout));
            end(machine);
        });
        Ok(Self { to, from: BufReader::new(from), _needed: needed, failed: None })
    }

    /// The first error that there was.
    pub(super) fn check(&mut self) -> Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Whether there was an error.
    pub(super) const fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Reads 8 bytes of memory or of a device; 0 after an error.
    pub(super) fn read(&mut self, address: u64) -> u64 {
        self.ask(&format!("readq {address:#x}"))
    }

    /// Writes 8 bytes.
    pub(super) fn write(&mut self, address: u64, value: u64) {
        self.ask(&format!("writeq {address:#x} {value:#x}"));
    }

    /// Writes a double word of the configuration space of a function on bus 0.
    pub(super) fn configure(&mut self, function: u16, register: u8, value: u32) {
        let address = 1 << 31 | u32::from(function) << 8 | u32::from(register);
        self.ask(&format!("outl {CONFIG_ADDRESS:#x} {address:#x}"));
        self.ask(&format!("outl {CONFIG_DATA:#x} {value:#x}"));
    }

    fn ask(&mut self, command: &str) -> u64 {
        if self.failed.is_some() {
            return 0;
        }
        self.answer(command).unwrap_or_else(|error| {
            self.failed = Some(error.context(format!("QEMU was told: {command}")));
            0
        })
    }

    /// The value that a command returns, 0 if it returns none.
    fn answer(&mut self, command: &str) -> Result<u64> {
        writeln!(self.to, "{command}").context("QEMU does not listen")?;
        let mut line = String::new();
        let length = self.from.read_line(&mut line).context("QEMU does not speak")?;
        ensure!(length != 0, "QEMU has ended, or was ended after {} s", TIMEOUT.as_secs());
        let answer = line.trim().strip_prefix("OK").with_context(|| format!("it answered: {line}"))?;
        match answer.trim().strip_prefix("0x") {
            None => Ok(0),
            Some(digits) => u64::from_str_radix(digits, 16).map_err(|_| anyhow!("it answered: {line}")),
        }
    }
}

fn end(mut machine: Child) {
    // It may have ended already.
    let _ended = machine.kill();
    let _status = machine.wait();
}

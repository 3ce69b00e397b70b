//! An emulated machine without a program: the test itself reads and writes its memory and its
//! devices, through QEMU's qtest protocol (docs/devel/qtest.rst of QEMU 7.2). Its one CPU halts.

use crate::machine::emulator;
use crate::test::prelude::*;
use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};

/// The machine is ended after this time, if the test has not done so.
const TIMEOUT: Duration = Duration::from_secs(120);

/// PCI's configuration mechanism #1, of a PC.
const CONFIG_ADDRESS: u16 = 0xcf8;
const CONFIG_DATA: u16 = 0xcfc;
/// PCI's configuration space in memory, of an Arm board with addresses of 32 bits.
const CONFIG_SPACE: u64 = 0x3f00_0000;

#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// A PC.
    Pc,
    /// QEMU's board for Arm, with an SMMUv3.
    Virt,
}

impl Kind {
    const fn arch(self) -> Arch {
        match self {
            Self::Pc => Arch::X86_64,
            Self::Virt => Arch::Aarch64,
        }
    }

    const fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Pc => &["-machine", "q35"],
            Self::Virt => &["-machine", "virt,iommu=smmuv3,highmem=off", "-cpu", "cortex-a53"],
        }
    }

    /// Instructions that wait, with interrupts off since reset: HLT; WFI and a branch back to it.
    fn firmware(self) -> Vec<u8> {
        let waits: &[u8] = match self {
            Self::Pc => &[0xf4],
            Self::Virt => &[0x7f, 0x20, 0x03, 0xd5, 0xff, 0xff, 0xff, 0x17],
        };
        waits.repeat((64 << 10) / waits.len())
    }
}

pub(super) struct Board {
    kind: Kind,
    talk: RefCell<Talk>,
    /// Dropped when the machine is no longer needed.
    _needed: Sender<()>,
}

struct Talk {
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// What QEMU says otherwise.
    messages: PathBuf,
    /// The first error. Nothing is done after it.
    failed: Option<anyhow::Error>,
}

impl Board {
    /// Starts a machine with these devices, and files in `directory`.
    ///
    /// Its time passes in steps to the next event while the CPU waits: what devices do later is
    /// done when it is asked for, however busy this machine is.
    pub(super) fn start(directory: &Path, kind: Kind, devices: &[&str]) -> Result<Self> {
        let firmware = directory.join("halt.bin");
        fs::write(&firmware, kind.firmware()).context("the firmware")?;
        let messages = directory.join("qemu.txt");
        let errors = fs::File::create(&messages).context("QEMU's messages")?;
        let mut command = emulator::chosen()?.command(kind.arch());
        command.args(kind.arguments()).args(["-accel", "tcg", "-icount", "shift=0,sleep=off", "-m", "64M"]);
        command.args(["-nodefaults", "-display", "none"]);
        command.args(["-qtest", "stdio", "-qtest-log", "none", "-bios"]).arg(&firmware);
        for device in devices {
            command.args(["-device", device]);
        }
        emulator::end_with_us(&mut command);
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors).spawn();
        let mut machine = started.context("cannot start QEMU")?;
        let (to, from) = (machine.stdin.take(), machine.stdout.take());
        let (to, from) = to.zip(from).context("QEMU has no standard streams")?;
        let (needed, is_needed) = channel();
        thread::spawn(move || {
            let _timeout = matches!(is_needed.recv_timeout(TIMEOUT), Err(RecvTimeoutError::Timeout));
            end(machine);
        });
        let talk = Talk { to, from: BufReader::new(from), messages, failed: None };
        Ok(Self { kind, talk: talk.into(), _needed: needed })
    }

    pub(super) fn check(&self) -> Result<()> {
        self.talk.borrow_mut().failed.take().map_or(Ok(()), Err)
    }

    pub(super) fn has_failed(&self) -> bool {
        self.talk.borrow().failed.is_some()
    }

    /// Reads 8 bytes of memory or of a device; 0 after an error.
    pub(super) fn read(&self, address: u64) -> u64 {
        self.ask(&format!("readq {address:#x}"))
    }

    pub(super) fn read_u32(&self, address: u64) -> u32 {
        self.ask(&format!("readl {address:#x}")) as u32
    }

    pub(super) fn write(&self, address: u64, value: u64) {
        self.ask(&format!("writeq {address:#x} {value:#x}"));
    }

    pub(super) fn write_u32(&self, address: u64, value: u32) {
        self.ask(&format!("writel {address:#x} {value:#x}"));
    }

    /// Writes a double word of the configuration space of a function on bus 0.
    pub(super) fn configure(&self, function: u16, register: u8, value: u32) {
        match self.kind {
            Kind::Pc => {
                let address = 1 << 31 | u32::from(function) << 8 | u32::from(register);
                self.ask(&format!("outl {CONFIG_ADDRESS:#x} {address:#x}"));
                self.ask(&format!("outl {CONFIG_DATA:#x} {value:#x}"));
            }
            Kind::Virt => {
                self.write_u32(CONFIG_SPACE + (u64::from(function) << 12 | u64::from(register)), value);
            }
        }
    }

    fn ask(&self, command: &str) -> u64 {
        self.talk.borrow_mut().ask(command)
    }
}

impl Talk {
    fn ask(&mut self, command: &str) -> u64 {
        if self.failed.is_some() {
            return 0;
        }
        self.answer(command).unwrap_or_else(|error| {
            self.failed = Some(error.context(format!("QEMU was told: {command}")));
            0
        })
    }

    fn answer(&mut self, command: &str) -> Result<u64> {
        let mut line = String::new();
        let asked = writeln!(self.to, "{command}").and_then(|()| self.from.read_line(&mut line));
        if asked.is_err() || line.is_empty() {
            let messages = fs::read_to_string(&self.messages).unwrap_or_default();
            bail!("QEMU has ended, or was ended after {} s. {messages}", TIMEOUT.as_secs());
        }
        let answer = line.trim().strip_prefix("OK").with_context(|| format!("it answered: {line}"))?;
        ensure!(answer.is_empty() || answer.starts_with(' '), "it answered: {line}");
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

//! What to emulate, and the QEMU command line for it.

use super::ram::Ram;
use crate::size::MIB;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The emulator.
pub(crate) const QEMU: &str = "qemu-system-x86_64";

/// What the machine starts.
#[derive(Clone, Debug)]
pub(crate) enum Payload {
    /// The hypervisor with a guest in a bundle.
    Quell {
        /// Its ELF file.
        hypervisor: PathBuf,
        /// The bundle.
        bundle: PathBuf,
        /// Physical address of the beacon in the ELF file.
        beacon: Option<u64>,
    },
    /// A Linux kernel directly on the machine.
    Bare {
        /// A bzImage.
        kernel: PathBuf,
        /// Its initial RAM disk.
        initrd: Option<PathBuf>,
        /// Its command line.
        cmdline: String,
    },
    /// Whatever a CD starts.
    Disc {
        /// The CD's image.
        disc: PathBuf,
        /// UEFI firmware; BIOS without.
        firmware: Option<PathBuf>,
    },
}

/// Where the guest's console, the first serial port, goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Console {
    /// To this process's terminal, keyboard included; Ctrl-A x ends the machine.
    Terminal,
    /// To this process's standard output, without input; kept as well.
    Echo,
    /// It is only kept; input comes from this program.
    Capture,
}

/// How the machine's clock runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// With the host's, each CPU in a thread of its own.
    Wall,
    /// By the number of instructions executed, 1 ns each, all CPUs in turn in one thread. Two runs of
    /// the same program are the same to the instruction.
    Instructions,
}

/// A machine to run.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    /// What it starts.
    pub(crate) payload: Payload,
    /// Its CPUs.
    pub(crate) cpus: u32,
    /// Its memory in bytes.
    pub(crate) memory: u64,
    /// Its clock.
    pub(crate) clock: Clock,
    /// Where the guest's console goes.
    pub(crate) console: Console,
    /// When it is killed; `None` for never.
    pub(crate) timeout: Option<Duration>,
    /// The file that receives the hypervisor's log; one that is removed afterwards without.
    pub(crate) log: Option<PathBuf>,
    /// More arguments for QEMU, for those who work on the hypervisor.
    pub(crate) qemu_args: Vec<String>,
}

/// Memory that the machine has beyond the guest's: the hypervisor's own, and the bundle that lies in
/// memory until the guest has been made from it.
pub(crate) fn memory_around(guest_bytes: u64, bundle_bytes: u64) -> u64 {
    (guest_bytes + bundle_bytes).next_multiple_of(64 * MIB) + 256 * MIB
}

/// The files and sockets that one run of QEMU uses.
pub(crate) struct Channels<'a> {
    /// UNIX socket on which the guest's report channel, the second serial port, arrives.
    pub(crate) report: &'a Path,
    /// The hypervisor's log.
    pub(crate) log: &'a Path,
    /// UNIX socket at which QEMU offers the control channel, the fourth serial port; none without hypervisor.
    pub(crate) control: Option<&'a Path>,
    /// QEMU's own log.
    pub(crate) qemu_log: &'a Path,
}

impl Spec {
    /// A machine by the clock, which runs until it ends, with its console captured.
    pub(crate) fn new(payload: Payload, cpus: u32, memory: u64) -> Self {
        Self {
            payload,
            cpus,
            memory,
            clock: Clock::Wall,
            console: Console::Capture,
            timeout: None,
            log: None,
            qemu_args: Vec::new(),
        }
    }

    /// The arguments for [`QEMU`].
    pub(crate) fn arguments(&self, ram: &Ram, channels: &Channels<'_>) -> Vec<OsString> {
        let mut args = Arguments::default();
        args.words("-nodefaults -no-user-config -no-reboot -display none -monitor none");
        args.words("-machine q35,memory-backend=ram -cpu EPYC,+svm,+npt");
        args.pair("-smp", self.cpus.to_string());
        args.pair("-m", format!("{}M", self.memory / MIB));
        let path = ram.path_in_child();
        args.pair(
            "-object",
            format!("memory-backend-file,id=ram,share=on,mem-path={path},size={}", self.memory),
        );
        match self.clock {
            Clock::Wall => args.words("-accel tcg,thread=multi"),
            Clock::Instructions => args.words(
                "-accel tcg,thread=single -icount shift=0,sleep=off \
                 -rtc base=2024-01-01T00:00:00,clock=vm -seed 1",
            ),
        }
        // The keyboard's Ctrl-C is the guest's: signal=off. QEMU's escape, Ctrl-A, needs the mux.
        args.words(match self.console {
            Console::Terminal => "-chardev stdio,id=console,mux=on,signal=off",
            Console::Echo | Console::Capture => "-chardev stdio,id=console,signal=off",
        });
        args.words("-serial chardev:console");
        args.option("-chardev", "socket,id=report,path=", channels.report);
        args.words("-serial chardev:report");
        if let Some(control) = channels.control {
            args.option("-chardev", "socket,id=control,server=on,wait=off,path=", control);
            // COM4: its interrupt is that of COM2, which has none enabled.
            args.words("-device isa-serial,index=3,chardev=control");
        }
        args.option("-chardev", "file,id=log,path=", channels.log);
        args.words("-device isa-debugcon,iobase=0xe9,chardev=log");
        args.words("-device isa-debug-exit,iobase=0xf4,iosize=0x04");
        args.words("-d cpu_reset");
        args.option("-D", "", channels.qemu_log);
        self.payload.arguments(&mut args);
        args.0.extend(self.qemu_args.iter().map(OsString::from));
        args.0
    }
}

impl Payload {
    fn arguments(&self, args: &mut Arguments) {
        match self {
            Self::Quell { hypervisor, bundle, .. } => {
                args.option("-kernel", "", hypervisor);
                args.option("-initrd", "", bundle);
            }
            Self::Bare { kernel, initrd, cmdline } => {
                args.option("-kernel", "", kernel);
                if let Some(initrd) = initrd {
                    args.option("-initrd", "", initrd);
                }
                args.pair("-append", cmdline);
            }
            Self::Disc { disc, firmware } => {
                if let Some(firmware) = firmware {
                    args.option("-bios", "", firmware);
                }
                args.option("-cdrom", "", disc);
            }
        }
    }
}

#[derive(Default)]
struct Arguments(Vec<OsString>);

impl Arguments {
    fn words(&mut self, text: &str) {
        self.0.extend(text.split_whitespace().map(OsString::from));
    }

    fn pair(&mut self, name: &str, value: impl Into<OsString>) {
        self.0.extend([name.into(), value.into()]);
    }

    /// An option whose value ends with a path. QEMU's option lists end a value at a comma; a comma in a
    /// path is written twice.
    fn option(&mut self, name: &str, prefix: &str, path: &Path) {
        let mut value = OsString::from(prefix);
        if prefix.is_empty() {
            value.push(path);
        } else {
            value.push(path.to_string_lossy().replace(',', ",,"));
        }
        self.pair(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(clock: Clock, console: Console) -> Vec<String> {
        let spec = Spec {
            payload: Payload::Quell { hypervisor: "/h".into(), bundle: "/b".into(), beacon: None },
            cpus: 2,
            memory: 768 * MIB,
            clock,
            console,
            timeout: None,
            log: None,
            qemu_args: vec!["-s".into()],
        };
        let ram = Ram::new(4096).expect("makes");
        let channels = Channels {
            report: Path::new("/a,b/report"),
            log: "/l".as_ref(),
            control: Some(Path::new("/c")),
            qemu_log: "/q".as_ref(),
        };
        let args = spec.arguments(&ram, &channels);
        args.into_iter().map(|arg| arg.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn only_the_deterministic_machine_counts_instructions() {
        let has_icount = |clock| arguments(clock, Console::Capture).iter().any(|arg| arg == "-icount");
        assert!(!has_icount(Clock::Wall));
        assert!(has_icount(Clock::Instructions));
    }

    #[test]
    fn commas_in_paths_do_not_end_options() {
        let args = arguments(Clock::Wall, Console::Terminal);
        assert!(args.contains(&"socket,id=report,path=/a,,b/report".to_owned()), "{args:?}");
        assert_eq!(args.last().map(String::as_str), Some("-s"));
    }

    #[test]
    fn the_machine_has_room_beyond_the_guest_and_its_bundle() {
        assert_eq!(memory_around(512 * MIB, 16 * MIB), (576 + 256) * MIB);
        assert!(memory_around(512 * MIB, 300 * MIB) >= (512 + 300 + 256) * MIB);
    }
}

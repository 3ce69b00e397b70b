//! The machine to emulate, and the QEMU command line for it.

use super::devices::value as escaped;
use super::emulator::Version;
use super::kvm;
use super::payload::Payload;
use crate::migration::Listener;
use crate::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Console {
    /// To this process's terminal, keyboard included; Ctrl-A x ends the machine.
    Terminal,
    /// To this process's standard output; kept as well. Input is what is typed on the terminal.
    Echo,
    /// Only kept; input is from this program.
    Capture,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The host's clock, with each CPU in a thread of its own.
    Wall,
    /// Executed instructions, 1 ns each, all CPUs in turn: two runs are identical.
    Instructions,
    /// The same, and the host's clock while all CPUs wait: for devices that take the host's time.
    InstructionsAndWaits,
}

#[derive(Clone, Debug)]
pub(crate) struct Counting {
    pub(crate) plugin: PathBuf,
    /// The file that it writes when QEMU ends by itself.
    pub(crate) output: PathBuf,
}

#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) platform: Platform,
    pub(crate) payload: Payload,
    pub(crate) cpus: u32,
    /// Its memory in bytes.
    pub(crate) memory: u64,
    pub(crate) clock: Clock,
    /// Whether a kernel that is started directly on an Arm machine gets EL2, for KVM.
    pub(crate) has_el2: bool,
    pub(crate) console: Console,
    /// The limit of its own time before it is killed; `None` for no limit.
    pub(crate) timeout: Option<Duration>,
    /// The file that receives the hypervisor's log; if there is none, a temporary file.
    pub(crate) log: Option<PathBuf>,
    pub(crate) counting: Option<Counting>,
    /// Whether it has serial ports, and others for the hypervisor's log and its exit code.
    pub(crate) has_ports: bool,
    pub(crate) devices: Vec<OsString>,
    /// What QEMU keeps open, for as long as it runs.
    pub(crate) keeps: Vec<Listener>,
    pub(crate) qemu_args: Vec<String>,
}

pub(crate) struct Channels<'a> {
    /// UNIX socket of the second serial port, unless reports are on the console.
    pub(crate) report: &'a Path,
    pub(crate) log: &'a Path,
    /// UNIX socket for the fourth serial port, or one on PCI; `None` without hypervisor.
    pub(crate) control: Option<&'a Path>,
    pub(crate) qemu_log: &'a Path,
    /// UNIX socket of QEMU's monitor.
    pub(crate) monitor: &'a Path,
}

impl Spec {
    /// A machine by the clock, which runs until it ends, with its console captured.
    pub(crate) fn new(platform: Platform, payload: Payload, cpus: u32, memory: u64) -> Self {
        Self {
            platform,
            payload,
            cpus,
            memory,
            clock: Clock::Wall,
            has_el2: false,
            console: Console::Capture,
            timeout: None,
            log: None,
            counting: None,
            has_ports: true,
            devices: Vec::new(),
            keeps: Vec::new(),
            qemu_args: Vec::new(),
        }
    }

    pub(crate) fn arguments(
        &self,
        version: Version,
        ram: &Ram,
        channels: &Channels<'_>,
    ) -> Result<Vec<OsString>> {
        let mut args = Arguments::default();
        args.words("-nodefaults -no-user-config -no-reboot -display none -monitor none");
        args.option("-chardev", "socket,id=monitor,server=on,wait=off,path=", channels.monitor);
        args.words("-mon chardev=monitor,mode=control");
        self.machine(&mut args, version);
        args.pair("-smp", self.cpus.to_string());
        args.pair("-m", format!("{}M", self.memory / MIB));
        let path = ram.path_in_child();
        args.pair(
            "-object",
            format!("memory-backend-file,id=ram,share=on,mem-path={path},size={}", self.memory),
        );
        let is_emulated = !matches!(self.platform, Platform::Kvm(_));
        ensure!(
            is_emulated || (self.clock == Clock::Wall && self.counting.is_none()),
            "instructions are counted in an emulator alone; leave out --accel kvm"
        );
        match self.clock {
            Clock::Wall if !is_emulated => {}
            Clock::Wall => args.words("-accel tcg,thread=multi"),
            Clock::Instructions => args.words(
                "-accel tcg,thread=single -icount shift=0,sleep=off \
                 -rtc base=2024-01-01T00:00:00,clock=vm -seed 1",
            ),
            Clock::InstructionsAndWaits => args.words(
                "-accel tcg,thread=single -icount shift=0,sleep=on \
                 -rtc base=2024-01-01T00:00:00,clock=vm -seed 1",
            ),
        }
        if self.has_ports {
            // The keyboard's Ctrl-C is the guest's: signal=off. QEMU's escape, Ctrl-A, needs the
            // mux.
            args.words(match self.console {
                Console::Terminal => "-chardev stdio,id=console,mux=on,signal=off",
                Console::Echo | Console::Capture => "-chardev stdio,id=console,signal=off",
            });
            args.words("-serial chardev:console");
        }
        if let Some(control) = channels.control {
            args.option("-chardev", "socket,id=control,path=", control);
        }
        match self.platform {
            _ if !self.has_ports => {}
            Platform::X86_64 | Platform::Kvm(_) | Platform::Bochs(_) => x86_devices(&mut args, channels),
            Platform::Aarch64(_) => self.arm_devices(&mut args, channels),
        }
        if let Some(counting) = &self.counting {
            args.option("-plugin", "file=", &counting.plugin);
            args.0.last_mut().into_iter().for_each(|value| {
                value.push(",out=");
                value.push(escaped(&counting.output));
            });
        }
        self.payload.arguments(&mut args)?;
        args.0.extend(self.devices.iter().cloned());
        args.0.extend(self.qemu_args.iter().map(OsString::from));
        Ok(args.0)
    }

    /// Board and CPU.
    pub(super) fn machine(&self, args: &mut Arguments, version: Version) {
        if let Platform::Kvm(_) = self.platform {
            args.words(kvm::MACHINE);
            args.words("-machine memory-backend=ram");
            return;
        }
        let Platform::Aarch64(cpu) = self.platform else {
            args.words("-machine q35,memory-backend=ram -cpu");
            // QEMU 7.2's CMPXCHG16B damages the flags. Linux does not detect that itself.
            let is_xen = matches!(self.payload, Payload::Xen { .. });
            let is_kernel = is_xen || matches!(self.payload, Payload::Bare { .. });
            let cx16 = if is_kernel && !version.has_cmpxchg16b() { ",-cx16" } else { "" };
            // Xen idles by MWAIT in a way that QEMU refuses by #GP.
            let monitor = if is_xen { ",-monitor" } else { "" };
            args.0.push(format!("EPYC,+svm,+npt{cx16}{monitor}").into());
            return;
        };
        let mut machine = "virt,memory-backend=ram,gic-version=3".to_owned();
        if self.has_el2 || matches!(self.payload, Payload::Quell { .. }) {
            // Otherwise software directly on the machine runs as it does in a guest.
            machine += ",virtualization=on";
        }
        if self.clock != Clock::Wall {
            machine += ",dtb-randomness=off";
        }
        args.pair("-machine", machine);
        args.pair("-cpu", cpu.qemu());
        if version.major >= 10 {
            // A disk that interrupts by its pin would keep it high (`docs/qemu.md`).
            args.words("-global nvme.dbcs=off");
        }
    }

    /// Two serial ports on PCI, for control channel and log. The end is reported in the beacon.
    fn arm_devices(&self, args: &mut Arguments, channels: &Channels<'_>) {
        if channels.control.is_some() {
            args.option("-chardev", "file,id=log,path=", channels.log);
            args.words("-device pci-serial-2x,chardev1=control,chardev2=log");
        }
    }
}

/// Further serial ports, and ports for the hypervisor's log and its exit code.
fn x86_devices(args: &mut Arguments, channels: &Channels<'_>) {
    args.option("-chardev", "socket,id=report,path=", channels.report);
    args.words("-serial chardev:report");
    if channels.control.is_some() {
        // COM4: it shares the interrupt of COM2, which has none enabled.
        args.words("-device isa-serial,index=3,chardev=control");
    }
    args.option("-chardev", "file,id=log,path=", channels.log);
    args.words("-device isa-debugcon,iobase=0xe9,chardev=log");
    args.words("-device isa-debug-exit,iobase=0xf4,iosize=0x04");
    // Logs a triple fault.
    args.words("-d cpu_reset");
    args.option("-D", "", channels.qemu_log);
}

#[derive(Default)]
pub(super) struct Arguments(pub(super) Vec<OsString>);

impl Arguments {
    pub(super) fn words(&mut self, text: &str) {
        self.0.extend(text.split_whitespace().map(OsString::from));
    }

    pub(super) fn pair(&mut self, name: &str, value: impl Into<OsString>) {
        self.0.extend([name.into(), value.into()]);
    }

    pub(super) fn option(&mut self, name: &str, prefix: &str, path: &Path) {
        let mut value = OsString::from(prefix);
        if prefix.is_empty() {
            value.push(path);
        } else {
            value.push(escaped(path));
        }
        self.pair(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARM: Platform = Platform::Aarch64(ArmCpu::CortexA72);
    const OLD: Version = Version { major: 7, minor: 2 };
    const NEW: Version = Version { major: 10, minor: 0 };

    fn quell() -> Payload {
        Payload::Quell { hypervisor: "/h".into(), bundle: "/b".into(), beacon: None }
    }

    fn spec(platform: Platform, payload: Payload, clock: Clock, console: Console) -> Spec {
        Spec {
            clock,
            console,
            counting: Some(Counting { plugin: "/p".into(), output: "/o,1".into() }),
            qemu_args: vec!["-s".into()],
            ..Spec::new(platform, payload, 2, 768 * MIB)
        }
    }

    fn arguments(platform: Platform, clock: Clock, console: Console) -> Vec<String> {
        let spec = spec(platform, quell(), clock, console);
        let ram = Ram::new(4096, 0).expect("makes");
        let channels = Channels {
            report: Path::new("/a,b/report"),
            log: "/l".as_ref(),
            control: Some(Path::new("/c")),
            qemu_log: "/q".as_ref(),
            monitor: "/m".as_ref(),
        };
        let args = spec.arguments(OLD, &ram, &channels).expect("can be made");
        args.into_iter().map(|arg| arg.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn only_the_deterministic_machine_counts_instructions() {
        for platform in [Platform::X86_64, ARM] {
            let has_icount =
                |clock| arguments(platform, clock, Console::Capture).iter().any(|arg| arg == "-icount");
            assert!(!has_icount(Clock::Wall));
            assert!(has_icount(Clock::Instructions) && has_icount(Clock::InstructionsAndWaits));
        }
    }

    #[test]
    fn commas_in_paths_do_not_end_options() {
        let args = arguments(Platform::X86_64, Clock::Wall, Console::Terminal);
        assert!(args.contains(&"socket,id=report,path=/a,,b/report".to_owned()), "{args:?}");
        assert!(args.contains(&"file=/p,out=/o,,1".to_owned()), "{args:?}");
        assert_eq!(args.last().map(String::as_str), Some("-s"));
    }

    #[test]
    fn u20_a_bare_kernel_is_not_shown_cmpxchg16b() {
        let cpu = |payload, version| {
            let mut args = Arguments::default();
            spec(Platform::X86_64, payload, Clock::Wall, Console::Capture).machine(&mut args, version);
            args.0.last().map(|cpu| cpu.to_string_lossy().into_owned()).expect("has a CPU")
        };
        let bare = || Payload::Bare { kernel: "/k".into(), initrd: None, cmdline: String::new() };
        assert_eq!(cpu(bare(), OLD), "EPYC,+svm,+npt,-cx16");
        assert_eq!(cpu(bare(), NEW), "EPYC,+svm,+npt", "it is well there");
        assert_eq!(cpu(quell(), OLD), "EPYC,+svm,+npt", "the hypervisor looks for itself");
    }

    #[test]
    fn arm_machines_have_the_cpu_that_was_named_and_no_isa_device() {
        let args = arguments(ARM, Clock::Wall, Console::Capture);
        assert!(args.contains(&"cortex-a72".to_owned()), "{args:?}");
        assert!(args.iter().any(|arg| arg.contains("virtualization=on")), "{args:?}");
        assert!(args.iter().all(|arg| !arg.contains("isa-")), "{args:?}");
        assert!(args.contains(&"pci-serial-2x,chardev1=control,chardev2=log".to_owned()), "{args:?}");
    }

    #[test]
    fn a_machine_by_kvm_has_this_computers_processor_and_counts_nothing() {
        let spec = spec(Platform::Kvm(kvm::Vendor::Amd), quell(), Clock::Wall, Console::Capture);
        let ram = Ram::new(4096, 0).expect("makes");
        let path = Path::new("/x");
        let channels =
            Channels { report: path, log: path, control: Some(path), qemu_log: path, monitor: path };
        let words = |spec: &Spec| spec.arguments(NEW, &ram, &channels).map(|args| args.join(" ".as_ref()));
        assert!(words(&spec).expect_err("is refused").to_string().contains("instructions"));
        let counted = Spec { counting: None, clock: Clock::Instructions, ..spec.clone() };
        assert!(words(&counted).is_err());
        let text =
            words(&Spec { counting: None, ..spec }).expect("can be made").into_string().expect("is text");
        assert!(text.contains(kvm::MACHINE) && text.contains("memory-backend=ram"), "{text}");
        assert!(!text.contains("tcg") && !text.contains("EPYC"), "{text}");
    }

    #[test]
    fn a_kernel_gets_el2_only_if_it_is_to_be_a_hypervisor() {
        let board = |has_el2| {
            let bare = Payload::Bare { kernel: "/k".into(), initrd: None, cmdline: String::new() };
            let spec = Spec { has_el2, ..spec(ARM, bare, Clock::Wall, Console::Capture) };
            let mut args = Arguments::default();
            spec.machine(&mut args, OLD);
            args.0[1].to_string_lossy().into_owned()
        };
        assert!(board(true).contains("virtualization=on"), "{}", board(true));
        assert!(!board(false).contains("virtualization"), "{}", board(false));
    }
}

//! The architectures of machines and guests, and their differences as far as this tool is
//! concerned.

use crate::machine::bochs::{Bochs, Model, Tlb};
use crate::machine::kvm::{self, Accel, Vendor};
use crate::prelude::*;
use clap::{Args, ValueEnum};
use hostlink::architecture::Architecture;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub(crate) enum Arch {
    /// AMD64 with SVM; in Bochs also Intel 64 with VMX (`--model`)
    #[value(name = "x86_64", alias = "amd64")]
    X86_64,
    /// Arm64 with EL2
    #[value(alias = "arm64")]
    Aarch64,
}

impl Arch {
    pub(crate) const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];

    /// One of two values.
    pub(crate) const fn pick<T: Copy>(self, amd64: T, arm64: T) -> T {
        match self {
            Self::X86_64 => amd64,
            Self::Aarch64 => arm64,
        }
    }

    /// Its platform unless another one is asked for.
    pub(crate) const fn usual(self) -> Platform {
        self.pick(Platform::X86_64, Platform::Aarch64(ArmCpu::Max))
    }

    pub(crate) const fn name(self) -> &'static str {
        self.pick("x86_64", "aarch64")
    }

    pub(crate) const fn debian(self) -> &'static str {
        self.pick("amd64", "arm64")
    }

    pub(crate) const fn qemu(self) -> &'static str {
        self.pick("qemu-system-x86_64", "qemu-system-aarch64")
    }

    /// The compiler's target for programs without an operating system.
    pub(crate) const fn bare_target(self) -> &'static str {
        self.pick("x86_64-unknown-none", "aarch64-unknown-none-softfloat")
    }

    /// The compiler's target for programs inside Linux guests.
    pub(crate) const fn linux_target(self) -> &'static str {
        self.pick("x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl")
    }

    /// Physical address of the first byte of a machine's memory: offset 0 of the file behind it.
    pub(crate) const fn ram_base(self) -> u64 {
        self.pick(0, 1 << 30)
    }

    /// The beginning of every Linux guest's command line: its console.
    pub(crate) const fn console(self) -> &'static str {
        self.pick("console=ttyS0", "console=ttyAMA0")
    }

    /// Whether the guest's reports are on its console, because there is no second serial port.
    pub(crate) const fn reports_on_console(self) -> bool {
        matches!(self, Self::Aarch64)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ArmCpu {
    /// Everything that QEMU supports: VHE, range TLBI, 16 bits of VMID, FWB, break-before-make
    /// level 2
    Max,
    /// VHE and 16 bits of VMID, but neither range TLBI nor FWB
    NeoverseN1,
    /// Neither VHE nor range TLBI nor FWB, and 8 bits of VMID
    CortexA72,
}

impl ArmCpu {
    /// All of them, the default first.
    pub(crate) const ALL: [Self; 3] = [Self::Max, Self::NeoverseN1, Self::CortexA72];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Max => "max",
            Self::NeoverseN1 => "neoverse-n1",
            Self::CortexA72 => "cortex-a72",
        }
    }

    /// For `-cpu`. Pointer authentication by its architected algorithm would take most of the time.
    pub(crate) const fn qemu(self) -> &'static str {
        match self {
            Self::Max => "max,pauth-impdef=on",
            Self::NeoverseN1 => "neoverse-n1",
            Self::CortexA72 => "cortex-a72",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Platform {
    /// A q35 machine with an EPYC.
    X86_64,
    /// A q35 machine with this computer's own processor.
    Kvm(Vendor),
    /// Bochs, a PC with this CPU.
    Bochs(Bochs),
    /// A `virt` machine with this CPU.
    Aarch64(ArmCpu),
}

impl Platform {
    pub(crate) const fn arch(self) -> Arch {
        match self {
            Self::X86_64 | Self::Kvm(_) | Self::Bochs(_) => Arch::X86_64,
            Self::Aarch64(_) => Arch::Aarch64,
        }
    }

    /// What virtualizes its processors.
    pub(crate) const fn architecture(self) -> Architecture {
        match self {
            Self::Bochs(Bochs { model: Model::Skylake, .. }) => Architecture::Intel64,
            Self::X86_64 | Self::Bochs(_) => Architecture::Amd64,
            Self::Kvm(vendor) => vendor.architecture(),
            Self::Aarch64(_) => Architecture::Arm64,
        }
    }

    /// What runs it.
    pub(crate) const fn emulator(self) -> &'static str {
        match self {
            Self::Bochs(_) => "Bochs",
            Self::X86_64 | Self::Kvm(_) | Self::Aarch64(_) => "QEMU",
        }
    }

    /// The options by which it is chosen.
    pub(crate) fn arguments(self) -> PlatformArgs {
        let mut given = PlatformArgs { arch: Some(self.arch()), ..PlatformArgs::default() };
        match self {
            Self::X86_64 => {}
            Self::Kvm(_) => given.accel = Some(Accel::Kvm),
            Self::Aarch64(cpu) => given.cpu = Some(cpu),
            Self::Bochs(Bochs { model, tlb }) => {
                let machine = Some(Emulator::Bochs);
                given.machine = MachineArgs { machine, model: Some(model), tlb: Some(tlb) };
            }
        }
        given
    }

    /// Whether a machine has one more CPU, its first, which runs no vCPU: QEMU damages the first
    /// CPU's SVM state from the threads of others (`docs/qemu.md`).
    pub(crate) fn adds_cpu(self, cpus: u32) -> bool {
        self == Self::X86_64 && cpus > 1
    }

    /// The suffix of the names of cases in results, which distinguishes several platforms.
    pub(crate) fn suffix(self) -> String {
        match self {
            Self::X86_64 => String::new(),
            Self::Kvm(Vendor::Amd) => "@kvm-amd".to_owned(),
            Self::Kvm(Vendor::Intel) => "@kvm-intel".to_owned(),
            Self::Bochs(bochs) => format!("@{}", bochs.name()),
            Self::Aarch64(cpu) => format!("@{}", cpu.name()),
        }
    }

    pub(crate) fn named(self, case: &str) -> String {
        format!("{case}{}", self.suffix())
    }
}

/// The platform on the command line.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct PlatformArgs {
    /// Architecture of the machine and its guest [default: x86_64]
    #[arg(long, value_name = "ARCH")]
    pub(crate) arch: Option<Arch>,
    /// CPU model of an aarch64 machine [default: max]
    #[arg(long, value_name = "MODEL")]
    pub(crate) cpu: Option<ArmCpu>,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
    /// What carries out the machine's instructions: tcg, an emulator; kvm, this computer's own
    /// processor (x86_64; Quell is KVM's guest, and has guests itself); auto, KVM where it can be
    /// used [default: tcg, for demo auto]
    #[arg(long, value_name = "ACCEL")]
    pub(crate) accel: Option<Accel>,
}

/// The emulator on the command line.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct MachineArgs {
    /// Emulator: QEMU, or Bochs with a TLB that keeps what a processor may keep (x86_64) [default:
    /// qemu]
    #[arg(long, value_name = "EMULATOR")]
    pub(crate) machine: Option<Emulator>,
    /// CPU model of Bochs [default: ryzen]
    #[arg(long, value_name = "MODEL", requires = "machine")]
    pub(crate) model: Option<Model>,
    /// TLB of Bochs: tagged, or plain (dropped at each entry and exit); further words after commas:
    /// dropping=SEED (entries go at random), asids=N, clean-bits [default: tagged]
    #[arg(long, value_name = "TLB", requires = "machine", value_parser = Tlb::parse)]
    pub(crate) tlb: Option<Tlb>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Emulator {
    Qemu,
    Bochs,
}

impl MachineArgs {
    /// Bochs, if it is asked for.
    pub(crate) fn bochs(self) -> Result<Option<Bochs>> {
        if self.machine != Some(Emulator::Bochs) {
            let others = self.model.is_some() || self.tlb.is_some();
            ensure!(!others, "--model and --tlb are Bochs's; give --machine bochs as well");
            return Ok(None);
        }
        let usual = Bochs::RYZEN;
        Ok(Some(Bochs { model: self.model.unwrap_or(usual.model), tlb: self.tlb.unwrap_or(usual.tlb) }))
    }
}

impl PlatformArgs {
    /// The platform. QEMU has only one model of x86_64.
    pub(crate) fn platform(self) -> Result<Platform> {
        let (arch, bochs) = (self.arch.unwrap_or(Arch::X86_64), self.machine.bochs()?);
        ensure!(
            arch == Arch::Aarch64 || self.cpu.is_none(),
            "--cpu names a model of aarch64; give --arch aarch64 as well"
        );
        let is_pc = arch == Arch::X86_64;
        ensure!(is_pc || bochs.is_none(), "Bochs is a PC: --machine bochs is not for --arch aarch64");
        let emulated = bochs.map_or(self.cpu.map_or(arch.usual(), Platform::Aarch64), Platform::Bochs);
        self.accelerated(emulated)
    }

    /// The platform of a benchmark that needs an emulator.
    pub(crate) fn emulated(self) -> Result<Platform> {
        ensure!(
            self.accel.is_none_or(|accel| accel == Accel::Tcg),
            "this counts instructions, or its limits are those of an emulated machine: leave out --accel \
             (bench boot, exits and flush have it)"
        );
        self.platform()
    }

    /// This platform, or the same machine by KVM if that is asked for.
    pub(crate) fn accelerated(self, emulated: Platform) -> Result<Platform> {
        match self.accel.unwrap_or(Accel::Tcg) {
            Accel::Tcg => Ok(emulated),
            Accel::Kvm => {
                ensure!(emulated.arch() == Arch::X86_64, kvm::NOT_ON_ARM);
                ensure!(emulated == Platform::X86_64, "Bochs is an emulator; leave out --accel kvm");
                kvm::vendor().map(Platform::Kvm).context("--accel kvm")
            }
            Accel::Auto if emulated == Platform::X86_64 => {
                let vendor =
                    kvm::vendor().inspect_err(|why| eprintln!("quell: emulated, without KVM: {why:#}"));
                Ok(vendor.map_or(emulated, Platform::Kvm))
            }
            Accel::Auto => Ok(emulated),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_of_another_architecture_is_refused() {
        let of = |arch, cpu| PlatformArgs { arch: Some(arch), cpu, ..PlatformArgs::default() }.platform();
        let error = of(Arch::X86_64, Some(ArmCpu::Max)).expect_err("is refused");
        assert!(error.to_string().contains("--arch aarch64"), "{error}");
        assert_eq!(of(Arch::X86_64, None).expect("is one"), Platform::X86_64);
        let bochs = |arch| PlatformArgs { arch: Some(arch), ..Platform::Bochs(Bochs::RYZEN).arguments() };
        assert_eq!(bochs(Arch::X86_64).platform().expect("is one"), Platform::Bochs(Bochs::RYZEN));
        assert!(bochs(Arch::Aarch64).platform().expect_err("is refused").to_string().contains("PC"));
        assert_eq!(of(Arch::Aarch64, None).expect("is one"), Platform::Aarch64(ArmCpu::Max));
    }

    #[test]
    fn kvm_is_for_a_pc_that_is_not_emulated_and_not_for_all_benchmarks() {
        let of = |platform: Platform, accel| PlatformArgs { accel: Some(accel), ..platform.arguments() };
        for (platform, why) in [
            (Platform::Aarch64(ArmCpu::Max), "E2H"),
            (Platform::Bochs(Bochs::RYZEN), "leave out --accel kvm"),
        ] {
            let error = of(platform, Accel::Kvm).platform().expect_err("is refused");
            assert!(error.to_string().contains(why), "{error}");
            assert_eq!(of(platform, Accel::Auto).platform().expect("is one"), platform);
            assert_eq!(of(platform, Accel::Tcg).emulated().expect("is one"), platform);
            assert!(of(platform, Accel::Auto).emulated().is_err());
        }
        for (vendor, name) in [(Vendor::Amd, "a@kvm-amd"), (Vendor::Intel, "a@kvm-intel")] {
            let platform = Platform::Kvm(vendor);
            assert_eq!((platform.arguments().accel, &*platform.named("a")), (Some(Accel::Kvm), name));
            assert_eq!((Vendor::of(platform.architecture()), platform.adds_cpu(4)), (Some(vendor), false));
        }
    }

    #[test]
    fn models_are_named_on_the_command_line_as_in_results() {
        for cpu in ArmCpu::ALL {
            assert_eq!(ArmCpu::from_str(cpu.name(), false), Ok(cpu));
            assert!(cpu.qemu().starts_with(cpu.name()));
        }
    }
}

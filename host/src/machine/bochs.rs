//! Bochs, the machine that remembers: its TLB keeps what a processor may keep (`emulator/bochs`).
//!
//! It starts from a CD, its serial ports are sockets that it inherits, its memory is a file, and
//! port 0xf4 ends it with a status, as on QEMU.

use super::emulator::{Prepared, command};
use super::payload::Payload;
use super::spec::{Channels, Spec};
use crate::guest::cache;
use crate::image;
use crate::prelude::*;
use clap::ValueEnum;
use hostlink::bzimage::SetupHeader;
use std::fmt::Write;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bochs {
    pub(crate) model: Model,
    pub(crate) tlb: Tlb,
}

impl Bochs {
    pub(crate) const RYZEN: Self = Self { model: Model::Ryzen, tlb: Tlb::TAGGED };
    pub(crate) const SKYLAKE: Self = Self { model: Model::Skylake, tlb: Tlb::TAGGED };

    /// Its name in results: other machines have other names.
    pub(crate) fn name(self) -> String {
        format!("{}{}", self.model.name(), self.tlb.words())
    }
}

/// A CPU that Bochs has a model of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Model {
    /// SVM with next-RIP save, flush by ASID and a PAUSE filter
    Ryzen,
    /// VMX, PCIDs, INVPCID and x2APIC
    Skylake,
}

impl Model {
    const fn name(self) -> &'static str {
        match self {
            Self::Ryzen => "ryzen",
            Self::Skylake => "skylake",
        }
    }

    const fn bochs(self) -> &'static str {
        match self {
            Self::Ryzen => "ryzen",
            Self::Skylake => "corei7_skylake_x",
        }
    }
}

/// What its TLB does, and what CPUID says of SVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tlb {
    /// It drops everything at each entry and exit, as Bochs does as it comes.
    pub(crate) plain: bool,
    /// It drops entries at random, with this seed.
    pub(crate) dropping: Option<u32>,
    /// Number of address space tags, with the host's; as many as the model has if there is none.
    pub(crate) asids: Option<u32>,
    /// VMCB clean bits are offered, and checked.
    pub(crate) clean_bits: bool,
}

impl Tlb {
    /// It keeps everything that the manuals allow it to keep.
    pub(crate) const TAGGED: Self = Self { plain: false, dropping: None, asids: None, clean_bits: false };

    /// Reads words that are separated by commas.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        text.split(',').try_fold(Self::TAGGED, |tlb, word| {
            let number =
                |number: &str| number.parse().map(Some).map_err(|_| format!("'{number}' is no number"));
            Ok(match word.split_once('=') {
                None if word == "tagged" => tlb,
                None if word == "plain" => Self { plain: true, ..tlb },
                None if word == "clean-bits" => Self { clean_bits: true, ..tlb },
                Some(("dropping", seed)) => Self { dropping: number(seed)?, ..tlb },
                Some(("asids", count)) => Self { asids: number(count)?, ..tlb },
                _ => {
                    return Err(format!(
                        "'{word}' is none of tagged, plain, dropping=SEED, asids=N, clean-bits"
                    ));
                }
            })
        })
    }

    /// The words that differ from `tagged`, each after a comma.
    fn words(self) -> String {
        let Self { plain, dropping, asids, clean_bits } = self;
        let word = |is_said: bool, word: &str| is_said.then(|| word.to_owned());
        let number = |number: Option<u32>, word| number.map(|number| format!("{word}={number}"));
        let words = [
            word(plain, "plain"),
            number(dropping, "dropping"),
            number(asids, "asids"),
            word(clean_bits, "clean-bits"),
        ];
        words.into_iter().flatten().map(|word| format!(",{word}")).collect()
    }

    /// The variables for Bochs's process (`emulator/bochs/README.md`).
    fn variables(self) -> impl Iterator<Item = (&'static str, String)> {
        let dropped = self.dropping.map(|seed| format!("{seed}:{DROPPED_ONE_IN}"));
        let all = [
            ("QUELL_TLB", self.plain.then(|| "plain".to_owned())),
            ("QUELL_TLB_DROP", dropped),
            ("QUELL_ASIDS", self.asids.map(|count| count.to_string())),
            ("QUELL_CLEAN_BITS", self.clean_bits.then(|| "1".to_owned())),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }
}

/// Of so many entries that are looked up, one is dropped where they are dropped at random.
const DROPPED_ONE_IN: u32 = 64;

/// How the lines begin in which Bochs complains of what no sound hypervisor does.
const COMPLAINT: &str = "QUELL-TLB: ";

/// What it has complained of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Complaints(String);

impl fmt::Display for Complaints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bochs complains:\n{}", self.0)
    }
}

impl std::error::Error for Complaints {}

/// What an emulator has said. There is none with a complaint among it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Messages(String);

impl Messages {
    pub(super) fn of(text: String) -> Result<Self> {
        let lines: Vec<_> = text.lines().filter_map(|line| line.strip_prefix(COMPLAINT)).collect();
        if lines.is_empty() { Ok(Self(text)) } else { Err(Complaints(lines.join("\n")).into()) }
    }
}

impl std::ops::Deref for Messages {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// Instructions of a second of its time, of each CPU.
const SPEED: u64 = 100_000_000;
/// Its memory is in one piece below the devices, and its ROMs lie behind it.
const MEMORY_MAX: u64 = 2 << 30;
const CPUS_MAX: u32 = 8;

/// The command for a machine whose files are put into `directory`.
pub(super) fn prepare(
    bochs: Bochs,
    spec: &Spec,
    ram: &Ram,
    channels: &Channels<'_>,
    own_log: RawFd,
    directory: &Path,
) -> Result<Prepared> {
    ensure!(spec.cpus <= CPUS_MAX, "Bochs has at most {CPUS_MAX} CPUs, and {} are wanted", spec.cpus);
    ensure!(spec.memory <= MEMORY_MAX, "Bochs has at most 2 GiB of memory here");
    ensure!(
        spec.devices.is_empty() && spec.qemu_args.is_empty() && spec.counting.is_none(),
        "guests' devices, QEMU's arguments and its plugin are not for --machine bochs"
    );
    let built = cache::bochs()?;
    let disc = disc(&spec.payload, directory)?;
    let (console, its) = UnixStream::pair()?;
    let connect = |path: &Path| UnixStream::connect(path).with_context(|| format!("no {}", path.display()));
    let mut sockets = vec![(1, its), (2, connect(channels.report)?)];
    if let Some(control) = channels.control {
        sockets.push((4, connect(control)?));
    }
    let mut text = format!(
        "display_library: nogui\n\
         memory: guest={mib}, host={mib}\n\
         romimage: file={bios}\n\
         vgaromimage: file={vgabios}\n\
         pci: enabled=1, chipset=i440fx\n\
         cpu: model={model}, count={cpus}, ips={SPEED}, quantum=16, reset_on_triple_fault=0, \
              ignore_bad_msrs=1\n\
         clock: sync=none, time0=1704067200, rtc_sync=1\n\
         ata0-master: type=cdrom, path={disc}, status=inserted\n\
         boot: cdrom\n\
         port_e9_hack: enabled=1\n\
         log: {log}\n\
         panic: action=fatal\n\
         error: action=ignore\n\
         info: action=ignore\n\
         debug: action=ignore\n",
        mib = spec.memory / MIB,
        bios = built.bios.display(),
        vgabios = built.vgabios.display(),
        model = bochs.model.bochs(),
        cpus = spec.cpus,
        disc = disc.display(),
        log = channels.qemu_log.display(),
    );
    for (number, socket) in &sockets {
        let fd = socket.as_raw_fd();
        writeln!(text, "com{number}: enabled=1, mode=socket-client, dev=\"fd:{fd}\"")?;
    }
    let settings = directory.join("bochsrc");
    fs::write(&settings, text).with_context(|| format!("cannot write {}", settings.display()))?;
    let mut inherited: Vec<RawFd> = sockets.iter().map(|(_, socket)| socket.as_raw_fd()).collect();
    inherited.extend([ram.fd().as_raw_fd(), own_log]);
    let mut words: Vec<OsString> = vec!["-q".into(), "-f".into()];
    words.push(settings.into());
    let mut command = command(spec, Command::new(&built.program), &words, inherited);
    command.env("QUELL_RAM", ram.path_in_child()).envs(bochs.tlb.variables());
    command.stdin(Stdio::null());
    let sockets = sockets.into_iter().map(|(_, socket)| socket).collect();
    Ok(Prepared { command, console: Some(console), sockets, events: None })
}

/// A CD from which the payload starts by itself.
fn disc(payload: &Payload, directory: &Path) -> Result<PathBuf> {
    let (lines, files) = match payload {
        Payload::Disc { disc, firmware } => {
            ensure!(firmware.is_none(), "UEFI is not for --machine bochs");
            return Ok(disc.clone());
        }
        Payload::Quell { hypervisor, bundle, .. } => (
            "multiboot2 /boot/quell\nmodule2 /boot/bundle.tar\n".to_owned(),
            vec![("quell", &**hypervisor), ("bundle.tar", bundle)],
        ),
        Payload::Xen { .. } => bail!("Xen is for QEMU; leave out --machine bochs"),
        Payload::Bare { kernel, initrd, cmdline } => {
            let is_linux = SetupHeader::of(&fs::read(kernel)?).is_some_and(SetupHeader::is_kernel);
            let (loader, module) = if is_linux { ("linux", "initrd") } else { ("multiboot2", "module2") };
            let mut lines = format!("{loader} /boot/kernel {}\n", quoted(cmdline));
            let mut files = vec![("kernel", &**kernel)];
            if let Some(initrd) = initrd {
                writeln!(lines, "{module} /boot/initrd")?;
                files.push(("initrd", initrd));
            }
            (lines, files)
        }
    };
    let path = directory.join("disc.iso");
    // Without GRUB's menu: what follows `boot` is not reached.
    image::disc(&format!("{lines}boot\n"), &files, &path)?;
    Ok(path)
}

/// The words of a command line, which GRUB would split and expand.
fn quoted(cmdline: &str) -> String {
    let words = cmdline.split_whitespace().map(|word| format!("'{}'", word.replace('\'', r"'\''")));
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tlb_does_is_read_and_passed_on() {
        let read = |text| Tlb::parse(text).map(|tlb| tlb.variables().collect::<Vec<_>>());
        for words in ["tagged", "tagged,plain", "tagged,dropping=7,asids=3,clean-bits"] {
            assert_eq!(Tlb::parse(words).map(|tlb| format!("tagged{}", tlb.words())).as_deref(), Ok(words));
        }
        assert_eq!(read("tagged"), Ok(Vec::new()));
        assert_eq!(read("plain"), Ok(vec![("QUELL_TLB", "plain".to_owned())]));
        let all = [("QUELL_TLB_DROP", "7:64"), ("QUELL_ASIDS", "3"), ("QUELL_CLEAN_BITS", "1")];
        let all = all.map(|(name, value)| (name, value.to_owned())).to_vec();
        assert_eq!(read("dropping=7,asids=3,clean-bits"), Ok(all));
        for wrong in ["", "plane", "dropping", "dropping=x", "asids="] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn complaints_fail_a_run_and_other_messages_do_not() {
        let complaints = |text: &str| Messages::of(text.to_owned()).map(|said| said.len());
        assert_eq!(complaints("com1: connected\n").expect("are none"), 16);
        let said = complaints("a\nQUELL-TLB: ASID: cpu 0: x\nb\nQUELL-TLB: VMRUN: cpu 1: y\n");
        let said = said.expect_err("are some").downcast::<Complaints>().expect("is of them");
        assert_eq!(said, Complaints("ASID: cpu 0: x\nVMRUN: cpu 1: y".to_owned()));
    }

    #[test]
    fn words_of_a_command_line_are_none_of_grubs() {
        assert_eq!(quoted("check  only=a;b $x"), "'check' 'only=a;b' '$x'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}

//! The keys of a `[[guest]]`. A key is declared here and nowhere else: how it is read, what a check
//! of the file shows of it, and the option of `run` that means the same for its only guest. A test
//! holds `docs/machine-file.md` to this table.

use super::arriving::{DESCRIBING, incoming, restore};
use super::fields::{Fields, refuse};
use super::guest::{Boot, GuestPlan, nested};
use super::machine::Machine;
use super::plan::shown;
use super::{MachineFile, fields::At};
use crate::cli::Program;
use crate::machine::devices::Network;
use crate::migration::Address;
use crate::prelude::*;
use clap::ValueEnum;
use clap::builder::{PossibleValue, ValueParser};
use hostlink::config::{FlushMode, MAX_CAP, MAX_WEIGHT, MEMORY_UNIT, ResetPolicy, Start};
use hostlink::cpus::CpuSet;

pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(super) example: &'static str,
    pub(super) read: Read,
    pub(super) shown: &'static [Shown],
    /// Keys that it excludes, and why.
    pub(crate) excludes: (&'static str, &'static str),
    pub(crate) option: Opt,
}

type Read = fn(&mut GuestPlan, &Fields<'_>, &'static str, &Machine) -> Result<()>;

/// The heading of a column, the name in JSON, the value, and that as text. A name may be missing.
pub(super) type Shown =
    (&'static str, &'static str, fn(&MachineFile, &GuestPlan) -> Value, fn(&Value) -> String);

pub(crate) struct Opt {
    pub(crate) long: &'static str,
    pub(crate) value_name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) repeats: bool,
    pub(crate) parser: fn() -> ValueParser,
    /// A value as it is written in a machine file.
    write: fn(&str) -> String,
}

const fn key(name: &'static str, example: &'static str, read: Read) -> Key {
    let text = ValueParser::string;
    let option = Opt { long: "", value_name: "", help: "", repeats: false, parser: text, write: quoted };
    Key { name, example, read, shown: &[], excludes: ("", ""), option }
}

impl Key {
    const fn shown(mut self, shown: &'static [Shown]) -> Self {
        self.shown = shown;
        self
    }

    const fn excludes(mut self, keys: &'static str, why: &'static str) -> Self {
        self.excludes = (keys, why);
        self
    }

    const fn option(mut self, long: &'static str, value_name: &'static str, help: &'static str) -> Self {
        (self.option.long, self.option.value_name, self.option.help) = (long, value_name, help);
        self
    }

    const fn repeated(mut self) -> Self {
        self.option.repeats = true;
        self
    }

    const fn values(mut self, parser: fn() -> ValueParser, write: fn(&str) -> String) -> Self {
        (self.option.parser, self.option.write) = (parser, write);
        self
    }

    /// What an option's values are in a machine file; nothing if that is as if there were none.
    pub(crate) fn written(&self, values: &[impl AsRef<str>]) -> Option<String> {
        let values: Vec<_> = values.iter().map(|value| (self.option.write)(value.as_ref())).collect();
        let [value] = &values[..] else { return Some(format!("[{}]", values.join(", "))) };
        (value != "\"\"").then(|| value.clone())
    }
}

pub(crate) const KEYS: &[Key] = &[
    key("name", r#"name = "web""#, |_, _, _, _| Ok(())).shown(&[(
        "guest",
        "name",
        |_, guest| json!(guest.name().as_str()),
        plain,
    )]),
    key("kernel", r#"kernel = "bzImage""#, |guest, of, key, _| put(&mut guest.software, of.file(key)?))
        .shown(&[("", "kernel", |_, guest| json!(guest.software.kernel()), plain)])
        .option(
            "kernel",
            "FILE",
            "Guest kernel: a Linux bzImage or an ELF file with a PVH note; for aarch64 an uncompressed \
             Image [default: Debian's cloud kernel]",
        ),
    key("initrd", r#"initrd = "initrd.img""#, |guest, of, key, _| put(&mut guest.initrd, of.file(key)?))
        .shown(&[("", "initrd", |_, guest| json!(guest.initrd), plain)])
        .option("initrd", "FILE", "Guest's initial RAM disk [default: busybox, unless --kernel is given]"),
    key("program", r#"program = "hostile""#, program)
        .excludes("kernel initrd exec", "a bare program has none")
        .shown(&[("", "program", |_, guest| json!(guest.software.program().and_then(word)), plain)])
        .option(
            "program",
            "NAME",
            "Run one of this project's bare programs instead, built if necessary; --append passes its \
             instructions",
        )
        .values(|| clap::value_parser!(Program).into(), quoted),
    key("exec", r#"exec = "nproc""#, |guest, of, key, _| put(&mut guest.exec, of.owned(key)?))
        .excludes("kernel initrd", "exec is for the stock kernel and RAM disk")
        .shown(&[("", "exec", |_, guest| json!(guest.exec), plain)])
        .option("exec", "COMMAND", "Run this shell command in the guest instead of a shell, then power off"),
    key("boot", r#"boot = "disk""#, |guest, of, key, _| {
        put(&mut guest.boot, of.word(key, "disk or kernel", |word| Boot::from_str(word, false).ok())?)
    })
    .excludes("kernel initrd program exec", "they say what is started instead of a disk's system")
    .shown(&[("", "boot", |_, guest| json!(guest.boots().and_then(word)), plain)])
    .option(
        "boot",
        "HOW",
        "Where the kernel comes from if the guest's first disk is its system [default: disk, unless \
             --kernel, --initrd, --program or --exec is given]",
    )
    .values(|| clap::value_parser!(Boot).into(), quoted),
    key("cmdline", r#"cmdline = "quiet""#, |guest, of, key, _| put(&mut guest.cmdline, of.owned(key)?))
        .shown(&[("", "cmdline", |_, guest| json!(guest.cmdline), plain)])
        .option(
            "append",
            "WORDS",
            "Words to append to the kernel's command line, after the console. For a disk's own kernel they \
         follow what the disk says",
        ),
    key("vcpus", "vcpus = 2", |guest, of, key, _| {
        put(&mut guest.config.vcpus, of.number(key, 1, MAX_VCPUS)?)
    })
    .shown(&[("vCPUs", "vcpus", |_, guest| json!(guest.config.vcpus), plain)])
    .option("vcpus", "N", "Virtual CPUs of the guest [default: 2]")
    .values(|| clap::value_parser!(u32).range(1..=i64::from(MAX_VCPUS)).into(), str::to_owned),
    key("memory", r#"memory = "256M""#, memory)
        .shown(&[("memory", "memory_bytes", |_, guest| json!(guest.config.memory), bytes)])
        .option("memory", "SIZE", "Guest memory, for example 512M or 1G [default: 512M]")
        .values(
            || ValueParser::new(size::parse),
            |text| quoted(&format!("{}B", size::parse(text).unwrap_or(0))),
        ),
    key("cpus", r#"cpus = "0-1" or cpus = [0, 1]"#, cpus).shown(&[
        ("CPUs", "", |_, guest| json!(guest.config.cpus.to_string()), plain),
        ("", "cpus", |file, guest| json!(file.cpus_of(guest).iter().collect::<Vec<_>>()), plain),
    ]),
    key("weight", "weight = 100", |guest, of, key, _| {
        put(&mut guest.config.weight, of.number(key, 1, MAX_WEIGHT)?)
    })
    .shown(&[
        ("weight", "weight", |_, guest| json!(guest.config.weight), plain),
        ("share", "share", |file, guest| json!(file.share(guest)), part),
    ]),
    key("cap", "cap = 50", |guest, of, key, _| put(&mut guest.config.cap, of.number(key, 1, MAX_CAP)?))
        .shown(&[
            ("cap", "cap_percent", |_, guest| json!(guest.config.cap), percent),
            ("CPUs at most", "cpus_at_most", |file, guest| json!(file.cpus_at_most(guest)), float),
        ]),
    key("flush", r#"flush = "hypercall""#, flush)
        .shown(&[("flush", "flush", |file, guest| json!(file.flush(guest)), plain)])
        .option("flush", "WAY", "How the guest is told to flush remote TLBs [default: hypercall]; for x86_64")
        .values(
            || {
                words([
                    ("ipi", "By inter-processor interrupts, as on a bare machine"),
                    ("hypercall", "By Hyper-V's flush hypercalls"),
                ])
            },
            quoted,
        ),
    key("nested", "nested = true", nested)
        .shown(&[("", "nested", |_, guest| json!(guest.config.nested), plain)])
        .option(
            "nested",
            "",
            "Let the guest have guests of its own, by SVM; for x86_64 with AMD's processors",
        )
        .values(ValueParser::string, str::to_owned),
    key("reset", r#"reset = "reboot""#, |guest, of, key, _| {
        put(&mut guest.config.reset, of.word(key, "reboot or exit", ResetPolicy::named)?)
    })
    .shown(&[("", "reset", |_, guest| json!(guest.config.reset.name()), plain)])
    .option("reset", "WHAT", "Effect of a reset by the guest [default: reboot; exit with --exec]")
    // By the last one the hypervisor panics, to show its report.
    .values(|| words([("reboot", "Start the guest again"), ("exit", "End the run"), ("panic", "")]), quoted),
    key("start", r#"start = "auto""#, |guest, of, key, _| {
        put(&mut guest.config.start, of.word(key, Start::EXPECTED, Start::named)?)
    })
    .shown(&[("start", "start", |_, guest| json!(guest.config.start.name()), plain)]),
    key("console", r#"console = "web.log""#, |guest, of, key, _| {
        let place = of.text(key)?.map(|At { value, line }| At { value: of.resolve(value), line });
        place.into_iter().for_each(|place| guest.console = place);
        Ok(())
    })
    .shown(&[("console", "console", |_, guest| json!(guest.console.value), paths)]),
    key("disks", r#"disks = ["web.img"]"#, |guest, of, key, _| put(&mut guest.devices.disks, of.files(key)?))
        .shown(&[("disks", "disks", |_, guest| json!(guest.devices.disks), paths)])
        .option(
            "disk",
            "FILE",
            "Give the guest a disk: the image of one, as an NVMe device that the guest owns. The \
             first is the guest's system, see --boot; `./quell image-debian` makes one. May be repeated",
        )
        .repeated(),
    key("virtio_disks", r#"virtio_disks = ["web.img"]"#, |guest, of, key, _| {
        put(&mut guest.devices.virtio_disks, of.files(key)?)
    })
    .shown(&[("virtio disks", "virtio_disks", |_, guest| json!(guest.devices.virtio_disks), paths)])
    .option(
        "virtio-disk",
        "FILE",
        "Give the guest a virtio disk. It never boots from it without --kernel or --initrd. May be \
             repeated",
    )
    .repeated(),
    key("net", r#"net = "user""#, |guest, of, key, _| {
        put(&mut guest.devices.network, of.word(key, "user", |word| Network::from_str(word, false).ok())?)
    })
    .shown(&[("network", "net", |_, guest| json!(guest.devices.network.and_then(word)), paths)])
    .option("net", "NETWORK", "Connect the guest to a network, by a virtio device that it owns")
    .values(|| clap::value_parser!(Network).into(), quoted),
    key("devices", r#"devices = ["00:04.0"]"#, |guest, of, key, _| {
        put(&mut guest.devices.functions, of.texts(key)?)
    })
    .shown(&[("devices", "devices", |_, guest| json!(guest.devices.functions), paths)])
    .option(
        "device",
        "FUNCTION",
        "Give the guest a PCI function of the machine, by address (00:04.0) or kind (nvme); may be \
             repeated. The functions that it needs go together",
    )
    .repeated(),
    key("restore", r#"restore = "web.snapshot""#, restore)
        .excludes(DESCRIBING, "all that describes the guest is in the file that it is restored from")
        .shown(&[
            ("restored from", "restore", |_, guest| json!(guest.arrival.restore()), paths),
            ("", "warning", |_, guest| json!(guest.arrival.warning), plain),
        ])
        .option(
            "restore",
            "FILE",
            "Let a guest go on that `./quell ctl guest save` has saved, instead of starting one",
        ),
    key("incoming", r#"incoming = "unix:web.socket""#, incoming)
        .shown(&[("comes to", "incoming", |_, guest| json!(guest.arrival.incoming()), paths)])
        .option(
            "incoming",
            "ADDRESS",
            "Start no guest: take one that `./quell ctl guest migrate` sends, at unix:PATH. The other \
             options describe it as they do where it comes from",
        )
        .values(|| ValueParser::from(|text: &str| Address::parse(text).map(|_| text.to_owned())), quoted),
    key("secret", r#"secret = "web.secret""#, |guest, of, key, _| {
        put(&mut guest.arrival.secret, of.file(key)?)
    })
    .shown(&[("", "secret", |_, guest| json!(guest.arrival.secret), plain)])
    .option(
        "secret",
        "FILE",
        "File with the secret that whoever sends the guest knows, too; with --incoming",
    ),
];

fn put<T: From<U>, U>(place: &mut T, found: Option<At<U>>) -> Result<()> {
    found.into_iter().for_each(|found| *place = found.value.into());
    Ok(())
}

fn program(guest: &mut GuestPlan, of: &Fields<'_>, key: &'static str, machine: &Machine) -> Result<()> {
    let words = Program::value_variants().iter().copied().filter_map(word).collect::<Vec<_>>().join(" or ");
    let found = of.word(key, &words, |word| Program::from_str(word, false).ok())?;
    if let Some(At { value: Program::Probe, line }) = found
        && machine.platform.arch() != Arch::X86_64
    {
        refuse!(of, line, "program \"probe\" is for x86_64; write program = \"hostile\"");
    }
    put(&mut guest.software, found)
}

fn memory(guest: &mut GuestPlan, of: &Fields<'_>, key: &'static str, _: &Machine) -> Result<()> {
    let found = of.size(key)?;
    if let Some(At { line, .. }) = found.filter(|found| !found.value.is_multiple_of(MEMORY_UNIT)) {
        let unit = size::display(MEMORY_UNIT);
        return Err(of.wrong(key, line, format!("has to be a multiple of {unit}")));
    }
    put(&mut guest.config.memory, found)
}

/// The machine has to have these CPUs, and one of them has to run vCPUs.
fn cpus(guest: &mut GuestPlan, of: &Fields<'_>, key: &'static str, machine: &Machine) -> Result<()> {
    let found = of.list(key, "a set of CPUs", CpuSet::parse)?.filter(|set| set.value != CpuSet::ALL);
    let Some(At { value: set, line }) = found else { return Ok(()) };
    if let Some(missing) = set.iter().find(|cpu| *cpu >= machine.cpus) {
        let last = machine.cpus - 1;
        let what = format!("names CPU {missing}, but the machine has CPUs 0 to {last} only");
        return Err(of.wrong(key, line, what));
    }
    if set.intersection(&machine.running()).is_empty() {
        let what = "leaves this guest no CPU: with boot_cpu = \"serve\" CPU 0 runs no guest";
        return Err(of.wrong(key, line, what));
    }
    guest.config.cpus = set;
    Ok(())
}

fn flush(guest: &mut GuestPlan, of: &Fields<'_>, key: &'static str, machine: &Machine) -> Result<()> {
    let found = of.word(key, FlushMode::EXPECTED, FlushMode::named)?;
    if let (Some(At { line, .. }), Arch::Aarch64) = (found, machine.platform.arch()) {
        let what = "is for x86_64: leave it out, an aarch64 guest's processors flush each other's TLBs";
        return Err(of.wrong(key, line, what));
    }
    put(&mut guest.config.flush, found)
}

/// The word for a value on the command line and in machine files.
fn word(value: impl ValueEnum) -> Option<String> {
    Some(value.to_possible_value()?.get_name().to_owned())
}

/// Words with what they mean. One without a meaning is not listed.
fn words<const N: usize>(words: [(&'static str, &'static str); N]) -> ValueParser {
    words.map(|(word, about)| PossibleValue::new(word).help(about).hide(about.is_empty())).into()
}

/// Text in quotes. JSON's are TOML's.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn bytes(value: &Value) -> String {
    size::display(value.as_u64().unwrap_or(0))
}

fn part(value: &Value) -> String {
    format!("{:.1} %", 100.0 * value.as_f64().unwrap_or(0.0))
}

fn percent(value: &Value) -> String {
    value.as_u64().map_or_else(|| "none".to_owned(), |percent| format!("{percent} %"))
}

fn float(value: &Value) -> String {
    value.as_f64().unwrap_or(0.0).to_string()
}

/// A path or word, or several; nothing for none.
fn paths(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Array(all) => all.iter().map(paths).collect::<Vec<_>>().join(" "),
        one => shown(Path::new(&plain(one))).display().to_string(),
    }
}

pub(super) fn option_of(name: &str) -> &'static str {
    KEYS.iter().find(|key| key.name == name).map_or("", |key| key.option.long)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_each_key_in_this_order() {
        let path = workspace::root().join("docs/machine-file.md");
        let text = fs::read_to_string(path).expect("reads");
        let of_guests = text.split("\n## ").find(|part| part.starts_with("Keys of `[[guest]]`"));
        let rows = of_guests.expect("has them").lines().filter_map(|line| line.strip_prefix("| `"));
        let named = rows.map(|row| row.split('`').next().expect("has a name"));
        assert_eq!(named.collect::<Vec<_>>(), KEYS.iter().map(|key| key.name).collect::<Vec<_>>());
    }

    #[test]
    fn what_options_say_is_written_as_in_a_file() {
        let written = |name: &str, values: &[&str]| {
            KEYS.iter().find(|key| key.name == name).expect("is one").written(values)
        };
        assert_eq!(written("vcpus", &["3"]).as_deref(), Some("3"));
        assert_eq!(written("memory", &["1G"]).as_deref(), Some("\"1073741824B\""));
        assert_eq!(written("exec", &["echo \"a\"\nb"]).as_deref(), Some(r#""echo \"a\"\nb""#));
        assert_eq!(written("disks", &["a", "b"]).as_deref(), Some(r#"["a", "b"]"#));
        assert_eq!(written("cmdline", &[""]), None, "as if there were none");
    }
}

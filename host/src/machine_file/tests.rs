//! Machine files: good ones, and each mistake with its message.

use super::*;
use hostlink::config::{BootCpu, Config, FlushMode, ResetPolicy, Start};
use hostlink::cpus::CpuSet;

const DIRECTORY: &str = "/nowhere";

fn read_with(text: &str, given: Overrides) -> Result<MachineFile> {
    MachineFile::of(Source::made_up(&Path::new(DIRECTORY).join("m.toml"), text), given)
}

pub(super) fn read(text: &str) -> Result<MachineFile> {
    read_with(text, Overrides::default())
}

/// The message about a file that is refused, without the file's path.
pub(super) fn refused(text: &str) -> String {
    let message = format!("{:#}", read(text).expect_err("is refused"));
    assert!(!message.contains('\n'), "{message}");
    message.strip_prefix("/nowhere/m.toml:").expect("begins with file and line").to_owned()
}

/// The message about a guest called `web` that has this line, its third.
fn refused_line(line: &str) -> String {
    let message = refused(&format!("[[guest]]\nname = \"web\"\n{line}\n"));
    message.strip_prefix("3: ").unwrap_or_else(|| panic!("line 3: {message}")).to_owned()
}

#[test]
fn a_guest_that_may_come_starts_here_if_the_file_says_so() {
    let start = |line: &str| {
        let keys = "incoming = \"unix:web.socket\"\nsecret = \"Cargo.toml\"";
        let text = format!("[[guest]]\nname = \"web\"\n{line}\n{keys}\n");
        let source = Source::made_up(&workspace::root().join("m.toml"), &text);
        MachineFile::of(source, Overrides::default()).expect("is one").guests[0].config.start
    };
    assert_eq!(start(""), Start::Manual);
    assert_eq!(start("start = \"auto\""), Start::Auto);
    assert_eq!(start("start = \"manual\""), Start::Manual);
}

#[test]
fn every_key_is_read() {
    let kernel = workspace::root().join("Cargo.toml");
    let text = format!(
        r#"
[machine]
arch = "x86_64"
cpus = 4
memory = "4G"
slice_us = 1000
boot_cpu = "serve"
logs = "logs"

[[guest]]
name = "web"
kernel = {kernel:?}
initrd = {kernel:?}
cmdline = "quiet splash"
vcpus = 8
memory = "512M"
cpus = [0, 1, 2]
weight = 250
cap = 150
flush = "ipi"
reset = "exit"
console = "web/console.log"
start = "manual"

[[guest]]
name = "task"
exec = "nproc"
"#
    );
    let file = read(&text).expect("is right");
    let machine = &file.machine;
    assert_eq!((machine.platform, machine.cpus, machine.slice_us), (Platform::X86_64, 4, Some(1000)));
    assert_eq!((file.boot_cpu(), file.adds_cpu()), (BootCpu::Serve, false));
    assert_eq!((file.memory(0), file.hypervisor_log()), (4 * GIB, "/nowhere/logs/hypervisor.log".into()));
    let [web, task] = &file.guests[..] else { panic!("{} guests", file.guests.len()) };
    assert_eq!((web.name().as_str(), web.line), ("web", 10));
    assert_eq!(web.software, Software::Kernel(kernel.clone()));
    assert_eq!(web.initrd, Some(kernel));
    assert_eq!(web.cmdline.as_deref(), Some("quiet splash"));
    assert_eq!(
        (web.config.vcpus, web.config.memory, web.config.weight, web.config.cap),
        (8, 512 * MIB, 250, Some(150))
    );
    assert_eq!(Some(web.config.cpus), CpuSet::parse("0-2"));
    assert_eq!(
        (web.config.flush, web.config.reset, web.config.start),
        (FlushMode::Ipi, ResetPolicy::Exit, Start::Manual)
    );
    assert_eq!(web.console.value, PathBuf::from("/nowhere/web/console.log"));
    assert_eq!((task.software.clone(), task.exec.as_deref()), (Software::Stock, Some("nproc")));
    assert_eq!((task.config.reset, task.config.cpus), (ResetPolicy::Exit, CpuSet::ALL), "as with --exec");
    assert_eq!(task.console.value, PathBuf::from("/nowhere/logs/task.log"));
}

#[test]
fn a_name_is_enough() {
    let file = read("[[guest]]\nname = \"web\"\n").expect("is right");
    let Config { vcpus, memory, weight, cap, flush, reset, start, cpus, .. } = file.guests[0].config;
    assert_eq!((vcpus, memory, weight, cap), (2, 256 * MIB, 100, None));
    assert_eq!((flush, reset), (FlushMode::Hypercall, ResetPolicy::Reboot));
    assert_eq!((start, cpus), (Start::Auto, CpuSet::ALL));
    assert_eq!(file.guests[0].console.value, workspace::target_dir("logs").join("m/web.log"));
    assert_eq!((file.machine.platform, file.machine.cpus), (Platform::X86_64, 2));
    assert_eq!((file.boot_cpu(), file.adds_cpu()), (BootCpu::Serve, true), "as without a file");
    assert!(file.memory(0) >= 512 * MIB);
}

#[test]
fn options_take_the_place_of_keys() {
    let text = "[machine]\narch = \"x86_64\"\ncpus = 2\n[[guest]]\nname = \"a\"\ncpus = \"0-2\"\n";
    let given = Overrides { platform: Arch::Aarch64.usual().arguments(), cpus: Some(3) };
    let file = read_with(text, given).expect("has three CPUs");
    assert_eq!((file.machine.platform.arch(), file.machine.cpus), (Arch::Aarch64, 3));
    assert_eq!((file.boot_cpu(), file.adds_cpu()), (BootCpu::Run, false));
    assert!(read(text).is_err(), "it has two");
}

#[test]
fn unknown_keys_are_named_with_the_nearest_one() {
    assert_eq!(refused_line("vcpu = 2"), "a [[guest]] has no key 'vcpu'; did you mean 'vcpus'?");
    assert_eq!(refused_line("wieght = 2"), "a [[guest]] has no key 'wieght'; did you mean 'weight'?");
    let all = refused_line("qqq = 2");
    assert!(all.contains("no key 'qqq'; write one of name, kernel") && all.ends_with("secret"), "{all}");
    let message = refused_line("slice_us = 1000");
    assert_eq!(message, "'slice_us' is for the whole machine: write it under [machine]");
    let message = refused("[machine]\nweight = 7\n");
    assert_eq!(message, "2: 'weight' is for one guest: write it under its [[guest]]");
    assert_eq!(
        refused("[machine]\nmemroy = \"1G\"\n"),
        "2: [machine] has no key 'memroy'; did you mean 'memory'?"
    );
    assert_eq!(
        refused("\n[[guests]]\nname = \"a\"\n"),
        "2: there is no 'guests'; write [[guest]] for each guest"
    );
    assert_eq!(refused("[machines]\n"), "1: there is no 'machines'; write [machine]");
    assert_eq!(refused("vcpus = 1\n"), "1: 'vcpus' belongs to a guest; write it below a line [[guest]]");
    assert_eq!(
        refused("boot_cpu = 1\n"),
        "1: 'boot_cpu' belongs to the machine; write it below a line [machine]"
    );
    for table in ["zzz", "shared"] {
        let expected =
            format!("1: there is no '{table}'; a machine file has [machine] and a [[guest]] for each guest");
        assert_eq!(refused(&format!("[[{table}]]\n")), expected);
    }
}

#[test]
fn the_shape_of_a_file_is_explained() {
    let empty = "1: there is no guest; write a line [[guest]] and below it name = \"web\"";
    assert_eq!(refused(""), empty);
    assert_eq!(refused("[machine]\ncpus = 2\n"), empty);
    let brackets = "a guest is written with two brackets on each side: [[guest]]";
    assert_eq!(refused("# \n[guest]\nname = \"a\"\n"), format!("2: {brackets}"));
    assert_eq!(refused("guest = 1\n"), format!("1: {brackets}"));
    assert_eq!(refused("guest = [1]\n"), format!("1: {brackets}"));
    assert_eq!(refused("guest = []\n"), format!("1: {brackets}"));
    assert_eq!(refused("machine = 1\n"), "1: machine is a table; write [machine] in a line of its own");
    assert!(refused("[[guest]]\nname = web\n").starts_with("2: this is not TOML: "));
    assert!(refused("[[guest]]\nname = \"a\"\nname = \"b\"\n").starts_with("3: this is not TOML: "));
    let message = refused("[machine]\n\n[[guest]]\nvcpus = 1\n");
    assert_eq!(message, "3: this guest has no name; write for example name = \"web\"");
}

/// Checks the messages about lines whose key has this example.
fn assert_refused(example: &str, lines: &[(&str, &str)]) {
    for (line, complaint) in lines {
        let key = line.split(' ').next().unwrap_or_default();
        let message = format!("{key} {complaint}; write for example {example}");
        assert_eq!(refused_line(line), message, "{line}");
    }
}

#[test]
fn numbers_of_another_type_or_size_are_refused_with_an_example() {
    let not = "which is not a whole number from 1 to 255";
    assert_refused(
        "vcpus = 2",
        &[
            ("vcpus = \"2\"", &format!("is \"2\", {not}")),
            ("vcpus = 0", &format!("is 0, {not}")),
            ("vcpus = 256", &format!("is 256, {not}")),
            ("vcpus = -1", &format!("is -1, {not}")),
            ("vcpus = 99999999999", &format!("is 99999999999, {not}")),
            ("vcpus = 1.5", &format!("is a value of type float, {not}")),
        ],
    );
    let not = "which is not a whole number from 1 to 10000";
    assert_refused("weight = 100", &[("weight = 0", &format!("is 0, {not}"))]);
    let not = "which is not a whole number from 1 to 25600";
    assert_refused("cap = 50", &[("cap = 30000", &format!("is 30000, {not}"))]);
    let not = "which is not a size with its unit";
    assert_refused(
        "memory = \"256M\"",
        &[
            ("memory = 256", &format!("is 256, {not}")),
            ("memory = \"256\"", &format!("is \"256\", {not}")),
            ("memory = \"0M\"", &format!("is \"0M\", {not}")),
            ("memory = \"3M\"", "has to be a multiple of 2 MiB"),
        ],
    );
    assert_eq!(
        read("[[guest]]\nname = \"a\"\nvcpus = 0x10\n").expect("is a number").guests[0].config.vcpus,
        16
    );
}

#[test]
fn words_that_are_not_known_are_refused_with_an_example() {
    let not = "which is not a set of CPUs";
    assert_refused(
        "cpus = \"0-1\" or cpus = [0, 1]",
        &[
            ("cpus = 1", &format!("is 1, {not}")),
            ("cpus = \"1-0\"", &format!("is \"1-0\", {not}")),
            ("cpus = []", &format!("is a value of type array, {not}")),
            ("cpus = [\"0\"]", &format!("is a value of type array, {not}")),
            ("cpus = [1, 2]", "names CPU 2, but the machine has CPUs 0 to 1 only"),
        ],
    );
    let not = "which is not hypercall or ipi";
    assert_refused("flush = \"hypercall\"", &[("flush = \"never\"", &format!("is \"never\", {not}"))]);
    let not = "which is not reboot or exit";
    assert_refused("reset = \"reboot\"", &[("reset = true", &format!("is true, {not}"))]);
    let not = "which is not auto or manual";
    assert_refused("start = \"auto\"", &[("start = \"later\"", &format!("is \"later\", {not}"))]);
    let not = "which is not hostile or load or probe";
    assert_refused("program = \"hostile\"", &[("program = \"bash\"", &format!("is \"bash\", {not}"))]);
    assert_refused("cmdline = \"quiet\"", &[("cmdline = \"a\\nb\"", "has to be one line of text")]);
    assert_refused("console = \"web.log\"", &[("console = \"\"", "has to be one line of text")]);
    assert_eq!(
        refused("[[guest]]\nname = \"Web 1\"\n"),
        "2: name is \"Web 1\", which is not 1 to 31 characters of a-z, 0-9, - and _; write for example name = \"web\""
    );
}

#[test]
fn what_cannot_be_together_is_refused() {
    let missing = refused_line("kernel = \"vmlinuz\"");
    assert!(
        missing.starts_with("there is no file /nowhere/vmlinuz for kernel; write its path relative"),
        "{missing}"
    );
    assert!(refused_line("initrd = \"i\"").starts_with("there is no file /nowhere/i for initrd"));
    assert_eq!(
        refused("[[guest]]\nname = \"a\"\nexec = \"nproc\"\nkernel = \"k\"\n"),
        "3: exec and kernel exclude each other: exec is for the stock kernel and RAM disk"
    );
    assert_eq!(
        refused("[[guest]]\nname = \"a\"\nexec = \"nproc\"\nprogram = \"load\"\n"),
        "4: program and exec exclude each other: a bare program has none"
    );
    let arm =
        |line: &str| refused(&format!("[machine]\narch = \"aarch64\"\n[[guest]]\nname = \"a\"\n{line}\n"));
    assert!(
        arm("flush = \"ipi\"").starts_with("5: flush is for x86_64: leave it out"),
        "{}",
        arm("flush = \"ipi\"")
    );
    assert_eq!(arm("program = \"probe\""), "5: program \"probe\" is for x86_64; write program = \"hostile\"");
    assert!(refused("[machine]\ncpu = \"max\"\n").starts_with("2: cpu names a model of aarch64"));
    assert!(
        refused("[machine]\ncpus = 1\nboot_cpu = \"serve\"\n")
            .starts_with("3: boot_cpu = \"serve\" needs a second CPU")
    );
    let serve = refused("[machine]\nboot_cpu = \"serve\"\n[[guest]]\nname = \"a\"\ncpus = \"0\"\n");
    assert!(
        serve.starts_with("5: cpus leaves this guest no CPU: with boot_cpu = \"serve\" CPU 0 runs no guest")
    );
}

#[test]
fn claims_of_several_guests_may_not_overlap() {
    assert_eq!(
        refused("[[guest]]\nname = \"a\"\n\n[[guest]]\nname = \"a\"\n"),
        "4: the guest in line 1 is called 'a' as well; give this one another name"
    );
    let two = |one: &str, other: &str| {
        format!("[machine]\nlogs = \"l\"\n[[guest]]\nname = \"a\"\n{one}\n[[guest]]\nname = \"b\"\n{other}\n")
    };
    let same = refused(&two("console = \"x.log\"", "console = \"./y/../x.log\""));
    assert!(
        same.starts_with(
            "8: the console of b would be written to /nowhere/./y/../x.log, which is the console of a;"
        ),
        "{same}"
    );
    let default = refused(&two("", "console = \"l/a.log\""));
    assert!(
        default.contains("which is the console of a; write for example console = \"b-console.log\""),
        "{default}"
    );
    let log = refused(&two("", "console = \"l/hypervisor.log\""));
    assert!(log.contains("which is the hypervisor's log"), "{log}");
    assert!(refused(&two("", "console = \"m.toml\"")).contains("which is this machine file"));
}

#[test]
fn u51_logs_that_a_guest_gets_later_are_no_other_guests() {
    let with = |console: &str| {
        format!(
            "[machine]\nlogs = \"l\"\n[[guest]]\nname = \"a\"\n[[guest]]\nname = \"b\"\nconsole = \"{console}\"\n"
        )
    };
    for (console, other) in [
        ("l/a.1.log", "the console of a on its second serial port"),
        ("l/a.log.old", "the older part of the console of a;"),
        ("l/a", "the console of a on its second serial port"),
        ("l/hypervisor.log.old", "the older part of the hypervisor's log"),
    ] {
        let why = refused(&with(console));
        assert!(why.contains(&format!("which is {other}")), "{why}");
    }
    assert!(read(&with("l/a.b")).is_ok());
}

#[test]
fn limits_of_the_machine_hold_for_all_guests_together() {
    let many = |count: usize, lines: &str| {
        (0..count).map(|number| format!("[[guest]]\nname = \"g{number}\"\n{lines}\n")).collect::<String>()
    };
    assert!(read(&many(64, "vcpus = 16")).is_ok());
    assert_eq!(refused(&many(65, "vcpus = 1")), "193: this is guest 65 of 65; at most 64 are possible");
    let vcpus = refused(&many(5, "vcpus = 255"));
    assert_eq!(
        vcpus,
        "13: g4 has 255 vCPUs, but all guests together have 1024 at most; give it 4, or give the guests before it fewer"
    );
    let small = refused(&format!("[machine]\nmemory = \"600M\"\n{}", many(2, "memory = \"256M\"")));
    assert!(
        small.starts_with("2: the machine has 600 MiB, but its guests have 512 MiB and the hypervisor needs"),
        "{small}"
    );
    let suggested = small.split('"').nth(1).expect("suggests a size").to_owned();
    let enough = format!("[machine]\nmemory = \"{suggested}\"\n{}", many(2, "memory = \"256M\""));
    assert!(read(&enough).is_ok(), "what is suggested is enough");
}

#[test]
fn a_file_that_is_none_is_refused() {
    let refused =
        |path: &Path| format!("{:#}", MachineFile::read(path, Overrides::default()).expect_err("is refused"));
    assert!(refused(Path::new("/nowhere/m.toml")).starts_with("there is no machine file /nowhere/m.toml"));
    assert!(refused(Path::new("/")).contains("is not a file"));
    let directory = tempfile::tempdir().expect("makes");
    let path = directory.path().join("m.toml");
    fs::write(&path, [0xff, 0xfe]).expect("writes");
    assert!(refused(&path).contains("cannot read"));
    fs::write(&path, vec![b' '; 2 << 20]).expect("writes");
    assert!(refused(&path).contains("is no machine file"));
}

#[test]
fn every_example_is_right_and_explained() {
    let directory = workspace::root().join("examples");
    let mut names = Vec::new();
    for entry in fs::read_dir(&directory).expect("is there") {
        let path = entry.expect("is read").path();
        let file = MachineFile::read(&path, Overrides::default()).expect("is right");
        let arm = Overrides { platform: Arch::Aarch64.usual().arguments(), cpus: None };
        MachineFile::read(&path, arm).expect("is right on aarch64");
        assert!(fs::read_to_string(&path).expect("is text").starts_with("# "), "{}", path.display());
        let vcpus: Vec<u32> = file.guests.iter().map(|guest| guest.config.vcpus).collect();
        names.push((path.file_name().expect("has one").to_string_lossy().into_owned(), vcpus));
    }
    names.sort();
    let expected = [
        ("capped.toml", vec![2, 2, 1]),
        ("four-by-32.toml", vec![32; 4]),
        ("sixteen.toml", vec![2; 16]),
        ("two.toml", vec![2, 2]),
    ];
    assert_eq!(names, expected.map(|(name, vcpus)| (name.to_owned(), vcpus)));
}

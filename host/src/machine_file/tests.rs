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
    let text = include_str!("every-key.toml").replace("KERNEL", &format!("{kernel:?}"));
    let file = read(&text).expect("is right");
    let machine = &file.machine;
    assert_eq!((machine.platform, machine.cpus, machine.slice_us), (Platform::X86_64, 4, Some(1000)));
    assert_eq!((file.boot_cpu(), file.adds_cpu()), (BootCpu::Serve, false));
    assert_eq!((file.memory(0), file.hypervisor_log()), (4 * GIB, "/nowhere/logs/hypervisor.log".into()));
    let [web, task] = &file.guests[..] else { panic!("{} guests", file.guests.len()) };
    assert_eq!((web.name().as_str(), web.line), ("web", 9));
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

/// What is wrong with each file of a list.
#[test]
fn each_mistake_has_its_message() {
    let rows = include_str!("wrong.txt").lines().filter(|row| !row.starts_with("# ") || row.contains(" => "));
    for row in rows {
        let (text, message) = row.split_once("=> ").expect(row);
        let text = text.trim_end_matches(' ').replace("+ ", "[[guest]] / name = \"web\" / ");
        let said = refused(&text.replace(" / ", "\n"));
        match message.strip_suffix('…') {
            Some(begin) => assert!(said.starts_with(begin), "{row}: {said}"),
            None => assert_eq!(said, message, "{row}"),
        }
    }
    let file = read("[[guest]]\nname = \"a\"\nvcpus = 0x10\n").expect("is a number");
    assert_eq!(file.guests[0].config.vcpus, 16);
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

//! The tests that boot guests under QEMU: the actions and expectations of each, as rows of a table.

use super::arm::MAX;
use super::checks::Check;
use super::room::Act;
use crate::prelude::*;
use hostlink::config::FlushMode;
use hostlink::ctl::LogWay;
use std::iter;

#[derive(Clone, Copy)]
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) body: Body,
    /// With `--long` the guest gets this instead of the text in `body`.
    pub(super) long: Option<&'static str>,
    /// Run only with `--long`.
    pub(super) only_long: bool,
    /// Changed settings of the hypervisor, as in `hostlink::config`.
    pub(super) settings: &'static [&'static str],
    pub(super) memory: u64,
    /// Words added to its kernel's command line.
    pub(super) words: &'static str,
    pub(super) flush: FlushMode,
    pub(super) is_newer: bool,
    pub(super) is_counted: bool,
    /// The platform. Tests of the tool itself name it in their arguments.
    pub(super) platform: Platform,
    /// Another platform with a row, and how that row's name ends.
    pub(super) also: Option<(&'static str, Platform)>,
}

#[derive(Clone, Copy)]
pub(super) enum Body {
    /// A stock guest runs a command.
    Stock(Stock),
    /// The bare guest makes one of its invalid requests.
    Probe(&'static str, ProbeEnd),
    /// The bare guest that tries everything runs one of its tests.
    Hostile(Hostile),
    /// tlbcheck runs.
    Check(Check),
    /// A stock guest works while the test talks to its hypervisor.
    Talk { command: &'static str, about: Talk },
    /// Anything else, which is not made of values.
    Act(Act),
    /// The tool itself is called with arguments, separated by spaces outside of quotes. `{text}` is
    /// a file that is not a kernel, `{zeroes}` one of 65 MiB; `{arm}`, `{seven}`: `guests::tools`.
    Tool { args: &'static str, status: i32, message: &'static str },
}

#[derive(Clone, Copy)]
pub(super) struct Stock {
    pub(super) vcpus: u32,
    pub(super) cpus: u32,
    pub(super) command: &'static str,
    pub(super) expect: Expect,
}

impl Body {
    /// Whether it takes seconds only. Most acts and runs of tlbcheck take much longer.
    pub(super) const fn is_short(&self) -> bool {
        !matches!(self, Self::Act(_) | Self::Check(_))
    }
}

#[derive(Clone, Copy)]
pub(super) enum Expect {
    Success,
    /// The command reports the correct time.
    Date,
    /// The guest switches itself off before the command ends.
    PowerOff,
    /// Thrash runs to its end, with or without TLB IPIs, and the reverse with flush hypercalls.
    TlbIpis(bool),
    /// Thrash runs to its end, and few wake-ups were lost meanwhile.
    FewLost,
    /// The hunter for stale translations has examined pages remapped in all ways, and found none.
    NothingStale,
    /// Flushes are broken because they kick no target, and the hunter detects it.
    Stale,
    /// The guest's kernel or programs break, whatever comes first; how it ends is a matter of that.
    Damage,
    /// Mmtest has toggled the ROM the expected number of times, and found everything correct.
    Intact,
    /// Each of the loops and the mixed run have finished, and their own checks have passed.
    Loops,
    /// Work of several processors on fewer CPUs: the guest knows how long they waited.
    Stolen,
    /// The guest's output exceeds the kept amount, and imitates the hypervisor as well.
    Flood,
    Panic(&'static str),
    /// The command's status is 0, and the machine runs without exactly these of its CPUs.
    WithoutCpus(&'static [u32]),
}

#[derive(Clone, Copy)]
pub(super) enum Talk {
    /// Requests that must be refused, and change nothing.
    Refusals,
    /// Memory over the registers of devices, which must be refused.
    Devices,
    Memory,
    /// Dirty logs, compared with the changes in memory.
    DirtyLog(LogWay),
    /// Not at all: another process watches it.
    Watch,
}

#[derive(Clone, Copy)]
pub(super) enum ProbeEnd {
    /// It reports that the test passed and switches itself off.
    Passed,
    SecondPassed,
    /// The same for a test that needs a second processor, with both on one CPU.
    SharedPassed,
    /// The same for all its tests, some of which need a second processor.
    AllPassed,
    /// It reports that the test failed, on as many processors on so many CPUs.
    Failed(u32, u32),
    /// The run ends like this, and the log has its registers.
    Ended(ExitCode),
}

/// A test of the bare guest that tries everything.
#[derive(Clone, Copy)]
pub(super) struct Hostile {
    /// Its name, and more words of the guest's command line.
    pub(super) test: &'static str,
    pub(super) vcpus: u32,
    pub(super) cpus: u32,
    /// How the machine ends. By power off: with the guest's report that the test has passed.
    pub(super) end: ExitCode,
}

/// A test of the usual hypervisor on the usual platform.
pub(super) const fn case(name: &'static str, body: Body) -> Case {
    Case {
        name,
        about: "",
        body,
        long: None,
        only_long: false,
        settings: &[],
        memory: 512 * MIB,
        words: "",
        flush: FlushMode::Hypercall,
        is_newer: false,
        is_counted: false,
        platform: Platform::X86_64,
        also: None,
    }
}

/// A stock guest with so many vCPUs, on so many CPUs, runs a command.
pub(super) const fn stock(
    name: &'static str,
    (vcpus, cpus): (u32, u32),
    command: &'static str,
    expect: Expect,
) -> Case {
    case(name, Body::Stock(Stock { vcpus, cpus, command, expect }))
}

pub(super) const fn runs(name: &'static str, size: (u32, u32), command: &'static str) -> Case {
    stock(name, size, command, Expect::Success)
}

pub(super) const fn act(name: &'static str, act: Act) -> Case {
    case(name, Body::Act(act))
}

pub(super) const fn probe(name: &'static str, test: &'static str, end: ProbeEnd) -> Case {
    case(name, Body::Probe(test, end))
}

/// The tool is called with arguments.
pub(super) const fn tool(name: &'static str, args: &'static str) -> Case {
    case(name, Body::Tool { args, status: 0, message: "" })
}

pub(super) const fn talk(name: &'static str, command: &'static str, about: Talk) -> Case {
    case(name, Body::Talk { command, about }).with(&["paranoid=on"])
}

/// A test of the bare guest that tries everything, which it has to pass.
pub(super) const fn hostile(name: &'static str, test: &'static str, on: (u32, u32)) -> Case {
    ended(name, test, on, ExitCode::GuestPowerOff)
}

/// The same, for a guest that ends in another way.
pub(super) const fn ended(
    name: &'static str,
    test: &'static str,
    (vcpus, cpus): (u32, u32),
    end: ExitCode,
) -> Case {
    case(name, Body::Hostile(Hostile { test, vcpus, cpus, end }))
}

impl Case {
    pub(super) const fn or_long(self, told: &'static str) -> Self {
        Self { long: Some(told), ..self }
    }

    pub(super) const fn only_long(self) -> Self {
        Self { only_long: true, ..self }
    }

    /// The tool ends with this status, after this message.
    pub(super) const fn ends(self, status: i32, message: &'static str) -> Self {
        match self.body {
            Body::Tool { args, .. } => Self { body: Body::Tool { args, status, message }, ..self },
            _ => panic!("no call of the tool"),
        }
    }

    pub(super) const fn about(self, about: &'static str) -> Self {
        Self { about, ..self }
    }

    /// The same and, with another name, on Arm.
    pub(super) const fn on_both(self) -> Self {
        self.also("_on_arm", MAX)
    }

    /// The same and, with this at the end of the name, on another platform.
    pub(super) const fn also(self, end: &'static str, platform: Platform) -> Self {
        Self { also: Some((end, platform)), ..self }
    }

    /// The row, and the one on the other platform.
    pub(super) fn rows(self) -> impl Iterator<Item = Self> {
        let other = self.also.map(|(end, platform)| {
            let name = format!("{}{end}", self.name).leak();
            Self { name, platform, ..self }
        });
        iter::once(self).chain(other)
    }

    pub(super) const fn on(self, platform: Platform) -> Self {
        Self { platform, ..self }
    }

    pub(super) const fn in_memory(self, bytes: u64) -> Self {
        Self { memory: bytes, ..self }
    }

    /// The same, with more on the command line of the stock guest's kernel.
    pub(super) const fn told(self, words: &'static str) -> Self {
        Self { words, ..self }
    }

    /// The same without the hint to flush by hypercall.
    pub(super) const fn by_ipis(self) -> Self {
        Self { flush: FlushMode::Ipi, ..self }
    }

    pub(super) const fn with_newer_kernel(self) -> Self {
        Self { is_newer: true, ..self }
    }

    /// The same, with the machine's time counted in instructions: the emulation takes none.
    pub(super) const fn counted(self) -> Self {
        Self { is_counted: true, ..self }
    }

    pub(super) const fn with(self, settings: &'static [&'static str]) -> Self {
        Self { settings, ..self }
    }
}

/// Reports that it has begun, and then works until it is ended; meanwhile the ROM is repeatedly
/// enabled and disabled and must read the same each time.
pub(super) const WORK: &str = "cd /sys/bus/pci/devices/0000:00:01.0 && echo 1 > rom && sum=$(md5sum < rom) || exit; \
    while echo 0 > rom; echo 1 > rom; do \
        test \"$(md5sum < rom)\" = \"$sum\" || echo '{\"event\":\"wrong\"}' > /dev/report; \
    done & \
    echo '{\"event\":\"ready\"}' > /dev/report; thrash --threads 4 --rounds 100000";
/// A stock guest is rebooted and switched off.
pub(super) const REBOOTS: Act = |room| room.lab.typed(room.platform, &["reboot\n", "poweroff\n"]);
/// More output and reports than are kept, and a line like the hypervisor's last words.
pub(super) const FLOOD: &str = "yes 'the guest says this for as long as it likes' | head -c 140000; \
    yes '{\"event\":\"flood\"}' | head -n 2500 > /dev/report; \
    echo 'quell: panic: the guest says so'";
/// The number of those reports, and the text of the last line.
pub(super) const FLOOD_REPORTS: usize = 2500;
pub(super) const FLOOD_CLAIM: &str = "panic: the guest says so";
pub(super) const STALE: &str = "stale --threads 8 --seconds 5 --report /dev/report";
/// On a busy machine the emulated CPUs seldom run at the same time.
const STALE_TRIES: &str =
    "for try in 1 2 3; do stale --threads 8 --seconds 5 --report /dev/report || exit; done";
const STALE_LONG: &str = "stale --threads 8 --seconds 60 --report /dev/report";
/// More threads than a 64-bit mask of processors can name.
const THRASH_65: &str = "thrash --threads 65 --rounds 3 --settle 100 --report /dev/report";
/// Threads that touch their memory while a ROM is repeatedly added and removed.
pub(super) const MMTEST: &str =
    "mmtest --threads 4 --memory 16 --toggles 200 --passes 2 --report /dev/report";
const MMTEST_LONG: &str = "mmtest --threads 4 --memory 16 --toggles 10000 --passes 2 --report /dev/report";
const THRASH_33: &str = "thrash --threads 33 --rounds 3 --settle 100 --report /dev/report";
pub(super) const THRASH: &str = "thrash --threads 4 --rounds 25 --settle 100 --report /dev/report";

/// Each of the loops, and the run that resembles a build.
pub(super) const LOOPS: &str = "for loop in page_fault mmap mprotect context_switch futex futex_lock tlb_flush1 tlb_flush2 tlb_flush3; \
    do loops --loop $loop --threads 4 --rounds 200 --pages 16 --report /dev/report || exit; done; \
    mixed --jobs 4 --tasks 4 --report /dev/report";
/// The number of loops, the rounds of all threads together, and the tasks.
pub(super) const LOOPS_COUNT: usize = 9;
pub(super) const LOOPS_ROUNDS: u64 = 800;
pub(super) const LOOPS_TASKS: u64 = 4;

const TRUSTED: &str = "! dmesg | grep -E 'timekeeping watchdog|as unstable because|clocksource: .*skewed'";
const HYPERCALL_LINE: &str = "dmesg | grep -q 'Hyper-V: Using hypercall for remote TLB flush'";
const NO_HYPERCALL_LINE: &str = "! dmesg | grep -q 'Hyper-V: Using hypercall for remote TLB flush'";

pub(super) const CASES: [Case; 47] = [
    tool("missing_kernel", "run --kernel /nonexistent/vmlinuz")
        .ends(1, "no kernel at /nonexistent/vmlinuz")
        .about("a missing kernel is an error before anything starts"),
    tool("kernel_that_is_not_a_kernel", "run --kernel {text}")
        .ends(1, "not a kernel")
        .about("a file that is not a kernel is refused"),
    tool("initrd_larger_than_memory", "run --memory 64M --initrd {zeroes}")
        .ends(1, "larger than the guest")
        .about("the initial RAM disk has to fit into the guest's memory"),
    tool("top_wants_a_machine_that_runs", "top --once --vm nobodys")
        .ends(1, "no machine")
        .about("watching a machine that is not running is an error"),
    tool("zero_vcpus", "run --vcpus 0").ends(2, "1..=255").about("a guest has a vCPU"),
    tool("too_many_vcpus", "run --vcpus 256").ends(2, "1..=255").about("and at most 255"),
    tool("u51_a_log_that_is_full", "run --timeout 120 --log /dev/full --exec true")
        .ends(1, "some output is lost: /dev/full: No space left on device")
        .about("a log that cannot be written is an error at the end"),
    tool("exec_status_passed_on", "run --timeout 120 --exec 'exit 7'").ends(7, "").about("it is passed on"),
    tool("panic_is_reported_with_symbols", "run --exec 'reboot -f' --reset panic --timeout 100")
        .ends(70, "hypervisor::vm::run::cpu_loop")
        .about("a panic of the hypervisor ends the run with status 70 and a backtrace with names"),
    tool("u56_reboot_by_triple_fault", "run --append reboot=t --exec 'reboot -f' --timeout 100")
        .ends(71, "shut down by triple fault")
        .about("a kernel's reset by a triple fault is a reset as any other"),
    probe("refused_vmrun_ends_the_run", "no_write_through", ProbeEnd::Ended(ExitCode::GuestInvalid))
        .about("a state that VMRUN refuses ends the guest with a register dump, not the hypervisor"),
    probe("guest_triple_fault_is_a_reset", "triple_fault", ProbeEnd::Ended(ExitCode::GuestReset))
        .about("which ends the run if asked to, with the guest's registers in the log"),
    probe("unknown_msr_faults_in_the_guest", "unknown_msr", ProbeEnd::Passed)
        .about("reading or writing an unknown MSR is #GP for the guest"),
    probe("ring3_hypercall_faults_in_the_guest", "ring3_hypercall", ProbeEnd::Passed)
        .about("a hypercall from ring 3 is #UD for the guest"),
    probe("probe_all", "all", ProbeEnd::AllPassed)
        .about("all other guest errors have the results that the manuals specify")
        .or_long("all count=1000000"),
    probe("run_times_add_up", "run_time", ProbeEnd::SharedPassed)
        .about("two processors that share a CPU had, by their run time registers, the time that has passed")
        .counted(),
    probe("h25_list_in_parts", "list_in_parts", ProbeEnd::SecondPassed)
        .about("a long list is done in parts, and the caller takes interrupts in between")
        .with(&["flush_pages=1000"]),
    probe("p9_rom_toggles_at_length", "rom_toggles count=20000", ProbeEnd::SecondPassed)
        .about("after each of 10000 toggles all processors see the ROM, or no memory")
        .only_long(),
    probe("p13_rom_moves_at_length", "rom_moves count=20000", ProbeEnd::SecondPassed)
        .about("after each of as many moves they see it at the new address only")
        .only_long(),
    probe("u32_interrupts_come_once", "u32_interrupts_once", ProbeEnd::Passed)
        .about("no interrupt comes twice when time is counted in instructions and processors take turns")
        .counted()
        .or_long("u32_interrupts_once count=1000000"),
    probe("u32_interrupts_come_once_in_threads", "u32_interrupts_once", ProbeEnd::SecondPassed)
        .about("nor when each processor has a thread")
        .or_long("u32_interrupts_once count=1000000"),
    runs("flush_hypercall_line_in_the_log", (2, 2), HYPERCALL_LINE).about("Linux uses flush hypercalls"),
    runs("no_flush_hypercall_line_with_ipis", (2, 2), NO_HYPERCALL_LINE)
        .about("and does not use them without the hint")
        .by_ipis(),
    runs("nproc_is_8", (8, 2), "test \"$(nproc)\" = 8").about("all vCPUs come up, four to a CPU"),
    runs("nproc_is_32", (32, 2), "test \"$(nproc)\" = 32").about("sixteen vCPUs to a CPU come up as well"),
    stock("lost_wakeups_are_few", (32, 2), THRASH_33, Expect::FewLost)
        .about("lost wake-ups, which the tick and repeated kicks repair, are counted and rare"),
    runs("nproc_is_255", (255, 2), "test \"$(nproc)\" = 255").about("the most vCPUs reach userspace"),
    stock("thrash_on_128_vcpus", (128, 2), THRASH_65, Expect::TlbIpis(false))
        .about("65 threads on 128 vCPUs flush only by hypercall, which requires VP sets")
        .with(&["pretend=on"]),
    stock("thrash_on_128_vcpus_and_12_cpus", (128, 12), THRASH_65, Expect::TlbIpis(false))
        .about("and on 12 CPUs as well")
        .only_long(),
    runs("one_vcpu_on_one_cpu", (1, 1), "test \"$(nproc)\" = 1").about("the smallest guest boots"),
    runs("clock_is_trusted", (2, 2), TRUSTED).about("the kernel's watchdog does not reject its clock source"),
    stock("no_tlb_ipis_with_hypercalls", (4, 2), THRASH, Expect::TlbIpis(false))
        .about("remote flushes use only hypercalls"),
    stock("no_hypercalls_with_ipis", (4, 2), THRASH, Expect::TlbIpis(true)).about("or only IPIs").by_ipis(),
    stock("o1_nothing_stale_with_hypercalls", (8, 2), STALE, Expect::NothingStale)
        .about("no reader sees a page after the system call that removed it has returned")
        .or_long(STALE_LONG),
    stock("o1_nothing_stale_with_ipis", (8, 2), STALE, Expect::NothingStale)
        .about("nor without the hint")
        .by_ipis()
        .or_long(STALE_LONG),
    stock("e3_stale_pages_without_kicks", (8, 2), STALE_TRIES, Expect::Stale)
        .about("the same guest detects a flush that kicks no target within the same time")
        .with(&["defect=no-kick"]),
    stock("h13_vp_index_is_no_apic_id", (8, 2), STALE, Expect::NothingStale)
        .about("nothing is stale even if VP indices, APIC IDs and the kernel's numbers differ")
        .with(&["apic_ids=reversed", "pretend=on"]),
    talk("ctl_refusals_change_nothing", WORK, Talk::Refusals)
        .about("a slot that overlaps, is unaligned, is not there or exceeds memory is refused with a reason"),
    talk("ctl_memory_comes_and_goes", WORK, Talk::Memory).about("while the guest works"),
    talk("p14_dirty_bits_miss_no_change", WORK, Talk::DirtyLog(LogWay::DirtyBits))
        .about("every changed page of the guest's memory is in its dirty log, by dirty bits"),
    talk("p14_write_faults_miss_no_change", WORK, Talk::DirtyLog(LogWay::WriteProtection))
        .about("and by write faults"),
    talk("top_shows_what_is_counted", WORK, Talk::Watch)
        .about("another process reads the rates of a working guest, which match its counters"),
    act("p14_migration_in_vain_changes_nothing", |room| room.lab.migrate(room.case))
        .about("a cancelled migration leaves memory, slots and free memory as before, and no store is lost")
        .with(&["paranoid=on", "nested_page=2M"])
        .on_both(),
    stock("rom_toggles_under_memory_load", (4, 2), MMTEST, Expect::Intact)
        .about("memory keeps its contents while a ROM is added, read completely, and removed")
        .or_long(MMTEST_LONG),
    stock("loops_and_a_build_find_all_in_order", (4, 2), LOOPS, Expect::Loops)
        .about("the self-checks of faults, mappings, wake-ups, flushes and processes pass"),
    stock("poweroff_ends_the_run", (2, 2), "poweroff; sleep 60", Expect::PowerOff)
        .about("with the guest's consent and status 0"),
    act("reboot_reboots", REBOOTS).about("typed at the console; the guest comes up again"),
];

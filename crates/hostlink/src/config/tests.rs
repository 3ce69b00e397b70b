//! Configurations, read and written.

use super::*;
use crate::defect::Defect;
use std::string::ToString;

/// A configuration with no default in it.
fn unusual() -> Config<'static> {
    Config {
        name: Name::parse("web-1").expect("is one"),
        weight: 250,
        cap: Some(150),
        cpus: CpuSet::parse("0-1,3").expect("is a set"),
        start: Start::Manual,
        kernel: "files/0",
        is_firmware: true,
        initrd: Some("files/1"),
        vcpus: 8,
        memory: 1 << 30,
        flush: FlushMode::Ipi,
        nested: true,
        slice_us: 2500,
        reset: ResetPolicy::Exit,
        boot_cpu: BootCpu::Serve,
        console: Console::Machine,
        switches: Switches {
            apic_ids: ApicIds::Reversed,
            flush_pages: Some(64),
            flush_turns: true,
            zap: Zap::Everything,
            nested_page: NestedPage::Small,
            paranoid: true,
            tables: Some(100),
            stage2_unmap: Stage2Unmap::Page,
            local_tlbi: LocalTlbi::Broadcast,
            vmid_bits: Some(8),
            vmid_churn: Some(7),
            vpids: Some(3),
            pretend: true,
            emulated_apic: true,
            defect: Some(Defect::BankRank),
        },
        devices: "00:04.0 nvme",
        cmdline: "console=ttyS0 quiet a=b # not a comment",
    }
}

#[test]
fn what_is_written_is_read_back() {
    let config = unusual();
    assert_eq!(Config::parse(&config.to_string()), Ok(config));
    let usual = Config::default();
    assert_eq!(Config::parse(&usual.to_string()), Ok(usual));
}

#[test]
fn the_machines_part_and_the_guests_are_read_back_together() {
    let config = unusual();
    let (machine, guest) = (config.of_machine().to_string(), config.of_guest().to_string());
    let machine = Config::parse_machine(&machine).expect("is the machine's");
    assert_eq!((machine.slice_us, machine.boot_cpu), (config.slice_us, config.boot_cpu));
    assert_eq!((machine.vcpus, machine.name), (1, Name::GUEST), "these are not the machine's");
    assert_eq!(Config::parse_guest(&guest, &machine), Ok(config));
    assert_eq!(Config::parse_guest("", &machine).expect("is empty").switches.vmid_bits, Some(8));
}

#[test]
fn every_key_belongs_to_the_machine_or_to_a_guest() {
    let all = unusual().to_string();
    let text = unusual().of_machine().to_string();
    let machine = Config::parse_machine(&text).expect("is the machine's");
    for line in all.lines() {
        let (key, _) = line.split_once('=').expect("has a value");
        let (of_machine, of_guest) = (Config::parse_machine(line), Config::parse_guest(line, &machine));
        if MACHINE_KEYS.contains(&key) {
            assert!(of_machine.is_ok(), "{line}");
            assert_eq!(of_guest, Err(ConfigError::OfMachine { line: 1, key }));
        } else {
            assert!(of_guest.is_ok(), "{line}");
            assert_eq!(of_machine, Err(ConfigError::OfGuest { line: 1, key }));
        }
    }
    let keys = all.lines().filter_map(|line| line.split_once('=')).map(|(key, _)| key);
    let machines = keys.filter(|key| MACHINE_KEYS.contains(key)).count();
    assert_eq!(machines, MACHINE_KEYS.len(), "each of the machine's keys exists");
    assert_eq!(
        Config::parse_guest("colour=blue", &machine),
        Err(ConfigError::UnknownKey { line: 1, key: "colour" })
    );
}

#[test]
fn wrong_lines_are_named() {
    let longest = Config { cmdline: &"x".repeat(CMDLINE_MAX), memory: MEMORY_MAX, ..unusual() };
    assert_eq!(Config::parse(&longest.to_string()), Ok(longest));
    for (text, line) in [
        ("name=", 1),
        ("name=Web", 1),
        ("weight=0", 1),
        ("weight=10001", 1),
        ("cap=0", 1),
        ("cap=25601", 1),
        ("cap=50%", 1),
        ("cpus=", 1),
        ("cpus=3-1", 1),
        ("cpus=256", 1),
        ("start=never", 1),
        ("kernel=", 1),
        ("initrd=", 1),
        ("vcpus=0", 1),
        ("vcpus=256", 1),
        ("\nmemory=12345", 2),
        ("memory=0", 1),
        ("memory=70368746274816", 1),
        ("memory=18446744073707454464", 1),
        (&std::format!("cmdline={}", "x".repeat(CMDLINE_MAX + 1)), 1),
        ("flush=maybe", 1),
        ("nested=maybe", 1),
        ("# fine\n\nslice_us=1", 3),
        ("reset=never", 1),
        ("boot_cpu=rest", 1),
        ("kick=off", 1),
        ("zap=some", 1),
        ("nested_page=3M", 1),
        ("paranoid=a bit", 1),
        ("tables=0", 1),
        ("tables=some", 1),
        ("stage2_unmap=leaf", 1),
        ("local_tlbi=remote", 1),
        ("vmid_bits=0", 1),
        ("vmid_bits=17", 1),
        ("vmid_bits=-1", 1),
        ("vmid_churn=0", 1),
        ("vmid_churn=1000001", 1),
        ("vmid_churn=on", 1),
        ("pretend=yes", 1),
        ("defect=many", 1),
        ("apic_ids=shuffled", 1),
        ("flush_pages=15", 1),
        ("flush_pages=all", 1),
        ("nonsense", 1),
        ("colour=blue", 1),
    ] {
        let error = Config::parse(text).unwrap_err().to_string();
        assert!(error.starts_with(&std::format!("config line {line}:")), "{text}: {error}");
    }
}

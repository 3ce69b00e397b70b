//! Faults that a guest's functions cause, and what is said of them.

use super::{COMMAND, FIRST, MASTER, MEMORY, board_of_several, warnings, with_owned};
use crate::iommu::mock::{Machine, NVME, Note, SMALL, VIRTIO, device_id};
use crate::owned::Verdict;
use ::iommu::DeviceId;
use ::iommu::amd::Event;
use hostlink::name::Name;
use paging::Progress;

#[test]
fn u64_a_function_that_causes_many_faults_is_silent_until_its_guest_is_reset() {
    with_owned("vcpus=1\nmemory=16777216\ndevices=nvme", |machine, guest| {
        let row = Name::parse("guest");
        let fault = |machine: &Machine| machine.devices.count_fault(0, DeviceId(device_id(NVME)), row);
        let at = NVME.parse().expect("an address");
        let is_master = || machine.bus.word(NVME, 4) & MASTER != 0;
        guest.write_config(FIRST, COMMAND, MEMORY | MASTER);
        machine.bus.set_pace(1);
        for _ in 0..4095 {
            assert_eq!(fault(machine).map(|(_, verdict)| verdict), Some(Verdict::Report));
        }
        assert!(is_master());
        // Bits of the upper half are cleared by writing them.
        machine.bus.set_word(NVME, 4, machine.bus.word(NVME, 4) | 0xffff_0001);
        machine.notes.take();
        let (owner, verdict) = fault(machine).expect("it is owned");
        assert_eq!((owner.as_str(), verdict), ("guest", Verdict::Silence(at)));
        assert_eq!(machine.notes.take(), [Note::Config(at, 4, 0x403)], "all but DMA stays");
        assert!(!is_master());
        // Whatever the guest writes, and whoever was about to write when it was silenced.
        for command in [MEMORY, MEMORY | MASTER, 0, MASTER] {
            guest.write_config(FIRST, COMMAND, command);
            assert!(!is_master(), "{command:#x}");
        }
        machine.bus.set_command(NVME, MEMORY | MASTER);
        assert_eq!(fault(machine).map(|(_, verdict)| verdict), Some(Verdict::Late(at)));
        assert!(!is_master());
        machine.bus.set_pace(10_000);
        let functions = &guest.0.vm.guest.owned.functions;
        while functions.lock().reset() != Progress::Done {}
        guest.write_config(FIRST, COMMAND, MEMORY | MASTER);
        assert!(is_master(), "after a reset it works");
        assert_eq!(machine.devices.count_fault(0, DeviceId(device_id(SMALL)), None), None, "nobody's");
    });
}

#[test]
fn u70_events_in_a_row_of_one_guest_are_one_line_and_their_count() {
    let machine = Machine::new();
    let config = |owned| format!("{owned}\nvcpus=1\nmemory=16777216\nstart=manual").leak();
    let board =
        board_of_several(machine, &[config("name=a\ndevices=nvme"), config("name=b\ndevices=00:05.0")]);
    board.answer(&["guest-create a", "guest-create b"]);
    machine.bus.set_pace(0);
    let event = |device: &str, address| [2 << 60 | 5 << 32 | u64::from(device_id(device)), address];
    let line = |of: &str, device: &str, address| format!("{of}: {}", Event::decode(event(device, address)));
    let report = |events: &[(&str, u64)]| {
        events.iter().for_each(|&(device, address)| machine.iommu.log(event(device, address)));
        warnings(|| machine.devices.report_events())
    };
    let (of_a, of_b, nobodys) = ((NVME, 0x1000), (SMALL, 0x2000), (VIRTIO, 0x3000));
    assert_eq!(
        report(&[of_a, of_a, (NVME, 0x4000), of_b, of_a, nobodys, nobodys]),
        [
            line("guest 'a'", NVME, 0x1000),
            "guest 'a': 2 more such events".into(),
            line("guest 'b'", SMALL, 0x2000),
            line("guest 'a'", NVME, 0x1000),
            line("IOMMU", VIRTIO, 0x3000),
            "IOMMU: 1 more such events".into(),
        ]
    );
    assert_eq!(report(&[of_b]), [line("guest 'b'", SMALL, 0x2000)], "another row");
    // Four have been counted, in two rows. Six more are reported within a second.
    let mut lines = Vec::new();
    (0..20).for_each(|_| lines.extend(report(&[of_a; 204])));
    let row = [line("guest 'a'", NVME, 0x1000), "guest 'a': 203 more such events".into()];
    assert_eq!(lines, [row.as_slice(); 6].concat());
    let [off] = &report(&[of_a; 16])[..] else { panic!("one line") };
    assert!(off.starts_with("guest 'a': 00:03.0 has caused 4096 faults within a second"), "{off}");
    assert_eq!(report(&[of_a, of_a]), Vec::<String>::new());
}

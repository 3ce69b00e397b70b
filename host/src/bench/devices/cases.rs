//! What the guest does with its devices, and the shell commands for that.

use crate::machine::devices::SINK;
use hostlink::phase::Phase;

pub(super) struct Case {
    pub(super) name: &'static str,
    /// For people: what is counted, each.
    pub(super) label: &'static str,
    pub(super) work: Work,
}

#[derive(Clone, Copy)]
pub(super) enum Work {
    /// By fio, past the guest's page cache.
    Disk {
        /// As in fio's `rw`.
        pattern: &'static str,
        block: u64,
        /// How many are under way at a time.
        depth: u32,
        count: u64,
    },
    /// A TCP stream of this many bytes; frames that are sent count.
    Stream { bytes: u64 },
    /// Only what surrounds the others: it is subtracted from their counts.
    Nothing,
}

const fn disk(
    name: &'static str,
    label: &'static str,
    pattern: &'static str,
    block: u64,
    depth: u32,
    count: u64,
) -> Case {
    Case { name, label, work: Work::Disk { pattern, block, depth, count } }
}

/// All cases. The place of one is the number of its phase, from 1 on.
pub(super) const CASES: [Case; 7] = [
    Case { name: NOTHING, label: "", work: Work::Nothing },
    disk("read-128K", "sequential read, 128 KiB", "read", 128 << 10, 1, 500),
    disk("randread-4K", "random read, 4 KiB", "randread", 4 << 10, 1, 1000),
    disk("randread-4K-16", "… 16 at a time", "randread", 4 << 10, 16, 2000),
    disk("randwrite-4K", "random write, 4 KiB", "randwrite", 4 << 10, 1, 1000),
    disk("randwrite-4K-16", "… 16 at a time", "randwrite", 4 << 10, 16, 2000),
    Case { name: "stream", label: "TCP stream, a frame sent", work: Work::Stream { bytes: 4 << 20 } },
];
const _: () = assert!(CASES.len() < Phase::ALL.len());

/// The case without work.
pub(super) const NOTHING: &str = "nothing";
/// Size of the disk that is read and written.
pub(super) const DATA_BYTES: u64 = 64 << 20;
/// The serial numbers of the disk with the programs, and of the other one.
const SERIALS: [&str; 2] = ["disk8", "disk9"];

/// Before all cases: finds the disks by their serial numbers, whichever driver was faster, and
/// makes Debian the system, of which nothing runs but what is started here.
///
/// `before` and `after` surround what is counted, report what the devices have done up to then, and
/// wait until the host has heard it. They report twice: a report was missing once.
const SETUP: &str = r#"
trap '[ $? = 0 ] || echo "{\"event\":\"failed\"}" >/dev/report' EXIT
set -e
disk() {
	for place in /sys/block/nvme*; do
		read -r serial <$place/device/serial || continue
		[ "$serial" != $1 ] || { echo ${place##*/}; return; }
	done
	return 1
}
until programs=$(disk SERIAL_OF_PROGRAMS) && data=$(disk SERIAL_OF_DATA); do sleep 0.1; done
mount -t ext4 -o ro,noload /dev/$programs /root
mount -t devtmpfs dev /root/dev
mount -t proc proc /root/proc
mount -t sysfs sys /root/sys
mount -t tmpfs tmp /root/tmp
cp /bin/phase /root/tmp/
cat >/root/tmp/report <<END
#!/bin/sh
read -r reads merged sectors time writes rest </sys/block/$data/stat
read -r frames </sys/class/net/eth0/statistics/tx_packets
for time in 1 2; do
	echo "{\"event\":\"\$1\",\"case\":\"\$2\",\"reads\":\$reads,\"writes\":\$writes,\"frames\":\$frames}" >/dev/report
	sleep 0.2
done
END
cat >/root/tmp/before <<'END'
#!/bin/sh
/tmp/report begin $2
/tmp/phase $1
END
cat >/root/tmp/after <<'END'
#!/bin/sh
/tmp/phase 0
/tmp/report end $1
END
chmod +x /root/tmp/*
in_debian() {
	chroot /root /bin/bash -c "cd /tmp; $1"
}
in_debian 'modprobe virtio_pci; modprobe virtio_net'
until [ -e /sys/class/net/eth0 ]; do sleep 0.1; done
in_debian 'ip link set eth0 up; ip address add 10.0.2.15/24 dev eth0'
"#;

pub(super) fn command() -> String {
    let mut script = SETUP.replace("SERIAL_OF_PROGRAMS", SERIALS[0]).replace("SERIAL_OF_DATA", SERIALS[1]);
    // Programs and libraries are read from the disk once, before anything is counted.
    for case in CASES.iter().filter(|case| !matches!(case.work, Work::Nothing)) {
        script += &in_debian(&work(&short(case.work), "true", "true"));
    }
    for (case, phase) in CASES.iter().zip(1..) {
        let (before, after) =
            (format!("/tmp/before {phase} {}", case.name), format!("/tmp/after {}", case.name));
        script += &in_debian(&work(&case.work, &before, &after));
    }
    script
}

fn in_debian(command: &str) -> String {
    format!("in_debian '{command}'\n").replace("$data", "'$data'")
}

/// Little of the same.
fn short(work: Work) -> Work {
    match work {
        Work::Disk { pattern, block, depth, .. } => Work::Disk { pattern, block, depth, count: 64 },
        Work::Stream { .. } => Work::Stream { bytes: 1 << 20 },
        Work::Nothing => Work::Nothing,
    }
}

/// The command of some work, between two others.
fn work(work: &Work, before: &str, after: &str) -> String {
    match *work {
        Work::Disk { pattern, block, depth, count } => format!(
            "fio --name=job --filename=/dev/$data --direct=1 --ioengine=libaio --rw={pattern} --bs={block} \
             --iodepth={depth} --size={DATA_BYTES} --io_size={} --norandommap --thread --gtod_reduce=1 \
             --eta=never --disk_util=0 --output=/tmp/output --exec_prerun=\"{before}\" \
             --exec_postrun=\"{after}\" || {{ cat /tmp/output; exit 1; }}",
            block * count
        ),
        Work::Stream { bytes } => format!(
            "exec 3>/dev/tcp/{SINK}/9 && {before} && dd if=/dev/zero bs=64K count={} status=none >&3 && {after}",
            bytes >> 16
        ),
        Work::Nothing => format!("{before} && {after}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_phase_of_its_own_and_is_tried_before() {
        let command = command();
        for (case, phase) in CASES.iter().zip(1..) {
            assert!(command.contains(&format!("/tmp/before {phase} {}", case.name)), "{command}");
            assert!(command.contains(&format!("/tmp/after {}", case.name)), "{command}");
        }
        assert_eq!(command.matches("--rw=randread --bs=4096 --iodepth=16").count(), 2);
        assert!(
            command.contains("--io_size=8192000") && command.contains("dd if=/dev/zero bs=64K count=64 ")
        );
        assert!(!command.contains("SERIAL_OF"));
    }

    #[test]
    fn the_guest_is_told_which_disk_is_which() {
        assert_eq!(in_debian("fio /dev/$data"), "in_debian 'fio /dev/'$data''\n");
    }
}

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
until mount -t ext4 -o ro,noload /dev/${programs}p1 /root; do sleep 0.1; done
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

#!/bin/sh
# A guest of 1 GiB with 2 vCPUs that writes 64 MB/s moves five times: from Quell to Quell, and,
# inside an emulated machine, from QEMU with KVM to another one. docs/performance.md has the figures.
#
#   host/src/guest/peer/migrate.sh [quell|kvm]    both if none is named
#
# Takes what ./quell fetch has fetched and ./quell run --program load has built, and 6 GiB of memory.

set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../../../.." && pwd)
quell=$root/target/debug/quell-host
cache=${XDG_CACHE_HOME:-$HOME/.cache}/quell/guest
writes='touch=0x4000000,0x38000000,4K dirty=0x4000000,0x38000000,64'
guest() {
	exec "$quell" run --program load --vcpus 2 --memory 1G --timeout 300 --append "$writes" "$@"
}
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -r "$work"' EXIT

# The machine's only program: QEMUs, each of which takes the guest from the one before.
inside() {
	cat <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp
for module in irqbypass kvm kvm-amd; do insmod /modules/$module.ko; done
cd /tmp
hyperv=hv-relaxed,hv-vpindex,hv-synic,hv-stimer,hv-time,hv-frequencies
start() {
	number=$1; shift
	mkfifo $number.in $number.out
	# The first CPU runs no vCPU (docs/qemu.md).
	taskset 6 qemu -L /firmware -accel kvm -machine q35 -cpu host,$hyperv -smp 2 -m 1024 -nodefaults \
		-no-user-config -display none -monitor none -serial file:serial$number -qmp pipe:$number \
		-kernel /load -append "$(cat /writes)" "$@" </dev/null &
	cat $number.out >log$number &
	# Stays open: a QEMU whose monitor's pipe was closed in between did not answer.
	exec 4>$number.in
	echo '{"execute":"qmp_capabilities"}' >&4
}
start 0
until grep -q dirty: serial0; do sleep 1; done
for to in 1 2 3 4 5; do
	from=$((to - 1))
	start $to -incoming unix:/tmp/to$to
	sleep 5
	{
		limits='"downtime-limit":50,"max-bandwidth":10000000000'
		echo "{\"execute\":\"migrate-set-parameters\",\"arguments\":{$limits}}"
		echo "{\"execute\":\"migrate\",\"arguments\":{\"uri\":\"unix:/tmp/to$to\"}}"
	} >$from.in
	until tail -n1 log$from | grep -q -e '"status": "completed"' -e '"status": "failed"'; do
		sleep 1
		echo '{"execute":"query-migrate"}' >$from.in
	done
	sleep 2
	{
		grep '"STOP"' log$from
		grep '"RESUME"' log$to
		tail -n1 log$from
		tail -n8 serial$from
	} >/dev/ttyS1
	echo '{"execute":"quit"}' >$from.in
	sleep 1
done
poweroff -f
INIT
}

kvm() {
	mkdir "$work/root"
	cd "$work/root"
	mkdir bin dev proc tmp firmware modules
	inside >init
	chmod +x init
	printf %s "$writes" >writes
	cp "$cache/busybox" bin/
	cp "$cache"/modules/*.ko modules/
	cp "$root/target/images/x86_64-unknown-none/release/quell-load.usual" load
	qemu=$(command -v qemu-system-x86_64)
	cp "$qemu" bin/qemu
	ldd "$qemu" | grep -o '/[^ ]*' | while read -r library; do cp -L --parents "$library" .; done
	for name in bios-256k.bin kvmvapic.bin pvh.bin linuxboot_dma.bin; do
		cp -L "$(find /usr/share/qemu /usr/share/seabios -name $name | head -n1)" firmware/
	done
	find . | "$cache/busybox" cpio -o -H newc >../initrd 2>/dev/null
	timeout 300 "$qemu" -accel tcg,thread=multi -machine q35 -cpu EPYC,+svm,+npt -smp 3 -m 5G \
		-nodefaults -display none -no-reboot -kernel "$cache/vmlinuz" -initrd ../initrd \
		-append 'console=ttyS0 quiet panic=-1 tsc=reliable clocksource=tsc' \
		-serial "file:$work/console" -serial stdio </dev/null
	cd "$root"
}

quell() {
	(umask 077; head -c 32 /dev/urandom >"$work/secret")
	guest </dev/null >"$work/serial0" 2>&1 &
	from=$!
	until grep -q dirty: "$work/serial0"; do sleep 1; done
	for to in 1 2 3 4 5; do
		guest --incoming "unix:$work/to$to" --secret "$work/secret" </dev/null >"$work/serial$to" 2>&1 &
		next=$!
		sleep 10
		"$quell" ctl --vm $from guest migrate guest --to "unix:$work/to$to" --secret "$work/secret" --json
		sleep 2
		grep dirty: "$work/serial$((to - 1))" | tail -n8
		grep dirty: "$work/serial$to" | head -n1
		kill $from 2>/dev/null || : # Nothing runs there any more, and the first one has ended.
		from=$next
	done
	kill $from
	wait
}

for side in ${1:-quell kvm}; do $side; done

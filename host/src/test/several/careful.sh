D=/dev/nvme0n1; N=0
sum() { dd if=$1 bs=64k iflag=$2 skip=1 2>/dev/null | md5sum; }
odd() { grep -E '^ *(NMI|ERR|MIS):' /proc/interrupts; }
dd if=/dev/urandom of=/memory bs=64k count=64 2>/dev/null
M=$(sum /memory fullblock); S=$(sum $D direct); O=$(odd)
check() {
N=$((N + 1)); echo round $N | dd of=$D conv=sync,fsync bs=512 2>/dev/null
[ "$(dd if=$D bs=4k count=1 iflag=direct 2>/dev/null | head -n 1)" = "round $N" ] || echo CHANGED: block
[ "$(sum /memory fullblock)" = "$M" ] || echo CHANGED: memory
[ "$(sum $D direct)" = "$S" ] || echo CHANGED: disk
[ "$(odd)" = "$O" ] || echo CHANGED: interrupts
echo tick $N
}
while :; do check; sleep 0.1; done &
read line
echo good bye

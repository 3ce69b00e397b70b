#!/bin/sh
# The first boot of a new disk: this script is its init. It has the unpacked packages configure
# themselves, sets the system up, and switches the machine off.
#
# The last line on the console is `quell-setup: done`, or says at which step it failed.

export PATH=/usr/sbin:/usr/bin HOME=/root LC_ALL=C
export DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true DEBCONF_NOWARNINGS=yes
# This kernel has all drivers that the system needs. Those that are installed later get one.
export INITRD=No
setup=/quell-setup
info=/var/lib/dpkg/info

# Ends the machine, after the last line. Without an init there is nothing else to stop.
finish() {
	echo "quell-setup: $1"
	sync
	mount -o remount,ro /
	systemctl poweroff --force --force
	sleep 60
	exit 1
}

# Runs a command; a failure ends it all.
step() {
	"$@" || finish "failed: $*"
}

# Runs what a package wants to be run before it is unpacked. That was done elsewhere, so it is late;
# on a new system it prepares files for later.
preinst() {
	name=${1##*/}
	name=${name%.preinst}
	DPKG_MAINTSCRIPT_NAME=preinst DPKG_MAINTSCRIPT_PACKAGE=${name%%:*} \
		DPKG_MAINTSCRIPT_ARCH=$architecture DPKG_ROOT='' "$1" install
}

# From a copy: a script that is open on the disk would keep it from being unmounted at the end.
if [ "$0" != /run/configure.sh ]; then
	step mount -t tmpfs tmpfs /run
	step cp "$0" /run/configure.sh
	exec sh /run/configure.sh
fi
step mount -t proc proc /proc
step mount -t sysfs sysfs /sys
step mkdir -p /run/lock
[ -c /dev/null ] || step mount -t devtmpfs devtmpfs /dev
step mkdir -p /dev/pts /dev/shm
step mount -t devpts devpts /dev/pts
hostname quell
architecture=$(dpkg --print-architecture)

# Debian's scripts need these before the packages that make them are configured.
step ln -sf mawk /usr/bin/awk
step ldconfig
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
step chmod +x /usr/sbin/policy-rc.d

step preinst "$info/base-passwd.preinst"
for script in "$info"/*.preinst; do
	case $script in
	*/base-passwd.preinst) ;;
	*) step preinst "$script" ;;
	esac
done
# These count as there although nothing depends on them.
step dpkg --configure --force-depends --force-unsafe-io base-passwd base-files
step dpkg --configure --pending --force-unsafe-io
step rm /usr/sbin/policy-rc.d

if [ -s $setup/password ]; then
	step chpasswd <$setup/password
else
	step passwd --delete root
fi
step systemctl --quiet enable systemd-networkd.service systemd-resolved.service
# What a machine that is emulated, and often new, does not need.
step systemctl --quiet disable getty@tty1.service
step systemctl --quiet mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
	e2scrub_all.timer e2scrub_reap.service fstrim.timer fio.service iperf3.service \
	systemd-networkd-wait-online.service systemd-pstore.service systemd-repart.service \
	systemd-network-generator.service systemd-binfmt.service proc-sys-fs-binfmt_misc.automount \
	sys-kernel-debug.mount sys-kernel-tracing.mount
# Each copy of the disk gets an identity of its own, and its first boot is an ordinary one.
: >/etc/machine-id
rm -f /var/lib/dbus/machine-id /var/lib/systemd/random-seed /var/lib/systemd/credential.secret
rm -rf $setup /var/log/*.log
step touch /etc/.updated /var/.updated
finish done

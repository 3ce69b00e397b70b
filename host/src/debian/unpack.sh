# Unpacks Debian packages into a new tree. Run under fakeroot, so that files belong to whom the
# packages say, without root's rights.
#
#   sh unpack.sh WORK ARCHIVE ...
#
# Writes WORK/root, the tree. dpkg prints a line `Unpacking …` for each archive.
#
# dpkg would run a package's preinst in the tree, which takes root's rights and may be of another
# architecture. It is taken out, and put back where the first boot looks for it.

set -eu
umask 022

work=$1
shift
root=$work/root
# In memory at first: dpkg waits for the disk after each change.
if [ -w /dev/shm ]; then
	database=$(mktemp -d /dev/shm/quell-dpkg.XXXXXX)
	trap 'rm -rf "$database"' EXIT
else
	database=$work/database
fi
mkdir -p "$root/usr/bin" "$root/usr/sbin" "$root/usr/lib" "$root/var/lib/dpkg" \
	"$root/var/log" \
	"$database/info" "$database/updates" "$database/triggers"
# Debian 12 has one directory of programs and one of libraries; packages still use the old names.
for name in bin sbin lib; do
	ln -s "usr/$name" "$root/$name"
done
for archive in "$@"; do
	case $archive in
	*_amd64.deb)
		mkdir "$root/usr/lib64"
		ln -s usr/lib64 "$root/lib64"
		break
		;;
	esac
done
for name in available diversions statoverride status triggers/Unincorp; do
	: >"$database/$name"
done
echo 1 >"$database/info/format"

# Each archive as dpkg gets it: without its preinst.
count=$#
mkdir "$work/preinst" "$work/packages"
while [ "$count" -gt 0 ]; do
	archive=$1
	shift
	count=$((count - 1))
	name=${archive##*/}
	name=${name%%_*}
	if dpkg-deb --info "$archive" preinst >"$work/preinst/$name" 2>/dev/null; then
		dpkg-deb --raw-extract "$archive" "$work/package"
		rm "$work/package/DEBIAN/preinst"
		archive=$work/packages/$name.deb
		dpkg-deb -Znone --build "$work/package" "$archive" >/dev/null
		rm -r "$work/package"
	else
		rm "$work/preinst/$name"
	fi
	set -- "$@" "$archive"
done

# What this system's dpkg leaves out, as documentation, is not left out here.
dpkg --instdir="$root" --admindir="$database" --log="$root/var/log/dpkg.log" --path-include='/*' --force-architecture \
	--force-depends --force-unsafe-io --unpack "$@"

for script in "$work/preinst"/*; do
	name=${script##*/}
	for list in "$database/info/$name.list" "$database/info/$name":*.list; do
		[ ! -e "$list" ] || install -m 755 "$script" "${list%.list}.preinst"
	done
done
cp -a "$database"/* "$root/var/lib/dpkg"

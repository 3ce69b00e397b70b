# Unpacks Debian packages into a new tree. Run under fakeroot, so that files belong to whom the
# packages say, without root's rights.
#
#   sh unpack.sh WORK ARCHIVE ...
#
# Writes WORK/root (the tree) and, for each archive NAME_VERSION_ARCH.deb, WORK/control/NAME (its
# control files, its list of paths as `list` among them). Prints a line for each archive.

set -eu
umask 022

work=$1
shift
root=$work/root
mkdir "$root" "$work/control"
# Debian 12 has one directory of programs and one of libraries; packages still use the old names.
mkdir -p "$root/usr/bin" "$root/usr/sbin" "$root/usr/lib"
for name in bin sbin lib; do
	ln -s "usr/$name" "$root/$name"
done
amd64=0
for archive in "$@"; do
	case $archive in
	*_amd64.deb) amd64=1 ;;
	esac
done
if [ "$amd64" = 1 ]; then
	mkdir "$root/usr/lib64"
	ln -s usr/lib64 "$root/lib64"
fi

for archive in "$@"; do
	name=${archive##*/}
	name=${name%%_*}
	dpkg-deb --control "$archive" "$work/control/$name"
	# No pipe: its status would be that of tar alone.
	dpkg-deb --fsys-tarfile "$archive" >"$work/files.tar"
	tar --extract --preserve-permissions --same-owner --keep-directory-symlink --verbose \
		--quoting-style=literal --warning=no-timestamp \
		--file "$work/files.tar" --directory "$root" >"$work/control/$name/list"
	echo "$name"
done
rm "$work/files.tar"

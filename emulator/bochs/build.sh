# Builds Bochs with the TLB of this directory. Takes 2 to 3 minutes of one processor, once.
#
#   sh build.sh WORK SOURCE KEPT
#
# WORK is for what is not kept, SOURCE is Debian's bochs_3.0+dfsg.orig.tar.xz. KEPT gets the program
# `bochs` and the graphics card's firmware, `vgabios`. Needs g++, make, patch, tar and xz.

set -eu

work=$1
source=$2
kept=$3
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

# The patch has no context lines: it fits this very source.
echo "78f6c73d4a6472d5130a87ab9dc306d02c7c71ed8e25b3a8ef642e2a7acd282b  $source" |
	sha256sum --check --quiet
mkdir -p "$work/bochs"
tar -C "$work/bochs" --strip-components=1 -xf "$source"
cd "$work/bochs"
patch --forward --unified --fuzz=0 --strip=1 --quiet <"$here/tagged-tlb.patch"
cp "$here/tagged_tlb.h" "$here/tagged_tlb.cc" cpu

# SMP, both kinds of virtualization, no debugger (it takes six times as long), no screen.
./configure --with-nogui --disable-debugger --disable-docbook \
	--enable-all-optimizations --enable-cpu-level=6 --enable-x86-64 --enable-smp \
	--enable-svm --enable-vmx=2 --enable-avx --enable-evex --enable-memtype \
	--enable-long-phy-address --enable-pci --enable-e1000 --enable-cdrom \
	>"$work/configure.log"
make -j2 >"$work/make.log" 2>&1 || {
	tail -n 20 "$work/make.log" >&2
	exit 1
}
strip -o "$kept/bochs" bochs
cp bios/vgabios-cirrus.bin-1.13.0 "$kept/vgabios"

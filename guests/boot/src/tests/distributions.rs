//! What distributions' configurations start.

use super::scripts::DEBIAN;
use super::*;
use crate::find::find;

/// What it writes on RHEL, CentOS Stream and Fedora, where the entries are files of their own.
const RHEL: &str = r#"
if [ -f ${config_directory}/grubenv ]; then
  load_env -f ${config_directory}/grubenv
elif [ -s $prefix/grubenv ]; then
  load_env
fi
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
   set next_entry=
   save_env next_entry
   set boot_once=true
else
   set default="${saved_entry}"
fi
set root='hd0,gpt1'
if [ x$feature_platform_search_hint = xy ]; then
  search --no-floppy --fs-uuid --set=root --hint-bios=hd0,gpt1  uuid-1
else
  search --no-floppy --fs-uuid --set=root uuid-1
fi
search --no-floppy --fs-uuid --set=boot uuid-1
if [ -z "${kernelopts}" ]; then
  set kernelopts="root=/dev/mapper/rhel-root ro crashkernel=auto "
fi
insmod blscfg
blscfg
menuentry 'Memory test' {
	linux16 /memtest
}
"#;
const RHEL_8: [&str; 2] = [
    "title Red Hat Enterprise Linux (4.18.0-553.el8.x86_64) 8.10 (Ootpa)\nversion 4.18.0-553.el8.x86_64\n\
     linux /vmlinuz-553\ninitrd /initramfs-553.img $tuned_initrd\noptions $kernelopts $tuned_params\n\
     id rhel-20240424-4.18.0-553.el8.x86_64\ngrub_users $grub_users\ngrub_arg --unrestricted\ngrub_class kernel\n",
    "title Red Hat Enterprise Linux (4.18.0-513.el8.x86_64) 8.9 (Ootpa)\nversion 4.18.0-513.el8.x86_64\n\
     linux /vmlinuz-513\ninitrd /initramfs-513.img $tuned_initrd\noptions $kernelopts $tuned_params\n\
     id rhel-20230915-4.18.0-513.el8.x86_64\ngrub_users $grub_users\ngrub_arg --unrestricted\ngrub_class kernel\n",
];
const STREAM_9: [&str; 2] = [
    "title CentOS Stream (5.14.0-427.el9.x86_64) 9\nversion 5.14.0-427.el9.x86_64\nlinux /vmlinuz-427\n\
     initrd /initramfs-427.img $tuned_initrd\n\
     options root=/dev/mapper/cs-root ro dyndbg=\"file nvme* +p\" $tuned_params\ngrub_class centos\n",
    "title CentOS Stream (0-rescue-d0c5) 9\nversion 0-rescue-d0c5\nlinux /vmlinuz-0-rescue\n\
     initrd /initramfs-0-rescue.img\noptions root=/dev/mapper/cs-root ro\ngrub_class centos\n",
];
/// Fedora's, whose `/boot` is a directory of the system.
const FEDORA: [&str; 2] = [
    "title Fedora Linux (6.9.12-200.fc40.x86_64) 40\nversion 6.9.12-200.fc40.x86_64\nlinux /boot/vmlinuz-6.9\n\
     initrd /boot/initramfs-6.9.img\noptions root=UUID=f ro rhgb quiet\ngrub_class fedora\n",
    "title Fedora Linux (6.10.3-200.fc40.x86_64) 40\nversion 6.10.3-200.fc40.x86_64\nlinux /boot/vmlinuz-6.10\n\
     initrd /boot/initramfs-6.10.img\noptions root=UUID=f ro rhgb quiet\ngrub_class fedora\n",
];
/// Debian 10 and 11, with a filesystem for `/boot`.
const DEBIAN_11: &str = r#"
set default="0"
search --no-floppy --fs-uuid --set=root --hint-bios=hd0,msdos2  uuid-2
menuentry 'Debian GNU/Linux' --class debian $menuentry_id_option 'gnulinux-simple-r' {
	insmod part_msdos
	set root='hd0,msdos1'
	search --no-floppy --fs-uuid --set=root --hint-bios=hd0,msdos1  uuid-1
	echo	'Loading Linux 5.10.0-27-amd64 ...'
	linux	/vmlinuz-5.10.0-27-amd64 root=/dev/mapper/vg-root ro  quiet dyndbg="file nvme* +p"
	initrd	/initrd.img-5.10.0-27-amd64
}
if [ -f  ${config_directory}/custom.cfg ]; then
  source ${config_directory}/custom.cfg
elif [ -z "${config_directory}" -a -f  $prefix/custom.cfg ]; then
  source $prefix/custom.cfg
fi
"#;
/// Ubuntu's cloud image: without the initial RAM disk, until that has failed.
const UBUNTU: &str = r#"
if [ "${initrdfail}" = 2 ]; then
   set initrdfail=
elif [ "${initrdfail}" = 1 ]; then
   set next_entry="${prev_entry}"
fi
function gfxmode {
	set gfxpayload="${1}"
	if [ "${1}" = "keep" ]; then set vt_handoff=vt.handoff=7; else set vt_handoff=; fi
}
if [ "${recordfail}" != 1 ]; then
  if [ -e ${prefix}/gfxblacklist.txt ]; then
    if [ ${grub_platform} != pc ]; then set linux_gfx_mode=keep
    elif hwmatch ${prefix}/gfxblacklist.txt 3; then
      if [ ${match} = 0 ]; then set linux_gfx_mode=keep; else set linux_gfx_mode=text; fi
    fi
  fi
fi
menuentry 'Ubuntu' --class ubuntu $menuentry_id_option 'gnulinux-simple-u' {
	recordfail
	gfxmode $linux_gfx_mode
	if [ x$grub_platform = xxen ]; then insmod xzio; insmod lzopio; fi
	search --no-floppy --fs-uuid --set=root uuid-1
	if [ "${initrdfail}" = 1 ]; then
	  echo	'GRUB_FORCE_PARTUUID set, initrdless boot failed. Attempting with initrd.'
	  linux	/boot/vmlinuz-6.8.0-31-generic root=PARTUUID=u ro  console=ttyS0 $vt_handoff
	  initrd	/boot/initrd.img-6.8.0-31-generic
	else
	  echo	'GRUB_FORCE_PARTUUID set, attempting initrdless boot.'
	  linux	/boot/vmlinuz-6.8.0-31-generic root=PARTUUID=u ro  console=ttyS0 panic=-1 $vt_handoff
	fi
	initrdfail
}
"#;
const OPENSUSE: &str = r#"
if [ -f ${config_directory}/grubenv ]; then
  load_env -f ${config_directory}/grubenv
fi
if [ "${env_block}" ]; then
  set env_block="(${root})${env_block}"
  load_env -f "${env_block}"
fi
set default="${saved_entry}"
menuentry_id_option="--id"
menuentry 'openSUSE Leap 15.6'  --class opensuse $menuentry_id_option 'gnulinux-simple-s' {
	linux	/boot/vmlinuz-6.4.0-150600.23.7-default root=UUID=s  ${extra_cmdline} mitigations=auto quiet
	initrd	/boot/initrd-6.4.0-150600.23.7-default
}
submenu 'Advanced options for openSUSE Leap 15.6' --hotkey=1 $menuentry_id_option 'gnulinux-advanced-s' {
	menuentry 'openSUSE Leap 15.6, with Linux 6.4.0-150600.21-default' $menuentry_id_option 'gnulinux-21-s' {
		linux	/boot/vmlinuz-6.4.0-150600.21-default root=UUID=s  ${extra_cmdline} mitigations=auto quiet
		initrd	/boot/initrd-6.4.0-150600.21-default
	}
}
"#;
const ARCH: [&str; 2] = [
    "title   Arch Linux\nlinux   /vmlinuz-linux\ninitrd  /intel-ucode.img\ninitrd  /initramfs-linux.img\n\
     options root=PARTUUID=a rw\noptions dyndbg=\"file  nvme* +p\"\n",
    "# kernel-install's\ntitle      Arch Linux\nversion    6.10.1\nmachine-id 6a98\nsort-key   arch\n\
     options    root=PARTUUID=a rw\nlinux      6a98/6.10.1/linux\ninitrd     6a98/6.10.1/initrd\n",
];

/// Files, by filesystem; kernels and RAM disks that are there as well; and what is started.
type Row =
    (&'static str, &'static [(usize, &'static str, &'static str)], (usize, &'static str), &'static str);

const ROWS: &[Row] = &[
    (
        "RHEL 8, `grubby --set-default` of the older one, `kernelopts` in grubenv",
        &[
            (1, "/grub2/grub.cfg", RHEL),
            (
                1,
                "/grub2/grubenv",
                "# GRUB Environment Block\nsaved_entry=a1b2-4.18.0-513.el8.x86_64\nkernelopts=root=UUID=r ro dyndbg=\"file nvme* +p\"\n##",
            ),
            (1, "/loader/entries/a1b2-4.18.0-553.el8.x86_64.conf", RHEL_8[0]),
            (1, "/loader/entries/a1b2-4.18.0-513.el8.x86_64.conf", RHEL_8[1]),
        ],
        (1, "/vmlinuz-553 /vmlinuz-513 /initramfs-553.img /initramfs-513.img"),
        "1 /vmlinuz-513 /initramfs-513.img: root=UUID=r ro \"dyndbg=file nvme* +p\"",
    ),
    (
        "RHEL 8, whose grubenv is on EFI's partition",
        &[
            (1, "/grub2/grub.cfg", RHEL),
            (1, "/loader/entries/a1b2-4.18.0-513.el8.x86_64.conf", RHEL_8[1]),
            (1, "/loader/entries/a1b2-4.18.0-553.el8.x86_64.conf", RHEL_8[0]),
        ],
        (1, "/vmlinuz-553 /vmlinuz-513 /initramfs-553.img /initramfs-513.img"),
        "1 /vmlinuz-553 /initramfs-553.img: root=/dev/mapper/rhel-root ro crashkernel=auto",
    ),
    (
        "CentOS Stream 9, tuned; the rescue system is not the first",
        &[
            (1, "/grub2/grub.cfg", RHEL),
            (1, "/grub2/grubenv", "tuned_params=skew_tick=1 isolcpus=2\ntuned_initrd=/tuned.img\n"),
            (1, "/loader/entries/d0c5-0-rescue.conf", STREAM_9[1]),
            (1, "/loader/entries/d0c5-5.14.0-427.el9.x86_64.conf", STREAM_9[0]),
        ],
        (1, "/vmlinuz-427 /vmlinuz-0-rescue /initramfs-427.img /initramfs-0-rescue.img /tuned.img"),
        "1 /vmlinuz-427 /initramfs-427.img /tuned.img: \
         root=/dev/mapper/cs-root ro \"dyndbg=file nvme* +p\" skew_tick=1 isolcpus=2",
    ),
    (
        "Fedora, the default by its number",
        &[
            (1, "/boot/grub2/grub.cfg", RHEL),
            (1, "/boot/grub2/grubenv", "saved_entry=1\n"),
            (1, "/boot/loader/entries/f-6.10.3-200.fc40.x86_64.conf", FEDORA[1]),
            (1, "/boot/loader/entries/f-6.9.12-200.fc40.x86_64.conf", FEDORA[0]),
        ],
        (1, "/boot/vmlinuz-6.9 /boot/vmlinuz-6.10 /boot/initramfs-6.9.img /boot/initramfs-6.10.img"),
        "1 /boot/vmlinuz-6.9 /boot/initramfs-6.9.img: root=UUID=f ro rhgb quiet",
    ),
    (
        "Debian 12",
        &[(1, "/boot/grub/grub.cfg", DEBIAN)],
        (1, "/boot/vmlinuz-18 /boot/vmlinuz-17 /boot/ucode.img /boot/initrd.img-18 /boot/initrd.img-17"),
        "1 /boot/vmlinuz-18 /boot/ucode.img /boot/initrd.img-18: root=UUID=1 ro quiet \"a b\"",
    ),
    (
        "Debian 11, and a second disk with Fedora",
        &[
            (1, "/grub/grub.cfg", DEBIAN_11),
            (4, "/boot/grub2/grub.cfg", RHEL),
            (4, "/boot/loader/entries/f-6.10.3-200.fc40.x86_64.conf", FEDORA[1]),
            (4, "/boot/vmlinuz-6.10", "k"),
            (4, "/boot/initramfs-6.10.img", "i"),
        ],
        (1, "/vmlinuz-5.10.0-27-amd64 /initrd.img-5.10.0-27-amd64"),
        "1 /vmlinuz-5.10.0-27-amd64 /initrd.img-5.10.0-27-amd64: \
         root=/dev/mapper/vg-root ro quiet \"dyndbg=file nvme* +p\"",
    ),
    (
        "Debian 11, with an entry of one's own, which tries things",
        &[
            (1, "/grub/grub.cfg", DEBIAN_11),
            (
                1,
                "/grub/custom.cfg",
                "menuentry mine {\nset root=hd0,gpt1\nlinux /old\ninitrd /old.img\nlinux /mine ro\n}\n\
                 set default=mine\n",
            ),
            (2, "/etc/fstab", ""),
        ],
        (1, "/mine"),
        "1 /mine: ro",
    ),
    (
        "a first disk with a kernel alone, and a second one with Debian",
        &[(0, "/vmlinuz", "k"), (4, "/grub/grub.cfg", DEBIAN_11)],
        (4, "/vmlinuz-5.10.0-27-amd64 /initrd.img-5.10.0-27-amd64"),
        "0 /vmlinuz: root=/dev/v0 rw",
    ),
    (
        "Debian 12, with entries that nobody uses",
        &[
            (1, "/boot/grub/grub.cfg", DEBIAN),
            (1, "/boot/loader/entries/f-6.10.3-200.fc40.x86_64.conf", FEDORA[1]),
            (2, "/loader/entries/arch.conf", ARCH[0]),
            (2, "/vmlinuz-linux", "k"),
            (2, "/intel-ucode.img", "i"),
            (2, "/initramfs-linux.img", "i"),
        ],
        (
            1,
            "/boot/vmlinuz-18 /boot/ucode.img /boot/initrd.img-18 /boot/vmlinuz-6.10 /boot/initramfs-6.10.img",
        ),
        "1 /boot/vmlinuz-18 /boot/ucode.img /boot/initrd.img-18: root=UUID=1 ro quiet \"a b\"",
    ),
    (
        "Ubuntu 24.04 of a cloud",
        &[(1, "/boot/grub/grub.cfg", UBUNTU), (1, "/boot/grub/gfxblacklist.txt", "v10de")],
        (1, "/boot/vmlinuz-6.8.0-31-generic /boot/initrd.img-6.8.0-31-generic"),
        "1 /boot/vmlinuz-6.8.0-31-generic: root=PARTUUID=u ro console=ttyS0 panic=-1",
    ),
    (
        "openSUSE Leap 15.6, a saved entry of a menu, in a block of its own",
        &[
            (1, "/boot/grub2/grub.cfg", OPENSUSE),
            (1, "/boot/grub2/grubenv", "env_block=/env\nextra_cmdline= security=apparmor a=b\n"),
            (1, "/env", "saved_entry=gnulinux-advanced-s>gnulinux-21-s\nnext_entry=0\n"),
        ],
        (
            1,
            "/boot/vmlinuz-6.4.0-150600.23.7-default /boot/initrd-6.4.0-150600.23.7-default \
             /boot/vmlinuz-6.4.0-150600.21-default /boot/initrd-6.4.0-150600.21-default",
        ),
        "1 /boot/vmlinuz-6.4.0-150600.21-default /boot/initrd-6.4.0-150600.21-default: \
         root=UUID=s security=apparmor a=b mitigations=auto quiet",
    ),
    (
        "Arch, the first entry",
        &[(1, "/loader/entries/6a98-6.10.1.conf", ARCH[1]), (1, "/loader/entries/arch.conf", ARCH[0])],
        (1, "/vmlinuz-linux /intel-ucode.img /initramfs-linux.img /6a98/6.10.1/linux /6a98/6.10.1/initrd"),
        "1 /6a98/6.10.1/linux /6a98/6.10.1/initrd: root=PARTUUID=a rw",
    ),
    (
        "Arch, the default of loader.conf, on a filesystem that is the system's",
        &[
            (
                1,
                "/boot/loader/loader.conf",
                "timeout 3\n#default 6a98*\ndefault  [a-b]*ch.con?\nconsole-mode max\n",
            ),
            (1, "/boot/loader/entries/6a98-6.10.1.conf", ARCH[1]),
            (1, "/boot/loader/entries/Arch.conf", ARCH[0]),
        ],
        (1, "/boot/vmlinuz-linux /boot/intel-ucode.img /boot/initramfs-linux.img /boot/6a98/6.10.1/linux"),
        "1 /boot/vmlinuz-linux /boot/intel-ucode.img /boot/initramfs-linux.img: \
         root=PARTUUID=a rw dyndbg=\"file  nvme* +p\"",
    ),
    (
        "an entry without tries is the last, whatever its key",
        &[
            (1, "/loader/loader.conf", "default @saved\n"),
            (1, "/loader/entries/6a98-6.10.1+0-3.conf", ARCH[1]),
            (1, "/loader/entries/arch+2-1.conf", ARCH[0]),
        ],
        (1, "/vmlinuz-linux /intel-ucode.img /initramfs-linux.img /6a98/6.10.1/linux /6a98/6.10.1/initrd"),
        "1 /vmlinuz-linux /intel-ucode.img /initramfs-linux.img: root=PARTUUID=a rw dyndbg=\"file  nvme* +p\"",
    ),
    (
        "key, machine and version come before the file's name; another architecture's is none",
        &[
            (1, "/loader/entries/1.conf", "sort-key a\nmachine-id 1\nversion 6.9\nlinux /k1\n"),
            (1, "/loader/entries/2.conf", "sort-key a\nmachine-id 1\nversion 6.10\nlinux /k2\n"),
            (1, "/loader/entries/3.conf", "sort-key a\nmachine-id 2\nversion 6.11\nlinux /k3\n"),
            (1, "/loader/entries/4.conf", "sort-key b\nversion 6.12\nlinux /k4\narchitecture X64\n"),
            (1, "/loader/entries/5.conf", "sort-key a\nversion 7\nlinux /k5\narchitecture aa64\n"),
            (1, "/loader/entries/6.conf", "version 8\nlinux /k6\ninitrd $x\noptions ro $x\n"),
        ],
        (1, "/k1 /k2 /k3 /k4 /k5 /k6"),
        "1 /k2: ",
    ),
    (
        "variables of GRUB without GRUB",
        &[(1, "/loader/entries/a.conf", RHEL_8[0])],
        (1, "/vmlinuz-553 /initramfs-553.img"),
        "1 /vmlinuz-553 /initramfs-553.img: ",
    ),
];

#[test]
fn distributions_start_what_their_own_loaders_would() {
    for (name, files, (volume, there), starts) in ROWS {
        let tree =
            files.iter().fold(Tree::default(), |tree, (volume, path, text)| tree.with(*volume, path, text));
        let tree = there.split(' ').fold(tree, |tree, path| tree.with(*volume, path, "k"));
        let choice = find(&tree).unwrap_or_else(|tried| panic!("{name}: {tried:?}"));
        assert!(choice.initrds.iter().all(|(volume, _)| *volume == choice.kernel.0), "{name}");
        let paths = [&choice.kernel].into_iter().chain(&choice.initrds).map(|(_, path)| path.as_str());
        let paths: Vec<_> = paths.collect();
        assert_eq!(format!("{} {}: {}", choice.kernel.0, paths.join(" "), choice.words), *starts, "{name}");
    }
}

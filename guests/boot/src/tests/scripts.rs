//! What configurations choose.

use core::cmp::Ordering;

use super::*;
use crate::find::find;
use crate::version::compare;

/// What `grub-mkconfig` of Debian 12 writes, without the parts that only draw.
pub(super) const DEBIAN: &str = r#"
if [ -s $prefix/grubenv ]; then
  set have_grubenv=true
  load_env
fi
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
   set next_entry=
   save_env next_entry
   set boot_once=true
else
   set default="0"
fi
if [ x"${feature_menuentry_id}" = xy ]; then
  menuentry_id_option="--id"
else
  menuentry_id_option=""
fi
export menuentry_id_option
if [ "${prev_saved_entry}" ]; then
  set saved_entry="${prev_saved_entry}"
fi
function savedefault {
  if [ -z "${boot_once}" ]; then
    saved_entry="${chosen}"
    save_env saved_entry
  fi
}
function load_video {
  if [ x$feature_all_video_module = xy ]; then
    insmod all_video
  else
    insmod efi_gop; insmod efi_uga
  fi
}
if [ x$feature_default_font_path = xy ] ; then
   font=unicode
else
insmod part_gpt
set root='hd0,gpt1'
if [ x$feature_platform_search_hint = xy ]; then
  search --no-floppy --fs-uuid --set=root --hint-bios=hd0,gpt1  uuid-1
else
  search --no-floppy --fs-uuid --set=root uuid-1
fi
fi
if [ "${recordfail}" = 1 ] ; then set timeout=-1; elif [ a = b ]; then set timeout=9; else set timeout=5
fi
menuentry 'Debian GNU/Linux' --class debian --class os $menuentry_id_option 'gnulinux-simple-1' {
	load_video
	if [ x$grub_platform = xxen ]; then insmod xzio; insmod lzopio; fi
	search --no-floppy --fs-uuid --set=root uuid-1
	echo	'Loading Linux 6.1.0-18-amd64 ...'
	linux	/boot/vmlinuz-18 root=UUID=1 ro  quiet "a b"
	initrd	/boot/ucode.img /boot/initrd.img-18
}
submenu 'Advanced options' $menuentry_id_option 'advanced' {
	menuentry 'Linux 18' --class debian $menuentry_id_option '18-advanced' {
		linux	/boot/vmlinuz-18 root=UUID=1 ro
	}
	menuentry 'Linux 17' --class debian $menuentry_id_option '17-advanced' {
		search --set root -l label-1
		linux	($root)/boot/vmlinuz-17 root=UUID=1 ro
		initrd	(hd0,gpt1)/boot/initrd.img-17
	}
}
if [ -f ${config_directory}/custom.cfg ]; then
  source ${config_directory}/custom.cfg
fi
"#;

fn debian() -> Tree {
    let tree = Tree::default().with(0, "/efi", "").with(1, "/boot/grub/grub.cfg", DEBIAN);
    ["vmlinuz-18", "vmlinuz-17", "initrd.img-18", "initrd.img-17", "ucode.img"]
        .iter()
        .fold(tree, |tree, name| tree.with(1, &format!("/boot/{name}"), "file"))
}

fn kernel(tree: &Tree) -> String {
    find(tree).expect("there is a kernel").kernel.1
}

#[test]
fn an_entry_is_found_by_numbers_titles_and_identifiers() {
    for default in
        ["1>1", "1>17-advanced", "Advanced options>Linux 17", "advanced>17-advanced", "17-advanced"]
    {
        let custom = format!("set default='{default}'");
        let choice = find(&debian().with(1, "/boot/grub/custom.cfg", &custom)).expect("there is one");
        assert_eq!((choice.kernel.1.as_str(), choice.initrds.len()), ("/boot/vmlinuz-17", 1), "{default}");
    }
    for default in ["9", "1>9", "nothing", "1", ""] {
        let custom = format!("set default='{default}'");
        let tree = debian().with(1, "/boot/grub/custom.cfg", &custom);
        assert_eq!(kernel(&tree), "/boot/vmlinuz-18", "{default}: the first one");
    }
}

#[test]
fn what_was_chosen_for_one_boot_is_not_taken_for_ever() {
    let env = "# GRUB Environment Block\nnext_entry=1>1\nsaved_entry=1>1\n####";
    let tree = debian().with(1, "/boot/grub/grubenv", env);
    assert_eq!(kernel(&tree), "/boot/vmlinuz-18");
    let saved = DEBIAN.replace("set default=\"0\"", "set default=\"${saved_entry}\"");
    assert_eq!(kernel(&tree.with(1, "/boot/grub/grub.cfg", &saved)), "/boot/vmlinuz-17");
}

#[test]
fn files_that_include_themselves_and_deep_conditions_come_to_an_end() {
    let circle = "source /boot/grub/grub.cfg\nsource /boot/grub/grub.cfg\n";
    let deep = "if true; then ".repeat(100_000);
    for text in [
        circle,
        &deep,
        "{",
        "}",
        "menuentry",
        "menuentry x {",
        "menuentry x {\nmenuentry",
        "if",
        "a=$a$a$a",
        "\"",
        "'",
        "${",
        "\\",
    ] {
        let tree = Tree::default().with(0, "/boot/grub/grub.cfg", text);
        assert!(find(&tree).is_err(), "{text:.20}");
    }
}

#[test]
fn what_is_not_there_is_named_and_the_next_way_is_taken() {
    let tree = Tree::default()
        .with(0, "/boot/grub/grub.cfg", "menuentry a {\nlinux /boot/gone root=x\n}")
        .with(0, "/text", "");
    let tried = find(&tree).expect_err("there is none").join("\n");
    let gone = "volume 0: /boot/grub/grub.cfg, entry 'a' names /boot/gone, which is not there";
    assert!(tried.contains(gone), "{tried}");
    assert!(tried.contains("/loader/entries/*.conf") && tried.contains("/boot/vmlinuz-*"), "{tried}");
    let tree = tree.with(0, "/boot/vmlinuz-6.1.0-9", "k").with(0, "/boot/vmlinuz-6.1.0-10", "k");
    let choice = find(&tree.with(0, "/boot/initramfs-6.1.0-10.img", "i")).expect("there is one");
    assert_eq!(
        (choice.kernel.1.as_str(), choice.words.as_str()),
        ("/boot/vmlinuz-6.1.0-10", "root=/dev/v0 rw")
    );
    assert_eq!(choice.initrds, [(0, "/boot/initramfs-6.1.0-10.img".to_string())]);
    let linked = Tree::default().with(0, "/vmlinuz", "k").with(0, "/boot/vmlinuz-7", "k");
    assert_eq!(kernel(&linked), "/vmlinuz");
    assert!(find(&Tree::default()).expect_err("nothing").join(" ").contains("/boot/grub/grub.cfg"));
}

#[test]
fn tests_hold_as_those_of_grub_do() {
    for (condition, holds) in [
        ("[ -d /boot/grub ]", true),
        ("[ -d /boot/grub/grub.cfg ]", false),
        ("[ -e /boot/grub -a -e /boot/grub/grub.cfg ]", true),
        ("[ -f /boot/grub ]", false),
        ("[ -s /boot/empty ]", false),
        ("[ ! -f /boot/gone ]", true),
        ("! [ -f /boot/empty ]", false),
        ("! false", true),
        ("[ 9 -lt 10 -a 10 -le 10 -a 10 -ge 10 -a -1 -lt 0 ]", true),
        ("[ 9 -gt 10 ]", false),
        ("[ 7x -eq 07 -a x -eq 0 -a 1 -ne 2 ]", true),
        ("[ a < b -a b >= b ]", true),
        ("[ vmlinuz-2 -plt vmlinuz-11 ]", true),
        ("[ ! a = b -a c = d ]", false),
        ("[ a = b -a c = d -o e = e ]", true),
        ("[ ! = ! ]", true),
        ("[ -n \"\" -o -z \"\" ]", true),
        ("[ \"\" ]", false),
        ("[ $nothing ]", true),
        ("test -f /boot/empty", true),
        ("search --set=x --file /boot/empty", true),
        ("search --set=x --file /boot/gone", false),
        ("cpuid -l", false),
    ] {
        let script = format!(
            "if false; then\nelif {condition}; then set default=1\nelse set default=0\nfi\n\
             menuentry no {{\nlinux /no\n}}\nmenuentry yes {{\nlinux /yes\n}}\n"
        );
        let tree = Tree::default().with(0, "/boot/grub/grub.cfg", &script).with(0, "/boot/empty", "");
        let chosen = kernel(&tree.with(0, "/yes", "k").with(0, "/no", "k"));
        assert_eq!(chosen, if holds { "/yes" } else { "/no" }, "{condition}");
    }
}

#[test]
fn versions_are_in_order() {
    let ascending =
        ["", "5.10.0-46", "6.1.0-9", "6.1.0-10", "6.1.0-10a", "6.1.0.1", "6.9", "6.10~rc1", "6.10", "06.11"];
    for (index, older) in ascending.iter().enumerate() {
        assert_eq!(compare(older, older), Ordering::Equal);
        for newer in &ascending[index + 1..] {
            assert_eq!(
                (compare(older, newer), compare(newer, older)),
                (Ordering::Less, Ordering::Greater),
                "{older} {newer}"
            );
        }
    }
}

//! Anything that a disk may have: the search ends, without a panic.

use alloc::vec;

use proptest::prelude::*;

use super::disks::{ext4, shared, with_gpt};
use super::*;
use crate::find::find;
use crate::volume::Volumes;

/// Pieces of which scripts are made.
const PIECES: [&str; 48] = [
    "if ",
    "then\n",
    "else\n",
    "elif ",
    "fi\n",
    "while ",
    "do\n",
    "done\n",
    "function f ",
    "{\n",
    "}\n",
    "menuentry 'a' ",
    "submenu b ",
    "--id c ",
    "set x=",
    "default=1>0\n",
    "$x ",
    "${x}",
    "\"$root\" ",
    "'",
    "\"",
    "\\",
    ";",
    "\n",
    " ",
    "#",
    "[ ",
    " ]",
    "! ",
    "-f ",
    "-s ",
    "= ",
    "-o ",
    "linux /k ",
    "initrd /i ",
    "search --set=root --label label-1\n",
    "source /boot/grub/grub.cfg\n",
    "load_env\n",
    "blscfg\n",
    "default_kernelopts=$x$x\n",
    "-lt ",
    "-d ",
    "root=(hd0,gpt1)\n",
    "(hd9,1)/k ",
    "{",
    "test ",
    "true ",
    "ä",
];

fn scripts() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(&PIECES[..]), 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_script_comes_to_an_end(script in scripts(), env in scripts(), entry in "\\PC{0,200}", glob in "[*?a\\[\\]\\\\-]{0,20}") {
        let tree = Tree::default()
            .with(0, "/boot/grub/grub.cfg", &script)
            .with(0, "/boot/grub/grubenv", &env)
            .with(1, "/k", "kernel")
            .with(0, "/loader/entries/a+1.conf", &format!("linux /k\n{entry}"))
            .with(0, "/loader/loader.conf", &format!("default {glob}"));
        if let Ok(choice) = find(&tree) {
            prop_assert!(tree.size(choice.kernel.0, &choice.kernel.1).is_some());
        }
    }

    #[test]
    fn any_first_blocks_are_some_partitions_or_none(
        blocks in prop::collection::vec(any::<u8>(), 4096),
        is_gpt in any::<bool>(),
    ) {
        let mut disk = blocks;
        disk[510..512].copy_from_slice(&[0x55, 0xaa]);
        if is_gpt {
            let made = with_gpt(&[]);
            // The header is right, and its entries are anything.
            disk[512..1024].copy_from_slice(&made[512..1024]);
        }
        let mut volumes = Volumes::default();
        volumes.add(0, &shared(disk));
        prop_assert!(!volumes.seen.is_empty() || !volumes.unreadable.borrow().is_empty());
    }
}

#[test]
fn a_filesystem_with_wrong_bytes_is_refused_or_read() {
    let script = "menuentry a {\nlinux /vmlinuz\n}\n";
    let Some(image) =
        ext4("256", &[("boot/grub/grub.cfg", script), ("vmlinuz", "kernel"), ("boot/a/b", "c")])
    else {
        return;
    };
    let used: Vec<usize> = (0..image.len()).filter(|index| image[*index] != 0).collect();
    proptest!(ProptestConfig::with_cases(512), |(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8))| {
        let mut image = image.clone();
        for (index, byte) in changes {
            image[*index.get(&used)] = byte;
        }
        let mut volumes = Volumes::default();
        volumes.add(0, &shared(image));
        let mut bytes = vec![0; 10];
        if let Ok(choice) = find(&volumes) {
            let file = volumes.ext4[choice.kernel.0].open(choice.kernel.1.as_str());
            let _ = file.map(|mut file| file.read_bytes(&mut bytes));
        }
    });
}

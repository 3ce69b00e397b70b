//! What is on the disk besides the packages: the system's settings, and the first boot's files.

use crate::prelude::*;
use std::os::unix::fs::PermissionsExt;

/// The packages of the system besides the kernel and Debian's essential ones.
pub(super) const PACKAGES: [&str; 17] = [
    "apt",
    "dbus",
    "debian-archive-keyring",
    "e2fsprogs",
    "fio",
    "init",
    "iperf3",
    "iproute2",
    "iputils-ping",
    "kmod",
    "less",
    "nano",
    "netbase",
    "procps",
    "systemd-resolved",
    "udev",
    // Without it apt takes `usrmerge`, which is for systems to be converted.
    "usr-is-merged",
];

pub(super) const SETTINGS: [(&str, &str); 4] = [
    ("etc/hostname", "quell\n"),
    ("etc/hosts", "127.0.0.1 localhost\n127.0.1.1 quell\n::1 localhost ip6-localhost ip6-loopback\n"),
    // The root is mounted by the kernel already, on whatever device; here are its options.
    ("etc/fstab", "LABEL=quell / ext4 noatime 0 0\n"),
    // Copies of the disk must not get the same address, so the card counts, not the system.
    (
        "etc/systemd/network/80-ethernet.network",
        "[Match]\nType=ether\n\n[Network]\nDHCP=yes\n\n[DHCPv4]\nClientIdentifier=mac\n",
    ),
];

/// Apt's list of sources.
pub(super) const SOURCES: &str = "etc/apt/sources.list";
/// The link to the name servers, and its target: those that DHCP has named.
pub(super) const RESOLVER: (&str, &str) = ("etc/resolv.conf", "../run/systemd/resolve/stub-resolv.conf");

/// The init of the first boot, and its files.
pub(super) const SETUP: &str = "quell-setup/configure.sh";
pub(super) const SETUP_KERNEL: &str = "quell-setup/kernel";
pub(super) const SETUP_PASSWORD: &str = "quell-setup/password";
/// The script; its first lines say what it does.
pub(super) const CONFIGURE: &str = include_str!("configure.sh");

pub(super) fn write(root: &Path, path: &str, mode: u32, text: &str) -> Result<()> {
    let place = root.join(path);
    let written = || -> std::io::Result<()> {
        place.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(&place, text)?;
        fs::set_permissions(&place, fs::Permissions::from_mode(mode))
    };
    written().with_context(|| format!("cannot write {}", place.display()))
}

#[cfg(test)]
mod tests {
    use super::super::tree::LABEL;
    use super::*;

    #[test]
    fn the_root_is_found_by_the_label_that_the_disk_has() {
        let fstab = SETTINGS.iter().find(|(path, _)| *path == "etc/fstab").expect("is there");
        assert!(fstab.1.starts_with(&format!("LABEL={LABEL} / ext4 ")));
    }

    #[test]
    fn the_first_boot_finds_its_files_where_they_are_put() {
        let directory = Path::new(SETUP).parent().and_then(Path::to_str).expect("has one");
        assert!(CONFIGURE.contains(&format!("setup=/{directory}\n")));
        for path in [SETUP_KERNEL, SETUP_PASSWORD] {
            let name = path.strip_prefix(directory).expect("is beside the script");
            assert!(CONFIGURE.contains(&format!("$setup{name}")), "{path}");
        }
    }

    #[test]
    fn paths_are_relative_to_the_tree() {
        let others = [SOURCES, RESOLVER.0, SETUP, SETUP_KERNEL, SETUP_PASSWORD];
        for path in SETTINGS.iter().map(|(path, _)| *path).chain(others) {
            assert!(Path::new(path).is_relative(), "{path} would be written on this system");
        }
    }

    #[test]
    fn packages_are_in_order_and_named_once() {
        assert!(PACKAGES.is_sorted_by(|a, b| a < b));
    }
}

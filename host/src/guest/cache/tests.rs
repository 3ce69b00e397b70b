use super::*;

#[test]
fn the_versioned_kernel_is_taken_from_the_dependencies() {
    let debian = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-56-cloud-amd64\n";
    assert_eq!(kernel_dependency(debian).as_deref(), Some("linux-image-6.1.0-56-cloud-amd64"));
    let ubuntu = "linux-image-virtual\n  Depends: linux-image-6.8.0-50-generic\n  Recommends: x\n";
    assert_eq!(kernel_dependency(ubuntu).as_deref(), Some("linux-image-6.8.0-50-generic"));
}

#[test]
fn a_package_without_kernel_has_none() {
    assert_eq!(kernel_dependency("linux-image-generic\n  Depends: linux-image-virtual\n"), None);
    assert_eq!(kernel_dependency("N: Unable to locate package\n"), None);
}

#[test]
fn u20_backports_are_the_distributions_own() {
    let debian = "NAME=\"Debian GNU/Linux\"\nVERSION_CODENAME=bookworm\nID=debian\n";
    let (suite, sources) = backports::backports(debian).expect("is Debian");
    assert_eq!(suite, "bookworm-backports");
    assert!(sources.ends_with("/debian bookworm-backports main\n"), "{sources}");
    assert_eq!(backports::backports("ID=ubuntu\nVERSION_CODENAME=noble\n"), None);
    assert_eq!(backports::backports("ID=debian\n"), None, "no release");
    assert_eq!(backports::backports("ID=debian\nVERSION_CODENAME=\"x main\"\n"), None);
}

#[test]
fn the_modules_of_kvm_are_kept_and_no_others() {
    let directory = tempfile::tempdir().expect("makes");
    let (tree, kept) = (directory.path().join("tree"), directory.path().join("modules"));
    let place = tree.join("lib/modules/6.1/kernel/arch/x86/kvm");
    fs::create_dir_all(&place).expect("makes");
    for name in ["kvm.ko", "kvm-amd.ko", "kvm-intel.ko"] {
        fs::write(place.join(name), name).expect("writes");
    }
    keep_modules(&tree, &KVM_MODULES, &kept).expect("moves");
    let names = fs::read_dir(&kept).expect("is there").map(|entry| entry.expect("reads").file_name());
    let mut names: Vec<_> = names.collect();
    names.sort();
    assert_eq!(names, ["kvm-amd.ko", "kvm.ko"]);
}

#[test]
fn an_incomplete_cache_is_not_used() {
    let directory = tempfile::tempdir().expect("makes");
    let place = directory.path().join("entry");
    assert!(!is_whole(&place, &[]), "there is none");
    fs::create_dir_all(place.join("modules")).expect("makes");
    let needed = ["modules", "vmlinuz", "version", "modules/kvm.ko"];
    for name in &needed[1..] {
        assert!(!is_whole(&place, &needed), "without {name}");
        fs::write(place.join(name), name).expect("writes");
    }
    assert!(is_whole(&place, &needed));
}

//! Bundles, good ones and others.

use super::*;
use crate::config::BootCpu;
use std::string::{String, ToString};
use std::vec::Vec;

type Members<'b> = Vec<(String, &'b [u8])>;

fn members<'b>(of: &[(&str, &'b str)]) -> Members<'b> {
    of.iter().map(|(name, text)| (name.to_string(), text.as_bytes())).collect()
}

fn find<'b>(members: &Members<'b>) -> impl Fn(&str) -> Option<&'b [u8]> {
    |name| members.iter().find(|(member, _)| member == name).map(|(_, bytes)| *bytes)
}

/// The message about a bundle that is refused.
fn refused(members: &[(&str, &str)]) -> String {
    let members = self::members(members);
    Reader::new(find(&members)).err().expect("is refused").to_string()
}

#[test]
fn one_guest_may_have_the_machines_console() {
    let config = ("config", "boot_cpu=serve\nconsole=machine");
    let files = [("files/0", "K"), ("files/1", "I")];
    let guest = ("guests/00", "vcpus=3\nkernel=files/0\ninitrd=files/1");
    let one = members(&[config, guest, files[0], files[1]]);
    let reader = Reader::new(find(&one)).expect("is one");
    assert_eq!((reader.guest_count(), reader.machine().console), (1, Console::Machine));
    assert_eq!(reader.symbols(), None);
    let guest = reader.guest(0).expect("is there");
    assert_eq!((guest.config.vcpus, guest.config.boot_cpu), (3, BootCpu::Serve));
    assert_eq!((guest.config.console, guest.kernel), (Console::Machine, &b"K"[..]));
    assert_eq!(guest.initrd, Some(&b"I"[..]));
    assert!(reader.guest(1).is_err());
    let bare = members(&[("config", ""), ("guests/00", ""), ("kernel", "K"), ("symbols", "0 a")]);
    let reader = Reader::new(find(&bare)).expect("is one");
    assert!(reader.guest(0).expect("is there").initrd.is_none());
    assert_eq!((reader.symbols(), reader.machine().console), (Some(&b"0 a"[..]), Console::Rings));
    let two = [config, ("guests/00", "name=a"), ("guests/01", "name=b"), ("kernel", "K")];
    assert_eq!(refused(&two), "console=machine is for one guest, and there are several");
}

#[test]
fn several_guests_share_files() {
    let members = members(&[
        ("config", "slice_us=1000"),
        ("guests/00", "name=a\nkernel=files/0\ninitrd=files/1"),
        ("guests/01", "name=b\nkernel=files/0\nweight=200"),
        ("files/0", "K"),
        ("files/1", "I"),
    ]);
    let reader = Reader::new(find(&members)).expect("is one");
    assert_eq!((reader.guest_count(), reader.machine().console), (2, Console::Rings));
    let guests: Vec<_> = (0..2).map(|number| reader.guest(number).expect("is there")).collect();
    assert_eq!(guests.iter().map(|guest| guest.config.name.to_string()).collect::<Vec<_>>(), ["a", "b"]);
    assert!(guests.iter().all(|guest| guest.kernel == b"K" && guest.config.slice_us == 1000));
    assert_eq!((guests[0].initrd, guests[1].initrd), (Some(&b"I"[..]), None));
    assert_eq!(guests[1].config.weight, 200);
}

#[test]
fn what_is_wrong_is_named_with_its_member() {
    let (config, kernel) = (("config", ""), ("kernel", "K"));
    assert_eq!(refused(&[kernel]), "the bundle has no member 'config'");
    assert_eq!(refused(&[config, kernel]), "the bundle has no member 'guests/00'");
    assert_eq!(refused(&[config, ("guests/00", "")]), "the bundle has no member 'kernel'");
    assert_eq!(
        refused(&[config, ("guests/00", "vcpus=0"), kernel]),
        "guests/00: config line 1: vcpus=0: expected a number from 1 to 255"
    );
    let without = ("guests/00", "initrd=files/7");
    assert_eq!(refused(&[config, without, kernel]), "the bundle has no member 'files/7'");
    let guest = ("guests/00", "kernel=kernel");
    assert_eq!(
        refused(&[("config", "vcpus=2"), kernel, guest]),
        "config line 1: vcpus is for one guest, not for the whole machine"
    );
    assert_eq!(
        refused(&[config, kernel, guest, ("guests/01", "name=b\nslice_us=1000")]),
        "guests/01: config line 2: slice_us is for the whole machine, not for one guest"
    );
    assert_eq!(refused(&[config, kernel, guest, ("guests/01", "")]), "two guests are called 'guest'");
    assert_eq!(
        refused(&[config, kernel, guest, ("guests/02", "name=c")]),
        "the bundle has no member 'guests/01'"
    );
    assert_eq!(refused(&[config, kernel, ("guests/01", "name=c")]), "the bundle has no member 'guests/00'");
    let long = "x".repeat(200);
    let text = std::format!("kernel={long}");
    assert_eq!(refused(&[config, ("guests/00", &text)]), std::format!("the bundle has no member '{long}'"));
    let binary = ("guests/00".to_string(), &[0xff][..]);
    let members = [members(&[config, kernel]), [binary].into()].concat();
    let error = Reader::new(find(&members)).err().expect("is refused");
    assert_eq!(error, BundleError::NotText(Member::Guest(0)));
}

#[test]
fn more_than_the_limits_are_refused() {
    let many = |guests: u32, vcpus: u32| {
        let texts: Vec<_> = (0..guests).map(|number| std::format!("name=g{number}\nvcpus={vcpus}")).collect();
        let names: Vec<_> = (0..guests).map(|number| Member::Guest(number).to_string()).collect();
        let guests = names.iter().zip(&texts).map(|(name, text)| (name.as_str(), text.as_str()));
        let members =
            members(&[("config", ""), ("kernel", "K")].into_iter().chain(guests).collect::<Vec<_>>());
        Reader::new(find(&members)).map(|reader| reader.guest_count()).map_err(|error| error.to_string())
    };
    assert_eq!(many(MAX_GUESTS, 16), Ok(64));
    assert_eq!(many(MAX_GUESTS + 1, 1), Err("there are more than 64 guests".into()));
    let error = "the guests have 1025 vCPUs together, at most 1024 are possible";
    assert_eq!(many(5, 205), Err(error.into()));
}

//! Archives of a made-up device.

use super::*;
use crate::described;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Off,
    On,
}

described!(Mode: [Self::Off, Self::On]);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Device {
    mode: Mode,
    counts: [u16; 3],
    due: Option<u64>,
    level: bool,
    hz: u32,
    looked: u64,
}

described! { Device:
    mode, counts [|counts| counts.map(|count| count & 0xfff)],
    due (|due, archive| due.describe(archive)), level; same hz; stays looked
}

fn written(device: &mut Device) -> Vec<u8> {
    let mut bytes = vec![0; 100];
    let mut archive = Archive::writer(&mut bytes);
    device.describe(&mut archive).expect("fits");
    let len = archive.finish().expect("has an end");
    bytes.truncate(len);
    bytes
}

fn read(device: &mut Device, bytes: &[u8]) -> Result<usize, Flaw> {
    let mut archive = Archive::reader(bytes);
    device.describe(&mut archive)?;
    archive.finish()
}

#[test]
fn m5_each_field_arrives_and_what_stays_is_the_receivers() {
    for seed in 0..200 {
        let mut there = Device { hz: 7, looked: 1, ..Device::default() };
        there.describe(&mut Archive::random(seed)).expect("has values");
        let before = there.clone();
        let mut here = Device { hz: 7, looked: 2, due: Some(1), ..Device::default() };
        read(&mut here, &written(&mut there)).expect("is read");
        assert_eq!((&there, here), (&before, Device { looked: 2, ..before.clone() }));
    }
}

#[test]
fn random_values_reach_every_variant() {
    let random = |seed| {
        let mut device = Device::default();
        device.describe(&mut Archive::random(seed)).map(|()| device)
    };
    let all: Vec<_> = (0..50).map(|seed| random(seed).expect("has values")).collect();
    assert!(all.iter().any(|device| device.mode == Mode::On && device.due.is_some() && !device.level));
    assert!(all.iter().any(|device| device.mode == Mode::Off && device.due.is_none() && device.level));
}

#[test]
fn m6_short_long_and_wrong_states_are_flaws() {
    let bytes = written(&mut Device { due: Some(5), hz: 7, ..Device::default() });
    let mut here = Device { hz: 7, ..Device::default() };
    for end in 0..bytes.len() {
        assert_eq!(read(&mut here.clone(), &bytes[..end]), Err(Flaw::Short), "{end}");
    }
    assert_eq!(read(&mut here, &[&bytes[..], &[0]].concat()), Err(Flaw::Long(1)));
    let with = |at: usize, value| {
        let mut changed = bytes.clone();
        changed[at] = value;
        read(&mut Device { hz: 7, ..Device::default() }, &changed)
    };
    assert_eq!(with(0, 2), Err(Flaw::Value("mode")));
    assert_eq!(with(2, 0x10), Err(Flaw::Value("counts")));
    assert_eq!(with(7, 2), Err(Flaw::Value("due")));
    assert_eq!(with(bytes.len() - 8, 9), Err(Flaw::Differs("hz", 7, 9)));
    let said = |flaw: Flaw| std::string::ToString::to_string(&flaw);
    assert_eq!(said(Flaw::Differs("it", 7, 12)), "it is 7 here, and was 12 there");
    assert_eq!(said(Flaw::Differs("it", 7, 10_000)), "it is 0x7 here, and was 0x2710 there");
    let rates = Flaw::Differs("it", 62_500_000, 2_994_375_001).of_rates();
    assert_eq!(said(rates), "it is 62.500000 MHz here, and was 2994.375001 MHz there");
    let mut small = [0; 4];
    assert_eq!(Device::default().describe(&mut Archive::writer(&mut small)), Err(Flaw::Short));
}

#[test]
fn m6_bits_and_lengths_are_bounded() {
    let mut field = 0x1_u8;
    assert_eq!(Archive::reader(&[0x81]).within(&mut field, 0x0f), Err(Flaw::Value("")));
    assert_eq!(Archive::reader(&[0x05]).within(&mut field, 0x0f), Ok(()));
    assert_eq!(field, 5);
    assert_eq!(Archive::writer(&mut [0]).within(&mut field, 4), Err(Flaw::Value("")), "nobody could read it");
    let list = |bytes: &[u8]| {
        let (mut archive, mut list) = (Archive::reader(bytes), vec![7_u8]);
        archive.list(&mut list, 3)?;
        archive.finish().map(|_| list)
    };
    assert_eq!(list(&[2, 0, 8, 9]), Ok(vec![8, 9]));
    assert_eq!((list(&[0, 0]), list(&[2, 0, 8])), (Ok(vec![]), Err(Flaw::Short)));
    assert_eq!((list(&[4, 0, 1, 2, 3, 4]), list(&[3, 1])), (Err(Flaw::Value("")), Err(Flaw::Value(""))));
    let mut bytes = [0; 4];
    let mut archive = Archive::writer(&mut bytes);
    let mut list = vec![8_u8, 9];
    assert_eq!(archive.list(&mut list, 3), Ok(()));
    assert_eq!((archive.finish(), bytes, &list[..]), (Ok(4), [2, 0, 8, 9], &[8, 9][..]));
    for seed in 0..20 {
        let mut list = Vec::<u8>::new();
        let mut archive = Archive::random(seed);
        assert_eq!(archive.list(&mut list, 3), Ok(()));
        assert_eq!((archive.within(&mut field, 0x0f), list.len() <= 3, field < 16), (Ok(()), true, true));
    }
}

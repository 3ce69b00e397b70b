//! Devices whose state is written and read by its description, for tests.

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use baremetal::random::Random;
use core::fmt::Debug;
use transfer::{Archive, Described, Flaw};

/// The state as bytes.
pub(crate) fn written<T: Described>(device: &mut T) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 16];
    let mut archive = Archive::writer(&mut bytes);
    device.describe(&mut archive).expect("it is written");
    let len = archive.finish().expect("has an end");
    bytes.truncate(len);
    bytes
}

/// Reads a state.
pub(crate) fn read<T: Described>(device: &mut T, bytes: &[u8]) -> Result<(), Flaw> {
    let mut archive = Archive::reader(bytes);
    device.describe(&mut archive)?;
    archive.finish().map(|_| ())
}

/// Random states arrive in a device as `new` makes it, and are in all their fields as before. What
/// is cut off, or changed, is a flaw or a state with which `play` goes on.
pub(crate) fn moves<T: Described + Debug>(new: impl Fn() -> T, play: impl Fn(&mut T)) {
    for seed in 0..100 {
        let mut there = new();
        there.describe(&mut Archive::random(seed)).expect("has values");
        let bytes = written(&mut there);
        let mut here = new();
        read(&mut here, &bytes).expect("is read");
        assert_eq!(format!("{here:?}"), format!("{there:?}"), "seed {seed}");
        assert_eq!(written(&mut here), bytes, "seed {seed}");
        play(&mut here);
        let mut random = Random::new(seed + 1);
        for _ in 0..20 {
            let mut changed = bytes.clone();
            changed[random.below(bytes.len() as u64) as usize] ^= 1 << random.below(8);
            let mut here = new();
            if read(&mut here, &changed).is_ok() {
                play(&mut here);
            }
        }
        let end = random.below(bytes.len() as u64) as usize;
        assert_eq!(read(&mut new(), &bytes[..end]), Err(Flaw::Short), "seed {seed}, cut at {end}");
    }
}

//! The devices of a guest that is moved.

use super::gic::{Distributor, Private};
use super::psci::{Power, Start};
use crate::devices::state_checks::{read, written};
use migration::{Archive, Described, Flaw};

#[test]
fn m5_what_is_on_a_processor_is_not_written() {
    let mut private = Private::new(0, 1);
    private.forward(27);
    let mut bytes = [0; 4096];
    let unmovable = Err(Flaw::Unmovable("a vCPU is on a CPU"));
    assert_eq!(private.describe(&mut Archive::writer(&mut bytes)), unmovable);
    let _deactivate = private.leave();
    assert_eq!(private.describe(&mut Archive::writer(&mut bytes)), Ok(()));
}

#[test]
fn m7_controllers_of_other_guests_are_told_apart() {
    let differs = |bytes: &[u8], vcpus, intids| read(&mut Distributor::new(vcpus, intids), bytes);
    let bytes = written(&mut Distributor::new(3, 128));
    assert_eq!(differs(&bytes, 2, 128), Err(Flaw::Differs("vcpu_count", 2, 3)));
    assert_eq!(differs(&bytes, 3, 256), Err(Flaw::Differs("intid_count", 256, 128)));
    let bytes = written(&mut Private::new(1, 3));
    assert_eq!(read(&mut Private::new(2, 3), &bytes), Err(Flaw::Differs("vcpu", 2, 1)));
}

#[test]
fn m5_m6_a_start_that_nobody_has_taken_moves() {
    let start = Start { entry: 0x4000_0000, context: 7 };
    let mut bytes = [0; 17];
    let (there, here) = (Power::off(), Power::off());
    assert!(there.turn_on(start).is_ok());
    assert_eq!(there.describe(false, &mut Archive::writer(&mut bytes)), Ok(()));
    assert_eq!(here.describe(false, &mut Archive::reader(&bytes)), Ok(()));
    assert_eq!((here.take_start(), here.is_on()), (Some(start), true));
    assert_eq!(here.describe(true, &mut Archive::reader(&bytes)), Err(Flaw::Value("power")), "it is on");
    // One that is on, or off, is as its vCPU is.
    for is_on in [true, false] {
        let (there, here) = (Power::off(), Power::off());
        assert_eq!(there.describe(is_on, &mut Archive::writer(&mut bytes)), Ok(()));
        assert_eq!(here.describe(is_on, &mut Archive::reader(&bytes)), Ok(()));
        assert_eq!((here.is_on(), here.take_start()), (is_on, None));
    }
}

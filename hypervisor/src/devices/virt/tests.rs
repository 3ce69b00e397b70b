//! The devices of a guest that is moved.

use super::gic::{self, Distributor, Inbox, ListRegisters, Private, View};
use super::pl011::Pl011;
use super::pl031::Pl031;
use super::psci::{Power, Start};
use crate::devices::described::{moves, read, written};
use transfer::{Archive, Described, Flaw};

const OPEN: View = View::new(0xff << 24 | 3, 0xff);

/// List registers that nobody but the test changes.
struct Lists([u64; 4]);

impl ListRegisters for Lists {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn read(&self, index: usize) -> u64 {
        self.0[index]
    }

    fn write(&mut self, index: usize, value: u64) {
        self.0[index] = value;
    }
}

/// A stay in the guest, which takes what it is given and ends it.
fn stay(private: &mut Private) {
    const PENDING: u64 = 1 << 62;
    const ACTIVE: u64 = 1 << 63;
    const HARDWARE: u64 = 1 << 61;
    for (from, to) in [(PENDING, ACTIVE), (ACTIVE, 0)] {
        let mut lists = Lists([0; 4]);
        let _maintenance = private.fill(&mut lists, &OPEN);
        for list in &mut lists.0 {
            assert_eq!(*list & HARDWARE, 0, "of the machine's interrupts");
            if *list & from != 0 {
                *list = *list & !(PENDING | ACTIVE) | to;
            }
        }
        assert_eq!(private.sync(&mut lists, 1), gic::Deactivate(0));
    }
    let _wakes = private.can_wake(&OPEN);
}

#[test]
fn m5_m6_ports_and_clocks_move() {
    moves(Pl011::default, |uart| {
        (0..=0x1000).for_each(|offset| {
            let _ = uart.read(offset);
        });
        (0..40).for_each(|byte| {
            let _ = uart.receive(byte);
        });
        (0..0x50).for_each(|offset| {
            let _ = uart.write(offset, 0x5555);
        });
        let _level = uart.irq_level();
    });
    moves(Pl031::default, |rtc| {
        for wall_ns in [0, 1_800_000_000_000_000_000, u64::MAX] {
            rtc.update(wall_ns);
            (0..=0x1000).for_each(|offset| {
                let _ = rtc.read(offset, wall_ns);
            });
            (0..0x20).for_each(|offset| rtc.write(offset, 0x5555, wall_ns));
        }
    });
}

#[test]
fn m5_m6_interrupt_controllers_move() {
    let claim = |distributor: &mut Distributor| {
        let mut private = Private::new(2, 3);
        let inbox = Inbox::default();
        (32..=255).for_each(|spi| inbox.post_spi(spi));
        assert!(private.look(&inbox));
        let posts = |distributor: &Distributor, effect: gic::Effect| {
            assert!(effect.posts(distributor).all(|post| post.vcpu < 3));
        };
        let effect = private.settle(distributor);
        posts(distributor, effect);
        stay(&mut private);
        for spi in 0..=255 {
            let effect = distributor.set_line(spi, spi % 3 == 0);
            posts(distributor, effect);
        }
        let effect = distributor.set_awake(1, false);
        posts(distributor, effect);
        (0..0x1_0000).step_by(4).for_each(|offset| {
            let _ = distributor.read(offset, 4);
        });
        (0..0x1_0000).step_by(4).for_each(|offset| {
            let _ = distributor.write(offset, 4, 0x5555_5555);
        });
        let effect = private.release(distributor);
        posts(distributor, effect);
    };
    moves(|| Distributor::new(3, 128), claim);
    moves(
        || Private::new(1, 3),
        |private| {
            stay(private);
            private.forward(27);
            assert_eq!(private.leave(), gic::Deactivate(1 << 27), "nothing but what has been forwarded here");
            let mut distributor = Distributor::new(3, 128);
            let _effect = private.settle(&mut distributor);
            stay(private);
            (0..0x2_0000).step_by(4).for_each(|offset| {
                let _ = private.read(offset, 4);
            });
            (0..0x2_0000).step_by(4).for_each(|offset| {
                let _ = private.write(offset, 4, 0x5555_5555);
            });
            let _effect = private.release(&mut distributor);
        },
    );
}

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
    assert_eq!(there.turn_on(start), Ok(()));
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

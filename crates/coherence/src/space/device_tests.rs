//! When devices are told, and when they are waited for.

use core::cell::RefCell;
use core::ops::ControlFlow;
use std::boxed::Box;
use std::vec::Vec;

use super::devices::{DeviceTlbs, Unfinished};
use super::*;
use crate::tlbi::Invalidated;
use crate::{CpuId, Target, broadcast};

/// What has happened, in order.
type Log = RefCell<Vec<&'static str>>;

/// A machine whose one target, in guest mode and in a section, leaves when it is waited for.
struct Bench<'a> {
    log: &'a Log,
    leave: RefCell<Option<Box<dyn FnOnce() + 'a>>>,
}

impl Hardware for Bench<'_> {
    fn kick(&self, _: CpuId) {
        self.log.borrow_mut().push("kick");
    }

    fn relax(&self, _: u64) -> ControlFlow<()> {
        match self.leave.borrow_mut().take() {
            Some(leave) => {
                self.log.borrow_mut().push("leaves");
                leave();
                ControlFlow::Continue(())
            }
            None => ControlFlow::Break(()),
        }
    }
}

/// A walker, and a device.
struct Space<'a> {
    target: Target,
    log: &'a Log,
}

impl Targets for Space<'_> {
    fn target(&self, index: usize) -> Option<&Target> {
        (index == 0).then_some(&self.target)
    }
}

#[expect(unsafe_code, reason = "targets of a test are used by that test alone")]
// SAFETY: nothing translates.
unsafe impl Walkers for Space<'_> {
    type Stamp = ();
    type Devices<'a> = Device<'a>;

    fn stamp(&self) {
        self.log.borrow_mut().push("stamp");
    }

    fn count(&self) -> usize {
        1
    }
}

/// A device, and at which of its two parts it fails.
struct Device<'a> {
    log: &'a Log,
    fails: Option<&'static str>,
}

impl Device<'_> {
    fn part(&self, name: &'static str) -> Result<(), &'static str> {
        self.log.borrow_mut().push(name);
        if self.fails == Some(name) { Err(name) } else { Ok(()) }
    }
}

#[expect(unsafe_code, reason = "there is no device")]
// SAFETY: nothing translates.
unsafe impl DeviceTlbs for Device<'_> {
    type Begun = ();
    type Error = &'static str;

    fn begin(&self) -> Result<(), &'static str> {
        self.part("begin")
    }

    fn finish(&self, (): ()) -> Result<(), &'static str> {
        self.part("finish")
    }
}

type Flushed = Result<SpaceReceipt<()>, Unfinished<&'static str>>;

/// Flushes by request a space whose target is in guest mode.
fn by_request(log: &Log, fails: Option<&'static str>) -> Flushed {
    let space = Space { target: Target::new(), log };
    let mut owner = space.target.owner().unwrap();
    let guest = owner.try_enter(CpuId(0)).unwrap();
    let bench = Bench { log, leave: RefCell::new(Some(Box::new(|| guest.leave()))) };
    flush_space(&space, &Device { log, fails }, &mut Ledger::<1>::new(), &bench)
}

/// Flushes by broadcast a space whose target is in a section.
fn by_broadcast(log: &Log, fails: Option<&'static str>) -> Flushed {
    let space = Space { target: Target::new(), log };
    let mut owner = space.target.owner().unwrap();
    let section = owner.begin_translation();
    let bench = Bench { log, leave: RefCell::new(Some(Box::new(|| drop(section)))) };
    broadcast(&space, &Device { log, fails }, &mut Ledger::<1>::new(), &bench, || {
        log.borrow_mut().push("invalidate");
        Invalidated::assumed()
    })
}

#[test]
fn p16_devices_begin_after_the_stamp_and_are_waited_for_last() {
    let log = Log::default();
    assert!(by_request(&log, None).is_ok());
    assert_eq!(log.take(), ["stamp", "begin", "kick", "leaves", "finish"]);
    assert!(by_broadcast(&log, None).is_ok());
    assert_eq!(log.take(), ["stamp", "begin", "invalidate", "leaves", "finish"]);
}

#[test]
fn p16_there_is_no_receipt_for_a_device_that_does_not_finish() {
    for flush in [by_request, by_broadcast] {
        for part in ["begin", "finish"] {
            let log = Log::default();
            let unfinished = flush(&log, Some(part)).unwrap_err();
            assert_eq!(unfinished, Unfinished::Devices(part));
            assert_eq!(log.take().last(), Some(&part));
        }
    }
}

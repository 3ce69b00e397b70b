use paging::{Permissions, PhysAddr};

use super::{PAGE, finish, slot, untouched};
use crate::sync::AtomicU64;
use crate::{DirtyLog, Discrepancy, Gpa, SlotFlags, SlotId};

const HOST: u64 = 16 << 20;

#[test]
fn leaves_that_a_fault_would_not_make_are_found() {
    let words = [const { AtomicU64::new(0) }; 1];
    let memslots = untouched(&[slot(1, 16, 8, HOST), slot(2, 24, 8, HOST + 8 * PAGE), slot(3, 64, 8, 0)]);
    let mut update = memslots.begin_update().unwrap();
    update.set_flags(SlotId(2), SlotFlags::READ_ONLY).unwrap();
    // SAFETY: the words outlive the slots.
    unsafe { update.set_log(SlotId(3), Some(DirtyLog::new(&words))) }.unwrap();
    finish(update);
    let memory = memslots.memory();
    let audit = |page: u64, page_count: u64, pa: u64, permissions| {
        memory.audit(page * PAGE..(page + page_count) * PAGE, PhysAddr(pa), permissions)
    };
    let gpa = |page: u64| Gpa(page * PAGE);
    let at = |page: u64| HOST + (page - 16) * PAGE;
    for (page, page_count) in [(16, 1), (16, 8), (23, 1), (18, 2)] {
        for permissions in [Permissions::RWX, Permissions::RX] {
            assert_eq!(audit(page, page_count, at(page), permissions), Ok(()), "{page}, {page_count}");
        }
    }
    for (page, page_count) in [(15, 1), (15, 2), (32, 1), (16, 9), (31, 2), (23, 2)] {
        let expected = Err(Discrepancy::NoSlot { gpa: gpa(page) });
        let pa = HOST.wrapping_add(page.wrapping_sub(16).wrapping_mul(PAGE));
        assert_eq!(audit(page, page_count, pa, Permissions::RX), expected, "{page}, {page_count}");
    }
    let elsewhere = Discrepancy::Elsewhere { gpa: gpa(17), pa: PhysAddr(at(18)), expected: PhysAddr(at(17)) };
    assert_eq!(audit(17, 1, at(18), Permissions::RWX), Err(elsewhere));
    assert_eq!(audit(24, 8, at(24), Permissions::RX), Ok(()));
    assert_eq!(audit(24, 8, at(24), Permissions::RW), Err(Discrepancy::Writable { gpa: gpa(24) }));
    assert_eq!(audit(65, 1, PAGE, Permissions::RWX), Ok(()));
    assert_eq!(audit(65, 2, PAGE, Permissions::RX), Err(Discrepancy::TooLarge { gpa: gpa(65) }));
}

#[test]
fn marks_can_be_asked_for_one_by_one() {
    let words = [const { AtomicU64::new(0) }; 2];
    let memslots = untouched(&[slot(1, 8, 80, 0), slot(2, 0, 1, 0)]);
    let mut update = memslots.begin_update().unwrap();
    // SAFETY: the words outlive the slots.
    unsafe { update.set_log(SlotId(1), Some(DirtyLog::new(&words))) }.unwrap();
    finish(update);
    let memory = memslots.memory();
    for page in [8, 20, 72, 79] {
        memory.mark_dirty(page * PAGE..page * PAGE + 1);
    }
    let marked: Vec<_> = (0..100).filter(|page| memory.is_marked(Gpa(page * PAGE + 5))).collect();
    assert_eq!(marked, [8, 20, 72, 79]);
}

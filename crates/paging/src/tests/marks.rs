//! Marks: notes in entries that no processor follows.

use super::arena::Arena;
use super::{R, RWX, never_walked};
use crate::{
    Amd64Nested, Arm64Stage2, Ept, Format, Installed, Invalidation, Level, Look, MapError, PageTable,
    PhysAddr, Tables,
};

fn marks<F: Format>() {
    let arena = Arena::new(4);
    let table = PageTable::<F, _>::new(&arena).unwrap();
    for payload in [0, 1, 1 << 52, F::MARK_MAX] {
        assert_eq!(table.mark(0x5678, payload), Ok(true));
        assert_eq!(table.look(0x5000), Look::Marked(payload));
        assert_eq!(table.query(0x5000), None);
    }
    const { assert!(F::MARK_MAX >= 1 << 52) };
    assert_eq!(table.look(0x6000), Look::Absent);
    assert_eq!(table.mark(0x5000, F::MARK_MAX + 1), Err(MapError::OutOfRange));
    assert_eq!(table.mark(1 << 48, 0), Err(MapError::OutOfRange));
    assert_eq!(F::marked(0), None, "absence is not a mark");
    for permissions in [R, RWX] {
        assert_eq!(F::marked(F::leaf(PhysAddr(0x1000), Level::Page4K, permissions)), None);
    }
    assert!(matches!(table.install(0x5000, PhysAddr(0), Level::Page4K, R), Ok(Installed::New(_))));
}

#[test]
fn marks_hold_every_payload_and_are_no_translations() {
    marks::<Amd64Nested>();
    marks::<Ept>();
    marks::<Arm64Stage2<3>>();
}

#[test]
fn zapping_marks_needs_no_flush() {
    let arena = Arena::new(8);
    let mut table = PageTable::<Amd64Nested, _>::new(&arena).unwrap();
    for page in 0..8 {
        table.mark(page << 12, page).unwrap();
    }
    let gather = table.zap(0..0x4000, Tables::Keep);
    assert_eq!(gather.invalidation(), Invalidation::Nothing);
    gather.release(&never_walked()).unwrap();
    assert_eq!(table.look(0x3000), Look::Absent);
    assert_eq!(table.look(0x4000), Look::Marked(4));
}

#[test]
fn other_changes_leave_marks_alone() {
    let arena = Arena::new(8);
    let table = PageTable::<Amd64Nested, _>::new(&arena).unwrap();
    table.mark(0x1000, 7).unwrap();
    let edit = || table.edit().unwrap();
    for gather in [
        edit().write_protect(0..1 << 30).finish(),
        edit().clean(0..1 << 30, |_| panic!("there was no store")).finish(),
        edit().split(0..1 << 30, Level::Page4K).finish(),
        edit().protect(0..0x2000, R).unwrap().finish(),
    ] {
        assert_eq!(gather.invalidation(), Invalidation::Nothing);
        gather.release(&never_walked()).unwrap();
    }
    assert_eq!(table.look(0x1000), Look::Marked(7));
}

use super::*;
use crate::test::prelude::*;

fn counted(tlbi: Value, dsb: Value) -> Counts {
    let counts = json!({"entries": 1, "instructions": 9, "tlbi": tlbi, "dsb": dsb, "dc": 0, "eret": 0});
    serde_json::from_value(counts).expect("are counts")
}

#[test]
fn o11_o12_each_instruction_that_is_missing_or_too_many_is_refused() {
    let (tlbi, dsb) = (json!({"ripas2e1is": 1, "vmalle1is": 1}), json!({"ishst": 1, "ish": 2}));
    BY_RANGE.check(&counted(tlbi.clone(), dsb.clone())).expect("is right");
    for bad in [
        json!({"vmalle1is": 1}),
        json!({"ripas2e1is": 1}),
        json!({"ripas2e1is": 2, "vmalle1is": 1}),
        json!({"ripas2e1is": 1, "vmalle1is": 1, "alle1is": 1}),
        json!({"ripas2e1is": 1, "vmalle1": 1}),
    ] {
        assert!(BY_RANGE.check(&counted(bad.clone(), dsb.clone())).is_err(), "{bad}");
    }
    let few = [json!({"ish": 2}), json!({"ishst": 1, "ish": 1}), json!({"ishst": 1, "nsh": 2})];
    for bad in few.into_iter().chain([json!({"ishst": 1, "ish": 2, "nsh": 1})]) {
        assert!(BY_RANGE.check(&counted(tlbi.clone(), bad.clone())).is_err(), "{bad}");
    }
}

#[test]
fn u63_local_drops_are_waited_for_on_the_own_processor() {
    let tlbi = json!({"vmalle1": 30, "alle1": 2, "vae2": 5, "vmalle1is": 9});
    check_drops(&counted(tlbi.clone(), json!({"nsh": 37, "ish": 9, "ishst": 3, "sy": 4})), 30)
        .expect("is right");
    let others = ["nshst", "nshld", "osh"].map(|other| (json!({"nsh": 37, other: 1}), 30));
    let few =
        [(json!({"nsh": 36, "ish": 99, "sy": 99}), 30), (json!({"ish": 99}), 30), (json!({"nsh": 37}), 31)];
    for (bad, arrivals) in others.into_iter().chain(few) {
        assert!(check_drops(&counted(tlbi.clone(), bad.clone()), arrivals).is_err(), "{bad}");
    }
}

#[test]
fn errata_repeat_the_last_instruction_with_its_barrier() {
    assert_eq!(BY_PAGE.repeated(), Sequence { vmalle1is: 2, ish: 3, ..BY_PAGE });
    assert_eq!(WHOLE.repeated(), Sequence { vmalls12e1is: 2, ish: 2, ..WHOLE });
}

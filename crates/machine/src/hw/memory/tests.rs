use super::*;

#[test]
fn tables_are_known_as_they_were() {
    let mut memory = Memory::new(2, 0);
    let pa = memory.allocate_table().unwrap().unwrap();
    let before = memory.now();
    memory.entries(pa).unwrap()[3].store(7, Relaxed);
    assert_eq!(memory.value_at(pa + 24, memory.now()), Some(0), "not noticed yet");
    assert!(memory.sync([pa]) && !memory.sync([pa]));
    assert_eq!(memory.value_at(pa + 24, memory.now()), Some(7));
    assert_eq!(memory.value_at(pa + 24, before), Some(0));
    assert_eq!(memory.replaced_at(pa + 24, before, |word| word != 0), memory.now());
    assert_eq!(memory.moments().back(), Some(&memory.now()));
}

#[test]
fn frames_have_lives() {
    let mut memory = Memory::new(1, 1);
    let pa = memory.allocate_table().unwrap().unwrap();
    assert_eq!(memory.allocate_table(), Ok(None));
    let alive = memory.now();
    assert_eq!(memory.presence(pa, alive), Presence::Alive(1));
    assert_eq!(memory.presence(pa, alive - 1), Presence::Free);
    assert!(memory.free_table(pa));
    assert_eq!(memory.presence(pa, memory.now()), Presence::Free);
    assert!(!memory.free_table(pa));
    assert_eq!(memory.load(pa), POISON);
    for life in 2..13 {
        assert_eq!(memory.allocate_table(), Ok(Some(pa)));
        assert_eq!((memory.load(pa), memory.presence(pa, memory.now())), (0, Presence::Alive(life)));
        assert!(memory.free_table(pa));
    }
    assert_eq!(memory.presence(pa, alive), Presence::Unknown);
    assert!(memory.check_free_tables().is_ok());
    memory.entries(pa).unwrap()[5].store(1, Relaxed);
    assert!(memory.check_free_tables().is_err() && memory.allocate_table().is_err());
    assert_eq!(memory.presence(pa + FRAME_SIZE, alive), Presence::Free, "there is nothing");
}

#[test]
fn regions_come_back_zeroed_and_go_poisoned() {
    let mut memory = Memory::new(1, 1);
    let pa = memory.allocate_region(&[1]).unwrap();
    assert_eq!(pa % REGION_SIZE, 0);
    let before = memory.now();
    memory.store(pa, 1);
    memory.store(pa + FRAME_SIZE, 2);
    assert_eq!((memory.value_at(pa, before), memory.value_at(pa + FRAME_SIZE, before)), (Some(1), Some(0)));
    assert!(memory.free_region(pa) && !memory.free_region(pa));
    assert_eq!(memory.load(pa), POISON);
    assert_eq!(memory.allocate_region(&[]), Some(pa));
    assert_eq!((memory.load(pa), memory.load(pa + FRAME_SIZE)), (0, 0));
}

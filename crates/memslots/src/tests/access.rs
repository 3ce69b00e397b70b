use super::{Backing, PAGE, with};
use crate::{AccessError, Gpa, Memslots, Pattern, Slot, SlotFlags};

fn memslots(slots: &[Slot]) -> Memslots {
    // SAFETY: the callers' backings live as long as the slots and are accessed through them only.
    unsafe { with(52, slots) }
}

#[test]
fn h5_accesses_around_the_end_of_the_address_space() {
    let top = Backing::new(1);
    let page = (1 << 40) - 1;
    let memslots = memslots(&[top.slot(1, page)]);
    let memory = memslots.memory();
    let end = 1u64 << 52;
    assert_eq!(memory.write_u64(Gpa(end - 8), !0), Ok(()));
    assert_eq!(memory.read_u32(Gpa(end - 4)), Ok(!0));
    assert_eq!(memory.read_u64(Gpa(end - 4)), Err(AccessError::Unmapped { gpa: Gpa(end) }));
    for gpa in [end, u64::MAX, u64::MAX - 7] {
        assert_eq!(memory.read_u64(Gpa(gpa)), Err(AccessError::Unmapped { gpa: Gpa(gpa) }));
    }
}

#[test]
fn a_piece_is_zero_or_copied_as_it_is_wherever_it_begins() {
    let ram = Backing::new(2);
    let memslots = memslots(&[ram.slot(1, 0)]);
    let memory = memslots.memory();
    for (at, len) in [(0, PAGE), (64, 136), (8, 100), (3, 77), (5, 1), (0, 0)] {
        let piece = memory.locate(Gpa(at), len as usize).expect("is there");
        assert_eq!(memory.is_zero(&piece), Some(true));
        for byte in (0..len).step_by(7).chain(len.checked_sub(1)) {
            memory.write(Gpa(at + byte), &[1]).unwrap();
            assert_eq!(memory.is_zero(&piece), Some(false), "{byte} of {len} at {at}");
            let mut bytes = vec![0xee; len as usize + 1];
            // Also to where no word begins.
            let (target, start) = (bytes.as_ptr().addr(), (byte % 2) as usize);
            assert!(target.is_multiple_of(8) && memory.copy(&piece, &mut bytes[start..][..len as usize]));
            let is_right = |(index, found)| found == u8::from(index == byte as usize);
            assert!(bytes[start..][..len as usize].iter().copied().enumerate().all(is_right));
            memory.write(Gpa(at + byte), &[0]).unwrap();
        }
        memory.write(Gpa(at + len), &[1]).unwrap();
        assert_eq!(memory.is_zero(&piece), Some(true), "what is behind it does not count");
        memory.write(Gpa(at + len), &[0]).unwrap();
    }
}

#[test]
fn h6_a_store_that_touches_a_read_only_slot_writes_nothing() {
    let (ram, rom) = (Backing::new(1), Backing::new(1));
    let rom = Slot { flags: SlotFlags::READ_ONLY, ..rom.slot(2, 1) };
    let memslots = memslots(&[ram.slot(1, 0), rom]);
    let memory = memslots.memory();
    let refused = AccessError::ReadOnly { gpa: Gpa(PAGE) };
    assert_eq!(memory.write(Gpa(PAGE - 4), &[1; 8]), Err(refused));
    assert_eq!(memory.read_u64(Gpa(PAGE - 8)), Ok(0));
    assert_eq!(memory.write_u32(Gpa(PAGE), 1), Err(refused));
    assert_eq!(memory.fetch_or(Gpa(PAGE), 1u32), Err(refused));
    assert_eq!(memory.read_u64(Gpa(PAGE - 4)), Ok(0), "reading across is fine");
}

#[test]
fn a_record_sees_every_word_that_changes() {
    let backing = Backing::new(2);
    let memslots = memslots(&[backing.slot(1, 0)]);
    let memory = memslots.memory();
    let addresses = [Gpa(8), Gpa(2 * PAGE - 8), Gpa(0x800)];
    for count in 0..=addresses.len() {
        let mut record = memory.record::<3>();
        for (value, gpa) in (1..).zip(addresses.into_iter().take(count)) {
            memory.write_u64(gpa, value).unwrap();
            assert_eq!(memory.read_recorded(gpa, &mut record), Ok(value));
        }
        assert!(memory.is_unchanged(&record));
        for &gpa in &addresses[..count] {
            let before = memory.read_u64(gpa).unwrap();
            memory.write_u64(gpa, before | 1 << 63).unwrap();
            assert!(!memory.is_unchanged(&record), "{gpa}");
            memory.write_u64(gpa, before).unwrap();
            assert!(memory.is_unchanged(&record));
        }
    }
}

#[test]
fn a_record_takes_no_word_that_is_unaligned_unmapped_or_one_too_many() {
    let backing = Backing::new(1);
    let memslots = memslots(&[backing.slot(1, 0)]);
    let memory = memslots.memory();
    let mut record = memory.record::<1>();
    let unaligned = |gpa| Err(AccessError::Unaligned { gpa: Gpa(gpa) });
    assert_eq!(memory.read_recorded(Gpa(4), &mut record), unaligned(4));
    assert_eq!(memory.read_recorded(Gpa(PAGE), &mut record), Err(AccessError::Unmapped { gpa: Gpa(PAGE) }));
    assert_eq!(memory.read_recorded(Gpa(0), &mut record), Ok(0));
    assert_eq!(memory.read_recorded(Gpa(8), &mut record), unaligned(8));
    assert!(memory.is_unchanged(&record));
}

#[test]
fn p10_what_was_located_is_void_after_the_slots_change_even_back() {
    let (one, two) = (Backing::new(1), Backing::new(1));
    let mut memslots = memslots(&[one.slot(1, 0)]);
    let before = memslots.memory();
    let mut record = before.record::<2>();
    assert_eq!(before.read_recorded(Gpa(0), &mut record), Ok(0));
    let place = before.locate(Gpa(0), 16).unwrap();
    let beyond = before.locate(Gpa(PAGE - 8), 16).err();
    assert_eq!(beyond, Some(AccessError::Unmapped { gpa: Gpa(PAGE) }));
    assert!(
        before.has_at(&place, 8, &Pattern::new(&[0; 8])) && !before.has_at(&place, 9, &Pattern::new(&[0; 8]))
    );
    assert!(
        !before.has_at(&place, usize::MAX, &Pattern::new(&[0; 2]))
            && !before.has_at(&place, 0, &Pattern::new(&[0, 1]))
    );
    drop(before);
    // SAFETY: the backing lives as long as the slots and is accessed through them only.
    unsafe { memslots.add(two.slot(2, 9)) }.unwrap();
    let after = memslots.memory();
    assert!(!after.is_unchanged(&record) && !after.has_at(&place, 0, &Pattern::new(&[0])));
    // It starts over with the current slots.
    assert_eq!(after.read_recorded(Gpa(9 * PAGE), &mut record), Ok(0));
    assert!(after.is_unchanged(&record));
    drop(after);
    let mut other = Memslots::new(52);
    // SAFETY: as above.
    unsafe { other.add(one.slot(1, 0)) }.unwrap();
    assert!(!other.memory().has_at(&place, 0, &Pattern::new(&[0])), "another address space");
}

#[test]
fn patterns_are_found_where_they_are_whole() {
    let backing = Backing::new(1);
    let memslots = memslots(&[backing.slot(1, 0)]);
    let memory = memslots.memory();
    let bytes: Vec<u8> = (1..=48).collect();
    memory.write(Gpa(0), &bytes).unwrap();
    for start in 0..9 {
        let place = memory.locate(Gpa(start as u64), 24).unwrap();
        for offset in 0..27 {
            for len in 1..=8 {
                let there = &bytes[start + offset..][..len];
                let is_inside = offset + len <= 24;
                let found = |bytes: &[u8]| memory.has_at(&place, offset, &Pattern::new(bytes));
                assert_eq!(found(there), is_inside, "{start} {offset} {len}");
                for wrong in 0..len {
                    let mut other = there.to_vec();
                    other[wrong] ^= 0x80;
                    assert!(!found(&other), "{start} {offset} {len} {wrong}");
                }
            }
        }
    }
    assert_eq!(Pattern::new(&[7; 9]), Pattern::new(&[7; 8]));
}

use std::string::ToString;

use proptest::prelude::*;

use crate::smmu::command::StreamId;
use crate::smmu::event::*;

/// A record of stream 0x100.
fn record(number: u64, flags: u64, input: u64, last: u64) -> Event {
    Event::decode([0x100 << 32 | number, flags, input, last])
}

const READ: u64 = 1 << 35;
const INSTRUCTION: u64 = 1 << 34;
const PRIVILEGED: u64 = 1 << 33;
const STAGE_2: u64 = 1 << 39;
const STALL: u64 = 1 << 31;
const CLASS_IN: u64 = 0b10 << 40;
const CLASS_TT: u64 = 0b01 << 40;

#[test]
fn a_record_that_a_board_has_logged() {
    let event = Event::decode([0x0000_0001_0000_2810, 0x0000_0208_8000_0b17, 0x9_f44a_0300, 0]);
    assert_eq!((event.stream, event.substream), (StreamId(1), Some(2)));
    let Kind::Translation(fault) = event.kind else { panic!("{event:?}") };
    let expected = Fault {
        address: 0x9_f44a_0300,
        access: Access::Read,
        is_privileged: false,
        class: Class::Input,
        stage: Stage::One,
        ipa: None,
        stalled: Some(0x0b17),
    };
    assert_eq!(fault, expected);
}

#[test]
fn every_event_says_what_happened_where() {
    let fault = |number, flags| record(number, flags, 0xdead_b123, 0xfff0_0000_4000_5678).to_string();
    let expected = [
        (fault(0x02, 0), "not in the stream table (C_BAD_STREAMID)"),
        (fault(0x03, 7), "error on fetch of the stream table entry at 0xf0000040005678 (F_STE_FETCH)"),
        (fault(0x04, 0), "bad stream table entry (C_BAD_STE)"),
        (fault(0x07, READ), "translated read of 0xdeadb123 is forbidden (F_TRANSL_FORBIDDEN)"),
        (fault(0x09, 0), "error on fetch of the context descriptor at 0xf0000040005678 (F_CD_FETCH)"),
        (fault(0x0a, 0), "bad context descriptor (C_BAD_CD)"),
        (
            fault(0x0b, CLASS_TT | READ | STALL),
            "error on fetch of a table at 0xf0000040005678: read of 0xdeadb123, stage 1, \
             walking its table (F_WALK_EABT)",
        ),
        (
            fault(0x0b, CLASS_IN | STAGE_2),
            "error on fetch of a table at 0xf0000040005678: write of 0xdeadb123, stage 2 (F_WALK_EABT)",
        ),
        (
            fault(0x10, CLASS_IN | STAGE_2),
            "not mapped: write of 0xdeadb123, stage 2 at 0xf0000040005000 (F_TRANSLATION)",
        ),
        (fault(0x11, CLASS_IN | READ), "address too large: read of 0xdeadb123, stage 1 (F_ADDR_SIZE)"),
        (
            fault(0x12, CLASS_IN | READ | INSTRUCTION),
            "access flag clear: instruction fetch of 0xdeadb123, stage 1 (F_ACCESS)",
        ),
        (
            fault(0x13, CLASS_IN | PRIVILEGED | STALL | 0x12),
            "not permitted: privileged write of 0xdeadb123, stage 1, stalled with tag 0x12 (F_PERMISSION)",
        ),
        (
            fault(0x10, STAGE_2),
            "not mapped: write of 0xdeadb123, stage 2 at 0xf0000040005000, \
             fetching the context descriptor (F_TRANSLATION)",
        ),
        (
            fault(0x20, CLASS_IN | STAGE_2 | READ | STALL),
            "two translations match: read of 0xdeadb123, stage 2 at 0xf0000040005000 (F_TLB_CONFLICT)",
        ),
        (fault(0x21, 3), "two cached stream table entries match (F_CFG_CONFLICT)"),
        (fault(0x24, 0x5a), "event 0x24, second word 0x5a"),
        (fault(0xe0, 0), "event 0xe0, second word 0x0"),
    ];
    for (shown, expected) in expected {
        assert_eq!(shown, std::format!("stream 0x100: {expected}"));
    }
}

#[test]
fn substreams_are_told_where_the_record_has_one() {
    let head = 0x100 << 32 | 0xabcde << 12;
    let substream = |number| Event::decode([head | number, 0, 0, 0]).substream;
    assert_eq!(substream(0x04), None, "SSV is clear");
    assert_eq!(substream(0x04 | 1 << 11), Some(0xa_bcde));
    assert_eq!(substream(0x08), Some(0xa_bcde), "always valid there");
    assert_eq!(
        Event::decode([head | 0x08, 0, 0, 0]).to_string(),
        "stream 0x100, substream 0xabcde: has no substreams (C_BAD_SUBSTREAMID)"
    );
}

proptest! {
    #[test]
    fn every_record_is_one_line_that_names_its_stream(words in prop::array::uniform4(any::<u64>())) {
        let event = Event::decode(words);
        prop_assert_eq!(u64::from(event.stream.0), words[0] >> 32);
        let (shown, stream) = (event.to_string(), std::format!("stream {:#x}", words[0] >> 32));
        prop_assert!(shown.starts_with(&stream) && shown.lines().count() == 1);
    }
}

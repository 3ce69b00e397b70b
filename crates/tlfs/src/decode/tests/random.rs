//! Calls drawn at random.

use super::*;
use proptest::prelude::*;

/// Control words that often get past the first checks.
fn any_control() -> impl Strategy<Value = u64> {
    let code = prop_oneof![Just(SPACE), Just(LIST), Just(SPIN), Just(SPACE_EX), Just(LIST_EX), 0u64..0x10000];
    let likely = (code, 0u64..70, 0u64..600, 0u64..600, any::<bool>()).prop_map(
        |(code, header, count, start, fast)| {
            code | u64::from(fast) << 16 | banks(header) | reps(count, start)
        },
    );
    let plain = (prop_oneof![Just(SPACE), Just(LIST), Just(SPACE_EX), Just(LIST_EX)], 0u64..4, 0u64..9)
        .prop_map(|(code, header, count)| {
            let header = if code >= SPACE_EX { banks(header) } else { 0 };
            let count = if code == LIST || code == LIST_EX { reps(count, 0) } else { 0 };
            code | header | count
        });
    prop_oneof![likely, plain, any::<u64>()]
}

proptest! {
    #[test]
    fn no_input_makes_it_panic_and_every_call_is_bounded(
        control in any_control(),
        input in prop_oneof![Just(BASE), (0u64..0x2000).prop_map(|offset| BASE - 0x1000 + offset), any::<u64>()],
        output in any::<u64>(),
        words in prop::collection::vec(prop_oneof![0u64..4, any::<u64>()], 512),
        strict in any::<bool>(),
    ) {
        let profile = if strict { STRICT } else { Profile::default() };
        let memory = Memory::new(&words);
        let registers = CallRegisters { control, input, output };
        let mut page = InputPage::new();
        let call = decode(registers, &memory, &mut page, &profile);
        prop_assert!(memory.reads.get() <= 1);
        if let Ok(Call::Flush(flush)) = call {
            if let Targets::Set(set) = flush.targets {
                prop_assert!(set.iter().all(|vp| vp < crate::MAX_VPS && flush.targets.contains(vp)));
                prop_assert!(!strict || !set.is_empty());
            }
            let field = |low: u32| (control >> low & 0xfff) as usize;
            if let FlushScope::List(list) = flush.scope {
                prop_assert_eq!(list.words().len(), field(32) - field(48));
                prop_assert!(list.ranges().all(|range| (1..=4096).contains(&range.pages)));
            }
            prop_assert_eq!(flush.completed().reps_complete() as usize, field(32));
        }
    }

    /// A second reading of the layouts: by byte offset from the start, as the tables of the TLFS
    /// give them.
    #[test]
    fn accepted_calls_say_what_the_bytes_say(
        ex in any::<bool>(),
        list in any::<bool>(),
        valid_banks in prop_oneof![Just(0u64), Just(1), any::<u64>().prop_map(|mask| mask & mask >> 1 & mask >> 2)],
        flags in 0u64..8,
        count in 1u64..400,
        start in 0u64..400,
        noise in prop::collection::vec(any::<u64>(), 512),
    ) {
        let bank_count = if ex { u64::from(valid_banks.count_ones()) } else { 0 };
        let count = count.min(508 - bank_count);
        let start = start % count;
        let mut words = noise;
        words[1] = flags;
        if ex {
            words[2] = 0;
            words[3] = valid_banks;
        }
        let code = match (ex, list) {
            (false, false) => SPACE,
            (false, true) => LIST,
            (true, false) => SPACE_EX,
            (true, true) => LIST_EX,
        };
        let control = code | banks(bank_count) | if list { reps(count, start) } else { 0 };
        let memory = Memory::new(&words);
        let mut page = InputPage::new();
        let registers = CallRegisters { control, input: BASE, output: 0 };
        let Ok(Call::Flush(flush)) = decode(registers, &memory, &mut page, &Profile::default()) else {
            return Err(TestCaseError::fail("refused"));
        };
        let word = |offset: usize| u64::from_le_bytes(memory.bytes[offset..offset + 8].try_into().unwrap());
        prop_assert_eq!(flush.address_space, word(0));
        prop_assert_eq!(flush.flags.into_bits(), word(8));
        let everyone = flags & 1 != 0 || !ex && word(16) == 0;
        for vp in 0..4200u32 {
            let (bank, bit) = (vp / 64, vp % 64);
            let member = match (everyone, ex) {
                (true, _) => true,
                (false, false) => bank == 0 && word(16) >> bit & 1 == 1,
                (false, true) => bank < 64 && word(24) >> bank & 1 == 1 && {
                    let rank = (0..bank).filter(|lower| word(24) >> lower & 1 == 1).count();
                    word(32 + 8 * rank) >> bit & 1 == 1
                },
            };
            prop_assert_eq!(flush.targets.contains(vp), member, "vp {}", vp);
        }
        let header = if ex { 32 + 8 * bank_count as usize } else { 24 };
        match flush.scope {
            FlushScope::Everything => prop_assert!(!list),
            FlushScope::List(entries) => {
                let expected = (start..count).map(|index| word(header + 8 * index as usize));
                prop_assert!(list && entries.words().iter().copied().eq(expected));
            }
        }
    }
}

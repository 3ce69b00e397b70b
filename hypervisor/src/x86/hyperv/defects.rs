//! Hypercalls with deliberate mistakes ([`Defect`]), to test the checks that look for such
//! mistakes.
//!
//! A decoding mistake is made by changing the decoder's input, so that the tested decoder is the
//! real one.

use baremetal::pages::PAGE;
use hostlink::defect::Defect;
use tlfs::{
    CallCode, CallRegisters, Control, HvResult, InputError, InputPage, InputSource, Status, XMM_WORDS,
};

use super::hypercall::{self, CallOutcome, Caller, Services};
use super::partition::Partition;

/// Number of words before the list, or before the banks, of a flush call: address space, flags,
/// mask; or address space, flags, format, bank mask.
const HEADER: usize = 3;
const HEADER_EX: usize = 4;
const FLAGS: usize = 1;
const MASK: usize = 2;
const ALL_PROCESSORS: u64 = 1;
const EXTENDED: u64 = 1 << 3;
const LARGE: u64 = 1 << 11;
const ADDITIONAL_PAGES: u64 = PAGE - 1;
/// First address beyond the lower half of canonical ones, with 48 bits.
const LOWER_END: u64 = 1 << 47;
const LIST_WITHOUT_DEFECT: usize = 15;

/// Like [`hypercall::handle`], with a mistake.
pub fn handle(
    defect: Defect,
    caller: &Caller,
    parameters: CallRegisters,
    partition: &Partition,
    memory: &impl InputSource,
    services: &mut impl Services,
    page: &mut InputPage,
) -> CallOutcome {
    let control = Control::from_bits(parameters.control);
    let caller = Caller { cpl: if defect == Defect::Ring3 { 0 } else { caller.cpl }, ..*caller };
    let source = Spoiled { memory, defect, control };
    match (defect, hypercall::handle(&caller, parameters, partition, &source, services, page)) {
        (Defect::Status, CallOutcome::Complete(result)) if result.status() != Status::SUCCESS => {
            CallOutcome::Complete(HvResult::of(Status::SUCCESS, control.rep_count()))
        }
        (Defect::RepsDone, CallOutcome::Complete(result)) => {
            CallOutcome::Complete(HvResult::of(result.status(), 0))
        }
        (Defect::Status, CallOutcome::NotOffered) => {
            CallOutcome::Complete(HvResult::of(Status::SUCCESS, control.rep_count()))
        }
        (_, outcome) => outcome,
    }
}

/// The decoder's input, modified from the guest's.
struct Spoiled<'a, M> {
    memory: &'a M,
    defect: Defect,
    control: Control,
}

impl<M: InputSource> InputSource for Spoiled<'_, M> {
    fn read(&self, gpa: u64, into: &mut [u8]) -> Result<(), InputError> {
        self.memory.read(gpa, into)?;
        let mut words = [0; PAGE as usize / 8];
        let count = into.len() / 8;
        let (bytes, _) = into.as_chunks_mut::<8>();
        for (word, bytes) in words.iter_mut().zip(&*bytes) {
            *word = u64::from_le_bytes(*bytes);
        }
        self.spoil(&mut words[..count]);
        for (word, bytes) in words.iter().zip(bytes) {
            *bytes = word.to_le_bytes();
        }
        Ok(())
    }

    fn xmm_words(&self) -> [u64; XMM_WORDS] {
        if self.defect == Defect::XmmInput { [0; XMM_WORDS] } else { self.memory.xmm_words() }
    }
}

impl<M> Spoiled<'_, M> {
    fn spoil(&self, words: &mut [u64]) {
        let (is_ex, has_list) = match self.control.code() {
            CallCode::FLUSH_VIRTUAL_ADDRESS_SPACE => (false, false),
            CallCode::FLUSH_VIRTUAL_ADDRESS_LIST => (false, true),
            CallCode::FLUSH_VIRTUAL_ADDRESS_SPACE_EX => (true, false),
            CallCode::FLUSH_VIRTUAL_ADDRESS_LIST_EX => (true, true),
            _ => return,
        };
        let banks = usize::from(self.control.variable_header_words());
        let header = if is_ex { HEADER_EX + banks } else { HEADER };
        let Some((header, list)) = words.split_at_mut_checked(header) else { return };
        match self.defect {
            Defect::BankRank if is_ex => header[HEADER_EX..].rotate_left(usize::from(banks > 1)),
            Defect::AllProcessors => header[FLAGS] &= !ALL_PROCESSORS,
            Defect::VpIndex if !is_ex => header[MASK] = header[MASK].rotate_left(1),
            _ if has_list => self.spoil_list(header[FLAGS] & EXTENDED != 0, list),
            _ => {}
        }
    }

    fn spoil_list(&self, is_extended: bool, list: &mut [u64]) {
        // An element to be skipped is replaced by a non-canonical address.
        match self.defect {
            Defect::ListPast15 => {
                list.iter_mut().skip(LIST_WITHOUT_DEFECT).for_each(|word| *word = LOWER_END)
            }
            Defect::ExtendedRange if is_extended => {
                list.iter_mut().filter(|word| **word & LARGE != 0).for_each(|word| *word = LOWER_END);
            }
            Defect::AdditionalPages if !is_extended => {
                list.iter_mut().for_each(|word| *word &= !ADDITIONAL_PAGES);
            }
            Defect::NonCanonical => {
                let ends_beyond = |word: u64| {
                    let start = word & !ADDITIONAL_PAGES;
                    start < LOWER_END && start + (word & ADDITIONAL_PAGES) * PAGE >= LOWER_END
                };
                list.iter_mut().filter(|word| ends_beyond(**word)).for_each(|word| *word = LOWER_END);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl InputSource for Nothing {
        fn read(&self, _: u64, into: &mut [u8]) -> Result<(), InputError> {
            into.fill(0);
            Ok(())
        }
        fn xmm_words(&self) -> [u64; XMM_WORDS] {
            [7; XMM_WORDS]
        }
    }

    fn spoilt(defect: Defect, code: CallCode, banks: u16, words: &[u64]) -> Vec<u64> {
        let control = Control::new().with_call_code(code.0).with_variable_header_words(banks);
        let mut words = words.to_vec();
        Spoiled { memory: &Nothing, defect, control }.spoil(&mut words);
        words
    }

    const LIST: CallCode = CallCode::FLUSH_VIRTUAL_ADDRESS_LIST;

    #[test]
    fn each_defect_changes_what_it_is_named_for_and_nothing_else() {
        let space_ex = [9, 0, 0, 0b101, 0xa, 0xb];
        let found = spoilt(Defect::BankRank, CallCode::FLUSH_VIRTUAL_ADDRESS_SPACE_EX, 2, &space_ex);
        assert_eq!(found, [9, 0, 0, 0b101, 0xb, 0xa]);
        let list = [9, ALL_PROCESSORS, 0b1, 0x5003];
        assert_eq!(spoilt(Defect::AllProcessors, LIST, 0, &list), [9, 0, 1, 0x5003]);
        assert_eq!(spoilt(Defect::VpIndex, LIST, 0, &list), [9, 1, 2, 0x5003]);
        assert_eq!(spoilt(Defect::AdditionalPages, LIST, 0, &list), [9, 1, 1, 0x5000]);
        let found = spoilt(Defect::ExtendedRange, LIST, 0, &[9, EXTENDED, 1, 0x20_0800]);
        assert_eq!(found, [9, 8, 1, LOWER_END]);
        let across = LOWER_END - 2 * PAGE;
        let found = spoilt(Defect::NonCanonical, LIST, 0, &[9, 0, 1, across | 2, across | 1]);
        assert_eq!(found, [9, 0, 1, LOWER_END, across | 1]);
        let long: Vec<u64> = [9, 0, 1].into_iter().chain((0..20).map(|page| page * PAGE)).collect();
        let short = spoilt(Defect::ListPast15, LIST, 0, &long);
        assert_eq!(short[..18], long[..18]);
        assert!(short[18..].iter().all(|word| *word == LOWER_END));
        assert_eq!(
            Spoiled { memory: &Nothing, defect: Defect::XmmInput, control: Control::new() }.xmm_words()[3],
            0
        );
    }
}

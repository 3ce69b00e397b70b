//! Nothing in the path of a call allocates, at either end.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use quell_tlfs::encode::{FlushCalls, FlushRequest, Interface, ListLimit, VaRange};
use quell_tlfs::{
    Call, CallRegisters, FlushScope, InputError, InputPage, InputSource, PAGE_WORDS, Profile, Targets, VpSet,
    XMM_WORDS, decode,
};
use zerocopy::IntoBytes;

thread_local! {
    /// Allocations of this thread; the test harness has threads of its own.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every request goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Memory<'p>(&'p [u64; PAGE_WORDS]);

impl InputSource for Memory<'_> {
    fn read(&self, _: u64, into: &mut [u8]) -> Result<(), InputError> {
        into.copy_from_slice(&self.0.as_bytes()[..into.len()]);
        Ok(())
    }

    fn xmm_words(&self) -> [u64; XMM_WORDS] {
        self.0[2..14].try_into().unwrap()
    }
}

/// Elements of a list to `banks` banks of virtual processors, encoded and decoded.
fn there_and_back(banks: &[u64], elements: u64, interface: Interface) -> usize {
    let request = FlushRequest {
        targets: Targets::Set(VpSet::dense(banks).unwrap()),
        address_space: None,
        non_global_only: false,
    };
    let ranges = (0..elements).map(|index| VaRange::new(index << 13, index << 13));
    let limit = ListLimit { pages: u64::MAX, elements: u64::MAX };
    let mut calls = FlushCalls::list(request, interface, ranges, limit);
    let profile = Profile { xmm_input: true, ..Profile::default() };
    let (mut page, mut copy) = ([0; PAGE_WORDS], InputPage::new());
    let mut seen = 0;
    while let Some(call) = calls.next_into(&mut page) {
        let registers = CallRegisters { control: call.control.into_bits(), input: page[0], output: page[1] };
        let registers = if call.control.fast() { registers } else { CallRegisters { input: 0, ..registers } };
        let Ok(Call::Flush(flush)) = decode(registers, &Memory(&page), &mut copy, &profile) else { panic!() };
        let FlushScope::List(list) = flush.scope else { panic!() };
        seen += list.elements().filter(|(_, range)| range.is_some()).count();
    }
    seen
}

#[test]
fn no_call_allocates() {
    let memory = Interface { vp_sets: true, ..Interface::default() };
    let before = ALLOCATIONS.with(Cell::get);
    let seen = [
        there_and_back(&[1], 509, memory),
        there_and_back(&[1; 64], 2000, memory),
        there_and_back(&[1, 2], 8, Interface { xmm_input: true, ..memory }),
    ];
    assert_eq!(ALLOCATIONS.with(Cell::get), before);
    assert_eq!(seen, [509, 2000, 8]);
    drop(std::hint::black_box(Box::new(0)));
    assert_eq!(ALLOCATIONS.with(Cell::get), before + 1, "the counter counts");
}

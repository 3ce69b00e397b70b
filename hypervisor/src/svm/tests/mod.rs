//! Exits, entries and external events, on a mock [processor].

mod audited;
mod block;
#[path = "../../x86/tests/cpuid.rs"]
mod cpuid;
pub(crate) mod due;
pub(crate) mod entry;
#[path = "../../x86/tests/exits.rs"]
mod exits;
pub(crate) mod guest;
mod handed;
mod instructions;
#[path = "../../x86/tests/memory.rs"]
pub(crate) mod memory;
mod migrated;
#[path = "../../x86/tests/moved.rs"]
pub(crate) mod moved;
#[path = "../../x86/tests/ports.rs"]
mod ports;
pub(crate) mod processor;
pub(crate) mod random;
#[path = "../../x86/tests/registers.rs"]
mod registers;
#[path = "../../x86/tests/reset.rs"]
mod reset;
pub(crate) mod rows;

use core::ptr::NonNull;

use crate::svm::table::Exit;
use crate::vm::CreateError;
use crate::x86::guest::check;
use alloc::format;
use hostlink::config::Config;
use processor::{MockSvm, Processor, processor};
use tlfs::XMM_WORDS;

fn exit(code: u64, info_1: u64, info_2: u64) -> Exit {
    Exit { code, info_1, info_2, event: 0 }
}

#[test]
fn what_means_nothing_on_amd64_is_refused() {
    for (line, key) in [("vmid_bits=2", "vmid_bits"), ("stage2_unmap=page", "stage2_unmap")] {
        let config = Config::parse(line).expect("parses");
        let found = check::<MockSvm>(&config);
        assert!(matches!(found, Err(CreateError::ForeignSwitch(foreign)) if foreign.key == key), "{line}");
    }
    assert!(check::<MockSvm>(&Config::parse("flush=ipi\nflush_pages=64").expect("parses")).is_ok());
}

/// Registers of functions are memory to a page table, too.
#[test]
fn u7_the_tables_of_owned_registers_are_counted() {
    let taken = |devices: &str| {
        crate::iommu::mock::set_machine(Some(crate::iommu::mock::Machine::new()));
        let config = &*format!("name=a\nvcpus=1\nmemory=16777216\n{devices}").leak();
        let board = processor::board_of(1, &[config]);
        board.machine().tables.pages().1
    };
    // Beside eight tables of 2 MiB each there is a ninth, twice.
    assert_eq!(taken("devices=nvme"), taken("") + 2);
}

/// XMM0 to XMM5 in an FXSAVE image.
fn xmm_of(image: NonNull<u8>) -> NonNull<[u64; XMM_WORDS]> {
    // SAFETY: an image has 512 bytes.
    unsafe { image.byte_add(0xa0) }.cast()
}

/// Exchanges vector registers, which takes an XCR0 with all components.
fn with_whole(act: impl FnOnce(&mut Processor)) {
    processor(|processor| {
        assert_eq!(processor.xcr0, processor.components, "a part would stay behind");
        act(processor);
    });
}

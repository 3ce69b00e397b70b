//! The `.fixups` table: where the processor may fault, and where it then continues.

/// An entry of the table: address of the fault, address to continue at.
type Fixup = [u64; 2];

unsafe extern "C" {
    static __fixups_start: Fixup;
    static __fixups_end: Fixup;
}

fn table() -> &'static [Fixup] {
    let start = &raw const __fixups_start;
    let count = ((&raw const __fixups_end).addr() - start.addr()) / size_of::<Fixup>();
    // SAFETY: the linker puts all entries, which are constant, between the two symbols.
    unsafe { core::slice::from_raw_parts(start, count) }
}

/// Where to continue after a fault at `address`, if one is expected there.
pub fn fixup(address: u64) -> Option<u64> {
    table().iter().find(|[at, _]| *at == address).map(|[_, next]| *next)
}

/// The addresses at which a fault is expected.
pub fn places() -> impl Iterator<Item = u64> {
    table().iter().map(|[at, _]| *at)
}

/// The assembly of one guarded instruction. The architecture's module defines the registers that
/// report a fault.
#[macro_export]
macro_rules! guarded {
    ($($instruction:expr),+) => {
        concat!("2:\n", $($instruction, "\n",)+ "3:\n.pushsection .fixups,\"a\"\n.quad 2b, 3b\n.popsection")
    };
}

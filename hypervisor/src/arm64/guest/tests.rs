use super::*;
use crate::arm64::mock::machine;
use crate::vm::mock::largest::use_all_twice;
use alloc::{format, string::String, vec};
use memslots::SLOTS_MAX;

#[test]
fn what_means_nothing_on_arm_is_refused() {
    for (line, key) in [("flush=ipi", "flush"), ("apic_ids=reversed", "apic_ids"), ("pretend=on", "pretend")]
    {
        let config = Config::parse(line).expect("parses");
        let found = check(&config);
        assert!(matches!(found, Err(CreateError::ForeignSwitch(foreign)) if foreign.key == key), "{line}");
    }
    let config = Config::parse("vmid_bits=2\nstage2_unmap=page\nflush=hypercall\nflush_pages=64");
    assert!(check(&config.expect("parses")).is_ok());
}

#[test]
fn u7_the_largest_use_of_tables_fits_twice() {
    for switches in ["", "\nzap=everything"] {
        let vm = machine(&format!("vcpus=2\nnested_page=4K{switches}")).machine();
        assert_eq!(use_all_twice(vm), SLOTS_MAX, "{switches}");
    }
}

#[test]
fn a_reset_reaches_the_functions_that_a_guest_sees() {
    /// The first function's command register, and its right to be bus master.
    const COMMAND: u32 = 1 << 15 | 4;
    const MASTER: u64 = 4;
    let vm = machine("").machine();
    let (_, shown) = crate::iommu::lines::tests::function();
    *vm.guest.pci.lock() = Pci::new(vec![shown]);
    let is_master = || vm.guest.pci.lock().read(COMMAND, 2) & MASTER != 0;
    vm.guest.pci.lock().write(COMMAND, 2, MASTER);
    assert!(is_master());
    vm.guest.reset();
    assert!(!is_master());
}

impl Shared {
    /// Each field that a reset sets to what it is in a new guest, or that never changes.
    pub(in crate::arm64) fn fields(&self) -> Vec<(&'static str, String)> {
        let Self {
            distributor,
            uart,
            rtc,
            pci,
            // The functions are looked at by themselves. The domains are constant, as are the
            // common state, the switches and the setup.
            owned: _,
            mirror: _, // What devices reach: it follows the slots.
            has_functions,
            wires,
            common: _,
            former,
            tag: _, // Where translations may be.
            vmid_churn,
            ns_per_tick: _,
            setup: _,
            root,
            configuration,
            local_maintenance,
            vcpus,
        } = self;
        crate::devices::state_checks::named!(former distributor uart rtc pci has_functions wires vmid_churn root configuration local_maintenance vcpus)
    }
}

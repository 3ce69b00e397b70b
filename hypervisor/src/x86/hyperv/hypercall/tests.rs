use super::*;
use crate::index::VpIndex;
use crate::x86::hyperv::cpuid::PartitionTraits;
use crate::x86::hyperv::vp::Vp;
use tlfs::{FlushScope, InputError, Status, Targets, XMM_WORDS, msr};

pub(in crate::x86::hyperv) const LONG: Caller =
    Caller { cpl: 0, protected_mode: true, virtual_8086: false, long_mode_64: true };
const LEGACY: Caller = Caller { long_mode_64: false, ..LONG };

fn partition() -> Partition {
    Partition::new(PartitionTraits { flush_hypercall: false, ..PartitionTraits::ALL }, 0).unwrap()
}

fn enabled() -> Partition {
    let partition = partition();
    let mut vp = Vp::new(VpIndex(0));
    for (number, value) in [(msr::GUEST_OS_ID, 1), (msr::HYPERCALL, 0x7001)] {
        assert!(vp.write_msr(&partition, number, value, 0).is_ok());
    }
    partition
}

/// Memory from 0x1000 to 0x3000: the input at 0x1000, followed by zeros, no memory below, no
/// addresses above.
pub(in crate::x86::hyperv) struct Memory(pub(in crate::x86::hyperv) &'static [u64]);

impl InputSource for Memory {
    fn read(&self, gpa: u64, into: &mut [u8]) -> Result<(), InputError> {
        let offset = match gpa {
            0x1000..0x3000 => gpa as usize - 0x1000,
            0x3000.. => return Err(InputError::OutsideGpaSpace),
            _ => return Err(InputError::NotMemory),
        };
        let bytes: Vec<u8> = self.0.iter().flat_map(|word| word.to_le_bytes()).collect();
        into.iter_mut().enumerate().for_each(|(i, to)| *to = bytes.get(offset + i).copied().unwrap_or(0));
        Ok(())
    }

    fn xmm_words(&self) -> [u64; XMM_WORDS] {
        std::array::from_fn(|index| self.0.get(index).copied().unwrap_or(0))
    }
}

/// VP indices of four vCPUs, in vCPU order: permuted and sparse.
const INDICES: [u32; 4] = [7, 3, 65, 2];

/// Records the vCPUs that each call named, and processes a limited number of list elements at a
/// time.
pub(in crate::x86::hyperv) struct Engine {
    pub(in crate::x86::hyperv) flushes: Vec<Vec<usize>>,
    pub(in crate::x86::hyperv) interrupts: Vec<(u8, Vec<usize>)>,
    elements: u16,
}

impl Default for Engine {
    fn default() -> Self {
        Self { flushes: Vec::new(), interrupts: Vec::new(), elements: u16::MAX }
    }
}

fn named(targets: &Targets<'_>) -> Vec<usize> {
    (0..4).filter(|vcpu| targets.contains(INDICES[*vcpu])).collect()
}

impl Services for Engine {
    fn flush(&mut self, call: &FlushCall<'_>) -> u16 {
        self.flushes.push(named(&call.targets));
        if let Targets::Set(set) = call.targets {
            assert!(set.iter().count() <= 4096);
        }
        let FlushScope::List(list) = call.scope else { return 0 };
        let (first, _) = list.elements().next().unwrap();
        first.saturating_add(self.elements).min(call.rep_count)
    }

    fn interrupt(&mut self, ipi: &ClusterIpi<'_>) {
        self.interrupts.push((ipi.vector, named(&ipi.targets)));
    }
}

fn call(
    caller: &Caller,
    registers: &Gprs,
    partition: &Partition,
    words: &'static [u64],
) -> (CallOutcome, Engine) {
    let mut engine = Engine::default();
    let (parameters, mut page) = (caller.parameters(registers), InputPage::new());
    let outcome = handle(caller, parameters, partition, &Memory(words), &mut engine, &mut page);
    (outcome, engine)
}

/// Registers with these values, all others 0.
fn gprs<const N: usize>(values: [(usize, u64); N]) -> Gprs {
    with(Gprs::default(), values)
}

/// The same registers except these.
fn with<const N: usize>(mut gprs: Gprs, values: [(usize, u64); N]) -> Gprs {
    values.into_iter().for_each(|(number, value)| gprs[number] = value);
    gprs
}

fn long(control: u64, input: u64) -> Gprs {
    gprs([(RCX, control), (RDX, input), (R8, 3)])
}

fn complete(status: Status, reps: u16) -> CallOutcome {
    CallOutcome::Complete(HvResult::of(status, reps))
}

#[test]
fn h14_only_ring_0_in_protected_mode_may_call() {
    for (caller, allowed) in [
        (LONG, true),
        (LEGACY, true),
        (Caller { cpl: 1, ..LONG }, false),
        (Caller { cpl: 3, ..LONG }, false),
        (Caller { cpl: 3, ..LEGACY }, false),
        (Caller { protected_mode: false, ..LEGACY }, false),
        (Caller { virtual_8086: true, cpl: 3, ..LEGACY }, false),
        (Caller { virtual_8086: true, ..LEGACY }, false),
    ] {
        let (outcome, engine) = call(&caller, &Gprs::default(), &enabled(), &[]);
        let expected = if allowed { CallOutcome::NotOffered } else { CallOutcome::UndefinedOpcode };
        assert_eq!(outcome, expected, "{caller:?}");
        assert!(engine.flushes.is_empty());
    }
}

#[test]
fn h17_calls_before_the_page_is_enabled_are_undefined() {
    let partition = partition();
    let mut vp = Vp::new(VpIndex(0));
    let flush = long(2, 0x1000);
    let mut outcome_after = |number, value| {
        assert!(vp.write_msr(&partition, number, value, 0).is_ok());
        call(&LONG, &flush, &partition, &[0, 0, 1]).0
    };
    assert_eq!(outcome_after(msr::HYPERCALL, 0x7001), CallOutcome::UndefinedOpcode, "no identity");
    assert_eq!(outcome_after(msr::GUEST_OS_ID, 1), CallOutcome::UndefinedOpcode, "no page");
    assert_eq!(outcome_after(msr::HYPERCALL, 0x7001), complete(Status::SUCCESS, 0));
    assert_eq!(outcome_after(msr::HYPERCALL, 0x7000), CallOutcome::UndefinedOpcode, "disabled");
    assert_eq!(outcome_after(msr::HYPERCALL, 0x9001), complete(Status::SUCCESS, 0), "elsewhere");
    assert_eq!(outcome_after(msr::GUEST_OS_ID, 0), CallOutcome::UndefinedOpcode, "identity taken back");
}

#[test]
fn h13_targets_are_vp_indices() {
    let (partition, flush) = (enabled(), long(2, 0x1000));
    let (outcome, engine) = call(&LONG, &flush, &partition, &[0, 0, 1 << 7 | 1 << 2 | 1 << 40]);
    assert_eq!((outcome, engine.flushes), (complete(Status::SUCCESS, 0), vec![vec![0, 3]]));
    let flush_ex = long(1 << 17 | 0x13, 0x1000);
    let (outcome, engine) = call(&LONG, &flush_ex, &partition, &[0, 0, 0, 0b10, 0b10]);
    assert_eq!((outcome, engine.flushes), (complete(Status::SUCCESS, 0), vec![vec![2]]));
    let (_, engine) = call(&LONG, &flush, &partition, &[0, 1, 0]);
    assert_eq!(engine.flushes, [vec![0, 1, 2, 3]]);
}

#[test]
fn h20_32_bit_callers_use_pairs_of_registers() {
    let partition = enabled();
    let high = 0xdead_beef << 32;
    // A list of two from element 1 on: 0x00010002_00000003 in EDX:EAX, 0x1000 in EBX:ECX.
    let registers = gprs([
        (RDX, high | 0x0001_0002),
        (RAX, high | 0x0000_0003),
        (RBX, high),
        (RCX, high | 0x1000),
        (RDI, high),
        (RSI, high),
        (R8, !0),
    ]);
    let parameters = LEGACY.parameters(&registers);
    assert_eq!((parameters.control, parameters.input, parameters.output), (0x0001_0002_0000_0003, 0x1000, 0));
    // Each is in its own: RBX is 3, RSI 6, RDI 7.
    let own = |caller: Caller| caller.parameters(&std::array::from_fn(|number| number as u64));
    let pairs = CallRegisters { control: 2 << 32, input: 3 << 32 | 1, output: 7 << 32 | 6 };
    assert_eq!([own(LEGACY), own(LONG)], [pairs, CallRegisters { control: 1, input: 2, output: 8 }]);
    let (outcome, engine) = call(&LEGACY, &registers, &partition, &[0, 0, 8, 0x5000, 0x6000]);
    assert_eq!(outcome, complete(Status::SUCCESS, 2));
    assert_eq!(engine.flushes, [vec![1]]);

    let result = HvResult::of(Status::INVALID_PARAMETER, 2);
    let mut after = registers;
    LEGACY.set_result(&mut after, result);
    assert_eq!(after, with(registers, [(RDX, 2), (RAX, 5)]));
    let mut after = registers;
    LONG.set_result(&mut after, result);
    assert_eq!(after, with(registers, [(RAX, 2 << 32 | 5)]));
}

#[test]
fn h6_input_that_is_not_memory_faults_in_the_guest() {
    let partition = enabled();
    for (input, expected) in [
        (0x800, CallOutcome::GeneralProtection),
        (0x3000, complete(Status::INVALID_ALIGNMENT, 0)),
        (0xffff_ffff_ffff_fff8, complete(Status::INVALID_ALIGNMENT, 0)),
        (0x1004, complete(Status::INVALID_ALIGNMENT, 0)),
        (0x2ff0, complete(Status::INVALID_ALIGNMENT, 0)),
        (0x2fe8, complete(Status::SUCCESS, 0)),
    ] {
        let (outcome, engine) = call(&LONG, &long(2, input), &partition, &[0, 0, 1]);
        assert_eq!(outcome, expected, "{input:#x}");
        assert_eq!(engine.flushes.len(), usize::from(expected == complete(Status::SUCCESS, 0)));
    }
}

#[test]
fn h15_h16_a_fast_flush_takes_its_input_from_registers() {
    // Address space and flags in RDX and R8, the mask in XMM0.
    let registers = gprs([(RCX, 1 << 16 | 2)]);
    let (outcome, engine) = call(&LONG, &registers, &enabled(), &[1 << 7]);
    assert_eq!((outcome, engine.flushes), (complete(Status::SUCCESS, 0), vec![vec![0]]));
    // A list of twelve does not fit into registers.
    let registers = gprs([(RCX, 12 << 32 | 1 << 16 | 3)]);
    let (outcome, engine) = call(&LONG, &registers, &enabled(), &[1 << 7]);
    assert_eq!(outcome, complete(Status::INVALID_HYPERCALL_INPUT, 0));
    assert!(engine.flushes.is_empty());
}

#[test]
fn h25_a_call_that_is_done_in_part_goes_on_where_it_was() {
    let words: &[u64] = &[0, 0, 1 << 7, 0x1000, 0x2000, 0x3000, 0x4000, 0x5000];
    let partition = enabled();
    for caller in [LONG, LEGACY] {
        let mut registers = match caller.long_mode_64 {
            true => long(5 << 32 | 3, 0x1000),
            false => gprs([(RDX, 5), (RAX, 3), (RCX, 0x1000)]),
        };
        let mut engine = Engine { elements: 2, ..Engine::default() };
        let mut step = |registers: &Gprs| {
            let (parameters, mut page) = (caller.parameters(registers), InputPage::new());
            handle(&caller, parameters, &partition, &Memory(words), &mut engine, &mut page)
        };
        for done in [2, 4] {
            let CallOutcome::Continue(control) = step(&registers) else { panic!("not in parts") };
            assert_eq!(control, done << 48 | 5 << 32 | 3);
            let before = registers;
            caller.set_control(&mut registers, control);
            let changed = if caller.long_mode_64 {
                with(before, [(RCX, control)])
            } else {
                with(before, [(RDX, done << 16 | 5)])
            };
            assert_eq!(registers, changed, "nothing else changes");
        }
        assert_eq!(step(&registers), complete(Status::SUCCESS, 5), "counted from element 0");
        assert_eq!(engine.flushes.len(), 3);
    }
}

#[test]
fn h26_a_cluster_ipi_reaches_who_is_named() {
    let partition = enabled();
    let ipi = |control, words| call(&LONG, &long(control, 0x1000), &partition, words);
    let (outcome, engine) = ipi(0xb, &[0x30, 1 << 7 | 1 << 3]);
    assert_eq!((outcome, engine.interrupts), (complete(Status::SUCCESS, 0), vec![(0x30, vec![0, 1])]));
    let (outcome, engine) = ipi(1 << 17 | 0x15, &[0xff, 0, 0b10, 0b10]);
    assert_eq!((outcome, engine.interrupts), (complete(Status::SUCCESS, 0), vec![(0xff, vec![2])]));
    let (outcome, engine) = ipi(0xb, &[0x30, 0]);
    assert_eq!((outcome, engine.interrupts), (complete(Status::SUCCESS, 0), vec![(0x30, vec![])]), "nobody");
    for (words, why) in [([0xf_u64, 2], "vector"), ([0x100, 2], "vector"), ([1 << 32 | 0x30, 2], "level")] {
        let words: &'static [u64] = Vec::leak(words.to_vec());
        let (outcome, engine) = ipi(0xb, words);
        assert_eq!(outcome, complete(Status::INVALID_PARAMETER, 0), "{why}");
        assert!(engine.interrupts.is_empty() && engine.flushes.is_empty());
    }
    // In registers, as Linux does for a single target.
    let fast = gprs([(RCX, 1 << 16 | 0xb), (RDX, 0x41), (R8, 1 << 2)]);
    let (outcome, engine) = call(&LONG, &fast, &partition, &[]);
    assert_eq!((outcome, engine.interrupts), (complete(Status::SUCCESS, 0), vec![(0x41, vec![3])]));
}

#[test]
fn h28_a_long_spin_wait_yields_whatever_the_count() {
    for spins in [0, 1, u64::MAX] {
        let (outcome, engine) = call(&LONG, &long(1 << 16 | 8, spins), &enabled(), &[]);
        assert_eq!(outcome, CallOutcome::Yield(HvResult::of(Status::SUCCESS, 0)));
        assert!(engine.flushes.is_empty());
    }
}

#[test]
fn a_refused_call_flushes_nothing() {
    let (outcome, engine) = call(&LONG, &long(2, 0x1000), &enabled(), &[0, 1 << 4, 1]);
    assert_eq!(outcome, complete(Status::INVALID_PARAMETER, 0));
    assert!(engine.flushes.is_empty());
}

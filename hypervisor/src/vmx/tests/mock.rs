//! A mock of VMX's instructions: VMCSs as fields by their encodings, one of which is the current
//! one. What the manual forbids is a panic. What it leaves undefined is anything.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use baremetal::random::Random;
use coherence::CpuId;
use core::sync::atomic::AtomicU64;
use std::cell::{Cell, RefCell};

use super::said::Said;
use crate::vmx::controls::{DELIVERY, LISTS, LONG_MODE, PAUSE_LOOP, POSTED, VPID, Word};
use crate::vmx::copies::{Copied, FIELDS};
use crate::vmx::fields::{self as f, Access, Encoding, NAMES, Named, Width};
use crate::vmx::run::{self, Failed, Instructions};
use crate::vmx::soft_state::{LoadedValues, Register};
use crate::vmx::switch::HostState;
use crate::vmx::table::ENTRY_FAILURE;
use crate::vmx::vmcs::{BLOCKING_BY_NMI, POINTERS, SHADOWS, Vmcs};
use crate::x86::vcpu::event::{ERROR_VALID, TYPE_MASK, TYPE_NMI, VALID};
use crate::x86::vcpu::registers::Registers;
use crate::x86::{CR0_PG, CR4_PAE, EFER_LMA};

pub(super) type Fields = BTreeMap<u32, u64>;

/// What a processor has in the region of a VMCS.
struct Region {
    fields: Fields,
    is_launched: bool,
}

/// The processor of the calling thread.
pub(crate) struct Mock {
    regions: BTreeMap<u64, Region>,
    current: Option<u64>,
    soft: [u64; 7],
    random: Random,
    /// The fields as the last entry has found them.
    entered: Fields,
    /// What the last exit has said.
    said: Option<Said>,
    /// What software takes for the contents of fields.
    believed: Vec<(u32, u64)>,
    /// Whether each entry was a VMRESUME.
    pub(crate) entries: Vec<bool>,
    /// The fields that were written, in order.
    pub(crate) writes: Vec<u32>,
    /// The error code has been written for the next entry.
    has_error_code: bool,
    /// A field that the next entry is refused for.
    pub(crate) refused: Option<(Named, u64)>,
    /// VMLAUNCH and VMRESUME fail.
    pub(crate) fails: bool,
    /// Controls that this processor does not have.
    pub(crate) lacks: Option<(Word, u32)>,
}

impl Mock {
    fn new() -> Self {
        Self {
            regions: BTreeMap::new(),
            current: None,
            soft: [0; 7],
            random: Random::new(1),
            entered: Fields::new(),
            said: None,
            believed: Vec::new(),
            entries: Vec::new(),
            writes: Vec::new(),
            has_error_code: false,
            refused: None,
            fails: false,
            lacks: None,
        }
    }
}

type Act = Box<dyn FnMut(&mut Stay, &mut Registers)>;

thread_local! {
    static MOCK: RefCell<Mock> = RefCell::new(Mock::new());
    /// What the guest does in its next stay.
    static ACT: RefCell<Option<Act>> = const { RefCell::new(None) };
    static HELD: Cell<&'static LoadedValues> = Cell::new(Box::leak(Box::default()));
}

pub(crate) fn mock<R>(act: impl FnOnce(&mut Mock) -> R) -> R {
    MOCK.with_borrow_mut(act)
}

/// Another processor, which has no VMCS.
pub(crate) fn begin() {
    MOCK.set(Mock::new());
    HELD.set(Box::leak(Box::default()));
}

/// The next stay is this; without, an interrupt of the machine ends it at once.
pub(crate) fn expect(act: impl FnMut(&mut Stay, &mut Registers) + 'static) {
    ACT.set(Some(Box::new(act)));
}

/// What the VMCS had at the last entry.
pub(crate) fn written(field: u32) -> u64 {
    mock(|mock| mock.entered.get(&field).copied().expect("it is written before the first entry"))
}

/// The event that this entry delivers, with its error code in the upper half.
fn delivered(fields: &Fields) -> u64 {
    let event = fields[&f::ENTRY_EVENT.raw()];
    if event & ERROR_VALID == 0 { event } else { event | fields[&f::ENTRY_ERROR_CODE.raw()] << 32 }
}

/// The last entry's event.
pub(crate) fn last_delivered() -> u64 {
    mock(|mock| delivered(&mock.entered))
}

/// A page that a field has the address of.
pub(crate) fn page(address: u64) -> &'static [AtomicU64; 512] {
    assert!(address != 0 && address & 0xfff == 0, "{address:#x} is no page");
    // SAFETY: a page of a vCPU of this test, which its machine keeps for ever; software has it as
    // words that anybody may change.
    unsafe { &*core::ptr::with_exposed_provenance(address as usize) }
}

/// The guest in guest mode.
pub(crate) struct Stay {
    pub(crate) fields: Fields,
    /// How it ends.
    pub(crate) said: Said,
}

impl Stay {
    pub(crate) fn read<W: Width, A: Access>(&self, field: Encoding<W, A>) -> u64 {
        self.fields[&field.raw()]
    }

    pub(crate) fn write<W: Width, A: Access>(&mut self, field: Encoding<W, A>, value: u64) {
        self.fields.insert(field.raw(), value);
    }

    /// The event that the entry has delivered, with its error code in the upper half.
    pub(crate) fn delivered(&self) -> u64 {
        mock(|mock| delivered(&mock.entered))
    }
}

/// The control that comes with a field.
fn control(field: u32) -> Option<(Word, u32)> {
    match field {
        _ if field == f::VPID.raw() => Some((Word::Secondary, VPID)),
        _ if [f::POSTED_VECTOR.raw(), f::POSTED.raw()].contains(&field) => Some((Word::Pin, POSTED)),
        _ if [f::LIST_INDEX.raw(), f::LIST.raw()].contains(&field) => Some((Word::Secondary, LISTS)),
        _ if field == f::INTERRUPT_STATUS.raw() => Some((Word::Secondary, DELIVERY)),
        0x201c..=0x2022 => Some((Word::Secondary, DELIVERY)),
        _ if [f::PAUSE_GAP.raw(), f::PAUSE_WINDOW.raw()].contains(&field) => {
            Some((Word::Secondary, PAUSE_LOOP))
        }
        _ => None,
    }
}

/// What a field takes of a value.
const fn within(field: u32, value: u64) -> u64 {
    value & [0xffff, u64::MAX, 0xffff_ffff, u64::MAX][field as usize >> 13 & 3]
}

const fn is_read_only(field: u32) -> bool {
    field >> 10 & 3 == 1
}

impl Mock {
    /// The current VMCS's fields, one of which is accessed.
    fn access(&mut self, field: u32) -> &mut Fields {
        let name = Named(field);
        let is_there = control(field).is_none_or(|control| self.lacks != Some(control));
        assert!(is_there, "this processor has no {name}");
        let current = self.current.unwrap_or_else(|| panic!("{name} without a current VMCS"));
        &mut self.regions.get_mut(&current).expect("it was cleared").fields
    }

    fn has(&self, field: u32) -> bool {
        let region = self.current.and_then(|current| self.regions.get(&current));
        region.is_some_and(|region| region.fields.contains_key(&field))
    }

    /// The fields that an entry needs have been written, and what software takes for their contents
    /// is there.
    fn check(&self, fields: &Fields) {
        // The assembly code writes the first.
        let later = [f::HOST_RSP.raw(), f::ENTRY_ERROR_CODE.raw()];
        let is_used = |(word, bit): (Word, u32)| {
            let words = if let Word::Pin = word { f::PIN_CONTROLS } else { f::SECONDARY_CONTROLS };
            fields[&words.raw()] >> bit & 1 != 0
        };
        for &(field, name) in NAMES {
            let is_right = fields.contains_key(&field) || later.contains(&field);
            assert!(is_right || !control(field).is_none_or(is_used), "{name} was never written");
        }
        for &(field, value) in &self.believed {
            assert_eq!(fields[&field], within(field, value), "the VMCS enters with another {}", Named(field));
        }
        let long = fields[&f::ENTRY_CONTROLS.raw()] >> LONG_MODE & 1 != 0;
        assert_eq!(long, fields[&f::GUEST_EFER.raw()] & EFER_LMA != 0, "the entry's mode and EFER");
        let event = fields[&f::ENTRY_EVENT.raw()];
        if event & VALID != 0 && event & ERROR_VALID != 0 {
            assert!(self.has_error_code, "the error code is another event's");
        }
    }

    /// VMLAUNCH or VMRESUME, up to the guest's first instruction.
    fn enter(&mut self, is_launched: bool) -> Result<Stay, Failed> {
        self.entries.push(is_launched);
        let current = self.current.expect("an entry without a current VMCS");
        let mut region = self.regions.remove(&current).expect("it was cleared");
        if self.fails {
            region.fields.insert(f::INSTRUCTION_ERROR.raw(), 7);
            self.regions.insert(current, region);
            return Err(Failed::Valid);
        }
        assert_eq!(is_launched, region.is_launched, "VMRESUME, and whether the VMCS is launched");
        self.check(&region.fields);
        self.has_error_code = false;
        let mut fields = region.fields;
        self.entered.clone_from(&fields);
        // 27.6, 27.7.1, 27.7.3.
        let event = fields[&f::ENTRY_EVENT.raw()];
        if event & VALID != 0 {
            let blocked = if event & TYPE_MASK == TYPE_NMI { BLOCKING_BY_NMI } else { 0 };
            let state = fields[&f::INTERRUPTIBILITY.raw()] & !u64::from(SHADOWS) | u64::from(blocked);
            fields.extend([(f::INTERRUPTIBILITY.raw(), state), (f::PENDING_DEBUG.raw(), 0)]);
        }
        Ok(Stay { fields, said: Said::INTERRUPT })
    }

    /// The exit, up to the first instruction behind it.
    fn exit(&mut self, stay: Stay) {
        let Stay { mut fields, said } = stay;
        if said.is_failure() {
            // 27.8: the guest's state stays. What is cleared below does, too, for vCPUs that are
            // no test's: they are entered no more.
            fields.extend(self.entered.iter().filter(|(field, _)| !is_read_only(**field)));
        }
        let event = fields[&f::ENTRY_EVENT.raw()] & !VALID;
        let is_long = fields[&f::GUEST_EFER.raw()] & EFER_LMA != 0;
        let controls = fields[&f::ENTRY_CONTROLS.raw()] & !(1 << LONG_MODE) | u64::from(is_long) << LONG_MODE;
        fields.extend([(f::ENTRY_EVENT.raw(), event), (f::ENTRY_CONTROLS.raw(), controls)]);
        said.record(&mut fields, &mut self.random);
        self.said = Some(said);
        let current = self.current.expect("it has entered");
        self.regions.insert(current, Region { fields, is_launched: true });
    }
}

impl Instructions for Mock {
    fn vmread(field: u32) -> u64 {
        mock(|mock| {
            let value = mock.access(field).get(&field).copied();
            value.unwrap_or_else(|| panic!("{} is read before it was written", Named(field)))
        })
    }

    fn vmwrite(field: u32, value: u64) {
        mock(|mock| {
            assert!(!is_read_only(field), "{} is the processor's", Named(field));
            mock.access(field).insert(field, within(field, value));
            mock.writes.push(field);
            mock.has_error_code |= field == f::ENTRY_ERROR_CODE.raw();
        });
    }

    fn vmclear(vmcs: &Vmcs) {
        let region = vmcs.region();
        mock(|mock| {
            mock.current = mock.current.filter(|&current| current != region);
            let random = &mut mock.random;
            let its = mock.regions.entry(region).or_insert_with(|| {
                let information = NAMES.iter().map(|&(field, _)| field).filter(|&field| is_read_only(field));
                let fields = information.map(|field| (field, random.word() & 0xffff_ffff)).collect();
                Region { fields, is_launched: false }
            });
            its.is_launched = false;
        });
    }

    fn vmptrld(vmcs: &Vmcs) {
        let region = vmcs.region();
        // SAFETY: the VMCS has this page.
        let begins = unsafe { (region as *const u32).read_volatile() };
        assert_eq!(begins, 1, "it begins with the revision that IA32_VMX_BASIC says");
        mock(|mock| {
            assert!(mock.regions.contains_key(&region), "VMCLEAR initialises a region");
            assert_eq!(mock.current.replace(region), None, "another one was not cleared");
        });
    }

    fn host_state() -> HostState {
        HostState::default()
    }

    fn read_soft(register: Register) -> u64 {
        mock(|mock| mock.soft[register as usize])
    }

    fn write_soft(register: Register, value: u64) {
        mock(|mock| mock.soft[register as usize] = value);
    }

    unsafe fn enter(registers: &mut Registers, is_launched: bool, _: &mut u64) -> Result<(), Failed> {
        let mut stay = mock(|mock| mock.enter(is_launched))?;
        if mock(|mock| mock.refused.is_some()) {
            stay.said = Said::of(ENTRY_FAILURE | 33, 0, 0);
        } else if let Some(mut act) = ACT.take() {
            act(&mut stay, registers);
        }
        mock(|mock| mock.exit(stay));
        Ok(())
    }

    fn take_nmi() {}
}

/// The copies, as software has them: what the VMCS is to have at an entry, and has after an exit.
fn copies(vmcs: &Vmcs) -> impl Iterator<Item = (u32, u64)> {
    let all = FIELDS.into_iter().enumerate().filter(|&(_, field)| field != 0);
    let used = all.filter(|&(place, field)| vmcs.dirty >> place & 1 != 0 || mock(|mock| mock.has(field)));
    used.map(|(place, field)| (field, vmcs.copy_at(place)))
}

/// What software takes for the contents of other fields that it has written, or will write.
fn others(vmcs: &Vmcs) -> Vec<(u32, u64)> {
    let [cr0, cr4, efer] = [Copied::Cr0, Copied::Cr4, Copied::Efer].map(|copied| vmcs.copy(copied));
    let is_pae = cr0 & CR0_PG != 0 && cr4 & CR4_PAE != 0 && efer & EFER_LMA == 0;
    let words = [
        (Word::Pin, f::PIN_CONTROLS),
        (Word::Primary, f::PRIMARY_CONTROLS),
        (Word::Secondary, f::SECONDARY_CONTROLS),
        (Word::Exit, f::EXIT_CONTROLS),
    ];
    let mut others: Vec<_> =
        words.into_iter().map(|(word, field)| (field.raw(), vmcs.controls.word(word).into())).collect();
    others.push((f::TPR_THRESHOLD.raw(), vmcs.threshold.into()));
    if is_pae && vmcs.dirty_words & POINTERS != 0 {
        others.extend(f::POINTERS.map(|field| field.raw()).into_iter().zip(vmcs.pointers));
    }
    others
}

/// [`run::run`]: the VMCS enters with what software says, and software knows what the exit says.
pub(crate) fn run(cpu: u32, vmcs: &mut Vmcs, registers: &mut Registers) -> bool {
    if vmcs.active.is_anywhere() {
        let believed = copies(vmcs).chain(others(vmcs)).collect();
        mock(|mock| (mock.believed, mock.said) = (believed, None));
    }
    let held = HELD.get();
    // SAFETY: nothing runs.
    let has_run = unsafe { run::run::<Mock>((CpuId(cpu), held), vmcs, registers) };
    if let Some(said) = mock(|mock| mock.said.take()) {
        said.check(vmcs);
        for (field, value) in copies(vmcs) {
            assert_eq!(value, Mock::vmread(field), "{} is not what the exit has left", Named(field));
        }
    }
    has_run
}

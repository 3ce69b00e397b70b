//! An entry and its exit, by the instructions of VMX.

use coherence::CpuId;
use core::fmt;

use super::fields::INSTRUCTION_ERROR;
use super::soft_state::{LoadedValues, Register};
use super::switch::HostState;
use super::table::{ENTRY_FAILURE, EXCEPTION, REFUSED};
use super::vmcs::Vmcs;
use crate::x86::vcpu::registers::Registers;

/// The instructions of VMX, and what belongs to an entry besides.
pub trait Instructions {
    /// VMREAD, of the current VMCS.
    fn vmread(field: u32) -> u64;
    /// VMWRITE, to the current VMCS.
    fn vmwrite(field: u32, value: u64);
    /// VMCLEAR.
    fn vmclear(vmcs: &Vmcs);
    /// VMPTRLD.
    fn vmptrld(vmcs: &Vmcs);
    /// What the calling CPU has at an exit.
    fn host_state() -> HostState;
    /// A register that a VMCS does not have.
    fn read_soft(register: Register) -> u64;
    /// Changes such a register.
    fn write_soft(register: Register, value: u64);

    /// VMLAUNCH, or VMRESUME, with general registers. `host_stack` is what HOST_RSP has, 0 in a new
    /// VMCS, and has then.
    ///
    /// # Errors
    ///
    /// The instruction has failed.
    ///
    /// # Safety
    ///
    /// The current VMCS and the registers are those of one vCPU, whose nested tables map only its
    /// guest's memory.
    unsafe fn enter(registers: &mut Registers, is_launched: bool, host_stack: &mut u64)
    -> Result<(), Failed>;

    /// Takes the NMI that has ended the stay.
    fn take_nmi();
}

/// How an instruction of VMX has failed (31.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// There is no current VMCS.
    Invalid,
    /// The current VMCS has the reason.
    Valid,
}

/// The reason why an instruction of VMX has failed (31.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstructionError(pub u32);

impl fmt::Display for InstructionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.0 {
            0 => "there is no current VMCS",
            4 => "VMLAUNCH of a VMCS that is not clear",
            5 => "VMRESUME of a VMCS that is not launched",
            7 => "invalid control fields",
            8 => "invalid host state",
            12 => "a field that does not exist",
            13 => "a field that is read-only",
            26 => "events are blocked by MOV SS",
            28 => "an operand of INVEPT or INVVPID is invalid",
            _ => "see the manual",
        };
        write!(f, "VM-instruction error {}: {why}", self.0)
    }
}

/// An NMI, as an exit has it.
const NMI: u64 = EXCEPTION + 2;

/// Enters the guest by this VMCS, on this CPU, and takes over what the exit says. False if the
/// processor refuses.
///
/// # Safety
///
/// Interrupts are off. As for [`Instructions::enter`].
#[inline(always)]
pub unsafe fn run<I: Instructions>(
    (cpu, held): (CpuId, &LoadedValues),
    vmcs: &mut Vmcs,
    registers: &mut Registers,
) -> bool {
    vmcs.active.check(cpu);
    vmcs.write_changes(I::vmwrite);
    vmcs.soft.load(held, I::write_soft);
    #[cfg(any(test, feature = "audit"))]
    super::audit::check(vmcs, I::vmread);
    // SAFETY: the caller's promise is the one that `enter` asks for.
    if let Err(failed) = unsafe { I::enter(registers, vmcs.active.is_launched(), &mut vmcs.host_stack) } {
        refuse::<I>(vmcs, failed);
        return false;
    }
    vmcs.active.launch();
    vmcs.take_exit(I::vmread);
    #[cfg(any(test, feature = "audit"))]
    super::audit::check_host(vmcs, &I::host_state());
    if vmcs.code == NMI {
        I::take_nmi();
    }
    vmcs.code < ENTRY_FAILURE
}

#[cold]
fn refuse<I: Instructions>(vmcs: &mut Vmcs, failed: Failed) {
    let error = match failed {
        Failed::Invalid => 0,
        Failed::Valid => I::vmread(INSTRUCTION_ERROR.raw()) as u32,
    };
    log::error!("an entry has failed: {}", InstructionError(error));
    vmcs.code = REFUSED;
}

/// The vCPU arrives on this CPU: its VMCS is the current one until it leaves.
#[inline(always)]
pub fn arrive<I: Instructions>(cpu: CpuId, vmcs: &mut Vmcs) {
    let is_elsewhere = vmcs.active.activate(cpu);
    if vmcs.is_new {
        // This initialises what a processor keeps in the region.
        I::vmclear(vmcs);
    }
    I::vmptrld(vmcs);
    if is_elsewhere {
        vmcs.begin(&I::host_state(), I::vmwrite);
    }
}

/// The vCPU leaves the CPU. What its VMCS has stays there, to be read when it has arrived again.
#[inline(always)]
pub fn leave<I: Instructions>(vmcs: &mut Vmcs) {
    vmcs.active.clear();
    vmcs.soft.save(I::read_soft);
    I::vmclear(vmcs);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vmx::capabilities::Capabilities;
    use crate::vmx::controls::{DELIVERY, LISTS, PAUSE_LOOP, POSTED, VPID, Word};
    use crate::vmx::copies::{ALL, Copied};
    use crate::vmx::fields as f;
    use crate::vmx::tests::mock::{self, Mock, Stay, mock};
    use crate::vmx::tests::processor::capability;
    use crate::x86::vcpu::block::{ControlBlock, Field, SegmentName};
    use crate::x86::vcpu::state::Permissions;
    use crate::x86::{CR0_PG, CR4_PAE};
    use alloc::collections::BTreeMap;

    fn enter_and(vmcs: &mut Vmcs, cpu: u32, act: impl FnMut(&mut Stay, &mut Registers) + 'static) -> bool {
        if !vmcs.active.is_anywhere() {
            arrive::<Mock>(CpuId(cpu), vmcs);
        }
        mock(|mock| mock.writes.clear());
        mock::expect(act);
        mock::run(cpu, vmcs, &mut Registers::default())
    }

    fn enter(vmcs: &mut Vmcs, cpu: u32) -> bool {
        enter_and(vmcs, cpu, |_, _| {})
    }

    /// A VMCS with two exits behind it, on a processor that lacks this control.
    fn after_exits_without(lacks: Option<(Word, u32)>) -> Vmcs {
        mock::begin();
        mock(|mock| mock.lacks = lacks);
        let without = |word, number: u32| match lacks {
            Some((lacking, bit)) if lacking == word => capability(number) & !(1 << (32 + bit)),
            _ => capability(number),
        };
        let read = |number| match number {
            0x48d => without(Word::Pin, number),
            0x48b => without(Word::Secondary, number),
            _ => capability(number),
        };
        let capabilities = Capabilities::read(true, read);
        let controls = capabilities.choose().expect("it can do without");
        let permissions = Permissions { io: 0x1000, msr: 0x3000, nested_root: 0x6000, apic: true };
        let mut vmcs = Vmcs::new();
        vmcs.set_up((&capabilities, controls), !0, &permissions, (Mock::vmread, Mock::read_soft));
        vmcs.write(Field::Efer, 0);
        assert!(enter(&mut vmcs, 0));
        assert!(enter_and(&mut vmcs, 0, |stay, _| {
            stay.write(f::GUEST_RIP, 0x5000);
            stay.write(f::GUEST_FS_BASE, 0x7000);
            Mock::write_soft(Register::Cr2, 100);
        }));
        vmcs
    }

    fn after_exits() -> Vmcs {
        after_exits_without(None)
    }

    fn fs_base(vmcs: &Vmcs) -> u64 {
        vmcs.segment(SegmentName::Fs).base
    }

    #[test]
    fn i6_launched_where_it_arrives_and_resumed_after_that() {
        let mut vmcs = after_exits();
        leave::<Mock>(&mut vmcs);
        assert!(enter(&mut vmcs, 1), "cleared before another CPU can have it");
        assert_eq!(mock(|mock| mock.entries.clone()), [false, true, false]);
    }

    #[test]
    fn no_field_is_touched_that_comes_with_a_control_which_is_not_there() {
        for lacks in [
            (Word::Pin, POSTED),
            (Word::Secondary, VPID),
            (Word::Secondary, DELIVERY),
            (Word::Secondary, LISTS),
            (Word::Secondary, PAUSE_LOOP),
        ] {
            let mut vmcs = after_exits_without(Some(lacks));
            vmcs.read_all();
            leave::<Mock>(&mut vmcs);
            assert!(enter(&mut vmcs, 1));
        }
    }

    #[test]
    fn what_an_exit_leads_to_is_written_where_it_arrives_from_elsewhere() {
        let mut vmcs = after_exits();
        for (cpu, is_written) in [(0, false), (1, true), (1, false), (0, true)] {
            leave::<Mock>(&mut vmcs);
            mock(|mock| mock.writes.clear());
            arrive::<Mock>(CpuId(cpu), &mut vmcs);
            assert_eq!(mock(|mock| mock.writes.contains(&f::HOST_RIP.raw())), is_written);
            assert!(mock(|mock| !mock.writes.contains(&f::PIN_CONTROLS.raw())), "no CPU changes that");
            assert!(enter(&mut vmcs, cpu));
        }
    }

    #[test]
    fn a_vmcs_begins_with_what_the_cpu_and_every_guest_has() {
        let (task, cr0) = ((6, 7), 0xe000_0020);
        let (code, data, gdt, idt, pat, efer, rip) = (4, 5, 8, 9, 10, 11, 12);
        let host = HostState { cr0: 1, cr3: 2, cr4: 3, code, data, task, gdt, idt, pat, efer, rip };
        let mut vmcs = after_exits();
        vmcs.apic.posted = 0x7040;
        let (list, apic) = (vmcs.list.as_ref().expect("it lists pages").start(), vmcs.apic.address());
        let [pin, exit] = [Word::Pin, Word::Exit].map(|word| vmcs.controls.word(word).into());
        // Encodings, and values.
        let hosts = [
            0x0c00, 5, 0x0c02, 4, 0x0c04, 5, 0x0c06, 5, 0x0c08, 0, 0x0c0a, 0, 0x0c0c, 6, 0x2c00, 10, 0x2c02,
            11, 0x4c00, 0, 0x6c00, 1, 0x6c02, 2, 0x6c04, 3, 0x6c06, 0, 0x6c08, 0, 0x6c0a, 7, 0x6c0c, 8,
            0x6c0e, 9, 0x6c10, 0, 0x6c12, 0, 0x6c16, 12,
        ];
        let guests = [
            0x0002, 0xf5, 0x2000, 0x1000, 0x2002, 0x2000, 0x2004, 0x3000, 0x200e, list, 0x2012, apic, 0x2016,
            0x7040, 0x2800, !0, 0x2802, 0, 0x4000, pin, 0x4004, 0x6_0002, 0x4006, 0, 0x4008, 0, 0x400a, 0,
            0x400c, exit, 0x400e, 0, 0x4010, 0, 0x4014, 0, 0x4016, 0, 0x401c, 0, 0x4020, 128, 0x4022, 4096,
            0x6000, cr0, 0x6002, 0x2040,
        ];
        for (is_new, expected) in [(true, [&hosts[..], &guests].concat()), (false, hosts.to_vec())] {
            vmcs.is_new = is_new;
            let mut found = BTreeMap::new();
            vmcs.begin(&host, |field, value| assert_eq!(found.insert(field.into(), value), None));
            let expected: BTreeMap<u64, _> = expected.chunks(2).map(|pair| (pair[0], pair[1])).collect();
            assert_eq!((found, vmcs.is_new), (expected, false));
        }
    }

    #[test]
    fn the_processors_entries_of_pae_tables_are_read_where_the_guest_has_such() {
        for bits in 0..16 {
            let [is_paged, is_pae, is_long, is_dirty] = [0, 1, 2, 3].map(|bit| bits >> bit & 1);
            let mut vmcs = after_exits();
            vmcs.pointers = [1; 4];
            vmcs.write(Field::Efer, is_long << 10);
            assert!(enter_and(&mut vmcs, 0, move |stay, _| {
                stay.write(f::GUEST_CR0, is_paged << 31);
                stay.write(f::GUEST_CR4, is_pae << 5);
                f::POINTERS.into_iter().for_each(|field| stay.write(field, field.raw().into()));
            }));
            vmcs.dirty_words |= (is_dirty as u8) << 7;
            vmcs.read_all();
            let is_read = (is_paged, is_pae, is_long, is_dirty) == (1, 1, 0, 0);
            let expected = if is_read { [0x280a, 0x280c, 0x280e, 0x2810] } else { [1; 4] };
            assert_eq!((vmcs.pointers, vmcs.stale), (expected, 0), "{bits:#b}");
        }
    }

    #[test]
    fn i10_an_exit_has_taken_an_interrupt_only_where_it_does() {
        for (lacks, taken) in [(None, Some(0x31)), (Some((Word::Pin, POSTED)), None)] {
            let mut vmcs = after_exits_without(lacks);
            assert!(enter_and(&mut vmcs, 0, |stay, _| stay.said.exception = 0x31));
            assert_eq!([vmcs.take_acknowledged(), vmcs.take_acknowledged()], [taken, None]);
            assert_eq!(vmcs.interruption, 0);
        }
    }

    #[test]
    fn only_what_has_changed_is_written() {
        let mut vmcs = after_exits();
        assert_eq!(mock(|mock| mock.writes.clone()), []);
        vmcs.write(Field::Rip, 0x6000);
        assert!(enter(&mut vmcs, 0));
        assert_eq!(mock(|mock| mock.writes.clone()), [f::GUEST_RIP.raw()]);
    }

    #[test]
    fn what_an_exit_has_changed_is_read_when_it_is_asked_for() {
        let mut vmcs = after_exits();
        assert_eq!((vmcs.copy(Copied::Rip), fs_base(&vmcs)), (0x5000, 0x7000));
        leave::<Mock>(&mut vmcs);
        assert_eq!(vmcs.soft.read(Register::Cr2), 100);
        arrive::<Mock>(CpuId(1), &mut vmcs);
        assert_eq!(fs_base(&vmcs), 0x7000, "the VMCS still has it");
    }

    /// Fields of the guest's state that need not be carried.
    const NOT_CARRIED: [(u32, &str); 3] = [
        (f::LIST_INDEX.raw(), "what it lists is taken after each stay"),
        (f::LINK_POINTER.raw(), "no guest has a VMCS of its own"),
        (f::GUEST_DEBUGCTL.raw(), "no guest can set it"),
    ];

    #[test]
    fn m5_each_field_of_a_guest_leaves_a_processor_and_is_on_the_next() {
        let mut vmcs = after_exits();
        vmcs.write(Field::Efer, 1);
        // With PAE paging, whose entries the processor has.
        let pae = [(f::GUEST_CR0.raw(), CR0_PG), (f::GUEST_CR4.raw(), CR4_PAE), (f::GUEST_EFER.raw(), 1)];
        let value = |field: u32| {
            let fixed = pae.iter().find(|(other, _)| *other == field);
            fixed.map_or(field.into(), |&(_, value)| value)
        };
        // Bits 11:10 of an encoding (appendix B).
        let all = f::NAMES.iter().map(|&(field, _)| field).filter(|field| field >> 10 & 3 == 2);
        let guests = || all.clone().filter(|field| !NOT_CARRIED.iter().any(|(not, _)| not == field));
        let left: Vec<_> = guests().map(|field| (field, value(field))).collect();
        assert!(enter_and(&mut vmcs, 0, move |stay, _| stay.fields.extend(left.iter().copied())));
        vmcs.read_all();
        leave::<Mock>(&mut vmcs);
        // As one that comes from another machine.
        mock::begin();
        (vmcs.dirty, vmcs.dirty_words, vmcs.is_new) = (ALL, u8::MAX, true);
        arrive::<Mock>(CpuId(1), &mut vmcs);
        vmcs.write_changes(Mock::vmwrite);
        for field in guests() {
            assert_eq!(Mock::vmread(field), value(field), "{}", f::Named(field));
        }
    }

    #[test]
    #[should_panic(expected = "GUEST_FS of a vCPU that is on no CPU")]
    fn i6_nobody_reads_a_vmcs_that_is_not_active() {
        let mut vmcs = after_exits();
        leave::<Mock>(&mut vmcs);
        let _segment = fs_base(&vmcs);
    }

    #[test]
    fn an_instruction_that_fails_is_a_refusal() {
        let mut vmcs = after_exits();
        mock(|mock| mock.fails = true);
        assert!(!enter(&mut vmcs, 0));
        assert_eq!(vmcs.code, REFUSED);
        assert!(InstructionError(7).to_string().ends_with("invalid control fields"));
    }
}

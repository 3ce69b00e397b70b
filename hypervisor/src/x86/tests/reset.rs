//! What there is of a guest: it moves, and is as new after a reset. So is a vCPU after INIT, but
//! for what the manuals say.

use alloc::vec::Vec;
use baremetal::random::Random;
use core::fmt;
use migration::{Archive, Described, Flaw};

use super::moved::{describe, enters, off};
use super::processor::{Kind, Tested, board, processor};
use crate::devices::pc::inbox::Inbox;
use crate::devices::pc::ioapic;
use crate::devices::pc::lapic::APIC_BASE_ADDRESS;
use crate::devices::pc::message::Trigger;
use crate::devices::pc::platform::{PortSize, SerialPort};
use crate::devices::pc::power;
use crate::devices::state_checks::{Kept, Reasons, Reset, listed};
use crate::loader::{EntryKind, EntryState};
use crate::svm::tests::guest::Guest;
use crate::vm::arch::{Arch, State};
use crate::vm::mock::MockBoard;
use crate::x86::processor::Vendor;
use crate::x86::vcpu::block::Field::{Cr0, Cr3, Cr4, Dr6, Dr7, Efer, Pat, Rflags, Rip, Rsp};
use crate::x86::vcpu::block::SegmentName::{Cs, Ds, Es, Fs, Gdtr, Gs, Idtr, Ldtr, Ss, Tr};
use crate::x86::vcpu::block::{ControlBlock, Segment};
use crate::x86::vcpu::nmi::Nmi;
use crate::x86::vcpu::registers::{RBX, RSI, Registers};
use crate::x86::vcpu::saved_state::REGISTERS;
use crate::x86::vcpu::state::Activity;

/// A guest, of whose vCPUs the first is as after power-on.
struct Moved(&'static MockBoard<Tested>);

impl Moved {
    fn new() -> Self {
        let this = Self(board());
        this.act(|guest| {
            let (vm, vcpu) = (guest.0.vm, guest.0.vcpu);
            *guest.0.state = vm.guest.new_vcpu::<Tested>(vcpu.index, vcpu.row.0);
            vcpu.inbox.set_address(&guest.0.state.lapic);
        });
        this
    }

    /// With that vCPU, which is on no CPU.
    fn act<R>(&self, act: impl FnOnce(&mut Guest<'_, '_, Tested>) -> R) -> R {
        self.0.with_vcpu(0, |context| off(&mut Guest(context), act))
    }
}

impl Described for Moved {
    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        self.act(|guest| describe(guest, archive))
    }
}

impl fmt::Debug for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.act(|guest| {
            let (vm, state, inbox) = (guest.0.vm, &*guest.0.state, &guest.0.vcpu.inbox);
            let used: Vec<_> = vm.vcpus.iter().map(|vcpu| vm.ticks_used(vcpu, 0)).collect();
            write!(f, "Guest {{ shared: Shared {{ {} }}, ", listed(vm.guest.fields()))?;
            write!(f, "vcpu: Vcpu {{ {} }}, ", listed(state.fields()))?;
            write!(f, "block: {}, inbox: {inbox:x?}, used: {used:?} }}", Tested::image(&state.block))
        })
    }
}

/// What neither VMRUN nor the description of a vCPU switches, and what is posted.
fn spoil(moved: &mut Moved, random: &mut Random) {
    moved.0.with_vcpu(0, |context| {
        let state = &mut *context.state;
        Tested::spoil(&mut state.block, random);
        state.registers = Registers(core::array::from_fn(|_| random.word()));
        (state.alarm, state.exception) = (random.word(), Some(random.word()));
        state.nmi = Nmi::from_bits_truncate(random.word() as u8);
        state.load_debug_registers::<Tested>();
        processor(|processor| {
            processor.fpu.fill_with(|| random.word() as u8);
            processor.xcr0 = random.one_of([1, 3, 7]);
            processor.tsc_aux = random.word();
            processor.breakpoints = core::array::from_fn(|_| random.word());
        });
    });
}

fn post(inbox: &Inbox) {
    let _ = inbox.post_fixed(0x51, Trigger::Edge);
    let _ = inbox.post_fixed(0x52, Trigger::Level);
    let _ = inbox.post_to_owner(0x53);
    let _ = inbox.post_nmi();
    let _ = inbox.post_startup(0x9a);
}

fn reset(moved: &mut Moved) {
    moved.act(|guest| {
        post(&guest.0.vcpu.inbox);
        guest.0.vm.reset_devices();
        guest.0.state.reset(&guest.0.vcpu.inbox);
        guest.0.state.intercept_pause(false);
    });
}

fn init(moved: &mut Moved) {
    moved.0.with_vcpu(0, |context| {
        post(&context.vcpu.inbox);
        let _ = context.vcpu.inbox.post_init();
        Tested::take_signals(context);
        context.state.intercept_pause(false);
    });
}

/// It uses its devices, and enters the guest.
fn play(moved: &mut Moved, random: &mut Random) {
    moved.0.with_vcpu(0, |context| {
        let mut board = context.vm.guest.platform.lock();
        let lapic = &mut context.state.lapic;
        for now in 0..40 {
            let now = now << 32;
            let port = random.one_of([0x3f8, 0x2f8, 0x40, 0x60, 0x70, 0x70, 0x600, 0x608, 0xcf8]);
            let (port, value) = ((port + random.below(8)) as u16, random.word() >> random.below(64));
            let size = [PortSize::Byte, PortSize::Word, PortSize::Dword][random.below(3) as usize];
            let _ = board.port_read(port, size, || now);
            let _ = board.port_write(port, size, value as u32, || now);
            let _ = board.mmio_write(ioapic::BASE + random.one_of([0, 0x10, 0x40]), value as u32);
            let _ = (board.eoi(value as u8), board.ring(now), board.happens(value as u8 & 7));
            let _ = (board.rom_base(), board.receive(SerialPort::Com1, &[1; 20]));
            let number = 0x800 + random.below(0x40) as u32;
            let _ = (lapic.read_msr(number, now), lapic.write_msr(number, value, now));
            let page = APIC_BASE_ADDRESS + 16 * random.below(0x40);
            let _ = (lapic.read_page(page, now), lapic.write_page(page, value as u32, now));
            let _ = lapic.expire(now);
        }
        drop(board);
        context.vcpu.inbox.set_address(&context.state.lapic);
        context.vcpu.inbox.set_levels(&context.state.lapic);
        enters(&mut Guest(context), random.word());
    });
}

const OWN: Reasons = &[
    (
        "what is posted becomes the vCPU's",
        "inbox.edge inbox.level inbox.posted.edge inbox.posted.signals inbox.posted.told",
    ),
    (
        "the configuration's",
        "shared.apic_ids shared.layout shared.shadow_tables shared.vcpus vcpu.hyperv.index vcpu.lapic.base.is_bsp \
         vcpu.lapic.id vcpu.view",
    ),
    (
        "by what CPUID shows, which is compared",
        "shared.cr4_mask shared.hidden shared.maps vcpu.hidden vcpu.signature",
    ),
    ("the machine's", "shared.flush_cost shared.nested_root"),
    ("it has none", "shared.has_functions shared.platform.data.pci.owned"),
    (
        "the rate, which is compared",
        "shared.partition.clock.0.0 shared.partition.clock.0.1 vcpu.lapic.timer.clock",
    ),
    ("it is compared", "shared.partition.platform shared.platform.data.pci.rom.len"),
    ("by the registers of the bus", "shared.rom"),
    ("whoever has one looks at the clock at once", "vcpu.alarm"),
    ("where it runs", "vcpu.debug.are_loaded"),
    ("the clock's", "vcpu.hyperv.ahead"),
    ("it never is", "vcpu.lapic.icr.busy"),
];

const LEFT_BY_RESET: Reasons = &[
    ("time goes on", "shared.partition.clock"),
    ("time goes on, as on battery", "shared.platform.data.cmos.ahead"),
];

const LEFT_BY_INIT: Reasons = &[
    ("by the mode of the local APIC", "inbox.posted.logical"),
    ("what is not the vCPU's", "shared used vcpu.alarm"),
    ("the manual", "vcpu.fpu vcpu.lapic.base vcpu.tsc_aux"),
    ("the interface's specification", "vcpu.hyperv"),
    ("time goes on", "vcpu.tsc_adjust"),
];

#[test]
fn m5_u59_a_guest_moves_with_all_that_it_is_and_a_reset_leaves_nothing() {
    let resets: [Reset<'_, _>; 2] = [
        ("a reset", reset, &[Tested::LEFT, LEFT_BY_RESET]),
        ("INIT", init, &[Tested::LEFT, Tested::LEFT_BY_INIT, LEFT_BY_INIT]),
    ];
    let own = &[Tested::OWN, OWN];
    let kept = Kept { own, spoil: &spoil, resets: &resets, seeds: 12, ..Kept::of(&Moved::new, &play) };
    kept.holds();
}

/// By the loader's description of the state, and of the memory.
#[test]
fn a_kernel_begins_as_its_protocol_says() {
    const ENTRY: EntryState = EntryState { kind: EntryKind::Pvh, rip: 0x12_3457, rsi: 0x77, rbx: 0x99 };
    Moved::new().act(|guest| {
        guest.0.state.registers = Registers([5; 16]);
        guest.set_field(Rsp, 5);
        guest.0.state.start_kernel(&ENTRY);
        let mut registers = [0; 16];
        (registers[RSI], registers[RBX]) = (ENTRY.rsi, ENTRY.rbx);
        assert_eq!(guest.0.state.registers, Registers(registers));
        for (field, expected) in [(Cr0, 0x11), (Rip, ENTRY.rip), (Rsp, 0), (Rflags, 2), (Cr4, 0), (Cr3, 0)] {
            assert_eq!(guest.field(field), expected, "{field:?}");
        }
        let flat = Segment { selector: 0x18, attributes: 0xc93, limit: u32::MAX, base: 0 };
        let gdt = Segment { base: 0x500, limit: 39, ..Segment::default() };
        for (name, expected) in [
            (Cs, Segment { selector: 0x10, attributes: 0xc9b, ..flat }),
            (Tr, Segment { selector: 0x20, attributes: 0x8b, limit: 0x67, base: 0 }),
            (Gdtr, gdt),
        ] {
            assert_eq!(guest.0.state.block.segment(name), expected, "{name:?}");
        }
        for name in [Ds, Es, Fs, Gs, Ss] {
            assert_eq!(guest.0.state.block.segment(name), flat, "{name:?}");
        }
        assert_eq!(guest.0.state.activity, Activity::Running);
        assert_eq!(guest.read(0xe_0000).to_le_bytes(), *b"RSD PTR ");
        assert_eq!(guest.read(power::RESET_VECTOR).to_le_bytes(), power::RESET_CODE[..8]);
    });
}

#[test]
fn what_halts_wakes_for_what_it_can_take() {
    Moved::new().act(|guest| {
        let state = &mut *guest.0.state;
        let _nothing = state.lapic.write_page(0xfee0_00f0, 0x1ff, 0);
        for (has_request, flags, tpr, nmi, wakes) in [
            (false, 0x202, 0, Nmi::empty(), false),
            (true, 0x202, 0, Nmi::empty(), true),
            (true, 2, 0, Nmi::empty(), false),
            (true, 0x202, 0xf0, Nmi::empty(), false),
            (false, 2, 0, Nmi::PENDING, true),
            (false, 2, 0, Nmi::PENDING | Nmi::BLOCKED, false),
        ] {
            if has_request {
                state.lapic.accept_fixed(0x51, Trigger::Edge);
            }
            state.block.write(Rflags, flags);
            state.set_task_priority(tpr);
            (state.nmi, state.activity) = (nmi, Activity::Halted);
            state.update_activity();
            assert_eq!(state.is_running(), wakes, "{has_request} {flags:#x} {tpr:#x} {nmi:?}");
            state.set_task_priority(0);
            if has_request {
                state.lapic.begin_service(0x51);
                let _ended = state.lapic.eoi();
            }
        }
    });
}

/// SDM volume 3, table 11-1; APM volume 2, table 14-1.
#[test]
fn u59_a_vcpu_begins_as_the_manuals_say() {
    Moved::new().act(|guest| {
        for (field, name) in REGISTERS {
            let expected = match field {
                Rip => 0xfff0,
                Rflags => 2,
                Cr0 => 0x6000_0010,
                Dr6 => 0xffff_0ff0,
                Dr7 => 0x400,
                Pat => 0x0007_0406_0007_0406,
                Efer => <Tested as Vendor>::Block::EFER_OWN,
                _ => 0,
            };
            assert_eq!(guest.field(field), expected, "{name}");
        }
        for (name, attributes, selector, base) in [
            (Cs, 0x9b, 0xf000, 0xffff_0000),
            (Ds, 0x93, 0, 0),
            (Es, 0x93, 0, 0),
            (Fs, 0x93, 0, 0),
            (Gs, 0x93, 0, 0),
            (Ss, 0x93, 0, 0),
            (Gdtr, 0, 0, 0),
            (Idtr, 0, 0, 0),
            (Ldtr, 0x82, 0, 0),
            (Tr, 0x8b, 0, 0),
        ] {
            let expected = Segment { selector, attributes, limit: 0xffff, base };
            assert_eq!(guest.0.state.block.segment(name), expected, "{name:?}");
        }
    });
    // The FPU's control words, which are loaded with it.
    processor(|processor| {
        let mut image = processor.fpu;
        assert_eq!((&image[..2], &image[24..28]), (&[0x7f, 3][..], &[0x80, 0x1f, 0, 0][..]));
        image[..28].fill(0);
        assert!(image.iter().all(|byte| *byte == 0));
    });
}

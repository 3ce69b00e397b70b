//! A reset leaves nothing: after random use a vCPU and the devices are as new ones.

use baremetal::random::Random;
use core::fmt::Write;

use super::processor::{Guest, MockSvm, processor, with_guest};
use crate::devices::pc::inbox::Inbox;
use crate::devices::pc::lapic;
use crate::devices::pc::message::{MessageKind, Trigger};
use crate::devices::pc::platform::{PcBoard, PortSize};
use crate::svm::vmcb::Vmcb;
use crate::vm::arch::State;
use crate::x86::vcpu::nmi::Nmi;
use crate::x86::vcpu::registers::{RAX, Registers};
use crate::x86::vcpu::state::{Activity, VcpuState};

const ROUNDS: u64 = 300;

/// Ranges of the control block that change (APM volume 2, appendix B): intercepts, the interrupt
/// that is offered, what an exit reports, the event to inject, and the guest's state but for what
/// is reserved. The offset of the TSC changes by the guest's registers, and with its clock.
const CHANGED: [core::ops::Range<usize>; 11] = [
    0x00..0x18,
    0x60..0x90,
    0xa8..0xb0,
    0xc8..0xe0,
    0x400..0x4a0,
    0x4cb..0x4cc,
    0x4d0..0x4d8,
    0x548..0x580,
    0x5d8..0x5e0,
    0x5f8..0x648,
    0x668..0x670,
];

/// What VMRUN does not read, and writes at the next exit.
const WRITTEN_BY_EXITS: [core::ops::Range<usize>; 2] = [0x70..0x90, 0xc8..0xe0];
/// The address space tag and what VMRUN drops: the next entry decides, by `asid`.
const TAG: core::ops::Range<usize> = 0x58..0x60;

fn bytes(vmcb: &mut Vmcb) -> &mut [u8; 4096] {
    // SAFETY: the block is so large, and any bytes are one.
    unsafe { &mut *core::ptr::from_mut(vmcb).cast() }
}

/// Everything that there is to a vCPU.
fn describe(state: &mut VcpuState<Vmcb>, inbox: &Inbox) -> String {
    // As an entry does, and a look at the CPU's queue.
    state.block.rax = state.registers.0[RAX];
    state.intercept_pause(true);
    state.load::<MockSvm>();
    state.load_debug_registers::<MockSvm>();
    let VcpuState {
        block: vmcb,
        own: _, // The next entry drops what it tags; a record of what was cached.
        registers,
        lapic,
        hyperv,
        activity,
        alarm,
        exception,
        nmi,
        tsc_adjust,
        signature,
        view,
        hidden,
        code: _, // Each walk is looked at again where it is used,
        mmio: _, // and each page without memory, by the version of the slots.
        fpu: _,  // What it loads into the processor is compared,
        debug: _,
        tsc_aux: _, // and so are these.
    } = state;
    let mut text = String::new();
    let mut note = |name: &str, value: &dyn core::fmt::Debug| {
        writeln!(text, "{name}: {value:x?}").expect("memory");
    };
    let image = bytes(vmcb);
    for range in WRITTEN_BY_EXITS.into_iter().chain([TAG]) {
        image[range].fill(0);
    }
    for (index, word) in image.chunks(8).enumerate() {
        note(&format!("control block at {:#x}", index * 8), &word);
    }
    note("registers", registers);
    note("local APIC", lapic);
    note("synthetic", hyperv);
    note("activity", activity);
    note("alarm", alarm);
    note("exception", exception);
    note("NMIs", nmi);
    note("TSC_ADJUST", tsc_adjust);
    note("signature", signature);
    note("hidden", hidden);
    note("APIC id", &(view.apic_id, view.vcpus, view.apic, view.osxsave, view.invariant_tsc));
    note("inbox", inbox);
    processor(|it| note("in the processor", &(it.xcr0, &it.fpu[..], it.tsc_aux, it.breakpoints)));
    // As it was.
    processor(|it| it.xcr0 = it.components);
    text
}

/// The guest does what it likes for a while.
fn use_at_random(guest: &mut Guest<'_, '_>, random: &mut Random) {
    for _ in 0..random.below(40) {
        let number = match random.below(6) {
            0 => lapic::msr::APIC_BASE,
            1 => 0x800 + random.below(0x40) as u32,
            2 => random.one_of([0x10, 0x3b, 0x6e0, 0x277]) as u32,
            3 => 0x4000_0073 + random.below(0x50) as u32,
            _ => 0xc000_0080 + random.below(0x90) as u32,
        };
        let value = {
            let values = [random.word(), random.below(0x200), 0xfee0_0d00, 0xfee0_0900, 0x1ff];
            random.one_of(values)
        };
        let _next = guest.write_msr(number, value);
        let trigger = if random.below(2) == 0 { Trigger::Edge } else { Trigger::Level };
        let vector = random.word() as u8;
        guest.0.state.lapic.accept_fixed(vector, trigger);
        guest.0.state.lapic.begin_service(random.word() as u8);
        let inbox = &guest.0.vcpu.inbox;
        inbox.set_address(&guest.0.state.lapic);
        inbox.post_fixed(vector, trigger);
        let kind =
            [MessageKind::Nmi, MessageKind::Init, MessageKind::Startup(vector)][random.below(3) as usize];
        inbox.post(kind, Trigger::Edge);
    }
    let state = &mut *guest.0.state;
    let image = bytes(&mut state.block);
    for at in CHANGED.into_iter().flatten() {
        image[at] = random.word() as u8;
    }
    state.registers = Registers(core::array::from_fn(|_| random.word()));
    state.activity =
        [Activity::Running, Activity::Halted, Activity::WaitForStartup][random.below(3) as usize];
    state.alarm = random.word();
    state.exception = (random.below(2) == 0).then(|| random.word());
    state.nmi = Nmi::from_bits_truncate(random.word() as u8);
    processor(|processor| {
        processor.fpu.fill_with(|| random.word() as u8);
        processor.xcr0 = random.one_of([1, 3, 7]);
        processor.tsc_aux = random.word();
        processor.breakpoints = core::array::from_fn(|_| random.word());
    });
}

#[test]
fn u59_after_a_reset_a_vcpu_is_as_a_new_one() {
    let mut random = Random::new(59);
    for round in 0..ROUNDS {
        with_guest(&[], |guest| {
            use_at_random(guest, &mut random);
            let (index, identity) = (guest.0.vcpu.index, guest.0.vcpu.row);
            let mut new = guest.0.vm.guest.new_vcpu::<MockSvm>(index, identity);
            let (state, inbox) = (&mut *guest.0.state, &guest.0.vcpu.inbox);
            state.save::<MockSvm>();
            state.reset(inbox);
            let fresh = Inbox::default();
            fresh.set_address(&new.lapic);
            let (is, expected) = (describe(state, inbox), describe(&mut new, &fresh));
            for (is, expected) in is.lines().zip(expected.lines()) {
                assert_eq!(is, expected, "round {round}");
            }
            assert_eq!(is.lines().count(), expected.lines().count(), "round {round}");
        });
    }
}

/// But for the time, which goes on as on battery.
#[test]
fn u59_after_a_reset_the_devices_are_as_new_ones() {
    let mut random = Random::new(60);
    for round in 0..ROUNDS {
        let (mut board, now) = (PcBoard::default(), round << 20);
        for _ in 0..random.below(400) {
            let port = match random.below(7) {
                0 => 0x3f8 + random.below(8),
                1 => 0x2f8 + random.below(8),
                2 => 0x40 + random.below(4),
                3 => random.one_of([0x61, 0x64, 0x602, 0x603, 0x608, 0x609, 0xcf9]),
                4 => 0x70 + random.below(2),
                _ => 0xcf8 + random.below(8),
            } as u16;
            let size = [PortSize::Byte, PortSize::Word, PortSize::Dword][random.below(3) as usize];
            let value = {
                let values = [random.word(), 0x8000_0000 | random.below(0x1000), 0xff];
                random.one_of(values)
            } as u32;
            // The clock's own registers would set it.
            let is_clock = port == 0x71;
            if !is_clock {
                let _ = board.port_write(port, size, value, || now);
            }
            let _ = board.port_read(port, size, || now);
            let register = 0xfec0_0000 + random.one_of([0, 0x10, 0x40]);
            let _ = board.mmio_write(register, {
                let values = [random.word(), random.below(0x40)];
                random.one_of(values)
            } as u32);
            let _ = board.happens(value as u8 & 1);
            let _ = board.receive(crate::devices::pc::platform::SerialPort::Com1, &[value as u8]);
        }
        board.reset();
        assert_eq!(format!("{board:x?}"), format!("{:x?}", PcBoard::default()), "round {round}");
    }
}

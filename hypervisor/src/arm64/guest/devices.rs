//! The guest's devices: dispatches register accesses.

use baremetal::HardwareId;
use core::sync::atomic::Ordering;

use crate::arm64::processor::Arm64;
use crate::arm64::vcpu::system;
use crate::devices::virt::gic::{self, Distributor, Effect, RegisterEffect};
use crate::devices::virt::{map, pl011};
use crate::iommu::lines::Receiver;
use crate::owned::Busy;
use crate::sched::notify::Published;
use crate::vm::{Context, Vm, VpIndex};
use memslots::Gpa;

/// Carries out the effect of an access to the distributor, under its lock.
#[inline]
pub fn perform<A: Arm64>(vm: &Vm<A>, effect: Effect, distributor: &Distributor) {
    if !effect.is_empty() {
        perform_all(vm, effect, distributor);
    }
}

#[inline(never)] // Apart from the usual case.
fn perform_all<A: Arm64>(vm: &Vm<A>, effect: Effect, distributor: &Distributor) {
    if let Some(groups) = effect.groups {
        for vcpu in &vm.vcpus {
            vm.notify(vcpu, vcpu.inbox.interrupts.post_groups(groups));
        }
    }
    for post in effect.posts(distributor) {
        let Some(vcpu) = vm.vcpus.get(usize::from(post.vcpu)) else { continue };
        vm.notify(vcpu, vcpu.inbox.interrupts.post_spi(post.intid));
    }
}

/// The same for what a vCPU has returned: real lines whose interrupts have ended are looked at, now
/// or when its alarm says.
pub fn perform_returned<A: Arm64>(vm: &Vm<A>, effect: Effect, distributor: &Distributor, alarm: &mut u64) {
    let Some(devices) = vm.guest.common.devices else { return perform(vm, effect, distributor) };
    for us in effect.ended.iter().filter_map(|intid| devices.routes.sample(intid)) {
        *alarm = (*alarm).min(A::now().saturating_add(A::ticks_of_us(us)));
    }
    perform(vm, effect, distributor);
}

impl<A: Arm64> Receiver for Vm<A> {
    fn raise(&self, intid: u8) {
        set_line(self, intid, true);
    }

    fn cpu(&self, number: usize) -> Option<HardwareId> {
        let count = self.cpus().count().max(1);
        self.cpus().nth(number % count).map(|cpu| cpu.id)
    }
}

fn set_line<A: Arm64>(vm: &Vm<A>, intid: u8, level: bool) {
    let mut distributor = vm.guest.distributor.lock();
    let effect = distributor.set_line(intid, level);
    perform(vm, effect, &distributor);
}

fn update_uart_line<A: Arm64>(vm: &Vm<A>, level: bool) {
    set_line(vm, map::UART_INTID, level);
}

/// Passes on what the real console has received. Bytes that the guest has no room for wait in a
/// queue of the machine, so that the real console's interrupt is quiet.
pub fn receive_console<A: Arm64>(vm: &Vm<A>) {
    let level = {
        let mut uart = vm.guest.uart.lock();
        while let Some(byte) = A::receive() {
            let _lost_if_full = uart.queue(byte);
        }
        uart.pass_on();
        uart.device.irq_level()
    };
    update_uart_line(vm, level);
}

/// The input of the serial port: returns how many of the bytes there is room for.
pub fn type_in<A: Arm64>(vm: &Vm<A>, bytes: &[u8]) -> usize {
    let (taken, level) = {
        let mut uart = vm.guest.uart.lock();
        let taken = bytes.iter().take_while(|&&byte| uart.queue(byte)).count();
        uart.pass_on();
        (taken, uart.device.irq_level())
    };
    update_uart_line(vm, level);
    taken
}

/// Wakes a guest that sleeps: the interrupt of the clock's alarm, by which kernels let themselves
/// be woken, becomes pending once, whatever its line says. A handler finds no alarm then, and does
/// nothing.
pub fn wake<A: Arm64>(vm: &Vm<A>) {
    pend(vm, map::RTC_INTID);
}

/// Lets the guest find its generation id, and interrupts it if that is new. Kernels read it without
/// caches, as a device's.
pub fn show_generation<A: Arm64>(vm: &Vm<A>, is_new: bool) {
    let Some(shown) = &vm.shown else { return };
    let id = *vm.generation.lock();
    for (word, half) in shown.words().iter().zip([id as u64, (id >> 64) as u64]) {
        // Relaxed: no vCPU runs.
        word.store(half, Ordering::Relaxed);
    }
    let at = shown.words().as_ptr().addr() as u64;
    if A::must_clean() {
        A::clean(at..at + map::GENERATION_BYTES);
    }
    if is_new {
        pend(vm, map::GENERATION_INTID);
    }
}

fn pend<A: Arm64>(vm: &Vm<A>, intid: u8) {
    let mut distributor = vm.guest.distributor.lock();
    let effect = distributor.pend(intid);
    perform(vm, effect, &distributor);
}

/// Passes on the line of the clock's alarm. This vCPU, which has set the alarm or waited for it,
/// looks again when it is due next.
fn ring<A: Arm64>(context: &mut Context<'_, A>) {
    let vm = context.vm;
    // It may have waited for this instead, or as well.
    vm.guest.common.devices.iter().for_each(|devices| devices.routes.resume());
    let (level, due) = {
        let mut rtc = vm.guest.rtc.lock();
        rtc.update(vm.wall_ns());
        (rtc.irq_level(), rtc.due_ns())
    };
    context.state.alarm = due.map_or(u64::MAX, |due| vm.wall_ticks(due));
    set_line(vm, map::RTC_INTID, level);
}

/// Rings the alarm for which this vCPU waits, if it is due.
pub fn expire_alarm<A: Arm64>(context: &mut Context<'_, A>, now: u64) {
    if context.state.alarm <= now {
        ring(context);
    }
}

/// Reads a device's register; `None` if there is no such register.
pub fn read<A: Arm64>(context: &mut Context<'_, A>, gpa: u64, bytes: u8) -> Option<u64> {
    let vm = context.vm;
    if let Some(offset) = within(gpa, map::GICD, map::GICD_SIZE) {
        let distributor = vm.guest.distributor.lock();
        let (value, effect) = distributor.read(offset, bytes);
        perform(vm, effect, &distributor);
        return Some(value);
    }
    if let Some(offset) = within(gpa, map::UART, map::UART_SIZE) {
        let (value, level) = {
            let mut uart = vm.guest.uart.lock();
            let value = uart.device.read(offset);
            uart.pass_on();
            (value, uart.device.irq_level())
        };
        update_uart_line(vm, level);
        return Some(value.into());
    }
    if let Some(offset) = within(gpa, map::RTC, map::RTC_SIZE) {
        return Some(vm.guest.rtc.lock().read(offset, vm.wall_ns()).into());
    }
    if let Some(value) = read_pci(vm, gpa, bytes) {
        return Some(value);
    }
    let place = redistributor(vm, gpa)?;
    if VpIndex(place.vcpu.into()) == context.vcpu.index {
        return Some(context.state.gic.read(place.offset, bytes));
    }
    let is_awake = vm.guest.distributor.lock().is_awake(place.vcpu);
    Some(gic::read_foreign(place, bytes, vm.vcpu_count() as u8, is_awake))
}

/// Writes a device's register; false if there is no such register.
pub fn write<A: Arm64>(context: &mut Context<'_, A>, gpa: u64, bytes: u8, value: u64) -> bool {
    let vm = context.vm;
    if let Some(offset) = within(gpa, map::GICD, map::GICD_SIZE) {
        let mut distributor = vm.guest.distributor.lock();
        let effect = distributor.write(offset, bytes, value);
        perform(vm, effect, &distributor);
        return true;
    }
    if let Some(offset) = within(gpa, map::UART, map::UART_SIZE) {
        let (effect, level) = {
            let mut uart = vm.guest.uart.lock();
            (uart.device.write(offset, value as u32), uart.device.irq_level())
        };
        if let pl011::Effect::Transmit(byte) = effect {
            vm.transmit(0, byte, || A::transmit(byte));
        }
        update_uart_line(vm, level);
        return true;
    }
    if let Some(offset) = within(gpa, map::RTC, map::RTC_SIZE) {
        vm.guest.rtc.lock().write(offset, value as u32, vm.wall_ns());
        ring(context);
        // Its next deadline has changed.
        vm.notify(context.vcpu, Published::NOTHING);
        return true;
    }
    if vm.guest.has_functions() && map::PCI_MEMORY.contains(&gpa) {
        // Where no function is, a write is lost.
        let _is_there = vm.guest.owned.functions.lock().trapped_write(vm, Gpa(gpa), bytes, value);
        return true;
    }
    let Some(place) = redistributor(vm, gpa) else { return false };
    if VpIndex(place.vcpu.into()) == context.vcpu.index {
        let effect = context.state.gic.write(place.offset, bytes, value);
        perform_register(context, effect);
    } else if let Some(intids) = gic::write_foreign(place, bytes, value)
        && let Some(vcpu) = vm.vcpus.get(usize::from(place.vcpu))
    {
        vm.notify(vcpu, vcpu.inbox.interrupts.post_private(intids));
    }
    true
}

/// Configuration space, and registers of functions that are not mapped; `None` if the address is
/// not PCI's, or the guest has no functions.
fn read_pci<A: Arm64>(vm: &'static Vm<A>, gpa: u64, bytes: u8) -> Option<u64> {
    if !vm.guest.has_functions() {
        return None;
    }
    if let Some(offset) = within(gpa, map::PCI_ECAM, map::PCI_ECAM_SIZE) {
        vm.guest.owned.functions.lock().follow_resets(vm);
        return Some(vm.guest.pci.lock().read(offset, bytes));
    }
    let value = || vm.guest.owned.functions.lock().trapped_read(vm, Gpa(gpa), bytes).unwrap_or(u64::MAX);
    map::PCI_MEMORY.contains(&gpa).then(value)
}

/// Writes to configuration space, and has the real functions follow before the guest continues.
/// `None` if the address is elsewhere, or the guest has no functions.
pub fn configure<A: Arm64>(context: &Context<'_, A>, gpa: u64, bytes: u8, value: u64) -> Option<Configured> {
    let (vm, by) = (context.vm, context.vcpu.index);
    if !vm.guest.has_functions() {
        return None;
    }
    let offset = within(gpa, map::PCI_ECAM, map::PCI_ECAM_SIZE)?;
    if vm.turn_wanted.load(Ordering::Relaxed) {
        return Some(Err(Busy));
    }
    // Held until slots move, so that they move in the order of the writes.
    let mut functions = vm.guest.owned.functions.lock();
    vm.guest.pci.lock().write(offset, bytes, value);
    Some(functions.follow(vm, context.cpu, by).map(drop))
}

/// What becomes of the access: [`Busy`] if it must be retried. The retry writes the same value,
/// which changes nothing.
pub type Configured = Result<(), Busy>;

fn redistributor<A: Arm64>(vm: &Vm<A>, gpa: u64) -> Option<gic::RedistributorRegister> {
    let count = vm.vcpu_count() as u8;
    let range = map::redistributors(count);
    let offset = gpa.checked_sub(range.start)?;
    gic::locate(offset, count)
}

fn perform_register<A: Arm64>(context: &mut Context<'_, A>, effect: RegisterEffect) {
    let gic::Deactivate(intids) = effect.deactivate;
    system::deactivate::<A>(intids);
    if let Some(awake) = effect.awake {
        let mut distributor = context.vm.guest.distributor.lock();
        let effect = distributor.set_awake(context.vcpu.index.0 as u8, awake);
        perform(context.vm, effect, &distributor);
    }
}

fn within(gpa: u64, start: u64, size: u64) -> Option<u32> {
    let offset = gpa.checked_sub(start)?;
    (offset < size).then_some(offset as u32)
}

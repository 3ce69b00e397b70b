//! The guest's devices: where an access to registers goes.

use crate::arch::{Context, Machine};
use crate::devices::gic::{self, RegisterEffect};
use crate::devices::pl011;
use crate::devices::virt_map as map;

use super::{console, vgic};

/// The serial port's interrupt line follows its state.
impl Machine {
    /// Tells the interrupt controller what the serial port asserts.
    pub(crate) fn update_uart_line(&self, level: bool) {
        let mut distributor = self.guest.distributor.lock();
        let effect = distributor.set_line(map::UART_INTID, level);
        self.perform(effect, &distributor);
    }

    /// Passes on what the real console has received. What the guest has no room for waits in a queue of the machine's, so
    /// that the real console is quiet.
    pub(crate) fn receive_console(&self) {
        let level = {
            let mut uart = self.guest.uart.lock();
            while let Some(byte) = console::receive() {
                uart.queue(byte);
            }
            uart.pass_on();
            uart.device.irq_level()
        };
        self.update_uart_line(level);
    }
}

impl Context<'_> {
    /// Reads a device's register; `None` if nothing is there.
    pub(crate) fn read_device(&mut self, gpa: u64, bytes: u8) -> Option<u64> {
        if let Some(offset) = within(gpa, map::GICD, map::GICD_SIZE) {
            let distributor = self.vm.guest.distributor.lock();
            let (value, effect) = distributor.read(offset, bytes);
            self.vm.perform(effect, &distributor);
            return Some(value);
        }
        if let Some(offset) = within(gpa, map::UART, map::UART_SIZE) {
            let (value, level) = {
                let mut uart = self.vm.guest.uart.lock();
                let value = uart.device.read(offset);
                uart.pass_on();
                (value, uart.device.irq_level())
            };
            self.vm.update_uart_line(level);
            return Some(value.into());
        }
        if let Some(offset) = within(gpa, map::RTC, map::RTC_SIZE) {
            return Some(self.vm.guest.rtc.lock().read(offset, self.vm.wall_ns()).into());
        }
        let place = self.redistributor(gpa)?;
        if u32::from(place.vcpu) == self.vcpu.index {
            return Some(self.state.gic.read(place.offset, bytes));
        }
        let is_awake = self.vm.guest.distributor.lock().is_awake(place.vcpu);
        Some(gic::read_foreign(place, bytes, self.vm.vcpu_count() as u8, is_awake))
    }

    /// Writes a device's register; false if nothing is there.
    pub(crate) fn write_device(&mut self, gpa: u64, bytes: u8, value: u64) -> bool {
        if let Some(offset) = within(gpa, map::GICD, map::GICD_SIZE) {
            let mut distributor = self.vm.guest.distributor.lock();
            let effect = distributor.write(offset, bytes, value);
            self.vm.perform(effect, &distributor);
            return true;
        }
        if let Some(offset) = within(gpa, map::UART, map::UART_SIZE) {
            let (effect, level) = {
                let mut uart = self.vm.guest.uart.lock();
                (uart.device.write(offset, value as u32), uart.device.irq_level())
            };
            if let pl011::Effect::Transmit(byte) = effect {
                console::guest_transmit(byte);
            }
            self.vm.update_uart_line(level);
            return true;
        }
        if let Some(offset) = within(gpa, map::RTC, map::RTC_SIZE) {
            self.vm.guest.rtc.lock().write(offset, value as u32, self.vm.wall_ns());
            return true;
        }
        let Some(place) = self.redistributor(gpa) else { return false };
        if u32::from(place.vcpu) == self.vcpu.index {
            let effect = self.state.gic.write(place.offset, bytes, value);
            self.perform_register(effect);
        } else if let Some(intids) = gic::write_foreign(place, bytes, value)
            && let Some(vcpu) = self.vm.vcpus.get(usize::from(place.vcpu))
        {
            vcpu.inbox.interrupts.post_private(intids);
            self.vm.notify(vcpu);
        }
        true
    }

    fn redistributor(&self, gpa: u64) -> Option<gic::Place> {
        let count = self.vm.vcpu_count() as u8;
        let range = map::redistributors(count);
        let offset = gpa.checked_sub(range.start)?;
        gic::locate(offset, count)
    }

    fn perform_register(&mut self, effect: RegisterEffect) {
        let gic::Deactivate(intids) = effect.deactivate;
        vgic::deactivate(intids);
        if let Some(awake) = effect.awake {
            let mut distributor = self.vm.guest.distributor.lock();
            let effect = distributor.set_awake(self.vcpu.index as u8, awake);
            self.vm.perform(effect, &distributor);
        }
    }
}

fn within(gpa: u64, start: u64, size: u64) -> Option<u32> {
    let offset = gpa.checked_sub(start)?;
    (offset < size).then_some(offset as u32)
}

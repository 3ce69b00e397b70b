//! What functions of the made machine do.

use baremetal::HardwareId;
use core::sync::atomic::{AtomicU64, Ordering};

use pci::mock::at;

use super::Machine;
use super::bus::BRIDGED;
use super::walk::Refusal;
use crate::sched::CpuIndex;
use crate::vm::mock::creation::index_of;

/// How an interrupt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// At a CPU, on a vector.
    At(u8, u8),
    /// It is masked: it waits in the function.
    Masked,
    /// The function does not send any.
    Off,
    Refused(Refusal),
}

/// The id with which requests of a function reach the IOMMU.
pub(crate) fn device_id(function: &str) -> u16 {
    // A conventional bridge sends in its own name.
    at(if function == BRIDGED { "00:02.0" } else { function }).id()
}

impl Machine {
    fn is_master(&self, function: &str) -> bool {
        self.bus.word(function, 4) & 4 != 0
    }

    pub(crate) fn dma_read(&self, function: &str, gpa: u64) -> Result<u64, Refusal> {
        assert!(self.is_master(function), "{function} makes no requests");
        let host = self.iommu.dma(device_id(function), gpa, false)?;
        // SAFETY: memory of the board's.
        Ok(unsafe { &*(host as *const AtomicU64) }.load(Ordering::Relaxed))
    }

    /// A function writes 8 bytes; returns where, as a host physical address.
    pub(crate) fn dma_write(&self, function: &str, gpa: u64, value: u64) -> Result<u64, Refusal> {
        assert!(self.is_master(function), "{function} makes no requests");
        let host = self.iommu.dma(device_id(function), gpa, true)?;
        // SAFETY: memory of the board's.
        unsafe { &*(host as *const AtomicU64) }.store(value, Ordering::Relaxed);
        Ok(host)
    }

    /// Sends a message of a function; `deliver` is called with the CPU and the vector at which it
    /// arrives.
    fn send(&self, function: &str, address: u64, data: u32, deliver: impl FnOnce(u8, u8)) -> Arrived {
        match self.iommu.remap(device_id(function), address, data) {
            Ok((id, vector)) => {
                let cpu = index_of(HardwareId(id.into())).0 as u8;
                deliver(cpu, vector);
                Arrived::At(cpu, vector)
            }
            Err(why) => Arrived::Refused(why),
        }
    }

    /// A CPU takes an interrupt.
    pub(crate) fn arrive(&self, cpu: u8, vector: u8) {
        assert!(self.devices.routes.deliver(CpuIndex(cpu.into()), vector), "it is somebody's");
    }

    /// A function has an event for a vector of MSI-X. One that is masked waits.
    pub(crate) fn raise(&self, function: &str, number: u16) -> Arrived {
        self.raise_with(function, number, |cpu, vector| self.arrive(cpu, vector))
    }

    pub(crate) fn raise_with(&self, function: &str, number: u16, deliver: impl FnOnce(u8, u8)) -> Arrived {
        let (entry, control) = self.bus.with(function, |function| {
            let msix = function.msix.expect("it has MSI-X");
            (function.entry(number), function.word(msix.capability.into()))
        });
        let (address, data, is_masked) = entry;
        if control & 1 << 31 == 0 || !self.is_master(function) {
            return Arrived::Off;
        }
        if is_masked || control & 1 << 30 != 0 {
            self.bus.with(function, |function| function.set_pending(number, true));
            return Arrived::Masked;
        }
        self.bus.with(function, |function| function.set_pending(number, false));
        self.send(function, address, data, deliver)
    }

    /// A function sends what waits, if it is not masked any more.
    pub(crate) fn send_pending(&self, function: &str, number: u16) -> Option<Arrived> {
        let waits = self.bus.with(function, |function| function.is_pending(number));
        waits.then(|| self.raise(function, number))
    }

    /// A function with MSI at 0x50 has an event.
    pub(crate) fn raise_msi(&self, function: &str) -> Arrived {
        let word = |register| self.bus.word(function, register);
        if word(0x50) & 1 << 16 == 0 || !self.is_master(function) {
            return Arrived::Off;
        }
        let address = u64::from(word(0x54)) | u64::from(word(0x58)) << 32;
        assert_eq!(word(0x60) & 1, 0, "its only message is not masked");
        self.send(function, address, word(0x5c), |cpu, vector| self.arrive(cpu, vector))
    }

    /// A function writes whatever it likes to the address of interrupts.
    pub(crate) fn forge(&self, function: &str, data: u32) -> Arrived {
        self.send(function, 0xfee0_0000, data, |cpu, vector| self.arrive(cpu, vector))
    }
}

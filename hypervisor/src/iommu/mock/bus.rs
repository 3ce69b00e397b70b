//! The made machine's bus.

use alloc::vec::Vec;
use baremetal::moment::Moment;
use core::sync::atomic::{AtomicU64, Ordering};
use pci::mock::{Device, at};
use pci::{Address, ConfigSpace};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::function::{MadeFunction, MadeMsix};
use super::{Note, Notes};
use crate::owned::Bus;

/// An NVMe controller, as QEMU has it but with a longer BAR 0: registers on both sides of the
/// table.
pub(crate) const NVME: &str = "00:03.0";
pub(super) const NVME_BAR: u64 = 0xfeb8_0000;
/// A virtio network device: a BAR that is all table, and one with registers. Firmware has placed it
/// above 4 GiB.
pub(crate) const VIRTIO: &str = "00:04.0";
/// One with 256 bytes of registers, and MSI.
pub(crate) const SMALL: &str = "00:05.0";
/// One behind a conventional bridge, which sends in its name.
pub(crate) const BRIDGED: &str = "01:00.0";

/// Eight of one device: as many as a guest may own.
const SERIAL: [&str; 8] =
    ["00:0a.0", "00:0a.1", "00:0a.2", "00:0a.3", "00:0a.4", "00:0a.5", "00:0a.6", "00:0a.7"];

/// The first two reach the IOMMU with the second one's id, the others with the last one's.
const ALIASED: [&str; 4] = ["00:0d.0", "00:0e.0", "00:0f.0", "00:1f.0"];

pub(crate) struct MadeBus {
    functions: Mutex<BTreeMap<Address, MadeFunction>>,
    notes: &'static Notes,
    pub(crate) moment: Moment,
    now_us: AtomicU64,
    /// What passes from look to look.
    pace_us: AtomicU64,
}

/// All functions. Of kinds that no test asks for by name there are: an audio controller that no
/// IOMMU is in front of, two functions of one device, one that cannot be reset, one that
/// firmware has given no place, two behind one bridge; and by the table of IOMMUs two with one id,
/// and two with the I/O APIC's.
fn functions() -> Vec<(&'static str, MadeFunction)> {
    let new = Device::new;
    let flr = |vendor, device, class| new(vendor, device, class).express(9, true);
    let nvme = MadeMsix { capability: 0x40, bar: 0, table: 0x2000, pending: 0x3000, count: 65 };
    let xhci = MadeMsix { capability: 0x40, bar: 0, table: 0x2100, pending: 0, count: 16 };
    let virtio = MadeMsix { capability: 0x98, bar: 1, table: 0, pending: 0x800, count: 4 };
    let with_nvme = flr(0x1b36, 0x0010, 0x01_0802).with(4, 6).bar64(0, 4, NVME_BAR, 0x8000);
    let with_virtio = new(0x1af4, 0x1041, 0x02_0000).with(4, 2);
    let with_virtio = with_virtio.bar(1, 0, 0xfebf_1000, 0x1000).bar64(4, 4, 0x80_0000_0000, 0x4000);
    let with_xhci = flr(0x1b36, 0x000d, 0x0c_0330).multi_function().bar(0, 0, 0xfebf_c000, 0x4000);
    // MSI to addresses of 64 bits, with a mask.
    let msi = flr(0x8086, 0x100e, 0x02_0000).bar(0, 0, 0xfebf_2000, 0x100).with(4, 2);
    let msi = msi.capability(0x50, &[0x0180_0005, 0, 0, 0, 0, 0]).writable(0x50, 0x0071_0000);
    let msi = (1..5).fold(msi, |made, word| made.writable(0x50 + 4 * word, u32::MAX));
    let mut all: Vec<(&str, MadeFunction)> = alloc::vec![
        (NVME, MadeFunction::with_msix(with_nvme, nvme)),
        (VIRTIO, MadeFunction::with_msix(with_virtio, virtio).with_window(0x60)),
        ("00:06.0", MadeFunction::with_msix(with_xhci, xhci)),
    ];
    // Two functions of one device that can be isolated from each other, which is off.
    let isolated = || flr(0x8086, 0x1572, 0x02_8000).acs(0xc, 0);
    let plain = [
        ("00:00.0", new(0x8086, 0x29c0, 0x06_0000)),
        ("00:01.0", new(0x1022, 0x1419, 0x08_0600)),
        ("00:02.0", Device::bridge(1, 1)),
        (SMALL, msi),
        ("00:06.1", flr(0x1b36, 0x000d, 0x0c_0330).bar(0, 0, 0xfebf_5000, 0x1000)),
        ("00:07.0", new(0x8086, 0x2934, 0x0c_0300).bar(0, 0, 0xfebf_6000, 0x1000)),
        ("00:08.0", flr(0x8086, 0x2922, 0x01_0601).bar(5, 0, 0, 0x1000)),
        ("00:09.0", flr(0x8086, 0x2668, 0x04_0300).bar(0, 0, 0xfebf_8000, 0x4000)),
        (BRIDGED, new(0x1000, 0x0030, 0x01_0000).bar(1, 0, 0xfe80_0000, 0x1000)),
        ("00:0b.0", Device::bridge(2, 2)),
        ("02:00.0", flr(0x1000, 0x0030, 0x07_8000).bar(1, 0, 0xfe90_0000, 0x1000)),
        ("02:01.0", flr(0x1000, 0x0030, 0x07_8000).bar(1, 0, 0xfe90_1000, 0x1000)),
        ("00:0c.0", isolated().multi_function().bar(0, 0, 0xfeb0_0000, 0x1000)),
        ("00:0c.1", isolated().bar(0, 0, 0xfeb0_1000, 0x1000)),
    ];
    all.extend(plain.map(|(address, device)| (address, device.into())));
    all.extend([0x0d, 0x0e, 0x0f, 0x1f].into_iter().zip(ALIASED).map(|(device, address)| {
        let at = 0xfe92_0000 + device * 0x1000;
        (address, flr(0x1022, 0x1537, 0x0b_4000).bar(0, 0, at, 0x1000).into())
    }));
    all.extend(SERIAL.into_iter().zip(0..).map(|(address, index)| {
        let serial = flr(0x8086, 0x2936, 0x07_0002).bar(0, 0, 0xfea0_0000 + index * 0x1000, 0x1000);
        (address, if index == 0 { serial.multi_function() } else { serial }.into())
    }));
    all
}

impl MadeBus {
    pub(super) fn new(notes: &'static Notes) -> Self {
        let functions = functions().into_iter().map(|(address, function)| (at(address), function)).collect();
        Self {
            functions: Mutex::new(functions),
            notes,
            moment: Moment::default(),
            now_us: AtomicU64::new(0),
            pace_us: AtomicU64::new(10_000),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Address, MadeFunction>> {
        self.functions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn with<R>(&self, address: &str, act: impl FnOnce(&mut MadeFunction) -> R) -> R {
        act(self.lock().get_mut(&at(address)).expect("there is such a function"))
    }

    pub(crate) fn word(&self, address: &str, register: u16) -> u32 {
        self.with(address, |function| function.word(register))
    }

    pub(crate) fn resets(&self, address: &str) -> u32 {
        self.with(address, |function| function.resets())
    }

    pub(crate) fn register(&self, address: &str, bar: u8, offset: u64) -> u32 {
        self.with(address, |function| function.memory.get(&(bar, offset)).copied().unwrap_or(0))
    }

    /// Sets a register of a function, as it does itself.
    pub(crate) fn set_register(&self, address: &str, bar: u8, offset: u64, value: u32) {
        self.with(address, |function| function.memory.insert((bar, offset), value));
    }

    /// An entry of a function's MSI-X: address, data, and whether it is masked.
    pub(crate) fn entry(&self, address: &str, number: u16) -> (u64, u32, bool) {
        self.with(address, |function| function.entry(number))
    }

    /// Nobody can use the NVMe controller's MSI-X: table and pending bits are at the same place.
    pub(crate) fn break_table(&self) {
        self.with(NVME, |function| {
            function.set_word(0x48, 0x2000);
            function.msix = None;
        });
    }

    /// A function's register of configuration space is this, whoever has written it.
    pub(crate) fn set_word(&self, address: &str, register: u16, value: u32) {
        self.with(address, |function| function.set_word(register, value));
    }

    /// The function's access control services are off for good.
    pub(crate) fn lose_acs(&self, address: &str) {
        self.with(address, MadeFunction::lose_acs);
    }

    /// The function's command register is this, whatever its guest has said.
    pub(crate) fn set_command(&self, address: &str, command: u32) {
        self.with(address, |function| function.write(4, command));
    }

    /// So many microseconds pass from look to look at the clock.
    pub(crate) fn set_pace(&self, pace_us: u64) {
        self.pace_us.store(pace_us, Ordering::Relaxed);
    }

    /// The function makes requests.
    pub(crate) fn set_master(&self, address: &str) {
        self.set_command(address, 0x406);
    }

    /// The function does not answer for so many looks after each reset.
    pub(crate) fn answers_late(&self, address: &str, looks: u32) {
        self.with(address, |function| function.absent_looks = looks);
    }

    /// The function reports pending transactions for so many looks.
    pub(crate) fn has_pending(&self, address: &str, looks: u32) {
        self.with(address, |function| function.pending_looks = looks);
    }
}

impl ConfigSpace for MadeBus {
    fn read(&self, address: Address, register: u16) -> u32 {
        self.moment.pass();
        assert!(register.is_multiple_of(4), "{register:#x}");
        match self.lock().get_mut(&address) {
            Some(function) if register < 512 => function.read(register),
            _ => u32::MAX,
        }
    }

    fn write(&self, address: Address, register: u16, value: u32) {
        self.moment.pass();
        assert!(register.is_multiple_of(4), "{register:#x}");
        self.notes.add(Note::Config(address, register, value));
        let mut functions = self.lock();
        let Some(function) = functions.get_mut(&address).filter(|_| register < 512) else { return };
        if function.write(register, value) {
            self.notes.add(Note::Reset(address));
        }
        if function.is_bridge() && register == 0x3c && value >> 22 & 1 != 0 {
            let bus = function.word(0x18).to_le_bytes()[1];
            for (address, function) in functions.iter_mut().filter(|(address, _)| address.bus() == bus) {
                function.reset();
                self.notes.add(Note::Reset(*address));
            }
        }
    }
}

impl Bus for MadeBus {
    fn load(&self, address: u64, size: u8) -> u64 {
        self.moment.pass();
        assert!(address.is_multiple_of(size.into()), "the bus reads what is aligned");
        let functions = self.lock();
        let found = functions.values().find_map(|function| Some((function, function.find(address)?)));
        let Some((function, (bar, offset))) = found else { return u64::MAX };
        assert!(function.is_mapped(bar, offset), "the hypervisor has not mapped {address:#x}");
        let word = |at: u64| u64::from(function.memory.get(&(bar, at)).copied().unwrap_or(0));
        let whole = word(offset & !3) | word((offset & !3) + 4) << 32;
        whole >> (offset % 4 * 8) & (u64::MAX >> (64 - 8 * u32::from(size)))
    }

    fn store(&self, address: u64, size: u8, value: u64) {
        self.moment.pass();
        assert!(address.is_multiple_of(size.into()), "the bus writes what is aligned");
        self.notes.add(Note::Store(address, value));
        let mut functions = self.lock();
        let found = functions.values_mut().find_map(|function| {
            let place = function.find(address)?;
            Some((function, place))
        });
        // What nobody decodes is lost.
        let Some((function, (bar, offset))) = found else { return };
        assert!(function.is_mapped(bar, offset), "the hypervisor has not mapped {address:#x}");
        let mask = u64::MAX >> (64 - 8 * u32::from(size));
        for (index, at) in [offset & !3, (offset & !3) + 4].into_iter().enumerate() {
            let shift = offset % 4 * 8;
            let (value, mask) = ((value & mask) << shift, mask << shift);
            let (value, mask) = ((value >> (32 * index)) as u32, (mask >> (32 * index)) as u32);
            if mask != 0 {
                let word = function.memory.entry((bar, at)).or_default();
                *word = *word & !mask | value;
            }
        }
    }

    fn now_us(&self) -> u64 {
        self.now_us.fetch_add(self.pace_us.load(Ordering::Relaxed), Ordering::Relaxed)
    }
}

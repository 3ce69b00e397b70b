//! The DMAR: the ACPI table that says where IOMMUs are and which devices are behind each. Source:
//! D51397, 8.1 to 8.4. Devices are named by the way to them, through bridges.
//!
//! Only segment 0 is looked at. Where translations may be kept by devices (ATSR) is passed over:
//! ATS stays off.

use crate::DeviceId;
use crate::bytes::{u16_at, u64_at};
pub use crate::scope::Scope;

/// Bytes of the table before its first structure, and where its flags are.
const HEADER: usize = 48;
const FLAGS: usize = 37;
/// The flag of a platform that supports interrupt remapping.
const REMAPS: u8 = 1 << 0;

/// Types of structures.
const UNIT: u16 = 0;
const RESERVED_MEMORY: u16 = 1;

/// The first and the last bus behind a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behind {
    /// The bus below it.
    pub first: u8,
    /// The highest one.
    pub last: u8,
}

/// A DMAR, and the bridges of the machine.
#[derive(Clone, Copy)]
pub struct Dmar<'a> {
    table: &'a [u8],
    bridges: &'a dyn Fn(DeviceId) -> Option<Behind>,
}

/// An IOMMU, as a structure of the table describes it.
#[derive(Clone, Copy)]
pub struct Unit<'a> {
    dmar: Dmar<'a>,
    /// Host physical address of its registers.
    pub registers: u64,
    /// All devices are behind it that are not behind others.
    has_others: bool,
    /// The list of devices.
    entries: &'a [u8],
}

impl<'a> Dmar<'a> {
    /// The table, and what says for each function whether it is a bridge.
    pub const fn new(table: &'a [u8], bridges: &'a dyn Fn(DeviceId) -> Option<Behind>) -> Self {
        Self { table, bridges }
    }

    /// Whether firmware lets interrupts be remapped.
    #[must_use]
    pub fn remaps_interrupts(&self) -> bool {
        self.table.get(FLAGS).is_some_and(|flags| flags & REMAPS != 0)
    }

    /// The structures of a type, for segment 0. What is malformed ends the list.
    fn structures(self, kind: u16) -> impl Iterator<Item = &'a [u8]> {
        let mut rest = self.table.get(HEADER..).unwrap_or_default();
        let all = core::iter::from_fn(move || {
            let len = usize::from(u16_at(rest, 2)?);
            let structure = rest.get(..len).filter(|_| len >= 8)?;
            rest = rest.get(len..)?;
            Some(structure)
        });
        all.filter(move |structure| u16_at(structure, 0) == Some(kind) && u16_at(structure, 6) == Some(0))
    }

    /// The IOMMUs that the table lists.
    pub fn units(self) -> impl Iterator<Item = Unit<'a>> {
        self.structures(UNIT).filter_map(move |unit| {
            Some(Unit {
                dmar: self,
                registers: u64_at(unit, 8)?,
                has_others: unit.get(4)? & 1 != 0,
                entries: unit.get(16..)?,
            })
        })
    }

    /// Devices, from the first to the last, for which firmware wants memory mapped at its own
    /// address: it has set them up to use that, and goes on (8.4).
    pub fn firmware_memory(self) -> impl Iterator<Item = (DeviceId, DeviceId)> {
        let entries = self.structures(RESERVED_MEMORY).filter_map(|structure| structure.get(24..));
        entries.flat_map(move |entries| self.scopes(entries)).filter_map(Scope::range)
    }

    /// What a list of device scopes (8.3.1) names. A bridge stands for itself and what is behind.
    fn scopes(self, mut rest: &'a [u8]) -> impl Iterator<Item = Scope> + 'a {
        let entries = core::iter::from_fn(move || {
            let entry = rest.get(..usize::from(*rest.get(1)?)).filter(|entry| entry.len() >= 8)?;
            rest = rest.get(entry.len()..)?;
            Some(entry)
        });
        entries
            .filter_map(move |entry| Some((entry, self.device(entry)?)))
            .flat_map(move |(entry, device)| {
                let behind = (self.bridges)(device).map(|buses| {
                    let (first, last) = (u16::from(buses.first) << 8, u16::from(buses.last) << 8 | 0xff);
                    Scope::Devices { first: DeviceId(first), last: DeviceId(last), alias: None }
                });
                let one = Scope::Devices { first: device, last: device, alias: None };
                let number = entry.get(4).copied().unwrap_or(0);
                match entry.first() {
                    Some(1) => [Some(one), None],
                    Some(2) => [Some(one), behind],
                    Some(3) => [Some(Scope::IoApic { device, number }), None],
                    Some(4) => [Some(Scope::Hpet { device }), None],
                    // Devices of ACPI without PCI, and what is unknown.
                    _ => [None, None],
                }
            })
            .flatten()
    }

    /// The function at the end of an entry's way: `None` if a bridge on it is none.
    fn device(self, entry: &[u8]) -> Option<DeviceId> {
        let mut bus = *entry.get(5)?;
        let mut steps = entry.get(6..)?.chunks_exact(2).peekable();
        loop {
            let &[device, function] = steps.next()? else { return None };
            let at = DeviceId(u16::from(bus) << 8 | u16::from(device & 31) << 3 | u16::from(function & 7));
            if steps.peek().is_none() {
                return Some(at);
            }
            bus = (self.bridges)(at)?.first;
        }
    }
}

impl<'a> Unit<'a> {
    /// The devices behind it. One that has all others has those of no other IOMMU, whether or not
    /// that is used.
    pub fn scopes(self) -> impl Iterator<Item = Scope> + 'a {
        let all = Scope::Devices { first: DeviceId(0), last: DeviceId(u16::MAX), alias: None };
        let others = self.dmar.units().filter(move |_| self.has_others).filter(|unit| !unit.has_others);
        let elsewhere = others.flat_map(|unit| self::Dmar::scopes(unit.dmar, unit.entries));
        let elsewhere = elsewhere.filter_map(Scope::range);
        self.has_others
            .then_some(all)
            .into_iter()
            .chain(elsewhere.map(|(first, last)| Scope::Elsewhere { first, last }))
            .chain(self.dmar.scopes(self.entries))
    }
}

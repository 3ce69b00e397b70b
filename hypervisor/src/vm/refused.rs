//! Why a guest does not get a function of the machine.

use core::fmt;

use pci::Address;

/// Functions that one guest may own.
pub const FUNCTIONS_MAX: usize = 8;

/// Why a guest does not get a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The machine has no PCI that the hypervisor can use.
    NoPci,
    /// No function has this address, or is of this kind.
    Unknown(&'static str),
    /// It is a bridge, an IOMMU, or the hypervisor's own.
    NotForGuests(Address),
    /// It is behind no IOMMU, so it would reach all memory.
    NoIommu(Address),
    /// Another guest owns it.
    Taken(Address),
    /// It did not answer after its last guest's reset.
    Lost(Address),
    /// It was asked for twice.
    Twice(Address),
    /// It interrupts by the same line as the second one, which another guest or the hypervisor has.
    Line(Address, Address),
    /// Its interrupt pin is wired to nothing that is known.
    NoLine(Address),
    /// The second one is in its group, and was not asked for.
    Group(Address, Address),
    /// Requests of both arrive under one id: of the bridge above them, or an alias.
    SameId(Address, Address),
    /// Firmware wants memory mapped for it, at the machine's own addresses.
    Firmware(Address),
    /// There is no way to reset it.
    NoReset(Address),
    /// Firmware has given no address to its registers.
    NoRegisters(Address),
    /// More functions than a guest may own.
    TooMany,
    /// All domains are in use.
    NoDomain,
    /// Its interrupts would reach none of the guest's CPUs.
    NoCpu,
    /// Settings for tests would take away translations that a device needs.
    Switches,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPci => f.write_str("devices: the machine has no PCI bus and IOMMU that are used"),
            Self::Unknown(name) => {
                write!(f, "devices: there is no '{name}': the log lists the machine's functions")
            }
            Self::NotForGuests(at) => {
                write!(f, "devices: {at} is a bridge, an IOMMU or the hypervisor's own")
            }
            Self::NoIommu(at) => {
                write!(f, "devices: {at} is behind no IOMMU: it would reach all of the machine's memory")
            }
            Self::Taken(at) => write!(f, "devices: another guest owns {at}"),
            Self::Lost(at) => write!(f, "devices: {at} does not answer since its last guest has gone"),
            Self::Twice(at) => write!(f, "devices: {at} is named twice"),
            Self::Group(at, other) => {
                write!(f, "devices: {at} is given only together with {other}: they reach each other")
            }
            Self::SameId(at, other) => {
                write!(f, "devices: the IOMMU cannot tell {at} from {other}: they have one id")
            }
            Self::Line(at, other) => {
                write!(f, "devices: {at} shares its interrupt line with {other}, which is not the guest's")
            }
            Self::NoLine(at) => write!(f, "devices: {at} has no interrupt line that is known"),
            Self::Firmware(at) => write!(f, "devices: firmware goes on using {at} with memory of its own"),
            Self::NoReset(at) => write!(f, "devices: {at} cannot be reset, so it is given to nobody"),
            Self::NoRegisters(at) => write!(f, "devices: firmware has given {at} no place in memory"),
            Self::TooMany => write!(f, "devices: a guest owns at most {FUNCTIONS_MAX} functions"),
            Self::NoDomain => f.write_str("devices: too many guests with devices"),
            Self::NoCpu => f.write_str("devices: no CPU of the guest's has an APIC id below 255"),
            Self::Switches => f.write_str("devices: not with zap=everything or stage2_unmap=page"),
        }
    }
}

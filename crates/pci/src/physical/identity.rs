//! What a function is.

use crate::config::{Address, ConfigSpace, register};
use pci_types::device_type::DeviceType;

/// The vendor of virtio devices (virtio, 4.1.2).
const VIRTIO: u16 = 0x1af4;

/// The layout of a function's header (PCI, 6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// An ordinary function.
    Endpoint,
    /// A bridge to another bus.
    Bridge,
    /// CardBus, or unknown.
    Other(u8),
}

/// What a function is (PCI, 6.2.1 and 6.2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Vendor.
    pub vendor: u16,
    /// The vendor's number of the device.
    pub device: u16,
    /// Class, subclass and programming interface, 24 bits: 0x010802 is NVMe.
    pub class: u32,
    /// The vendor's revision.
    pub revision: u8,
    /// Vendor of the subsystem; 0 for a bridge.
    pub subsystem_vendor: u16,
    /// Its number of the subsystem; 0 for a bridge.
    pub subsystem: u16,
    /// Layout of the header.
    pub header: Header,
    /// Whether its device has several functions, or may have.
    pub is_multi_function: bool,
}

impl Identity {
    /// Reads the identity of the function at `address`; `None` if there is none.
    ///
    /// A vendor of all ones is none (PCI, 6.1). So is a vendor of 1, by which a root port says that
    /// the device is not ready (PCIe, 2.3.2).
    pub fn read(space: &impl ConfigSpace, address: Address) -> Option<Self> {
        let id = space.read(address, register::ID);
        if !is_ready(id) {
            return None;
        }
        let class = space.read(address, register::CLASS);
        let layout = space.read(address, register::HEADER).to_le_bytes()[2];
        let header = match layout & 0x7f {
            0 => Header::Endpoint,
            1 => Header::Bridge,
            other => Header::Other(other),
        };
        let subsystem = match header {
            Header::Endpoint => space.read(address, register::SUBSYSTEM),
            _ => 0,
        };
        Some(Self {
            vendor: id as u16,
            device: (id >> 16) as u16,
            class: class >> 8,
            revision: class as u8,
            subsystem_vendor: subsystem as u16,
            subsystem: (subsystem >> 16) as u16,
            header,
            is_multi_function: layout & 0x80 != 0 || address.function() != 0,
        })
    }

    /// Vendor and device, as the first double word of configuration space has them.
    pub const fn id(&self) -> u32 {
        self.vendor as u32 | (self.device as u32) << 16
    }

    /// Whether it is a bridge of any kind: by its header, or a host or ISA bridge by its class.
    pub fn is_bridge(&self) -> bool {
        const BRIDGE: u32 = 6;
        self.header == Header::Bridge || self.class >> 16 == BRIDGE
    }

    /// The kind of the function, for people: "nvme", "virtio-net", "bridge".
    pub fn kind(&self) -> &'static str {
        if self.vendor == VIRTIO && (0x1000..0x1080).contains(&self.device) {
            return self.virtio();
        }
        let [interface, subclass, class, _] = self.class.to_le_bytes();
        match DeviceType::from((class, subclass)) {
            DeviceType::NvmeController => "nvme",
            DeviceType::SataController => "sata",
            DeviceType::IdeController => "ide",
            DeviceType::RaidController => "raid",
            DeviceType::ScsiBusController | DeviceType::SasController => "scsi",
            DeviceType::EthernetController => "ethernet",
            DeviceType::HostBridge => "host bridge",
            DeviceType::IsaBridge => "isa bridge",
            DeviceType::PciPciBridge | DeviceType::SemiTransparentPciPciBridge => "bridge",
            DeviceType::VgaCompatibleController
            | DeviceType::XgaController
            | DeviceType::ThreeDController
            | DeviceType::OtherDisplayController => "display",
            DeviceType::AudioDevice => "audio",
            DeviceType::SerialController => "serial",
            DeviceType::SmBusController => "smbus",
            DeviceType::UsbController if interface == 0x30 => "xhci",
            DeviceType::UsbController => "usb",
            _ => of_class(class),
        }
    }

    /// The kind of a virtio device. A modern one has the type in its device id; a transitional one
    /// has it in the subsystem's (virtio, 4.1.2.1 and 4.1.2.3).
    fn virtio(&self) -> &'static str {
        let kind = if self.device >= 0x1040 { self.device - 0x1040 } else { self.subsystem };
        match kind {
            1 => "virtio-net",
            2 => "virtio-blk",
            3 => "virtio-console",
            4 => "virtio-rng",
            5 => "virtio-balloon",
            8 => "virtio-scsi",
            9 => "virtio-9p",
            16 => "virtio-gpu",
            18 => "virtio-input",
            19 => "virtio-vsock",
            23 => "virtio-iommu",
            26 => "virtio-fs",
            _ => "virtio",
        }
    }
}

/// The kind by the class alone.
const fn of_class(class: u8) -> &'static str {
    match class {
        0x01 => "storage",
        0x02 => "network",
        0x03 => "display",
        0x04 => "multimedia",
        0x05 => "memory",
        0x06 => "bridge",
        0x07 => "communication",
        0x08 => "system",
        0x09 => "input",
        0x0c => "serial bus",
        0x0d => "wireless",
        0x12 => "accelerator",
        _ => "unknown",
    }
}

/// Whether this is the first double word of a function that answers.
const fn is_ready(id: u32) -> bool {
    let vendor = id as u16;
    vendor != 0xffff && vendor != 0x0001 && vendor != 0
}

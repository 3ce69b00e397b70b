//! The contents of the boot module, and the reasons why no machine can be made from it.

use alloc::vec::Vec;
use core::fmt;
use hostlink::bundle::{BundleError, GuestFiles, Reader};
use hostlink::config::{Config, Console, ForeignSwitch};
use hostlink::defect::Defect;
use hostlink::name::Name;
use tar_no_std::TarArchiveRef;

use super::refused::Refused;
use crate::loader::LoadError;

/// The contents of the bundle.
pub struct Bundle {
    /// The configuration of the machine.
    pub config: Config<'static>,
    /// The hypervisor's own symbols, for backtraces.
    pub symbols: Option<&'static [u8]>,
    /// The guests, by number.
    pub guests: Vec<Files>,
}

/// A guest's files.
#[derive(Clone, Copy)]
pub struct Files {
    /// Its kernel.
    pub kernel: &'static [u8],
    /// Its initial RAM disk.
    pub initrd: Option<&'static [u8]>,
    /// Its configuration.
    pub config: Config<'static>,
}

/// Why no machine was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateError {
    /// The bundle is no tar archive.
    NotABundle,
    /// The bundle is wrong.
    Bundle(BundleError<'static>),
    /// The guest's files cannot be loaded.
    Load(LoadError),
    /// The machine lacks the requested memory (first value); the second is its free memory.
    NoMemory(u64, u64),
    /// There is no memory for nested page tables, or not enough for a root.
    NoTables,
    /// None of the CPUs that this guest may use runs vCPUs.
    NoCpuFor(Name),
    /// The heap is too small for one more guest.
    NoHeap,
    /// There is no memory for the trace rings.
    NoTrace,
    /// The boot CPU is to run no vCPUs, and it is the only one.
    NoCpu,
    /// The processor is too slow for a reference clock.
    Clock,
    /// There are more CPUs than VMIDs.
    Vmids,
    /// Defects are not built in.
    NoDefects,
    /// The configuration pretends features, and this image has no auditor.
    NoAuditor,
    /// Guests have guests by SVM only.
    NestedOnIntel,
    /// The defect belongs to another architecture.
    ForeignDefect(Defect),
    /// The switch belongs to another architecture.
    ForeignSwitch(ForeignSwitch),
    /// The guest does not get a device.
    Devices(Refused),
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotABundle => f.write_str("the boot module is no tar archive"),
            Self::Bundle(error) => write!(f, "{error}"),
            Self::Load(error) => write!(f, "{error}"),
            Self::NoMemory(size, free) => write!(
                f,
                "no {} MiB of free memory for the guest, only {}: give the machine more, or the guest less",
                size >> 20,
                free >> 20
            ),
            Self::NoTables => f.write_str("no memory is left for nested page tables: give the machine more"),
            Self::NoCpuFor(name) => write!(f, "none of the CPUs that guest '{name}' may use runs vCPUs"),
            Self::NoHeap => f.write_str(
                "the hypervisor's own memory is too small for one more guest: give the machine more memory",
            ),
            Self::NoTrace => f.write_str("no memory is left for the trace: give the machine more"),
            Self::NoCpu => f.write_str("boot_cpu=serve needs a second CPU to run the guest"),
            Self::Vmids => f.write_str("vmid_bits: each CPU may hold a VMID, and there must be one more"),
            Self::Clock => f.write_str("the processor's clock is too slow for the guest's reference clock"),
            Self::NoDefects => f.write_str("this image has no defects: it was built without that feature"),
            Self::NestedOnIntel => f.write_str("nested: on AMD64 only, a guest on Intel 64 has no VMX"),
            Self::NoAuditor => {
                f.write_str("this image has no auditor: only one that was built with it pretends features")
            }
            Self::ForeignSwitch(foreign) => write!(f, "{foreign}"),
            Self::Devices(refused) => write!(f, "{refused}"),
            Self::ForeignDefect(defect) => {
                let (name, whose) = (defect.name(), defect.architectures());
                write!(f, "the defect {name} is one of {whose} alone: leave it out here")
            }
        }
    }
}

impl Files {
    /// The files of one guest of a bundle.
    ///
    /// # Errors
    ///
    /// There is no such guest.
    fn of_guest(
        reader: &Reader<'static, impl Fn(&str) -> Option<&'static [u8]>>,
        number: u32,
    ) -> Result<Self, CreateError> {
        let GuestFiles { config, kernel, initrd } = reader.guest(number).map_err(CreateError::Bundle)?;
        Ok(Self { kernel, initrd, config })
    }
}

impl Bundle {
    /// Whether the machine's serial ports are the only guest's. Otherwise consoles are rings.
    pub fn console_is_the_machines(&self) -> bool {
        self.config.console == Console::Machine
    }

    /// Whether the host tool sees the guests' entries, with their names and the time that they had.
    pub fn lists_guests(&self) -> bool {
        !self.console_is_the_machines()
    }

    /// Finds the members of the bundle.
    ///
    /// # Errors
    ///
    /// What is wrong with the bundle.
    pub fn read(bytes: &'static [u8]) -> Result<Self, CreateError> {
        let archive = TarArchiveRef::new(bytes).map_err(|_| CreateError::NotABundle)?;
        let member = |name: &str| {
            let mut entries = archive.entries();
            entries.find(|entry| entry.filename().as_str() == Ok(name)).map(|entry| entry.data())
        };
        Self::of(&Reader::new(member).map_err(CreateError::Bundle)?)
    }

    /// What these members are.
    ///
    /// # Errors
    ///
    /// What is wrong with the bundle.
    pub(super) fn of(
        reader: &Reader<'static, impl Fn(&str) -> Option<&'static [u8]>>,
    ) -> Result<Self, CreateError> {
        Ok(Self {
            config: *reader.machine(),
            symbols: reader.symbols(),
            guests: (0..reader.guest_count())
                .map(|number| Files::of_guest(reader, number))
                .collect::<Result<_, _>>()?,
        })
    }
}

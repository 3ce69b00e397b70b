//! Checks of the guests of a machine file beside each other.

use super::fields::refuse;
use super::{MachineFile, Software};
use crate::consoles::logs;
use crate::machine::bundle::{memory_around, memory_for_guests};
use crate::machine::log_file::older;
use crate::prelude::*;
use hostlink::config::{Console, MAX_GUESTS, MAX_TOTAL_VCPUS};
use hostlink::guests::CONSOLES;
use std::path::Component;

/// The stock kernel and RAM disk together, about: they may not have been fetched yet.
const STOCK_BYTES: u64 = 48 * MIB;

pub(super) const HYPERVISOR_LOG: &str = "hypervisor.log";

impl MachineFile {
    /// Everything that concerns more than one guest.
    pub(super) fn check(&self) -> Result<()> {
        self.check_counts()?;
        self.check_names()?;
        self.check_files()?;
        self.check_memory(self.bundle_estimate())
    }

    fn check_counts(&self) -> Result<()> {
        if let Some(guest) = self.guests.get(MAX_GUESTS as usize) {
            let (number, count) = (MAX_GUESTS + 1, self.guests.len());
            refuse!(
                self.source,
                guest.line,
                "this is guest {number} of {count}; at most {MAX_GUESTS} are possible"
            );
        }
        let mut vcpus = 0;
        for guest in &self.guests {
            let before = vcpus;
            vcpus += guest.config.vcpus;
            if vcpus > MAX_TOTAL_VCPUS {
                let (name, vcpus, left) = (guest.name(), guest.config.vcpus, MAX_TOTAL_VCPUS - before);
                refuse!(
                    self.source,
                    guest.line,
                    "{name} has {vcpus} vCPUs, but all guests together have {MAX_TOTAL_VCPUS} at most; \
                     give it {left}, or give the guests before it fewer"
                );
            }
        }
        Ok(())
    }

    fn check_names(&self) -> Result<()> {
        let mut seen = BTreeMap::new();
        for guest in &self.guests {
            if let Some(first) = seen.insert(guest.name(), guest.line) {
                let name = guest.name();
                let why = format!("the guest in line {first} is called '{name}' as well");
                refuse!(self.source, guest.line, "{why}; give this one another name");
            }
        }
        Ok(())
    }

    /// A file that is written is for one guest, and is not read.
    fn check_files(&self) -> Result<()> {
        let mut taken = BTreeMap::from([
            (plain(self.source.path()), "this machine file".to_owned()),
            (plain(&self.hypervisor_log()), "the hypervisor's log".to_owned()),
            (plain(&older(&self.hypervisor_log())), "the older part of the hypervisor's log".to_owned()),
        ]);
        for guest in &self.guests {
            if let Software::Kernel(kernel) = &guest.software {
                taken.insert(plain(kernel), format!("the kernel of {}", guest.name()));
            }
            if let Some(saved) = guest.arrival.restore() {
                taken.insert(plain(saved), format!("the file that {} is restored from", guest.name()));
            }
            if let Some(initrd) = &guest.initrd {
                taken.insert(plain(initrd), format!("the initrd of {}", guest.name()));
            }
        }
        for guest in &self.guests {
            for disk in &guest.devices.disks {
                let claim = format!("a disk of {}", guest.name());
                if let Some(other) = taken.insert(plain(disk), claim) {
                    let (disk, name) = (disk.display(), guest.name());
                    refuse!(
                        self.source,
                        guest.line,
                        "the disk {disk} of {name} is {other}; write another file"
                    );
                }
            }
        }
        let all = self.guests.iter().flat_map(|guest| (0..CONSOLES).map(move |port| (guest, port)));
        for (guest, port) in all {
            let path = &logs::path(&guest.console.value, port);
            let which = if port == 0 { "" } else { " on its second serial port" };
            let claim = format!("the console of {}{which}", guest.name());
            let older = taken.insert(plain(&older(path)), format!("the older part of {claim}"));
            if let Some(other) = taken.insert(plain(path), claim).or(older) {
                let (name, path) = (guest.name(), path.display());
                refuse!(
                    self.source,
                    guest.console.line,
                    "the console of {name} would be written to {path}, which is {other}; \
                     write for example console = \"{name}-console.log\""
                );
            }
        }
        Ok(())
    }

    /// The machine has to have memory for its guests, the hypervisor, and a bundle of this size.
    pub(crate) fn check_memory(&self, bundle_bytes: u64) -> Result<()> {
        let Some(memory) = self.machine.memory else { return Ok(()) };
        let needed = self.memory_needed(bundle_bytes);
        if memory.value < needed {
            let guests: u64 = self.guests.iter().map(|guest| guest.config.memory).sum();
            let [has, guests, more] = [memory.value, guests, needed - guests].map(size::display);
            refuse!(
                self.source,
                memory.line,
                "the machine has {has}, but its guests have {guests} and the hypervisor needs {more} more; \
                 write memory = \"{}M\", or leave it out",
                needed / MIB
            );
        }
        Ok(())
    }

    pub(crate) fn memory_needed(&self, bundle_bytes: u64) -> u64 {
        let guests: u64 = self.guests.iter().map(|guest| guest.config.memory).sum();
        let vcpus = self.guests.iter().map(|guest| guest.config.vcpus).sum();
        match self.machine.console {
            // No consoles' rings, and all of the state fits into what is around the guest.
            Console::Machine => memory_around(guests, bundle_bytes),
            Console::Rings => memory_for_guests(guests, self.guests.len() as u64, vcpus, bundle_bytes),
        }
    }

    /// The size that the bundle will have, about. Each file is in it once.
    pub(crate) fn bundle_estimate(&self) -> u64 {
        let mut files = BTreeSet::new();
        let (mut bytes, mut has_stock) = (0, false);
        for guest in &self.guests {
            match &guest.software {
                Software::Kernel(kernel) => drop(files.insert(kernel)),
                Software::Stock if !has_stock => (has_stock, bytes) = (true, bytes + STOCK_BYTES),
                _ => {}
            }
            files.extend(&guest.initrd);
            bytes += guest.arrival.restore.as_ref().map_or(0, |(_, guest)| guest.files());
        }
        let size = |path: &&PathBuf| fs::metadata(path).map_or(0, |data| data.len());
        bytes + files.iter().map(size).sum::<u64>()
    }
}

/// A path without links, `.` and `..`, to be compared. The file need not exist.
fn plain(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut plain = PathBuf::new();
    for component in absolute.components() {
        match component {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    let (Some(directory), Some(name)) = (plain.parent(), plain.file_name()) else { return plain };
    if let Ok(real) = fs::canonicalize(&plain) {
        return real;
    }
    fs::canonicalize(directory).map_or_else(|_| plain.clone(), |directory| directory.join(name))
}

//! The steps for SMMUv3: devices translate by stage 1, by tables of their own ([`mirror`]). A
//! machine's domain is their ASID, and the number of its context descriptor. A device's stream has
//! its number.
//!
//! Source: Arm System Memory Management Unit Architecture Specification, version 3 (IHI 0070), as
//! in [`::iommu::smmu`].
//!
//! ```text
//! attach   descriptor := the tables   CFGI_CD, SYNC; what this stream has read before, too
//!          entry := the descriptor    CFGI_STE, SYNC
//! detach   entries := abort           CFGI_STE, SYNC: no walk begins any more
//!          descriptor := invalid      CFGI_CD, SYNC
//!          everything of the ASID     TLBI, SYNC: nothing is kept
//! ```
//!
//! [`mirror`]: super::mirror

use ::iommu::smmu::change::{Step, Words};
use ::iommu::smmu::command::{Depth, cfgi_cd, cfgi_ste, tlbi_nh_asid};
use ::iommu::smmu::{Asid, ContextDescriptor, Setup, Stale, StreamEntry, StreamId, plan};
use ::iommu::{Command, DeviceId, DomainId, Entry, Port, Queue, Stuck};
use paging::{FlushRange, Invalidation, Level};

use super::{Begun, Domain};
use crate::{Mistake, Mistakes};

/// One of the structures in memory that the SMMU reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Structure {
    /// The entry of a stream.
    Entry(StreamId),
    /// The context descriptor of a domain.
    Descriptor(DomainId),
}

/// Access to them. Those that do not exist read as 0, and are not written.
pub trait Structures {
    /// Reads one.
    fn load(&self, of: Structure) -> Words;
    /// Writes one word. What is written before a command is given is found by the SMMU.
    fn store(&self, of: Structure, word: usize, value: u64);
}

/// An SMMU: its command queue and its structures.
#[derive(Debug)]
pub struct Smmu<'a, P, E, S> {
    /// The queue.
    pub queue: &'a Queue<P, E>,
    /// The structures.
    pub structures: &'a S,
}

impl<P: Port + Mistakes, E: AsRef<[Entry]>, S: Structures> Smmu<'_, P, E, S> {
    /// A device gets to translate by the tables of `descriptor`, to which `entry` leads. What was
    /// kept of an earlier domain of this number was dropped by [`detach`](Self::detach).
    ///
    /// # Errors
    /// [`Stuck`] if the SMMU does not go on. It may go by either entry then.
    pub fn attach(
        &self,
        device: DeviceId,
        domain: DomainId,
        (entry, descriptor): (StreamEntry, ContextDescriptor),
    ) -> Result<(), Stuck> {
        let stream = stream(device);
        self.set_descriptor(domain, stream, descriptor)?;
        // One that this stream has read before, even if it is the same.
        self.tell([cfgi_cd(stream)])?;
        self.set_entry(stream, entry)
    }

    /// The devices of a domain reach nothing any more, and nothing is kept of it.
    ///
    /// # Errors
    /// [`Stuck`] if the SMMU does not go on. Neither tables nor domain may be given away then.
    pub fn detach(&self, domain: &Domain<'_>) -> Result<(), Stuck> {
        let mistakes = self.queue.port();
        let streams = || domain.devices.iter().map(|device| stream(device.id));
        let is_early = mistakes.makes(Mistake::DomainDroppedEarly);
        if is_early {
            self.tell([tlbi_nh_asid(asid(domain.id))])?;
        }
        for stream in streams() {
            self.set_entry(stream, StreamEntry::ABORT)?;
        }
        for stream in streams() {
            self.set_descriptor(domain.id, stream, ContextDescriptor::INVALID)?;
            if !mistakes.makes(Mistake::DeviceEntryKept) {
                self.tell([cfgi_cd(stream)])?;
            }
        }
        if is_early || mistakes.makes(Mistake::DomainKept) {
            return Ok(());
        }
        self.tell([tlbi_nh_asid(asid(domain.id))])
    }

    /// Gives commands, and waits for them.
    fn tell(&self, commands: impl IntoIterator<Item = Command>) -> Result<(), Stuck> {
        self.queue.wait(self.queue.issue(commands)?)
    }

    fn set_entry(&self, stream: StreamId, new: StreamEntry) -> Result<(), Stuck> {
        let of = Structure::Entry(stream);
        let old = StreamEntry(self.structures.load(of));
        self.change(of, old.change_to(new), cfgi_ste(stream, Depth::Leaf))
    }

    /// Puts in the context descriptor of a domain, of which this stream is one.
    fn set_descriptor(
        &self,
        domain: DomainId,
        stream: StreamId,
        new: ContextDescriptor,
    ) -> Result<(), Stuck> {
        let of = Structure::Descriptor(domain);
        let old = ContextDescriptor(self.structures.load(of));
        self.change(of, old.change_to(new), cfgi_cd(stream))
    }

    fn change(&self, of: Structure, steps: impl Iterator<Item = Step>, tell: Command) -> Result<(), Stuck> {
        for step in steps {
            step.writes().for_each(|(word, value)| self.structures.store(of, word, value));
            if !self.queue.port().makes(Mistake::DeviceEntryKept) {
                self.tell([tell])?;
            }
        }
        Ok(())
    }
}

/// Gives the SMMU the commands to drop what `invalidation` names. The tables have been changed
/// before.
///
/// # Errors
/// [`Stuck`] if it takes no more commands. Nothing may be freed then.
pub fn begin<P: Port + Mistakes, E: AsRef<[Entry]>>(
    queue: &Queue<P, E>,
    setup: &Setup,
    domain: DomainId,
    invalidation: Invalidation<'_>,
) -> Result<Begun, Stuck> {
    let mistakes = queue.port();
    let domain = if mistakes.makes(Mistake::WrongDomain) { DomainId(domain.0 + 1) } else { domain };
    let left_out = if mistakes.makes(Mistake::DmaPageLeftOut) { Level::Page4K.size() } else { 0 };
    let stale = |range: &FlushRange| Stale {
        start: range.start,
        len: range.len - left_out,
        leaf: None,
        tables: range.tables,
    };
    let ticket = match invalidation {
        Invalidation::Nothing => return Ok(Begun::NOTHING),
        Invalidation::Everything => queue.issue([tlbi_nh_asid(asid(domain))])?,
        Invalidation::Ranges(ranges) => queue.issue(plan(setup, asid(domain), ranges.iter().map(stale)))?,
    };
    Ok(Begun::with(ticket))
}

/// The stream of a device.
pub const fn stream(DeviceId(id): DeviceId) -> StreamId {
    StreamId(id as u32)
}

/// What everything that a domain's devices may have kept is tagged with.
const fn asid(DomainId(domain): DomainId) -> Asid {
    Asid(domain)
}

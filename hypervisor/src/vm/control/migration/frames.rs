//! The hypervisor's end of a channel to the host tool: whole frames, in memory of its own.

use alloc::boxed::Box;
use core::marker::PhantomData;
use core::ptr;

use memslots::{Gpa, GuestMemory};
use migration::channel::{Broken, DATA, End, Sizes};
use migration::frame::{BODY_MAX, HEADER, Header, Kind, PAGE, padded};
use migration::handover::Message;
use migration::{Archive, Flaw};
use zerocopy::{FromBytes, IntoBytes};

use super::super::refusal::Refusal;
use crate::vm::Host;
use crate::vm::arch::Arch;

/// Pages that a frame has at most.
pub(super) const PAGES_MAX: u64 = (BODY_MAX / PAGE) as u64;

/// A channel.
pub(super) struct FrameChannel<A> {
    at: u64,
    sizes: Sizes,
    end: End<'static>,
    /// For a state that is being written or read.
    scratch: Box<[u8]>,
    /// Frames that were put.
    pub(super) frames: u64,
    arch: PhantomData<fn() -> A>,
}

impl<A: Arch> FrameChannel<A> {
    /// Takes memory for a channel.
    pub(super) fn take(host: &Host<A>, sizes: Sizes) -> Result<Self, Refusal> {
        let (at, largest) = {
            let mut free = host.free.lock();
            (free.take(sizes.total(), PAGE as u64, u64::MAX), free.largest())
        };
        let at = at.ok_or(Refusal::NoMemory { size: sizes.total(), largest })?;
        // SAFETY: the memory was just taken from the free RAM, which is mapped and in no other use,
        // and is aligned to a page.
        unsafe { A::zero(at, DATA) };
        let memory = ptr::with_exposed_provenance_mut(at as usize);
        // SAFETY: mapped one to one, its counts are zero, and it has no other user but the tool
        // until `give_back`.
        let end = unsafe { End::of_hypervisor(memory, sizes) };
        let scratch = alloc::vec![0; BODY_MAX].into_boxed_slice();
        Ok(Self { at, sizes, end, scratch, frames: 0, arch: PhantomData })
    }

    /// Frees the memory. The tool does not use it any more.
    pub(super) fn give_back(&mut self, host: &Host<A>) {
        host.free.lock().add(self.at..self.at + self.sizes.total());
    }

    /// Physical address of the channel.
    pub(super) const fn place(&self) -> u64 {
        self.at
    }

    /// Shows the tool the machine's clock.
    pub(super) fn show_clock(&self) {
        self.end.show_clock(A::now());
    }

    /// Whether there is room for any frame.
    pub(super) fn has_room(&self) -> Result<bool, Broken> {
        Ok(self.end.room()? >= HEADER + BODY_MAX)
    }

    /// Puts a frame for which there is room.
    pub(super) fn put(&mut self, kind: Kind, argument: u64, body: &[u8]) -> Result<(), Broken> {
        let header = Header::new(kind, argument, body.len() as u32);
        self.end.write_all(HEADER, body)?;
        self.publish(header)
    }

    /// Puts a frame with what `describe` writes.
    pub(super) fn put_state(
        &mut self,
        kind: Kind,
        argument: u64,
        describe: impl FnOnce(&mut Archive<'_>) -> Result<(), Flaw>,
    ) -> Result<(), Refusal> {
        let mut scratch = core::mem::take(&mut self.scratch);
        let mut archive = Archive::writer(&mut scratch);
        let written = describe(&mut archive).and_then(|()| archive.finish());
        let put = written
            .map_err(Refusal::Moves)
            .and_then(|len| Ok(self.put(kind, argument, scratch.get(..len).unwrap_or(&[]))?));
        self.scratch = scratch;
        put
    }

    /// Says something to the other side.
    pub(super) fn say(&mut self, what: Message) -> Result<(), Broken> {
        let kind = match what {
            Message::Ready => Kind::Ready,
            Message::Go => Kind::Go,
            Message::Runs => Kind::Runs,
            Message::Absent => Kind::Absent,
            Message::Cut => Kind::Cut,
        };
        self.put(kind, 0, &[])
    }

    /// Puts a frame with the first of `pages` pages at `gpa`: those up to the first one of zeros,
    /// or those of zeros. There is room. Returns how many, and whether they are zero.
    pub(super) fn put_pages(
        &mut self,
        memory: &GuestMemory<'_>,
        gpa: u64,
        pages: u64,
    ) -> Result<(u64, bool), Broken> {
        // If the slot has been removed meanwhile, the guest finds nothing there either.
        let at = |page: u64, offset: usize, len: usize| {
            memory.locate(Gpa(gpa + page * PAGE as u64 + offset as u64), len).ok()
        };
        let is_zero = |page| at(page, 0, PAGE).and_then(|page| memory.is_zero(&page)).unwrap_or(true);
        let (zeros, mut count) = (is_zero(0), 0);
        while count < pages.min(PAGES_MAX) && (count == 0 || is_zero(count) == zeros) {
            if !zeros {
                let mut done = 0;
                self.end.write(HEADER + count as usize * PAGE, PAGE, |piece| {
                    // It was there, and the slots are pinned.
                    let _ = at(count, done, piece.len()).map(|from| memory.copy(&from, piece));
                    done += piece.len();
                })?;
            }
            count += 1;
        }
        let (kind, len) = if zeros { (Kind::Zeros, count) } else { (Kind::Pages, count * PAGE as u64) };
        self.publish(Header::new(kind, gpa, len as u32))?;
        Ok((count, zeros))
    }

    fn publish(&mut self, header: Header) -> Result<(), Broken> {
        self.end.write_all(0, header.as_bytes())?;
        self.end.publish(HEADER + header.body());
        self.frames += 1;
        Ok(())
    }

    /// The next frame, if it is there as a whole.
    pub(super) fn next(&self) -> Result<Option<(Header, Kind)>, Refusal> {
        if self.end.filled()? < HEADER {
            return Ok(None);
        }
        let mut bytes = [0; HEADER];
        self.end.read_all(0, &mut bytes)?;
        let header = Header::read_from_bytes(&bytes).map_err(|_| Flaw::Short)?;
        let kind = header.kind()?;
        Ok((self.end.filled()? >= HEADER + header.body()).then_some((header, kind)))
    }

    /// Lets `see` have what follows the next frame's header, in pieces.
    pub(super) fn body(&self, header: Header, see: impl FnMut(&[u8])) -> Result<(), Refusal> {
        Ok(self.end.read(HEADER, header.len(), see)?)
    }

    /// Reads what follows the next frame's header by a description.
    pub(super) fn read_state(
        &mut self,
        header: Header,
        describe: impl FnOnce(&mut Archive<'_>) -> Result<(), Flaw>,
    ) -> Result<(), Refusal> {
        let state = self.scratch.get_mut(..header.len()).ok_or(Flaw::Short)?;
        self.end.read_all(HEADER, state)?;
        let mut archive = Archive::reader(state);
        describe(&mut archive)?;
        archive.finish()?;
        Ok(())
    }

    /// The next frame is done with.
    pub(super) fn done(&mut self, header: Header) {
        self.end.take(HEADER + header.body());
    }
}

const _: () = assert!(padded(BODY_MAX) == BODY_MAX);

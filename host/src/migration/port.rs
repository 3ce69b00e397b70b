//! The tool's end of a channel, and the request in whose course it exists.

use super::place::LOOK_PERIOD;
use crate::machine::control::Control;
use crate::prelude::*;
use hostlink::ctl::Request;
use hostlink::ctl::record::{Channel, Record};
use migration::channel::{Broken, End, Sizes};
use migration::frame::{HEADER, Header, Kind};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use zerocopy::{FromBytes, IntoBytes};

/// How long is waited before the channel is looked at again.
pub(super) const PAUSE: Duration = Duration::from_micros(50);
/// For so long the hypervisor may read nothing before it is given up.
const DEAF_MAX: Duration = Duration::from_secs(10);

/// A header and what follows it, with its padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) header: Header,
    pub(super) kind: Kind,
    pub(super) body: Vec<u8>,
}

impl Frame {
    pub(super) fn new(kind: Kind, argument: u64, body: &[u8]) -> Self {
        let header = Header::new(kind, argument, u32::try_from(body.len()).unwrap_or(u32::MAX));
        let mut body = body.to_vec();
        body.resize(header.body(), 0);
        Self { header, kind, body }
    }

    pub(super) fn bare(kind: Kind) -> Self {
        Self::new(kind, 0, &[])
    }

    fn head(bytes: &[u8; HEADER]) -> Result<(Header, Kind)> {
        let header = Header::read_from_bytes(bytes).map_err(|_| anyhow!("a frame without a header"))?;
        let kind = header.kind().map_err(|flaw| anyhow!("{flaw}"))?;
        Ok((header, kind))
    }

    /// All frames of a block, which ends with the last one.
    pub(super) fn of_block(mut bytes: &[u8]) -> Result<Vec<Self>> {
        let mut frames = Vec::new();
        while !bytes.is_empty() {
            let (head, rest) = bytes.split_first_chunk().context("a frame is shorter than its header")?;
            let (header, kind) = Self::head(head)?;
            let (body, rest) =
                rest.split_at_checked(header.body()).context("a frame is longer than its block")?;
            frames.push(Self { header, kind, body: body.to_vec() });
            bytes = rest;
        }
        Ok(frames)
    }

    pub(super) fn write_to(&self, block: &mut Vec<u8>) {
        block.extend_from_slice(self.header.as_bytes());
        block.extend_from_slice(&self.body);
    }

    pub(super) fn bytes(&self) -> usize {
        HEADER + self.body.len()
    }

    /// What it has, without padding.
    pub(super) fn content(&self) -> &[u8] {
        self.body.get(..self.header.len()).unwrap_or_default()
    }

    /// What it says, if it has text.
    pub(super) fn text(&self) -> String {
        foreign(&String::from_utf8_lossy(self.content()))
    }
}

/// The tool's end of a channel in a machine's memory. When it is dropped, the channel is cut: the
/// hypervisor may then free the memory.
pub(crate) struct Port {
    end: End<'static>,
    /// It has the channel.
    _ram: Arc<Ram>,
}

fn broken(_: Broken) -> Error {
    anyhow!("the hypervisor's counts in the channel make no sense")
}

impl Port {
    /// The channel is at this physical address.
    pub(super) fn new(ram: Arc<Ram>, address: u64, sizes: Sizes) -> Result<Self> {
        let at = ram.piece(address, sizes.total())?;
        // SAFETY: mapped writable, aligned and in one piece, by `piece`, for as long as `_ram`
        // lives, which is at least as long as `end`. The hypervisor made it for this request, and
        // frees it when this end has put `Cut`, which is the last that is done with it.
        let end = unsafe { End::of_tool(at, sizes) };
        Ok(Self { end, _ram: ram })
    }

    /// The next frame, if all of it is there.
    pub(super) fn next(&mut self) -> Result<Option<Frame>> {
        let end = &mut self.end;
        let filled = end.filled().map_err(broken)?;
        if filled < HEADER {
            return Ok(None);
        }
        let mut head = [0; HEADER];
        end.read_all(0, &mut head).map_err(broken)?;
        let (header, kind) = Frame::head(&head)?;
        if filled < HEADER + header.body() {
            return Ok(None);
        }
        let mut body = vec![0; header.body()];
        end.read_all(HEADER, &mut body).map_err(broken)?;
        end.take(HEADER + header.body());
        Ok(Some(Frame { header, kind, body }))
    }

    /// Puts a frame, or returns false if there is no room now.
    pub(super) fn put(&mut self, frame: &Frame) -> Result<bool> {
        let end = &mut self.end;
        if end.room().map_err(broken)? < frame.bytes() {
            return Ok(false);
        }
        for (ahead, bytes) in [(0, frame.header.as_bytes()), (HEADER, &frame.body)] {
            end.write_all(ahead, bytes).map_err(broken)?;
        }
        end.publish(frame.bytes());
        Ok(true)
    }

    /// Puts a frame as soon as there is room for it.
    pub(super) fn put_soon(&mut self, frame: &Frame) -> Result<()> {
        let begun = Instant::now();
        while !self.put(frame)? {
            ensure!(begun.elapsed() < DEAF_MAX, "the hypervisor does not read what it is sent");
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// What the hypervisor's counter was when it looked last; 0 before that.
    pub(super) fn clock(&self) -> u64 {
        self.end.clock()
    }
}

/// What is still in the channel is not wanted.
impl Drop for Port {
    fn drop(&mut self) {
        let begun = Instant::now();
        let mut is_full = true;
        // If that fails, the end of the conversation has the same effect.
        while is_full && begun.elapsed() < DEAF_MAX {
            // The hypervisor may wait for room, and read nothing meanwhile.
            while matches!(self.next(), Ok(Some(_))) {}
            is_full = matches!(self.put(&Frame::bare(Kind::Cut)), Ok(false));
            if is_full {
                thread::sleep(PAUSE);
            }
        }
    }
}

/// What is done while a request waits for its turn.
pub(super) type Meanwhile<'a> = dyn FnMut() -> Result<()> + 'a;

/// How a request ended: its last record.
pub(super) type Ended = Result<String>;

/// A request that is being served, and its channel.
pub(crate) struct Talk {
    pub(super) channel: Channel,
    pub(super) port: Port,
    asking: Asking,
}

/// Ends with the request. The conversation comes with it: its end would end the channel.
pub(super) type Asking = JoinHandle<(Ended, Option<Control>)>;

impl Talk {
    /// Makes a request that has a channel. Until that is heard, `meanwhile` is called again and
    /// again, and ends it by an error.
    pub(super) fn begin(
        control: Control,
        ram: Arc<Ram>,
        request: Request,
        sizes: Sizes,
        meanwhile: &mut Meanwhile<'_>,
    ) -> Result<Self> {
        let (says, heard) = mpsc::channel();
        let asking = thread::spawn(move || {
            // It is silent for as long as it takes.
            let mut control = control.with_patience(Duration::MAX);
            let answer = control.ask_each(&request, |record| {
                // Only the first record is one. If nobody waits for it any more, the conversation
                // ends with an error, and so does the request.
                Channel::parse(record).map_or(Ok(()), |channel| Ok(says.send(channel)?))
            });
            let last = answer.and_then(|records| records.last().cloned().context("the answer is empty"));
            (last, Some(control))
        });
        Self::of(ram, &heard, asking, sizes, meanwhile)
    }

    /// A request whose channel is heard, when those about the guest that came before have ended.
    pub(super) fn of(
        ram: Arc<Ram>,
        heard: &Receiver<Channel>,
        asking: Asking,
        sizes: Sizes,
        meanwhile: &mut Meanwhile<'_>,
    ) -> Result<Self> {
        let channel = loop {
            match heard.recv_timeout(LOOK_PERIOD) {
                Ok(channel) => break channel,
                Err(RecvTimeoutError::Timeout) => meanwhile()?,
                Err(RecvTimeoutError::Disconnected) => {
                    bail!(end_of(asking).err().unwrap_or_else(|| anyhow!("there is no channel")))
                }
            }
        };
        let port = Port::new(ram, channel.channel, sizes)?;
        Ok(Self { channel, port, asking })
    }

    /// Whether the request has ended: then nothing more comes.
    pub(super) fn has_ended(&self) -> bool {
        self.asking.is_finished()
    }

    /// Cuts the channel, and waits for the end of the request.
    pub(super) fn end(self) -> Ended {
        drop(self.port);
        end_of(self.asking)
    }
}

fn end_of(asking: Asking) -> Ended {
    asking.join().map_err(|_| anyhow!("a thread of this tool panicked"))?.0
}

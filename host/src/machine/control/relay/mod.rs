//! Between the serial port of a hypervisor and all those who talk to it.
//!
//! QEMU serves one conversation with a serial port at a time, so whoever waits for an answer there
//! keeps all others waiting. The relay has that conversation. It takes any number of others, gives
//! their requests numbers of its own, and passes each line of an answer on to whoever has asked.
//!
//! The hypervisor waits with each record until that is taken, and with other requests about the
//! same guest until the answer is over. So the relay takes records at once, and keeps them for
//! those who read slowly: an answer that nobody reads ends here when it becomes too long. Who goes
//! away is told to the hypervisor. What comes before the hypervisor has begun waits here: its
//! serial port would lose that.

use crate::prelude::*;
use hostlink::ctl::{NEXT, Reply, RequestError, parse_number};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

/// Conversations at a time. Further ones wait.
const TALKERS_MAX: usize = 64;
/// Requests of one conversation that are not answered yet.
const ASKED_MAX: usize = 32;
/// Longest line that is passed on; the hypervisor takes shorter ones.
const LINE_MAX: usize = 4096;
/// Bytes that wait for one conversation. Whoever leaves more unread gets the rest of no answer, and
/// is not listened to.
const UNREAD_MAX: usize = 1 << 20;
/// While this many bytes wait for the hypervisor, nobody is listened to.
const WAITING_MAX: usize = 16 << 10;
/// How often is looked whether the hypervisor has begun, while something waits for that.
const LOOK_PERIOD: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// The relay of a machine. It ends when the machine does, or when this is dropped.
pub(crate) struct Relay {
    /// The relay ends when this is closed.
    ends: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// A relay that takes conversations at `public`, for a QEMU that will connect to `private`, and
    /// a hypervisor that listens there as soon as it has begun.
    pub(crate) fn start(
        public: &Path,
        private: &Path,
        has_begun: impl Fn() -> bool + Send + 'static,
    ) -> Result<Self> {
        let listen = |path: &Path| -> Result<UnixListener> {
            let listener =
                UnixListener::bind(path).with_context(|| format!("cannot make {}", path.display()))?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let (ends, ended) = UnixStream::pair()?;
        let switchboard = Switchboard {
            ended,
            public: (listen(public)?, public.to_owned()),
            private: listen(private)?,
            line: None,
            begins: Some(Box::new(has_begun)),
            talkers: Vec::new(),
            talked: 0,
            book: Book::default(),
        };
        Ok(Self { ends: Some(ends), thread: Some(thread::spawn(move || switchboard.run())) })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.ends.take());
        // If it has panicked there is nothing more to end.
        self.thread.take().map(JoinHandle::join);
    }
}

/// One side of a connection: the line that is arriving, and what is to be sent.
struct Line {
    stream: UnixStream,
    arriving: Vec<u8>,
    to: Vec<u8>,
}

impl Line {
    fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, arriving: Vec::new(), to: Vec::new() })
    }

    fn receive(&mut self) -> Option<Vec<u8>> {
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer) {
            Ok(0) => None,
            Ok(count) => Some(buffer[..count].to_vec()),
            Err(error) if is_passing(&error) => Some(Vec::new()),
            Err(_) => None,
        }
    }

    fn complete(&mut self, byte: u8) -> Option<Vec<u8>> {
        if byte == b'\n' {
            return Some(std::mem::take(&mut self.arriving));
        }
        if self.arriving.len() < LINE_MAX {
            self.arriving.push(byte);
        }
        None
    }

    /// Sends as much as there is room for; false at the end of the connection.
    fn send(&mut self) -> bool {
        while !self.to.is_empty() {
            match self.stream.write(&self.to) {
                Ok(count) => drop(self.to.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return is_passing(&error),
            }
        }
        true
    }

    fn interest(&self, listens: bool) -> PollFlags {
        let mut interest = PollFlags::empty();
        interest.set(PollFlags::IN, listens);
        interest.set(PollFlags::OUT, !self.to.is_empty());
        interest
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

struct Talker {
    id: u64,
    line: Line,
}

struct Asked {
    number: u64,
    talker: u64,
    theirs: u64,
}

/// Whose requests are whose.
#[derive(Default)]
struct Book {
    asked: Vec<Asked>,
    last: u64,
    /// Who last sent a line that is no request.
    noisy: u64,
}

impl Book {
    fn ask(&mut self, talker: u64, line: &[u8]) -> Result<Vec<u8>, String> {
        let text = String::from_utf8_lossy(line);
        let text = text.trim();
        let (word, rest) = text.split_once(|c: char| c.is_ascii_whitespace()).unwrap_or((text, ""));
        if Reply::parse(text).is_some() {
            // It might be about somebody else's request.
            return Err(format!("0 error {}\n", RequestError::NoNumber));
        }
        let Ok(theirs) = parse_number(word) else {
            self.noisy = talker;
            return Ok([line, b"\n"].concat());
        };
        if self.asked.iter().filter(|asked| asked.talker == talker).count() >= ASKED_MAX {
            return Err(format!("{theirs} error too many requests at a time\n"));
        }
        self.last += 1;
        self.asked.push(Asked { number: self.last, talker, theirs });
        Ok(format!("{} {rest}\n", self.last).into_bytes())
    }

    /// Whom a line is for, the line with their number, and the relay's number if it is a record.
    fn answer(&mut self, line: &[u8]) -> Option<(u64, String, Option<u64>)> {
        let text = String::from_utf8_lossy(line);
        let (word, rest) = text.trim_end().split_once(' ')?;
        let number = parse_number(word).ok()?;
        if number == 0 {
            return Some((self.noisy, format!("{number} {rest}\n"), None));
        }
        let place = self.asked.iter().position(|asked| asked.number == number)?;
        let Asked { talker, theirs, .. } = self.asked[place];
        let is_record = rest.starts_with(": ");
        if !is_record {
            self.asked.remove(place);
        }
        Some((talker, format!("{theirs} {rest}\n"), is_record.then_some(number)))
    }

    /// Nobody waits any more for these answers: what is told to the hypervisor, and to the talker
    /// if that is still there.
    fn forget(&mut self, is_over: impl Fn(&Asked) -> bool) -> (String, String) {
        let gone = self.asked.extract_if(.., |asked| is_over(asked));
        let said = gone.map(|Asked { number, theirs, .. }| {
            (format!("{}\n", Reply::Gone(number)), format!("{theirs} error its answer was not read\n"))
        });
        said.unzip()
    }
}

struct Switchboard {
    ended: UnixStream,
    public: (UnixListener, PathBuf),
    private: UnixListener,
    /// The hypervisor's serial port, when QEMU has connected it.
    line: Option<Line>,
    /// Whether the hypervisor has begun; `None` when it has.
    begins: Option<Box<dyn Fn() -> bool + Send>>,
    talkers: Vec<Talker>,
    talked: u64,
    book: Book,
}

impl Switchboard {
    fn run(mut self) {
        while self.turn().is_some() {}
        // Nobody answers there any more.
        let _ = fs::remove_file(&self.public.1);
    }

    /// Waits until something happens, and does what is to be done; `None` at the end.
    fn turn(&mut self) -> Option<()> {
        let happened = self.wait()?;
        let [ended, begins, line, talkers @ ..] = &happened[..] else { return None };
        if !ended.is_empty() {
            return None;
        }
        if !line.is_empty() {
            self.listen_to_hypervisor()?;
        }
        let mut heard = talkers.iter();
        let mut talkers = std::mem::take(&mut self.talkers);
        talkers.retain_mut(|talker| {
            let goes_on = heard.next().is_none_or(|happened| happened.is_empty()) || self.listen_to(talker);
            if !goes_on {
                let (gone, _) = self.book.forget(|asked| asked.talker == talker.id);
                self.tell(gone.as_bytes());
            }
            goes_on
        });
        self.talkers = talkers;
        if !begins.is_empty()
            && let Ok((stream, _)) = self.public.0.accept()
            && let Ok(line) = Line::new(stream)
        {
            self.talked += 1;
            self.talkers.push(Talker { id: self.talked, line });
        }
        // One that cannot be sent anything is found to have gone when it is listened to.
        for talker in &mut self.talkers {
            let _ = talker.line.send();
        }
        self.begins.take_if(|has_begun| has_begun());
        let listens = self.begins.is_none();
        self.line.as_mut().filter(|_| listens).is_none_or(Line::send).then_some(())
    }

    /// What has happened: to the owner, to the public place, to the hypervisor, to each talker.
    fn wait(&self) -> Option<Vec<PollFlags>> {
        let waiting = self.line.as_ref().map_or(WAITING_MAX, |line| line.to.len());
        let may_begin = self.talkers.len() < TALKERS_MAX;
        let is_held = self.begins.is_some() && self.line.as_ref().is_some_and(|line| !line.to.is_empty());
        let mut places = vec![
            PollFd::new(&self.ended, PollFlags::IN),
            PollFd::new(&self.public.0, if may_begin { PollFlags::IN } else { PollFlags::empty() }),
            match &self.line {
                Some(line) if is_held => PollFd::new(&line.stream, PollFlags::IN),
                Some(line) => PollFd::new(&line.stream, line.interest(true)),
                None => PollFd::new(&self.private, PollFlags::IN),
            },
        ];
        let listens = |line: &Line| waiting < WAITING_MAX && line.to.len() <= UNREAD_MAX;
        let interest = |talker: &Talker| talker.line.interest(listens(&talker.line));
        places.extend(self.talkers.iter().map(|talker| PollFd::new(&talker.line.stream, interest(talker))));
        loop {
            match poll(&mut places, is_held.then_some(&LOOK_PERIOD)) {
                Ok(_) => return Some(places.iter().map(PollFd::revents).collect()),
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
    }

    fn tell(&mut self, bytes: &[u8]) {
        self.line.iter_mut().for_each(|line| line.to.extend(bytes));
    }

    /// `None` when QEMU has ended.
    fn listen_to_hypervisor(&mut self) -> Option<()> {
        let Some(line) = &mut self.line else {
            if let Ok((stream, _)) = self.private.accept() {
                self.line = Some(Line::new(stream).ok()?);
            }
            return Some(());
        };
        let mut told = Vec::new();
        for byte in line.receive()? {
            let Some(whole) = line.complete(byte) else { continue };
            let Some((id, text, record)) = self.book.answer(&whole) else { continue };
            for talker in self.talkers.iter_mut().filter(|known| known.id == id) {
                talker.line.to.extend(text.bytes());
                let Some(number) = record else { continue };
                if talker.line.to.len() > UNREAD_MAX {
                    let (gone, end) = self.book.forget(|asked| asked.number == number);
                    talker.line.to.extend(end.bytes());
                    told.push(gone);
                } else {
                    told.push(format!("{}\n", Reply::Next(number)));
                }
            }
        }
        self.tell(told.concat().as_bytes());
        Some(())
    }

    /// False when the talker has gone.
    fn listen_to(&mut self, talker: &mut Talker) -> bool {
        let Some(bytes) = talker.line.receive() else { return false };
        for byte in bytes {
            // A client may say that it has a record, which the relay has taken already.
            if byte == NEXT && talker.line.arriving.is_empty() {
                continue;
            }
            let Some(line) = talker.line.complete(byte).filter(|line| !line.trim_ascii().is_empty()) else {
                continue;
            };
            match self.book.ask(talker.id, &line) {
                Ok(asked) => self.tell(&asked),
                Err(answer) => talker.line.to.extend(answer.bytes()),
            }
        }
        true
    }
}

#[cfg(test)]
mod tests;

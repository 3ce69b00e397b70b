//! Two made-up machines, their tools, and a connection between them that breaks.

use super::super::described::Description;
use super::super::outflow::Manner;
use super::super::policy::Wanted;
use super::super::source::{Destination, Moved, migrate_by};
use super::super::target::Host;
use super::super::wire::{Address, Listener, Secret};
use super::files::{described, manner, origin};
use super::hypervisor::{Guest, HZ, Runs, Side};
use crate::prelude::*;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const WANTED: Wanted =
    Wanted { downtime: Duration::from_millis(50), rounds: 30, throttle: false, at_any_cost: false };

pub(super) fn secret() -> Secret {
    Secret::made_up(b"nobody else knows this")
}

/// What follows the first connection.
pub(super) enum After {
    /// Others.
    Again,
    Silence,
    /// This side is killed, and nobody listens any more.
    Kill(Arc<Side>),
}

/// Between both sides: it passes bytes on, until so many have gone in a direction.
pub(super) struct Proxy {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// Bytes that have passed: from source to target, and back.
    pub(super) passed: Arc<[AtomicU64; 2]>,
}

impl Proxy {
    /// The first connection is cut when so many bytes have passed in a direction.
    fn start(public: &Path, target: &Path, cut: Option<(usize, u64)>, after: After) -> Self {
        let listener = UnixListener::bind(public).expect("binds");
        listener.set_nonblocking(true).expect("does not wait");
        let is_over = Arc::new(AtomicBool::new(false));
        let passed: Arc<[AtomicU64; 2]> = Arc::default();
        let (ends, counts, target) = (Arc::clone(&is_over), Arc::clone(&passed), target.to_owned());
        let thread = thread::spawn(move || {
            let mut first = Some((cut, after));
            while !ends.load(Ordering::Relaxed) {
                let Ok((near, _)) = listener.accept() else {
                    thread::sleep(Duration::from_millis(1));
                    continue;
                };
                near.set_nonblocking(false).expect("waits");
                let Ok(far) = UnixStream::connect(&target) else { continue };
                let (cut, after) = first.take().unwrap_or((None, After::Again));
                pass(&near, &far, cut, &counts);
                match after {
                    After::Again => {}
                    // Those who connect wait.
                    After::Silence => {
                        while !ends.load(Ordering::Relaxed) {
                            thread::sleep(Duration::from_millis(1));
                        }
                    }
                    After::Kill(side) => {
                        side.kill();
                        return;
                    }
                }
            }
        });
        Self { is_over, thread: Some(thread), passed }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

fn pass(near: &UnixStream, far: &UnixStream, cut: Option<(usize, u64)>, counts: &Arc<[AtomicU64; 2]>) {
    let one_way = |direction: usize, mut from: UnixStream, mut to: UnixStream| {
        let (counts, both) = (Arc::clone(counts), [from.try_clone(), to.try_clone()]);
        let limit = cut.filter(|(way, _)| *way == direction).map_or(u64::MAX, |(_, bytes)| bytes);
        thread::spawn(move || {
            let mut left = limit;
            let mut piece = [0; 4096];
            while left > 0 {
                let room = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                let Ok(count @ 1..) = from.read(&mut piece[..room]) else { break };
                if to.write_all(&piece[..count]).is_err() {
                    break;
                }
                counts[direction].fetch_add(count as u64, Ordering::Relaxed);
                left -= count as u64;
            }
            for socket in both.iter().flatten() {
                // It may be closed already.
                let _ = socket.shutdown(Shutdown::Both);
            }
        })
    };
    let there = one_way(0, near.try_clone().expect("clones"), far.try_clone().expect("clones"));
    let back = one_way(1, far.try_clone().expect("clones"), near.try_clone().expect("clones"));
    there.join().and(back.join()).expect("ends");
}

/// A target and its tool.
pub(super) struct There {
    pub(super) side: Arc<Side>,
    is_over: Arc<AtomicBool>,
    tool: Option<JoinHandle<()>>,
}

impl There {
    fn start(listener: Listener, runs: &Arc<Runs>, secret: Secret, description: Description) -> Self {
        let side = Side::new(None, runs, 3 * HZ);
        let is_over = Arc::new(AtomicBool::new(false));
        let (hypervisor, ends) = (Arc::clone(&side), Arc::clone(&is_over));
        let tool = thread::spawn(move || {
            let (signals, sessions) = (Signals::default(), BTreeMap::new());
            let mut host = Host { listener, secret, description, hz: HZ, signals, sessions };
            let serves = host.serve(|| Ok(hypervisor.receive()), || ends.load(Ordering::Relaxed), |_| ());
            serves.expect("serves");
        });
        Self { side, is_over, tool: Some(tool) }
    }
}

impl Drop for There {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.tool.take().map(JoinHandle::join);
    }
}

/// Both sides, with a proxy between them.
pub(super) struct World {
    pub(super) here: Arc<Side>,
    pub(super) there: There,
    pub(super) proxy: Proxy,
    pub(super) runs: Arc<Runs>,
    pub(super) to: Destination,
    directory: TempDir,
}

impl World {
    pub(super) fn new(cut: Option<(usize, u64)>) -> Self {
        Self::with(cut, |_, _| After::Again)
    }

    /// `after` gets the source and the target.
    pub(super) fn with(
        cut: Option<(usize, u64)>,
        after: impl FnOnce(&Arc<Side>, &Arc<Side>) -> After,
    ) -> Self {
        let directory = tempfile::tempdir().expect("makes");
        let [public, target] = ["public", "target"].map(|name| directory.path().join(name));
        let runs = Arc::new(Runs::default());
        let here = Side::new(Some(Guest::new(5)), &runs, HZ);
        let address = |path: &Path| Address::parse(&format!("unix:{}", path.display())).expect("is one");
        let listener = Listener::bind(&address(&target)).expect("binds");
        let there = There::start(listener, &runs, secret(), described().description);
        let proxy = Proxy::start(&public, &target, cut, after(&here, &there.side));
        let to = Destination { address: address(&public), secret: secret() };
        Self { here, there, proxy, runs, to, directory }
    }

    pub(super) fn session(&self) -> u64 {
        u64::from(self.to.address.tag()) << 32 | 7
    }

    pub(super) fn migrate(&self) -> Result<Moved> {
        self.migrate_as(&Signals::default())
    }

    pub(super) fn migrate_as(&self, signals: &Signals) -> Result<Moved> {
        let (talk, origin) = (self.here.send(self.session(), 9), origin(self.directory.path()));
        let manner = Manner { signals: signals.clone(), ..manner(WANTED) };
        migrate_by(&origin, talk, self.session(), &self.to, &manner)
    }

    /// Another connection between the same two, which stays.
    pub(super) fn mend(&mut self) {
        let [public, target] = ["public", "target"].map(|name| self.directory.path().join(name));
        drop(std::mem::replace(
            &mut self.proxy,
            Proxy { is_over: Arc::default(), thread: None, passed: Arc::default() },
        ));
        fs::remove_file(&public).expect("was there");
        self.proxy = Proxy::start(&public, &target, None, After::Again);
    }

    /// Waits until the proxy has killed a side.
    pub(super) fn await_kill(&self) {
        let begun = Instant::now();
        let is_killed = |side: &Side| side.is_killed.load(Ordering::SeqCst);
        while !is_killed(&self.here) && !is_killed(&self.there.side) {
            assert!(begun.elapsed() < Duration::from_secs(10), "nobody is killed");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Exactly one side has the guest, and runs it, with its memory as it was. Returns whether that
    /// is the target.
    pub(super) fn check(&self, what: &str) -> bool {
        let begun = Instant::now();
        // A hypervisor that is told that the other has gone lets the guest run soon.
        while self.runs.count() == 0 && begun.elapsed() < Duration::from_secs(5) {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(self.runs.count(), 1, "{what}: it is lost");
        let (here, there) = (self.here.guest.lock().unwrap(), self.there.side.guest.lock().unwrap());
        assert_eq!(here.is_none(), there.is_some(), "{what}: one side has it");
        let guest = here.as_ref().or(there.as_ref()).expect("is somewhere");
        assert!(guest.memory == Guest::new(5).memory, "{what}: its memory is as before");
        there.is_some()
    }
}

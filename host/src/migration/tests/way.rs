//! The way to a machine: it carries bytes as a tunnel does, and breaks.

use crate::prelude::*;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// From the source to the target, and back.
pub(super) const THERE: usize = 0;
pub(super) const BACK: usize = 1;
/// Magic and nonce.
const GREETING: usize = 48;
const TAG: usize = 32;

/// When a connection breaks.
#[derive(Clone, Copy, Debug)]
pub(super) enum At {
    Never,
    /// When so many bytes have passed in a direction.
    Byte(usize, u64),
    /// When the source says Go, which is lost.
    Go,
    /// When the target says that the guest runs, which is lost.
    Runs,
}

/// Blocks of a target before the one that says that the guest runs: accepted, ready.
const BEFORE_RUNS: u32 = 2;

/// What becomes of those who connect.
#[derive(Clone, Debug)]
pub(super) enum Leads {
    /// To this machine.
    To(PathBuf),
    /// Nobody listens.
    Nowhere,
    /// Somebody does, who says nothing. What was connected before passes nothing on any more.
    Silence,
}

struct State {
    /// The next connection breaks, and where others lead from then on.
    breaks: Option<(At, Leads)>,
    leads: Leads,
    /// Counts calls of [`Way::set`].
    turn: u64,
}

struct Shared {
    state: Mutex<State>,
    is_over: AtomicBool,
    /// The turn whose place is listened at, or is not.
    done: AtomicU64,
    passed: [AtomicU64; 2],
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with it")
    }

    /// Until the way is another one.
    fn wait(&self, turn: u64) {
        while !self.is_over.load(Ordering::Relaxed) && self.state().turn == turn {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

pub(super) struct Way {
    pub(super) path: PathBuf,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Way {
    pub(super) fn new(path: PathBuf, to: &Path) -> Self {
        let state = State { breaks: None, leads: Leads::Nowhere, turn: 0 };
        let (is_over, done, passed) = (AtomicBool::new(false), AtomicU64::new(0), Default::default());
        let shared = Arc::new(Shared { state: state.into(), is_over, done, passed });
        let (carries, at) = (Arc::clone(&shared), path.clone());
        let way = Self { path, shared, thread: Some(thread::spawn(move || serve(&carries, &at))) };
        way.set(Leads::To(to.to_owned()));
        way
    }

    /// The next connection breaks there; others lead elsewhere from then on.
    pub(super) fn breaks(&self, at: At, then: Leads) {
        self.shared.state().breaks = Some((at, then));
    }

    /// From now on it leads there; what did not pass is cut.
    pub(super) fn set(&self, leads: Leads) {
        let turn = {
            let mut state = self.shared.state();
            (state.breaks, state.leads) = (None, leads);
            state.turn += 1;
            state.turn
        };
        let is_done = || (self.shared.done.load(Ordering::SeqCst) == turn).then_some(());
        super::machines::until("it leads there", is_done);
    }

    /// Bytes that have passed in each direction.
    pub(super) fn passed(&self) -> [u64; 2] {
        [THERE, BACK].map(|way| self.shared.passed[way].load(Ordering::Relaxed))
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

fn serve(shared: &Shared, path: &Path) {
    thread::scope(|scope| {
        let mut listener = None;
        while !shared.is_over.load(Ordering::Relaxed) {
            let (is_nowhere, turn) = {
                let state = shared.state();
                (matches!(state.leads, Leads::Nowhere), state.turn)
            };
            if is_nowhere {
                listener = None;
            } else if listener.is_none() {
                let _ = fs::remove_file(path);
                let new = UnixListener::bind(path).expect("binds");
                new.set_nonblocking(true).expect("does not wait");
                listener = Some(new);
            }
            shared.done.store(turn, Ordering::SeqCst);
            let Some(Ok((near, _))) = listener.as_ref().map(UnixListener::accept) else {
                thread::sleep(Duration::from_millis(1));
                continue;
            };
            near.set_nonblocking(false).expect("waits");
            scope.spawn(move || connect(shared, near));
        }
    });
}

fn connect(shared: &Shared, near: UnixStream) {
    let (breaks, leads, turn) = {
        let mut state = shared.state();
        (state.breaks.take(), state.leads.clone(), state.turn)
    };
    let Leads::To(target) = leads else { return shared.wait(turn) };
    let Ok(far) = UnixStream::connect(target) else { return };
    let (at, then) = breaks.unwrap_or((At::Never, Leads::Nowhere));
    let [broken, is_ready] = [const { AtomicBool::new(false) }; 2];
    thread::scope(|scope| {
        for (way, from, to) in [(THERE, &near, &far), (BACK, &far, &near)] {
            let (then, broken, is_ready) = (&then, &broken, &is_ready);
            scope.spawn(move || {
                let ended = carry(shared, way, from, to, at, is_ready);
                if ended && !broken.swap(true, Ordering::SeqCst) {
                    shared.state().leads = then.clone();
                }
                if broken.load(Ordering::SeqCst) && matches!(then, Leads::Silence) {
                    shared.wait(turn);
                }
                for socket in [from, to] {
                    // It may be closed already.
                    let _ = socket.shutdown(Shutdown::Both);
                }
            });
        }
    });
}

/// Carries one direction; returns whether it has come to where it breaks. `is_ready`: the target
/// has said so.
fn carry(
    shared: &Shared,
    way: usize,
    mut from: &UnixStream,
    mut to: &UnixStream,
    at: At,
    is_ready: &AtomicBool,
) -> bool {
    let mut piece = [0; 4096];
    let (mut bytes, mut blocks) = (0, Blocks::default());
    loop {
        let Ok(count @ 1..) = from.read(&mut piece) else { return false };
        let mut passes = match at {
            At::Byte(of, limit) if of == way => {
                count.min(usize::try_from(limit - bytes).unwrap_or(usize::MAX))
            }
            // Nothing but Go follows.
            At::Go if way == THERE && is_ready.load(Ordering::SeqCst) => 0,
            _ => count,
        };
        if way == BACK {
            let begins = blocks.see(&piece[..count]);
            // Before the source hears of it.
            is_ready.fetch_or(blocks.count >= BEFORE_RUNS, Ordering::SeqCst);
            if matches!(at, At::Runs) && blocks.count > BEFORE_RUNS {
                passes = begins;
            }
        }
        bytes += passes as u64;
        shared.passed[way].fetch_add(passes as u64, Ordering::Relaxed);
        if to.write_all(&piece[..passes]).is_err() {
            return false;
        }
        if passes < count || matches!(at, At::Byte(of, limit) if of == way && bytes == limit) {
            return true;
        }
    }
}

/// Finds blocks with something in them in what passes.
#[derive(Default)]
struct Blocks {
    seen: Vec<u8>,
    /// Where the next one begins.
    next: usize,
    count: u32,
}

impl Blocks {
    /// Sees more bytes. Returns where the last block begins in them.
    fn see(&mut self, bytes: &[u8]) -> usize {
        let (before, mut begins) = (self.seen.len(), 0);
        self.seen.extend_from_slice(bytes);
        self.next = self.next.max(GREETING);
        while let Some(length) = self.seen.get(self.next..self.next + 4) {
            let length = u32::from_le_bytes(length.try_into().expect("four bytes")) as usize;
            if length != 0 {
                self.count += 1;
                begins = self.next.saturating_sub(before);
            }
            self.next += 4 + length + TAG;
        }
        begins
    }
}

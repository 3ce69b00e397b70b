//! Machines with the hypervisor's own core on its mock board, and their tools.

use super::super::manifest::Described;
use super::super::place::{Address, Listener};
use super::super::port::Meanwhile;
use super::super::serve::Host;
use super::super::source::Origin;
use super::super::target::receive;
use super::super::wire::Secret;
use crate::machine::control::{Found, Relay};
use crate::prelude::*;
use hostlink::guests::GuestState;
use hypervisor::vm::mock::live;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) const HZ: u64 = 1_000_000_000;
const MEMORY: u64 = 24 << 20;
/// All that a test waits for comes long before.
pub(in super::super) const LONG: Duration = Duration::from_secs(60);

pub(in super::super) fn secret() -> Secret {
    Secret::made_up(b"nobody else knows this")
}

pub(super) fn described() -> Described {
    Described::made_up(&[7; 300_000], "vcpus=2\nmemory=4194304\n")
}

pub(in super::super) fn address(path: &Path) -> Address {
    Address::parse(&format!("unix:{}", path.display())).expect("is one")
}

/// Waits until something is so.
pub(in super::super) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < LONG, "{what}: it does not come");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A machine with one guest, or room for it, which takes guests at `path`.
pub(in super::super) struct Side {
    pub(super) path: PathBuf,
    pub(in super::super) origin: Origin,
    /// What its tool has said.
    pub(super) said: Arc<Mutex<Vec<String>>>,
    machine: Option<live::Machine>,
    _relay: Relay,
    is_over: Arc<AtomicBool>,
    tool: Option<JoinHandle<()>>,
}

impl Side {
    /// Its files are in this directory. If it has a guest, that runs already. Its tool's patience
    /// is for the silence of others.
    pub(super) fn start(directory: &Path, name: &str, has_guest: bool, patience: Duration) -> Self {
        Self::start_for(directory, name, has_guest, patience, described())
    }

    /// The same, for guests that are described so.
    pub(super) fn start_for(
        directory: &Path,
        name: &str,
        has_guest: bool,
        patience: Duration,
        described: Described,
    ) -> Self {
        let machine = Found::made_up(name, directory);
        let [public, private] = ["ctl", "port"].map(|suffix| directory.join(name).with_extension(suffix));
        for path in [&public, &private] {
            // A former one may have left it.
            let _ = fs::remove_file(path);
        }
        let relay = Relay::start(&public, &private, || true).expect("starts");
        let control = UnixStream::connect(&private).expect("connects");
        let ram = Arc::new(Ram::in_place(MEMORY).expect("makes"));
        let start = if has_guest {
            "name=guest\nvcpus=2\nmemory=4194304\nparanoid=on"
        } else {
            "name=guest\nvcpus=2\nmemory=4194304\nparanoid=on\nstart=manual"
        };
        let base = ram.base();
        // SAFETY: it is mapped, and kept until the machine has ended.
        let board = unsafe { live::Machine::start(base..base + MEMORY, &[start], 1, control) };
        let origin = Origin { machine, guest: Name::GUEST, described, ram, hz: HZ };
        let path = directory.join(format!("{name}.socket"));
        let listener = Listener::bind(&address(&path)).expect("binds");
        let description = origin.described.description.clone();
        let sessions = Mutex::default();
        let host = Host { listener, secret: secret(), description, hz: HZ, patience, sessions };
        let (said, is_over) = (Arc::<Mutex<Vec<String>>>::default(), Arc::new(AtomicBool::new(false)));
        let (says, ends) = (Arc::clone(&said), Arc::clone(&is_over));
        let (found, ram) = (origin.machine.clone(), Arc::clone(&origin.ram));
        let tool = thread::spawn(move || {
            let begin = |meanwhile: &mut Meanwhile<'_>| receive(&found, &ram, Name::GUEST, meanwhile);
            let says = |what: &str| says.lock().expect("nobody panics with it").push(what.to_owned());
            host.serve(begin, || ends.load(Ordering::Relaxed), says).expect("serves");
        });
        let machine = Some(board.expect("starts"));
        let side = Self { path, origin, said, machine, _relay: relay, is_over, tool: Some(tool) };
        if has_guest {
            side.until_it_is(GuestState::Running);
        }
        side
    }

    pub(super) fn state(&self) -> GuestState {
        self.machine.as_ref().expect("it has not ended").state(0)
    }

    pub(in super::super) fn until_it_is(&self, state: GuestState) {
        until(&format!("it is {state} at {}", self.path.display()), || (self.state() == state).then_some(()));
    }

    /// What is not to last: the guest is neither here nor elsewhere.
    pub(super) fn is_settled(&self) -> bool {
        !matches!(self.state(), GuestState::Arriving | GuestState::Leaving | GuestState::Offered)
    }
}

impl Drop for Side {
    /// The machine is killed, and its tool with it.
    fn drop(&mut self) {
        self.machine.take().into_iter().for_each(live::Machine::end);
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(tool) = self.tool.take() {
            tool.join().expect("the tool does not panic");
        }
    }
}

//! The guests of a run that are restored, or come from other machines.

use super::manifest::{Described, Description};
use super::place::{Address, Listener};
use super::port::{Meanwhile, Talk};
use super::serve::Host;
use super::snapshot::Snapshot;
use super::target::{receive, restore};
use super::wire::{PATIENCE, Secret};
use crate::machine::control::Found;
use crate::machine::counters::clock_hz;
use crate::machine::guests::Entries;
use crate::machine_file::MachineFile;
use crate::prelude::*;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

/// How a guest arrives, instead of being started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// The file that it is restored from, and what that says of it.
    pub(crate) restore: Option<(PathBuf, Box<Description>)>,
    /// What is to be known if a guest was restored from it before.
    pub(crate) warning: Option<String>,
    pub(crate) incoming: Option<Address>,
    pub(crate) secret: Option<PathBuf>,
}

impl Arrival {
    pub(crate) fn restore(&self) -> Option<&Path> {
        self.restore.as_ref().map(|(path, _)| path.as_path())
    }

    pub(crate) fn incoming(&self) -> Option<String> {
        self.incoming.as_ref().map(Address::to_string)
    }
}

/// In this time the command that sent a guest away has heard of it.
const HEARD: Duration = Duration::from_secs(2);

/// What is done when a guest was restored, and perhaps is paused.
type Then = dyn Fn(&Found, bool) -> Result<()> + Send + Sync;

/// The guests of a run that arrive.
#[derive(Default)]
pub(crate) struct Arrivals {
    guests: Vec<(Name, Way)>,
    /// The machine has ended.
    is_over: Arc<AtomicBool>,
    /// The last guest has gone, and none is awaited.
    has_gone: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
}

#[derive(Clone)]
enum Way {
    Restored(PathBuf, Box<Description>, Arc<Then>),
    Incoming(Listener, Secret),
}

impl Arrivals {
    /// Looks at secrets, and takes places to listen at, before anything is started.
    pub(crate) fn prepare(file: &MachineFile) -> Result<Self> {
        let mut guests = Vec::new();
        for plan in &file.guests {
            let Arrival { restore, warning, incoming, secret } = &plan.arrival;
            warning.iter().for_each(|warning| eprintln!("quell: {warning}"));
            if let Some((path, description)) = restore {
                let (guest, from) = (plan.name(), path.display().to_string());
                let says = move |_: &Found, is_paused| {
                    match is_paused {
                        false => eprintln!("quell: guest {guest} goes on from {from}"),
                        true => eprintln!(
                            "quell: guest {guest} is back from {from}, and paused, as it was: \
                             ./quell ctl guest resume {guest}"
                        ),
                    }
                    Ok(())
                };
                let way = Way::Restored(path.clone(), description.clone(), Arc::new(says));
                guests.push((plan.name(), way));
            }
            if let (Some(address), Some(secret)) = (incoming, secret) {
                let listens = || Ok(Way::Incoming(Listener::bind(address)?, Secret::read(secret)?));
                guests.push((plan.name(), listens().map_err(|error| file.source.about(plan, error))?));
            }
        }
        Ok(Self::new(guests))
    }

    fn new(guests: Vec<(Name, Way)>) -> Self {
        Self { guests, is_over: Arc::default(), has_gone: Arc::default(), threads: Vec::new() }
    }

    /// A guest that is restored from a file, and what is done then.
    pub(crate) fn of_file(
        guest: Name,
        path: &Path,
        then: impl Fn(&Found, bool) -> Result<()> + Send + Sync + 'static,
    ) -> Result<Self> {
        let description = Box::new(Snapshot::open(path)?.description);
        let guests = vec![(guest, Way::Restored(path.to_owned(), description, Arc::new(then)))];
        Ok(Self::new(guests))
    }

    /// What the emulator has to inherit.
    pub(crate) fn listeners(&self) -> Vec<Listener> {
        let listener = |way: &Way| match way {
            Way::Incoming(listener, _) => Some(listener.clone()),
            Way::Restored(..) => None,
        };
        self.guests.iter().filter_map(|(_, way)| listener(way)).collect()
    }

    /// The machine runs: its guests may arrive. A failed restoration ends it, and so does the last
    /// guest that goes elsewhere if none is awaited.
    pub(crate) fn begin(&mut self, machine: &mut Machine) -> Result<()> {
        let Some(found) = machine.found() else {
            ensure!(self.guests.is_empty(), "guests arrive on Quell alone");
            return Ok(());
        };
        let (ram, beacon) = machine.shared()?;
        let have_gone = move || Entries::have_gone(&ram, beacon).unwrap_or(false);
        machine.end_when(self.start(have_gone, move |guest, way, is_over| take(&found, guest, way, is_over)));
        Ok(())
    }

    /// Begins to `take` the guests, each in a thread of its own. Returns what ends the machine.
    fn start(
        &mut self,
        have_gone: impl Fn() -> bool + 'static,
        take: impl Fn(Name, Way, &(dyn Fn() -> bool + Sync)) -> Result<()> + Clone + Send + 'static,
    ) -> Box<dyn Fn() -> bool> {
        let has_failed = Arc::new(AtomicBool::new(false));
        for (guest, way) in self.guests.iter().cloned() {
            let (is_over, failed, take) = (Arc::clone(&self.is_over), Arc::clone(&has_failed), take.clone());
            self.threads.push(thread::spawn(move || {
                let is_over = || is_over.load(Ordering::Relaxed);
                let result = take(guest, way, &is_over).with_context(|| format!("guest {guest}"));
                if is_over() {
                    return Ok(());
                }
                failed.fetch_or(result.is_err(), Ordering::Relaxed);
                result
            }));
        }
        let awaits = !self.listeners().is_empty();
        let (has_gone, since) = (Arc::clone(&self.has_gone), Cell::new(None));
        Box::new(move || {
            let have_gone = !awaits && have_gone();
            since.set(since.get().filter(|_| have_gone).or(have_gone.then(Instant::now)));
            let is_over = since.get().is_some_and(|since: Instant| since.elapsed() > HEARD);
            has_gone.store(is_over, Ordering::Relaxed);
            is_over || has_failed.load(Ordering::Relaxed)
        })
    }

    /// The machine has ended. An error is why it had to.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| anyhow!("a thread of this tool panicked"))??;
        }
        if self.has_gone.load(Ordering::Relaxed) {
            eprintln!("quell: no guest is left: the last one has gone to another machine, or to a file");
        }
        Ok(())
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn take(machine: &Found, guest: Name, way: Way, is_over: &(dyn Fn() -> bool + Sync)) -> Result<()> {
    // Without a notice it has ended.
    let Some(notice) = machine.notice()? else { return Ok(()) };
    let ram = Arc::new(notice.open_ram(true)?);
    let hz = loop {
        if let Some(hz) = clock_hz(&ram, notice.beacon)? {
            break hz;
        }
        if is_over() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(5));
    };
    let begin = |meanwhile: &mut Meanwhile<'_>| receive(machine, &ram, guest, meanwhile);
    match way {
        Way::Restored(path, description, then) => {
            let is_paused = restore_from(guest, &path, &description, begin)?;
            then(machine, is_paused)
        }
        Way::Incoming(listener, secret) => {
            let description = Described::of_bundle(&notice.bundle, guest, &notice.arch)?.description;
            let (patience, sessions) = (PATIENCE, Mutex::default());
            let host = Host { listener, secret, description, hz, patience, sessions };
            host.serve(begin, is_over, |what| eprintln!("quell: guest {guest}: {}", foreign(what)))
        }
    }
}

/// Restores a guest from a file that is the one that was looked at, and notes that in it. Returns
/// whether the guest is paused, as it was.
pub(super) fn restore_from(
    guest: Name,
    path: &Path,
    looked_at: &Description,
    begin: impl FnOnce(&mut Meanwhile<'_>) -> Result<Talk>,
) -> Result<bool> {
    let mut from = Snapshot::open(path)?;
    ensure!(from.description == *looked_at, "{} is another file by now", path.display());
    from.files()?;
    if let Err(error) = from.note_restored() {
        eprintln!("quell: guest {guest}: {error:#}");
    }
    Ok(restore(begin(&mut || Ok(()))?, from)?.paused != 0)
}

#[cfg(test)]
mod tests {
    use super::super::tests::machines::{address, secret, until};
    use super::*;

    /// Whatever began before has been for longer than [`HEARD`] then.
    const PAST: Duration = Duration::from_millis(10);

    /// Guests that are restored, and one that is awaited at this address.
    fn arrivals(restored: usize, awaited: Option<&Path>) -> Arrivals {
        let description = Described::made_up(b"a kernel", "").description;
        let way = || Way::Restored(PathBuf::new(), Box::new(description.clone()), Arc::new(|_, _| Ok(())));
        let listens = |path| Listener::bind(&address(path)).expect("binds");
        let awaited = awaited.map(|path| Way::Incoming(listens(path), secret()));
        Arrivals::new((0..restored).map(|_| way()).chain(awaited).map(|way| (Name::GUEST, way)).collect())
    }

    #[test]
    fn a_machine_ends_when_its_last_guest_has_gone_for_long_enough_and_none_is_awaited() {
        let directory = tempfile::tempdir().expect("makes");
        let path = directory.path().join("socket");
        let mut machines: Vec<_> = [(None, true), (None, false), (Some(&*path), true)]
            .map(|(awaited, have_gone)| {
                let mut all = arrivals(1, awaited);
                let ends = all.start(
                    move || have_gone,
                    |_, _, is_over| {
                        while !is_over() {
                            thread::sleep(Duration::from_millis(1));
                        }
                        bail!("the machine has ended")
                    },
                );
                (all, ends)
            })
            .into();
        let since = Instant::now();
        assert!(machines.iter().all(|(_, ends)| !ends()), "whoever sent the guest has not heard so yet");
        until("it ends", || machines[0].1().then_some(()));
        assert!(since.elapsed() > HEARD);
        thread::sleep(PAST);
        assert!(!machines[1].1() && !machines[2].1(), "it is there, and another may come");
        for (is_gone, (all, _)) in [true, false, false].into_iter().zip(machines.drain(..)) {
            assert_eq!(all.has_gone.load(Ordering::Relaxed), is_gone);
            all.finish().expect("what fails when the machine has ended is no failure");
        }
    }

    #[test]
    fn where_a_guest_comes_from_is_shown_as_it_is_written() {
        let description = Box::new(Described::made_up(b"a kernel", "").description);
        let restore = Some((PathBuf::from("a.snapshot"), description));
        let arrival = Arrival { restore, incoming: Some(address(Path::new("/a/b"))), ..Arrival::default() };
        assert_eq!(arrival.restore(), Some(Path::new("a.snapshot")));
        assert_eq!(arrival.incoming().as_deref(), Some("unix:/a/b"));
    }

    #[test]
    fn a_guest_that_cannot_be_restored_ends_the_machine_and_is_named() {
        let mut all = arrivals(2, None);
        let ends = all.start(|| false, |_, _, _| bail!("it is damaged"));
        until("it ends", || ends().then_some(()));
        until("both have failed", || all.threads.iter().all(JoinHandle::is_finished).then_some(()));
        assert_eq!(format!("{:#}", all.finish().expect_err("it failed")), "guest guest: it is damaged");
    }

    #[test]
    fn who_takes_guests_is_told_that_the_machine_ends_whatever_ends_it() {
        let mut all = arrivals(1, None);
        let (said, heard) = std::sync::mpsc::channel();
        drop(all.start(
            || false,
            move |_, _, is_over| {
                while !is_over() {
                    thread::sleep(Duration::from_millis(1));
                }
                Ok(said.send(())?)
            },
        ));
        drop(all);
        heard.recv().expect("it was told");
    }
}

//! Stock guests that were saved where their command begins. A row whose subject is not the boot
//! restores one of these, and types the command; `CONTRIBUTING.md` says which rows do.

use super::Lab;
use crate::guest::cache;
use crate::machine::control::{Control, Found, Refused};
use crate::migration::{self, Arrivals, Manner, Origin, Wanted};
use crate::test::cases::Body;
use crate::test::guests::expect::with_console;
use crate::test::prelude::*;
use crate::test::talk;
use hostlink::config::{ApicIds, FlushMode};

/// What a guest runs that is saved. Its command is a line on the console, and is not shown there.
const WAITS: &str = "stty -echo; echo '{\"event\":\"waits\"}' > /dev/report; read -r command; stty echo; \
    sh -c \"$command\"";
/// More do not fit into a line of the console.
const COMMAND_MAX: usize = 4000;

/// A stock guest, as it sees itself.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Kind {
    platform: Platform,
    vcpus: u32,
    memory: u64,
    words: &'static str,
    flush: FlushMode,
    is_newer: bool,
    apic_ids: ApicIds,
}

impl Kind {
    fn of(case: &Case) -> Result<Self> {
        let (vcpus, memory) = match case.body {
            Body::Stock(stock) => (stock.vcpus, case.memory),
            Body::Talk { .. } => (4, talk::GUEST_MEMORY),
            _ => bail!("{} has no stock guest", case.name),
        };
        let Case { platform, words, flush, is_newer, settings, .. } = *case;
        let apic_ids = switches(settings)?.apic_ids;
        Ok(Self { platform, vcpus, memory, words, flush, is_newer, apic_ids })
    }
}

/// Whether a row may begin with a guest that was saved: neither the boot is its subject, nor time,
/// nor what is counted from the boot on, nor another machine.
fn may_be_restored(case: &Case) -> bool {
    let is_about_more = match case.body {
        Body::Stock(stock) => {
            use Expect::{Intact, Loops, NothingStale, Stale, TlbIpis};
            matches!(stock.expect, Intact | Loops | NothingStale | Stale | TlbIpis(_))
        }
        Body::Talk { .. } => true,
        _ => false,
    };
    is_about_more && case.platform == Platform::X86_64 && !case.is_counted
}

/// The guests that rows restore: those that several rows have. Each is saved when the first of its
/// rows needs it, and tried again by the next one if that fails.
pub(super) struct Saved {
    directory: TempDir,
    kinds: Vec<(Kind, Mutex<Option<PathBuf>>)>,
}

impl Saved {
    pub(super) fn for_rows(rows: &[&Case]) -> Result<Self> {
        let kinds = rows.iter().filter(|case| may_be_restored(case)).map(|case| Kind::of(case));
        let mut left = kinds.collect::<Result<Vec<_>>>()?;
        let mut kinds = Vec::new();
        while let Some(kind) = left.pop() {
            if left.contains(&kind) {
                left.retain(|other| *other != kind);
                kinds.push((kind, Mutex::new(None)));
            }
        }
        Ok(Self { directory: tempfile::Builder::new().prefix("quell-saved-").tempdir()?, kinds })
    }
}

impl Lab<'_> {
    fn guest_of(&self, kind: &Kind, command: &str) -> Result<Guest> {
        let mut guest = self.stock_guest(kind.platform, Some(command))?;
        if kind.is_newer {
            guest.kernel = cache::newer_kernel(kind.platform.arch())?.kernel;
        }
        guest.cmdline = format!("{} {}", guest.cmdline, kind.words).trim_end().to_owned();
        guest.switches.apic_ids = kind.apic_ids;
        (guest.vcpus, guest.memory, guest.flush) = (kind.vcpus, kind.memory, kind.flush);
        Ok(guest)
    }

    /// Runs the stock guest of a row, from its boot or from where it was saved.
    pub(super) fn run_stock(
        &self,
        case: &Case,
        cpus: u32,
        command: &str,
        observe: impl FnMut(&Value, &mut Machine) -> Result<Flow>,
    ) -> Result<Outcome> {
        let saved = self.saved(case, command)?;
        let boots = saved.as_ref().map_or(command, |_| WAITS);
        let mut guest = self.guest_of(&Kind::of(case)?, boots)?;
        guest.switches = switches(case.settings)?;
        guest.arrives = saved.is_some();
        let arrivals = saved.map_or(Ok(Arrivals::default()), |path| arrivals(&path, command))?;
        let clock = if case.is_counted { Clock::Instructions } else { Clock::Wall };
        self.boot_by(clock, &guest, cpus, arrivals, observe)
    }

    /// The file of the guest that a row restores; `None` if it boots.
    fn saved(&self, case: &Case, command: &str) -> Result<Option<PathBuf>> {
        let (saved, kind) = (&self.parts.saved, Kind::of(case)?);
        let fits = command.len() <= COMMAND_MAX && !command.contains('\n');
        let known = saved.kinds.iter().position(|(known, _)| *known == kind);
        let Some(index) = known.filter(|_| fits && may_be_restored(case)) else { return Ok(None) };
        let mut file = saved.kinds[index].1.lock().unwrap_or_else(PoisonError::into_inner);
        if file.is_none() {
            let path = saved.directory.path().join(index.to_string());
            self.save(&kind, &path).context("the guest that the row restores was not saved")?;
            *file = Some(path);
        }
        Ok(file.clone())
    }

    fn save(&self, kind: &Kind, path: &Path) -> Result<()> {
        let wanted = Wanted::STILL;
        let manner = Manner::new(wanted, self.signals.clone());
        let save = |machine: &Machine| {
            let machine = machine.found().context("it has no hypervisor")?;
            migration::save(&Origin::find(&machine, Name::GUEST)?, path, false, &manner)
        };
        let mut saved = Err(anyhow!("it did not come to its command"));
        let outcome = self.boot(&self.guest_of(kind, WAITS)?, 2, |report, machine| {
            if report["event"] != "waits" {
                return Ok(Flow::Continue);
            }
            saved = save(machine);
            Ok(Flow::Stop)
        })?;
        with_console(&outcome, || saved.map(drop))
    }
}

/// What is typed to the restored guest. The machine may end before it has answered.
fn arrivals(path: &Path, command: &str) -> Result<Arrivals> {
    let line = format!("{command}\n");
    Arrivals::of_file(Name::GUEST, path, move |machine, _| match type_text(machine, line.as_bytes()) {
        Err(error) if !error.is::<Refused>() => Ok(()),
        result => result,
    })
}

fn type_text(machine: &Found, mut rest: &[u8]) -> Result<()> {
    let mut control = Control::open(machine)?;
    while !rest.is_empty() {
        rest = &rest[control.type_some(Name::GUEST, 0, rest)?..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::ALL_CASES;

    #[test]
    fn only_guests_that_several_rows_have_are_saved() {
        let all: Vec<_> = ALL_CASES.iter().filter(|case| !case.only_long).collect();
        let kinds = |rows: &[&Case]| Saved::for_rows(rows).expect("has room").kinds.len();
        let named = |name: &str| *all.iter().find(|case| case.name == name).expect("is a row");
        let talks = ["ctl_refusals_change_nothing", "ctl_memory_comes_and_goes"].map(named);
        assert_eq!((kinds(&talks[..1]), kinds(&talks), kinds(&all)), (0, 1, 3));
        // What one sees and the other does not, and rows about the boot.
        let [plain, reversed] = ["o1_nothing_stale_with_hypercalls", "h13_vp_index_is_no_apic_id"].map(named);
        assert_eq!(kinds(&[plain, reversed]), 0);
        assert_eq!(kinds(&[plain, named("e3_stale_pages_without_kicks")]), 1);
        let boot = named("nproc_is_8");
        assert_eq!(kinds(&[boot, boot]), 0);
    }
}

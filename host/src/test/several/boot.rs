//! Guests that boot side by side. Each shows what it was told to, on its own console only.

use super::stage::Ended;
use super::*;

/// Time for a few guests, and for the examples with many vCPUs.
const TIMEOUT: Duration = Duration::from_secs(240);
pub(super) const TIMEOUT_SIXTEEN: Duration = Duration::from_secs(900);
pub(super) const TIMEOUT_FOUR_BY_32: Duration = Duration::from_secs(1800);

/// What a guest without a command shows when its shell starts, and the shell's prompt.
const SHELL: &str = "A shell in the guest";
const PROMPT: &str = "# ";

/// A guest's name and its vCPUs.
type Known = (String, u32);

/// What a guest says about itself. What it is told to say does not contain this.
fn mark((name, vcpus): &Known) -> String {
    format!("{name} has {vcpus} processors")
}

/// The command that makes it say so.
fn command(name: &str) -> String {
    format!("echo {name} has $(nproc) processors")
}

/// On a PC: six processors, of which three are in a socket that has room for four. Their APIC ids
/// are 0, 1, 2, 4, 5 and 6: no other row notices whoever takes a CPU's index for one.
const WITH_GAPS: (&str, &[&str]) =
    ("[machine]\ncpus = 6\n", &["-smp", "cpus=6,sockets=2,cores=3,threads=1,maxcpus=6"]);

/// Guests with different numbers of vCPUs, which end by themselves.
pub(super) fn few(room: &Room<'_>) -> Result<()> {
    let guests = [("one", 1), ("two", 2), ("three", 3)].map(|(name, vcpus)| (name.to_owned(), vcpus));
    let table = |(name, vcpus): &Known| {
        format!(
            "[[guest]]\nname = \"{name}\"\nvcpus = {vcpus}\nmemory = \"128M\"\ncmdline = \"quiet\"\n\
             exec = \"{}\"\n",
            command(name)
        )
    };
    let (machine, args) = if room.platform == Platform::X86_64 { WITH_GAPS } else { ("", &[][..]) };
    let text: String = core::iter::once(machine.to_owned()).chain(guests.iter().map(table)).collect();
    let stage = room.play_file(&room.write(&text)?, TIMEOUT, args, |_| Ok(()))?;
    let ended = stage.finish()?;
    ended.ended_by(ExitCode::GuestPowerOff)?;
    let log = &ended.outcome.log;
    ensure!(machine.is_empty() || log.contains("6 CPUs, "), "a CPU is not used:\n{log}");
    check_marks(&ended, &guests)
}

/// Guests of an example: each starts a shell, and is told what to say, and to switch itself off.
pub(super) fn example(room: &Room<'_>, name: &str, limit: Duration) -> Result<()> {
    let path = workspace::root().join("examples").join(name);
    let file = room.read(&path)?;
    let guests: Vec<Known> =
        file.guests.iter().map(|guest| (guest.name().to_string(), guest.config.vcpus)).collect();
    let stage = room.play_file(&path, limit, &[], |stage| {
        for (name, _) in &guests {
            let from = stage.until_shown(name, SHELL, 0)?;
            stage.until_shown(name, PROMPT, from)?;
        }
        for guest @ (name, _) in &guests {
            let from = stage.length(name)?;
            stage.type_text(name, &format!("{}\n", command(name)))?;
            stage.until_shown(name, &mark(guest), from)?;
        }
        for (name, _) in &guests {
            stage.type_end(name, "poweroff\n")?;
        }
        Ok(())
    })?;
    let ended = stage.finish()?;
    ended.ended_by(ExitCode::GuestPowerOff)?;
    check_marks(&ended, &guests)
}

/// Each guest's console shows its own mark, and no other guest's.
fn check_marks(ended: &Ended, guests: &[Known]) -> Result<()> {
    for (name, _) in guests {
        let shown = ended.shown(name);
        for guest in guests {
            let (is_own, is_there) = (guest.0 == *name, shown.contains(&mark(guest)));
            ensure!(is_own == is_there, "{name}'s console, '{}' there: {is_there}:\n{shown}", mark(guest));
        }
    }
    Ok(())
}

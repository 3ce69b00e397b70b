//! How a run has ended: what an emulator says of it, and what is left of it to be judged.

use super::End;
use crate::machine::bochs::Messages;
use crate::machine::emulator::describe;
use crate::prelude::*;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// The end of a run whose guest has switched its machine off.
pub(crate) const OFF: End = End::Hypervisor(ExitCode::GuestPowerOff);
/// How the hypervisor's log begins its last words.
const PANIC: &str = "quell: panic";
/// Events by which programs of guests say that something is wrong.
const WRONG: [&str; 5] = ["bail", "damage", "failed", "stale", "wrong"];

/// What a guest complains of by a report, if it does. A result that is not known is none to trust.
pub(crate) fn complaint(report: &Value) -> Option<String> {
    let text = |key: &str| report[key].as_str();
    let is_bad = text("result").is_some_and(|result| !matches!(result, "pass" | "skip"));
    let why = text("why").map_or_else(|| report.to_string(), str::to_owned);
    let said = text("test").map_or(why.clone(), |test| format!("{test}: {why}"));
    (is_bad || text("event").is_some_and(|event| WRONG.contains(&event))).then_some(said)
}

/// What the emulator's own log and messages say of the end. QEMU's status for a triple fault, or
/// for a signal that ends it, is that of an orderly end. Bochs's for an orderly one is that of a
/// failure.
pub(super) fn emulator_end(log: &str, messages: &str, status: ExitStatus) -> End {
    let ends = [
        ("Triple fault", End::TripleFault),
        ("exception with no resolution", End::TripleFault),
        // KVM's word for it; where it emulates, QEMU has said the other one before.
        (r#""reason": "guest-reset""#, End::TripleFault),
        ("soft power off", End::PowerOff),
    ];
    match ends.into_iter().find(|(text, _)| log.contains(text)) {
        Some((_, end)) => end,
        None if status.success() && !messages.contains("terminating on signal") => End::PowerOff,
        None => End::Failed(status),
    }
}

#[derive(Clone)]
pub(crate) struct Outcome {
    pub(crate) end: End,
    pub(crate) wall: Duration,
    /// The end of the guest's console, unless it was the terminal.
    pub(crate) console: String,
    pub(crate) log: String,
    pub(crate) emulator: &'static str,
    pub(crate) qemu_messages: Messages,
    /// What could not be written of what was to be shown and logged, and why.
    pub(crate) unwritten: Vec<String>,
    /// The reports, in order: if there were very many, the first and the last.
    pub(crate) reports: Vec<Value>,
    pub(crate) reports_dropped: usize,
    /// The counters at the end; `None` without hypervisor, or if it ended before it had any.
    pub(crate) counters: Option<Snapshot>,
}

impl Outcome {
    /// Fails unless the run has ended in one of these ways; and if the hypervisor has panicked
    /// before it was ended, unless that is one.
    pub(crate) fn ended_by(&self, expected: &[End]) -> Result<()> {
        let is_expected = expected.contains(&self.end);
        let has_panicked = self.log.contains(PANIC) && !expected.contains(&End::Hypervisor(ExitCode::Panic));
        match self.end {
            _ if is_expected && has_panicked => bail!("the hypervisor has panicked"),
            _ if is_expected => Ok(()),
            End::Failed(status) => {
                let Self { emulator, qemu_messages, .. } = self;
                bail!("{emulator} failed ({}): {}", describe(status), qemu_messages.trim())
            }
            End::TimedOut => bail!("it did not end in {} s", self.wall.as_secs()),
            end => bail!("ended by {end:?} instead of {expected:?}"),
        }
    }

    /// Fails, with the ends of console and log, unless the guest switched the machine off.
    pub(crate) fn powered_off(self) -> Result<Self> {
        self.ended_by(&[OFF]).map_err(|error| self.explain(error))?;
        Ok(self)
    }

    /// Fails if the guest complains of something.
    pub(crate) fn without_complaint(&self) -> Result<()> {
        let said = self.reports.iter().find_map(complaint);
        said.map_or(Ok(()), |why| bail!("the guest says: {why}"))
    }

    /// Fails if reports are missing, of which one may have been a complaint.
    pub(crate) fn all_kept(&self) -> Result<()> {
        ensure!(self.reports_dropped == 0, "{} reports are not kept", self.reports_dropped);
        Ok(())
    }

    pub(crate) fn explain(&self, error: Error) -> Error {
        anyhow!("{error:#}\n{}", tails(&self.console, &self.log))
    }

    /// How Quell's machine has ended that ran in this one, by the status of its QEMU.
    pub(crate) fn of_inner(self) -> Self {
        let said = self.report("exit").and_then(|exit| exit["status"].as_i64());
        let status = said.and_then(|status| i32::try_from(status).ok()).unwrap_or(1);
        let end = match self.end {
            End::PowerOff if status == 0 => End::TripleFault,
            End::PowerOff => ExitCode::from_qemu_status(status)
                .map_or(End::Failed(ExitStatus::from_raw(status << 8)), End::Hypervisor),
            end => end,
        };
        Self { end, ..self }
    }

    pub(crate) fn report(&self, event: &str) -> Option<&Value> {
        self.reports.iter().find(|report| report["event"] == event)
    }
}

pub(super) fn tails(console: &str, log: &str) -> String {
    format!("the guest's console:\n{}\nthe hypervisor's log:\n{}", tail(console), tail(log))
}

#[cfg(test)]
mod tests {
    use super::super::refuses;
    use super::*;

    #[test]
    fn a_signal_that_ends_qemu_is_no_orderly_end() {
        let end = |log, messages| emulator_end(log, messages, ExitStatus::from_raw(0));
        assert_eq!(end("", "warning: of something"), End::PowerOff);
        assert_eq!(end("Triple fault", ""), End::TripleFault);
        assert_eq!(end("exception with no resolution", ""), End::TripleFault);
        for (reason, expected) in [("guest-reset", End::TripleFault), ("guest-shutdown", End::PowerOff)] {
            let event = format!(r#"{{"event": "SHUTDOWN", "data": {{"reason": "{reason}"}}}}"#);
            assert_eq!(emulator_end(&event, "", ExitStatus::from_raw(0)), expected);
        }
        assert_eq!(emulator_end("soft power off", "", ExitStatus::from_raw(1 << 8)), End::PowerOff);
        let killed = "qemu-system-x86_64: terminating on signal 15 from pid 7 (kill)";
        assert_eq!(end("", killed), End::Failed(ExitStatus::from_raw(0)));
    }

    #[test]
    fn a_machine_in_the_machine_has_ended_by_its_own_status() {
        let [panic, off] = [ExitCode::Panic, ExitCode::GuestPowerOff].map(ExitCode::qemu_status);
        let right = format!("end bare\n+event=exit status={off}");
        let judged = |it: &Outcome| it.clone().of_inner().ended_by(&[OFF]);
        let wrong = "
            0.status=0 => ended by TripleFault
            0.status=1 => QEMU failed (status 1)
            -0 => QEMU failed (status 1)
            end late => did not end";
        refuses(judged, &right, &format!("{wrong}\n0.status={panic} => ended by Hypervisor(Panic)"));
    }

    #[test]
    fn u50_a_run_ends_as_expected_and_no_other_way() {
        let wrong = "
            end GuestReset => ended by Hypervisor(GuestReset)
            end Panic => ended by Hypervisor(Panic)
            end failed => QEMU failed (status 1)
            end bare => ended by PowerOff instead of
            end late => it did not end in 0 s
            log audit: quell: panic: b => the hypervisor has panicked";
        refuses(|it| it.ended_by(&[OFF]), "end off", wrong);
        refuses(|it| it.ended_by(&[End::Hypervisor(ExitCode::Panic)]), "end Panic\nlog quell: panic", "");
    }

    #[test]
    fn a_guest_complains_by_a_result_or_an_event() {
        let right = "+test=a result=pass\n+row=a result=skip\n+event=end";
        let wrong = "
            0.result=fail => the guest says: a: {
            1.result=maybe => the guest says: {
            +test=b result=fail why=c => the guest says: b: c
            2.event=bail => the guest says: {
            2.event=damage => damage
            2.event=failed => failed
            2.event=stale => stale
            2.event=wrong => wrong";
        refuses(Outcome::without_complaint, right, wrong);
        refuses(Outcome::all_kept, right, "dropped 1 => 1 reports are not kept");
    }
}

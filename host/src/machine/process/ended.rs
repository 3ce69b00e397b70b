//! How an emulator has ended, by what it says itself.

use super::End;
use std::process::ExitStatus;

/// What the emulator's own log and messages say of the end. QEMU's status for a triple fault, or
/// for a signal that ends it, is that of an orderly end. Bochs's for an orderly one is that of a
/// failure.
pub(super) fn emulator_end(log: &str, messages: &str, status: ExitStatus) -> End {
    let ends = [
        ("Triple fault", End::TripleFault),
        ("exception with no resolution", End::TripleFault),
        ("soft power off", End::PowerOff),
    ];
    match ends.into_iter().find(|(text, _)| log.contains(text)) {
        Some((_, end)) => end,
        None if status.success() && !messages.contains("terminating on signal") => End::PowerOff,
        None => End::Failed(status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn a_signal_that_ends_qemu_is_no_orderly_end() {
        let end = |log, messages| emulator_end(log, messages, ExitStatus::from_raw(0));
        assert_eq!(end("", "warning: of something"), End::PowerOff);
        assert_eq!(end("Triple fault", ""), End::TripleFault);
        let killed = "qemu-system-x86_64: terminating on signal 15 from pid 7 (kill)";
        assert_eq!(end("", killed), End::Failed(ExitStatus::from_raw(0)));
    }
}

//! A command whose output is read line by line while it runs.

use crate::prelude::*;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{BufRead, BufReader, PipeReader};
use std::os::unix::process::CommandExt;
use std::process::ExitStatus;
use std::sync::mpsc;

/// The time that a stopped command has to end by itself.
const GRACE: Duration = Duration::from_secs(10);

/// Runs `command` in its own process group and passes each line of its output to `each`. Each of
/// its processes is ended when it has used `cpu_time`.
///
/// After `timeout`, or when a signal arrives, interrupts the command, and kills it if that does not
/// help. There is no status then: whatever the command makes of it, it has not come to its end.
pub(super) fn read(
    command: Command,
    timeout: Duration,
    cpu_time: Duration,
    signals: &Signals,
    mut each: impl FnMut(String),
) -> Result<Option<ExitStatus>> {
    let (source, sink) = std::io::pipe()?;
    let mut command = limited(&command, cpu_time);
    command.stdout(sink.try_clone()?).stderr(sink).stdin(Stdio::null()).process_group(0);
    let mut child = command.spawn().context("cannot start cargo")?;
    // The command holds copies of the pipe's writing end, which prevent end of file while it lives.
    drop(command);
    let group = Pid::from_child(&child);
    let (sender, lines) = mpsc::channel();
    let reader = thread::spawn(move || send_lines(source, &sender));
    let mut deadline = Instant::now() + timeout;
    let mut is_stopping = false;
    loop {
        match lines.recv_timeout(Duration::from_millis(200)) {
            Ok(line) => each(line),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
        let is_over = Instant::now() >= deadline;
        if is_stopping && is_over {
            kill_process_group(group, Signal::KILL).context("cannot end cargo")?;
            break;
        }
        if !is_stopping && (is_over || signals.caught().is_some()) {
            each(format!("error: stopped by {}", if is_over { "its timeout" } else { "a signal" }));
            kill_process_group(group, Signal::INT).context("cannot end cargo")?;
            deadline = Instant::now() + GRACE;
            is_stopping = true;
        }
    }
    let status = child.wait()?;
    drop(lines);
    reader.join().ok();
    Ok((!is_stopping).then_some(status))
}

/// The same command, each of whose processes has at most so much CPU time from its beginning. It
/// has less if we have less ourselves: only root may have more than its parent.
pub(super) fn limited(command: &Command, cpu_time: Duration) -> Command {
    let mut limited = Command::new("/bin/sh");
    limited.args(["-c", "ulimit -t \"$0\" 2>/dev/null; exec \"$@\"", &cpu_time.as_secs().to_string()]);
    limited.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        limited.current_dir(directory);
    }
    limited
}

fn send_lines(source: PipeReader, sender: &mpsc::Sender<String>) {
    for line in BufReader::new(source).split(b'\n') {
        let Ok(line) = line else { return };
        if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
            return;
        }
    }
}

pub(super) fn shorten(line: &str) -> String {
    line.trim().chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status_of(script: &str, timeout: Duration) -> Option<bool> {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", script]);
        let status =
            read(shell, timeout, Duration::from_secs(60), &Signals::default(), |_| {}).expect("starts");
        status.map(|status| status.success())
    }

    #[test]
    fn u50_what_was_stopped_has_no_status() {
        let long = Duration::from_secs(600);
        assert_eq!(status_of("true", long), Some(true));
        assert_eq!(status_of("false", long), Some(false));
        let content = "trap 'exit 0' INT; while :; do sleep 0.1; done";
        assert_eq!(status_of(content, Duration::from_millis(300)), None);
    }
}

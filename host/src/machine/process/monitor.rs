//! QEMU's monitor: what the CPUs of a machine that hangs are at, its screen and its keyboard.

use super::Machine;
use crate::prelude::*;
use serde_json::Deserializer;
use std::io::Write;
use std::os::unix::net::UnixStream;

/// QEMU answers at once, unless it hangs itself.
const PATIENCE: Duration = Duration::from_secs(5);
/// So often are the CPUs looked at: one that moves differs.
const LOOKS: usize = 3;
/// How the lines begin that are shown of a CPU's registers.
const SHOWN: [&str; 7] = ["CPU#", "RIP=", "EIP=", "CR0=", "PC=", "PSTATE=", "RAX="];

/// The monitor's socket, among a machine's files.
pub(super) const SOCKET: &str = "monitor";

impl Machine {
    /// Where its CPUs are, several times, and some of their registers; or why that is not known.
    pub(crate) fn processors(&self) -> String {
        looks(self.platform, &self.files.path().join(SOCKET))
    }

    pub(crate) fn monitor(&self) -> Monitor {
        Monitor(self.files.path().join(SOCKET))
    }
}

/// What somebody sees and does who sits before the machine.
pub(crate) struct Monitor(PathBuf);

impl Monitor {
    /// Writes what the screen shows to a file, as a portable pixmap.
    pub(crate) fn picture(&self, file: &Path) -> Result<()> {
        self.tell("screendump", &json!({ "filename": file }))
    }

    /// Presses a key, and lets it go.
    pub(crate) fn press(&self, key: &str) -> Result<()> {
        self.tell("send-key", &json!({ "keys": [{ "type": "qcode", "data": key }] }))
    }

    fn tell(&self, execute: &str, arguments: &Value) -> Result<()> {
        ask(&self.0, &[json!({ "execute": execute, "arguments": arguments })]).map(drop)
    }
}

fn looks(platform: Platform, socket: &Path) -> String {
    if let Platform::Bochs(_) = platform {
        return "what the machine's CPUs are at is not known: Bochs has no monitor\n".to_owned();
    }
    let registers = json!({ "command-line": "info registers -a" });
    let request = json!({ "execute": "human-monitor-command", "arguments": registers });
    let looks = ask(socket, &vec![request; LOOKS]);
    let looks =
        looks.map(|looks| looks.iter().filter_map(Value::as_str).map(shown).collect::<Vec<_>>().join("\n"));
    let looks = looks.unwrap_or_else(|error| format!("not known: {error:#}"));
    format!("the machine's CPUs, by QEMU's monitor:\n{looks}\n")
}

/// The answers to these requests.
fn ask(socket: &Path, requests: &[Value]) -> Result<Vec<Value>> {
    let mut stream = UnixStream::connect(socket).context("cannot connect to QEMU's monitor")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let begin = json!({ "execute": "qmp_capabilities" });
    for request in [&begin].into_iter().chain(requests) {
        writeln!(stream, "{request}")?;
    }
    let mut answers = Vec::new();
    for said in Deserializer::from_reader(stream).into_iter::<Value>() {
        let mut said = said.context("QEMU's monitor does not answer")?;
        ensure!(said.get("error").is_none(), "QEMU's monitor says {said}");
        // It also greets, and tells of events.
        answers.extend(said.get_mut("return").map(Value::take));
        if answers.len() > requests.len() {
            return Ok(answers.split_off(1));
        }
    }
    bail!("QEMU's monitor has not answered all requests")
}

/// A line for each CPU.
fn shown(registers: &str) -> String {
    let lines = registers.lines().map(str::trim).filter(|line| SHOWN.iter().any(|it| line.starts_with(it)));
    lines.fold(String::new(), |all, line| match line.strip_prefix("CPU#") {
        Some(cpu) if all.is_empty() => format!("CPU {cpu}:"),
        Some(cpu) => format!("{all}\nCPU {cpu}:"),
        None => format!("{all} {line}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;
    use std::thread;

    #[test]
    fn a_line_says_where_each_cpu_is() {
        let text =
            "\r\nCPU#0\r\nRAX=1 RBX=2\r\nRSI=3\r\nRIP=4 RFL=5 HLT=1\r\nES =0\r\n\r\nCPU#1\r\n PC=6 X00=7\r\n";
        assert_eq!(shown(text), "CPU 0: RAX=1 RBX=2 RIP=4 RFL=5 HLT=1\nCPU 1: PC=6 X00=7");
    }

    #[test]
    fn bochs_is_not_asked() {
        let platform = Platform::Bochs(crate::machine::bochs::Bochs::RYZEN);
        let text = looks(platform, Path::new("/nowhere"));
        assert!(text.contains("Bochs has no monitor") && !text.contains("QEMU"), "{text}");
        assert!(looks(Platform::X86_64, Path::new("/nowhere")).contains("cannot connect to QEMU's monitor"));
    }

    #[test]
    fn the_monitor_is_asked_and_its_error_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("monitor");
        let says = |answers: &str| {
            let _none_before = fs::remove_file(&socket);
            let listener = UnixListener::bind(&socket).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| {
                    let (mut stream, _) = listener.accept().unwrap();
                    stream.write_all(answers.as_bytes()).unwrap();
                    // Closed with requests that are not read, the socket would lose what was said.
                    BufReader::new(stream).lines().take(1 + LOOKS).for_each(drop);
                });
                ask(&socket, &[const { Value::Null }; LOOKS]).map_err(|error| format!("{error:#}"))
            })
        };
        let look = r#"{"return": "CPU#0"} {"event": "RESET"}"#;
        let looks = says(&format!(r#"{{"QMP": {{}}}} {{"return": {{}}}} {look}{look}{look}"#));
        assert_eq!(looks.unwrap(), ["CPU#0"; LOOKS]);
        assert!(says(&format!(r#"{{"return": {{}}}} {look}"#)).unwrap_err().contains("not answered all"));
        assert!(says(r#"{"error": {"desc": "no"}}"#).unwrap_err().contains("QEMU's monitor says"));
        fs::remove_file(&socket).unwrap();
        assert!(ask(&socket, &[]).unwrap_err().to_string().contains("cannot connect"));
    }
}

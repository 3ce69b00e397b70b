//! A headless Chromium that opens a page, for the tests of reports and for pictures of them.
//!
//! It is driven by its DevTools protocol (Chrome DevTools Protocol 1.3): JSON messages, each ended
//! by a zero byte, through two pipes. Chromium ends by itself when its pipe is closed.

use crate::machine::child::describe;
use anyhow::{Context, Result, bail, ensure};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use std::{env, thread};
use tempfile::TempDir;

/// The names of the program, in the order of preference.
const PROGRAMS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome-stable", "google-chrome"];

/// Chromium reads requests from descriptor 3 and answers on 4.
const ON_PIPES: &str = "exec \"$@\" 3<&0 4>&1 0</dev/null 1>&2";

/// A page needs neither a GPU nor the network. The sandbox needs rights that containers lack; the
/// pages are our own.
const FLAGS: [&str; 11] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
];

/// The maximum time to wait for an answer or an event, also on a computer that is very busy.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(90);
/// The maximum time for Chromium to end after it was requested to.
const END_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_PERIOD: Duration = Duration::from_millis(20);
/// The maximum number of events that are kept.
const EVENTS_MAX: usize = 10_000;
/// Lines of Chromium's own messages that an error shows.
const LINES_MAX: usize = 20;

/// The program, if there is one.
pub(crate) fn program() -> Option<&'static str> {
    let path = env::var_os("PATH")?;
    PROGRAMS.into_iter().find(|name| env::split_paths(&path).any(|directory| directory.join(name).is_file()))
}

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    requests: Option<ChildStdin>,
    messages: Receiver<Value>,
    /// Events of the page, in the order in which they arrived.
    events: Vec<Value>,
    last_id: u64,
    session: Option<String>,
    /// Its profile, and its messages.
    directory: TempDir,
}

impl Browser {
    /// Starts a browser whose window has this size, with an empty page.
    pub(crate) fn start(width: u32, height: u32) -> Result<Self> {
        let program = program()
            .with_context(|| format!("there is none of {}: install Chromium", PROGRAMS.join(", ")))?;
        let directory = tempfile::Builder::new().prefix("quell-browser-").tempdir()?;
        let log = File::create(directory.path().join("log"))?;
        let profile = directory.path().join("profile");
        let mut child = Command::new("/bin/sh")
            .args(["-c", ON_PIPES, "sh", program])
            .args(FLAGS)
            .arg(format!("--window-size={width},{height}"))
            .arg(format!("--user-data-dir={}", profile.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        let requests = child.stdin.take();
        let answers = child.stdout.take().context("the browser has no pipe")?;
        let (sender, messages) = channel();
        // It ends when the browser closes its end, or when nobody receives.
        thread::spawn(move || {
            for message in BufReader::new(answers).split(0) {
                let Ok(message) = message else { return };
                let Ok(message) = serde_json::from_slice(&message) else { return };
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser =
            Self { child, requests, messages, events: Vec::new(), last_id: 0, session: None, directory };
        browser.attach().context(format!("{program} does not show a page"))?;
        Ok(browser)
    }

    /// Makes a page and enables its events.
    fn attach(&mut self) -> Result<()> {
        let target = self.call("Target.createTarget", &json!({"url": "about:blank"}))?["targetId"].clone();
        let session = self.call("Target.attachToTarget", &json!({"targetId": target, "flatten": true}))?;
        self.session = Some(session["sessionId"].as_str().context("there is no session")?.to_owned());
        for domain in ["Page", "Runtime", "Log", "Network"] {
            self.call(&format!("{domain}.enable"), &json!({}))?;
        }
        Ok(())
    }

    /// Opens a file, and returns when it and its parts are loaded.
    pub(crate) fn open(&mut self, page: &Path) -> Result<()> {
        let page = fs::canonicalize(page).with_context(|| format!("there is no {}", page.display()))?;
        self.events.clear();
        let answer = self.call("Page.navigate", &json!({"url": url(&page)}))?;
        ensure!(answer["errorText"].is_null(), "{} does not open: {}", page.display(), answer["errorText"]);
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        while !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
            let message = self.receive(deadline, "the page to be loaded")?;
            self.keep(message)?;
        }
        Ok(())
    }

    /// Makes a request and returns its result.
    pub(crate) fn call(&mut self, method: &str, parameters: &Value) -> Result<Value> {
        self.last_id += 1;
        let mut request = json!({"id": self.last_id, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            request["sessionId"] = json!(session);
        }
        let sent = self.requests.as_mut().context("the browser was closed").and_then(|requests| {
            requests.write_all(format!("{request}\0").as_bytes())?;
            Ok(requests.flush()?)
        });
        if let Err(error) = sent {
            return Err(error.context(self.end_of_log()));
        }
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            let message = self.receive(deadline, method)?;
            if message["id"] != self.last_id {
                self.keep(message)?;
            } else if message["error"].is_null() {
                return Ok(message["result"].clone());
            } else {
                bail!("{method}: {}", message["error"]["message"]);
            }
        }
    }

    fn keep(&mut self, event: Value) -> Result<()> {
        ensure!(self.events.len() < EVENTS_MAX, "the page has caused {EVENTS_MAX} events");
        self.events.push(event);
        Ok(())
    }

    fn receive(&mut self, deadline: Instant, awaited: &str) -> Result<Value> {
        match self.messages.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(message) => Ok(message),
            Err(RecvTimeoutError::Timeout) => {
                bail!("no answer within {ANSWER_TIMEOUT:?}: {awaited}\n{}", self.end_of_log())
            }
            Err(RecvTimeoutError::Disconnected) => {
                let end = self.child.try_wait()?.map_or_else(|| "a closed pipe".to_owned(), describe);
                bail!("the browser ended with {end}: {awaited}\n{}", self.end_of_log())
            }
        }
    }

    /// Evaluates an expression in the page, waits for a promise, and returns the value.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Result<Value> {
        let parameters = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let answer = self.call("Runtime.evaluate", &parameters)?;
        let exception = &answer["exceptionDetails"];
        ensure!(exception.is_null(), "{expression}: {exception}");
        Ok(answer["result"]["value"].clone())
    }

    /// The events of the page so far with this method: their parameters.
    pub(crate) fn events(&self, method: &str) -> Vec<&Value> {
        self.events.iter().filter(|event| event["method"] == method).map(|event| &event["params"]).collect()
    }

    /// Chooses the medium (`screen`, `print`) and the preferred scheme of colours.
    pub(crate) fn prefer(&mut self, medium: &str, scheme: &str) -> Result<()> {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", &json!({"media": medium, "features": features}))?;
        // Two frames later listeners have run and the page is drawn.
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")?;
        Ok(())
    }

    /// A picture of the whole page (PNG).
    pub(crate) fn picture(&mut self) -> Result<Vec<u8>> {
        let parameters = json!({"format": "png", "captureBeyondViewport": true});
        let answer = self.call("Page.captureScreenshot", &parameters)?;
        let data = answer["data"].as_str().context("there is no picture")?;
        BASE64_STANDARD.decode(data).context("the picture is no Base64")
    }

    /// The last of Chromium's own messages.
    fn end_of_log(&self) -> String {
        let text = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        format!("the end of its messages:\n{}", lines[lines.len().saturating_sub(LINES_MAX)..].join("\n"))
    }

    /// Ends the browser, and returns when it has ended.
    pub(crate) fn close(mut self) -> Result<()> {
        self.session = None;
        self.call("Browser.close", &json!({}))?;
        self.requests = None;
        let deadline = Instant::now() + END_TIMEOUT;
        while self.child.try_wait()?.is_none() {
            ensure!(Instant::now() < deadline, "the browser has not ended within {END_TIMEOUT:?}");
            thread::sleep(POLL_PERIOD);
        }
        Ok(())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its group has its id, which is not given to another process before it is waited for.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            let _ = self.child.wait();
        }
        // Processes of the browser may still write to the profile for a moment.
        for _ in 0..50 {
            match fs::remove_dir_all(self.directory.path().join("profile")) {
                Err(error) if error.kind() != ErrorKind::NotFound => thread::sleep(POLL_PERIOD),
                _ => break,
            }
        }
    }
}

/// The URL of a file.
pub(crate) fn url(page: &Path) -> String {
    let path = page.as_os_str().as_encoded_bytes();
    path.iter().fold("file://".to_owned(), |url, &byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => {
            url + &char::from(byte).to_string()
        }
        _ => format!("{url}%{byte:02X}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_urls() {
        assert_eq!(url(Path::new("/a b/ü#?.html")), "file:///a%20b/%C3%BC%23%3F.html");
    }
}

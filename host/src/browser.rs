//! A headless Chromium that shows a page, for the tests of reports and for pictures of them. It is
//! driven by its command line.

use crate::prelude::*;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use std::fs::File;

/// The names of the program, in the order of preference.
const PROGRAMS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome-stable", "google-chrome"];

/// A page needs neither a GPU nor the network. The sandbox needs rights that containers lack; the
/// pages are our own. What a page's console says is on standard error.
const FLAGS: &str = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-quic --no-first-run \
    --disable-background-networking --disable-component-update --disable-sync --hide-scrollbars \
    --enable-logging=stderr";

/// The maximum time for one page in seconds, also on a computer that is very busy.
const TIMEOUT: &str = "120";
/// The page's own time in milliseconds, which passes faster, until its scripts have to be done.
const BUDGET: &str = "--virtual-time-budget=20000";
/// The size of the window. A picture is as high as its page.
const WIDTH: u32 = 1200;
const HEIGHT: u64 = 1500;
/// What a page may do is in it: everything else is an error in its console.
const ALONE: &str = "<head><meta http-equiv=\"Content-Security-Policy\" \
    content=\"default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'\">";
/// Appends what `ask` resolves to, so that a dump of the page has it between two marks.
const TELL: &str =
    "ask().then(JSON.stringify, (error) => JSON.stringify({ error: String(error.stack) })).then((text) => {
  const bytes = String.fromCharCode(...new TextEncoder().encode(text));
  document.body.append(\"[said\" + `:${btoa(bytes)}:` + \"said]\");
});";
/// Lines of Chromium's own messages that an error shows.
const LINES_MAX: usize = 20;

pub(crate) fn program() -> Option<&'static str> {
    let path = env::var_os("PATH")?;
    PROGRAMS.into_iter().find(|name| env::split_paths(&path).any(|directory| directory.join(name).is_file()))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Light,
    Dark,
    /// As it is printed, by somebody who prefers dark screens.
    Paper,
}

impl Look {
    pub(crate) const ALL: [Self; 3] = [Self::Light, Self::Dark, Self::Paper];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Light => "light",
            Self::Dark => "dark",
            Self::Paper => "paper",
        }
    }

    const fn flag(self) -> &'static str {
        match self {
            Self::Light => "--blink-settings=preferredColorScheme=1",
            Self::Dark | Self::Paper => "--blink-settings=preferredColorScheme=0",
        }
    }
}

/// A browser, and a page with a script of its reader's.
pub(crate) struct Browser {
    program: &'static str,
    look: Look,
    directory: TempDir,
}

impl Browser {
    pub(crate) fn new(page: &Path, look: Look, script: &str) -> Result<Self> {
        let program = program()
            .with_context(|| format!("there is none of {}: install Chromium", PROGRAMS.join(", ")))?;
        let directory = tempfile::Builder::new().prefix("quell-browser-").tempdir()?;
        let text = fs::read_to_string(page).with_context(|| format!("cannot read {}", page.display()))?;
        let text = text.replacen("<head>", ALONE, 1);
        let text = if look == Look::Paper { text.replace("@media print", "@media all") } else { text };
        let end = text.rfind("</body>").with_context(|| format!("{} has no end", page.display()))?;
        let (page, rest) = text.split_at(end);
        fs::write(directory.path().join("page.html"), format!("{page}<script>{script}</script>{rest}"))?;
        Ok(Self { program, look, directory })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Shows the page; returns what the browser prints, and what the page's console says.
    fn show(&self, arguments: &[&str], height: u64) -> Result<(String, Vec<String>)> {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", TIMEOUT, self.program]).args(FLAGS.split(' ')).arg(self.look.flag());
        command.arg(format!("--window-size={WIDTH},{height}"));
        command.arg(format!("--user-data-dir={}", self.file("profile").display()));
        command.args(arguments).arg(format!("file://{}", self.file("page.html").display()));
        command.stdin(Stdio::null()).stderr(File::create(self.file("log"))?);
        let output = command.output().with_context(|| format!("cannot start {}", self.program))?;
        let log = String::from_utf8_lossy(&fs::read(self.file("log"))?).into_owned();
        let lines: Vec<_> = log.lines().collect();
        let end = lines[lines.len().saturating_sub(LINES_MAX)..].join("\n");
        let status = output.status;
        ensure!(status.success(), "{} ended with {status}; its last messages:\n{end}", self.program);
        let of_console = lines.into_iter().filter(|line| line.contains(":CONSOLE")).map(str::to_owned);
        Ok((String::from_utf8_lossy(&output.stdout).into_owned(), of_console.collect()))
    }

    /// What the script's function `ask` says. The page must be quiet.
    pub(crate) fn ask(page: &Path, look: Look, script: &str) -> Result<Value> {
        let browser = Self::new(page, look, &format!("{script}\n{TELL}"))?;
        let (dump, console) = browser.show(&["--dump-dom", BUDGET], HEIGHT)?;
        ensure!(console.is_empty(), "the page's console says: {console:?}");
        let said = dump.rsplit_once("[said:").and_then(|(_, rest)| Some(rest.split_once(":said]")?.0));
        let said = BASE64_STANDARD.decode(said.context("the page's script has not ended")?)?;
        let said: Value = serde_json::from_slice(&said)?;
        ensure!(said["error"].is_null(), "the page's script fails: {}", said["error"]);
        Ok(said)
    }

    /// Prints the page; returns what its console says.
    pub(crate) fn print(&self) -> Result<Vec<String>> {
        let file = self.file("print.pdf");
        let (_, console) = self.show(&[&format!("--print-to-pdf={}", file.display()), BUDGET], HEIGHT)?;
        ensure!(file.is_file(), "nothing was printed");
        Ok(console)
    }

    /// Takes a picture of the whole page (PNG).
    pub(crate) fn picture(page: &Path, look: Look, file: &Path) -> Result<()> {
        let ask = "async function ask() { return document.documentElement.scrollHeight; }";
        let height = Self::ask(page, look, ask)?.as_u64().context("the page has no height")?;
        let browser = Self::new(page, look, "")?;
        let picture = browser.file("picture.png");
        browser.show(&[&format!("--screenshot={}", picture.display()), BUDGET], height)?;
        fs::copy(picture, file).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(())
    }
}

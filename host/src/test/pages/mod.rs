//! Opens a report in a headless Chromium: what it shows, how it is used, and its looks.

mod sample;

use crate::browser::{self, Browser, Look};
use crate::report;
use crate::test::prelude::*;
use sample::{FLUSHES, sample};

pub(super) const ACTS: &[Named] = &[("reports_work_in_a_browser", works_in_a_browser)];

/// Whether there is a browser, or can be. Debian has a package of it, which `./quell` installs for
/// the tests; Ubuntu's is a snap, which needs more than a package manager.
pub(super) fn can_be_shown() -> bool {
    let is_debian = || fs::read_to_string("/etc/os-release").is_ok_and(|text| text.contains("\nID=debian\n"));
    browser::program().is_some() || is_debian()
}

const HANDS: &str = include_str!("acts.js");
/// The maximum size of a report with two traces.
const BYTES_MAX: u64 = 1 << 20;

fn works_in_a_browser(room: &Room<'_>) -> Result<()> {
    let page = sample(room.directory)?;
    let size = fs::metadata(&page)?.len();
    ensure!(size <= BYTES_MAX, "the report has {size} bytes");
    let ask = |look, body: &str| {
        Browser::ask(&page, look, &format!("{HANDS}\nasync function ask() {{ await moment(); {body} }}"))
    };
    let acts = format!("await acts({FLUSHES}); return wrong;");
    let wrong = ask(Look::Light, &acts)?;
    ensure!(wrong == json!([]), "{wrong:#}");

    let [light, dark, paper] = Look::ALL.map(|look| ask(look, "return look();"));
    let (light, dark, paper) = (light?, dark?, paper?);
    for index in 0..5 {
        ensure!(light[index] != dark[index], "colour {index} is {} in both themes", light[index]);
    }
    ensure!(paper[0] == "rgb(255, 255, 255)" && paper[1] == "rgb(0, 0, 0)", "paper: {paper}");
    ensure!(paper[3] != dark[3], "timelines are dark on paper");
    let pressed = "press('#theme'); await moment(); return look();";
    ensure!(ask(Look::Dark, pressed)? == light, "the button does not change the theme");
    for look in Look::ALL {
        let picture = room.directory.join(look.name());
        Browser::picture(&page, look, &picture)?;
        ensure!(fs::read(picture)?.starts_with(b"\x89PNG"), "{}: no picture", look.name());
    }
    is_printed_light(&page)?;
    has_its_picture(&page)
}

/// The first timeline as a file of its own has rows, a scale and marks, in both themes.
fn has_its_picture(page: &Path) -> Result<()> {
    let svg = report::picture(page)?;
    let texts = ["CPU 0<", "CPU 1<", ">guest<", ">hypervisor<", ">0 ns<", ">2.00 ms<", "--guest:#7fb69a;"];
    for text in [&texts[..], &["(prefers-color-scheme:dark)", "--guest:#3f8f6c;"]].concat() {
        ensure!(svg.contains(text), "the picture has no {text}: {svg}");
    }
    let count = |colour: &str| svg.matches(&format!("fill=\"var(--{colour})\"")).count() as u64;
    // A bar for each flush, or the head of a kick's arrow, or a deferred flush's mark.
    ensure!(count("kick") > 2 * FLUSHES && count("deferred") > FLUSHES, "marks are missing: {svg}");
    ensure!(count("guest") > FLUSHES && count("hypervisor") > FLUSHES, "spans are missing: {svg}");
    Ok(())
}

/// The timelines are drawn for paper before a page is printed, and all details are open.
fn is_printed_light(page: &Path) -> Result<()> {
    let script = "for (const kind of ['beforeprint', 'afterprint']) addEventListener(kind, () => \
        console.log(kind, document.documentElement.dataset.theme, document.querySelector('details').open));";
    let console = Browser::new(page, Look::Dark, script)?.print()?;
    let expected = ["beforeprint light true", "afterprint dark true"];
    let is_right = console.iter().zip(expected).all(|(line, said)| line.contains(said));
    ensure!(console.len() == expected.len() && is_right, "when it is printed, the page says {console:?}");
    Ok(())
}

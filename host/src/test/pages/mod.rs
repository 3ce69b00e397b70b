//! Opens a report in a headless Chromium: what it shows, how it is used, and its looks.

mod sample;

use super::cases::{Case, act};
use super::room::Room;
use crate::browser::{self, Browser};
use crate::report;
use anyhow::{Context, Result, bail, ensure};
use sample::{FLUSHES, sample};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const ROWS: [Case; 1] = [act(
    "reports_work_in_a_browser",
    "tables, plots and timelines are there, move and answer, in light, dark and on paper, without errors or requests",
    works_in_a_browser,
)];

/// The row, where there is a browser. Debian has a package of it, which `./quell` installs for the
/// tests; Ubuntu's is a snap, which needs more than a package manager.
pub(super) fn rows() -> &'static [Case] {
    let is_debian = || fs::read_to_string("/etc/os-release").is_ok_and(|text| text.contains("\nID=debian\n"));
    if browser::program().is_some() || is_debian() { &ROWS } else { &[] }
}

/// The size of the window.
const WINDOW: (u32, u32) = (1200, 1500);
/// The maximum size of a report with two traces.
const BYTES_MAX: u64 = 1 << 20;

fn works_in_a_browser(room: &Room<'_>) -> Result<()> {
    let page = sample(room.directory)?;
    let size = fs::metadata(&page)?.len();
    ensure!(size <= BYTES_MAX, "the report has {size} bytes");
    let mut browser = Browser::start(WINDOW.0, WINDOW.1)?;
    browser.prefer("screen", "light")?;
    browser.open(&page)?;
    has_its_parts(&mut browser)?;
    for timeline in 0..2 {
        moves(&mut browser, timeline)?;
    }
    answers_clicks(&mut browser)?;
    has_looks(&mut browser)?;
    is_quiet(&browser, &page)?;
    browser.close()
}

/// Evaluates an expression that must be true.
fn holds(browser: &mut Browser, expression: &str) -> Result<()> {
    let value = browser.evaluate(expression)?;
    ensure!(value == true, "not true in the page: {expression}: {value}");
    Ok(())
}

fn has_its_parts(browser: &mut Browser) -> Result<()> {
    for (what, count) in [
        ("header h1", 1),
        ("#ratios table", 1),
        ("#ratios tbody tr", 6),
        ("#ratios tr.missed", 1),
        ("#plot-ratios svg.plot", 1),
        ("#plot-flushes svg.plot", 1),
        ("#plot-workloads svg.plot", 3),
        ("#plot-boots svg.plot", 1),
        ("#plot-slots svg.plot", 1),
        ("section.trace", 2),
        ("section.trace canvas", 2),
        ("#trace-0 .legend .deferred", 1),
        ("#trace-0 .legend .ipi", 0),
        ("#trace-1 .legend .ipi", 1),
    ] {
        let found = browser.evaluate(&format!("document.querySelectorAll({}).length", json!(what)))?;
        ensure!(found == count, "the page has {found} elements {what}, and should have {count}");
    }
    // Nothing is wider than the page, and each plot and canvas has a size.
    holds(browser, "document.documentElement.scrollWidth <= innerWidth")?;
    holds(
        browser,
        "[...document.querySelectorAll('svg.plot, canvas')].every(one => one.clientWidth > 200 && one.clientHeight > 80)",
    )?;
    holds(browser, &format!("quellTimelines[0].data.flushes.length === {FLUSHES}"))?;
    holds(
        browser,
        "quellTimelines[0].data.ipis.length === 0 && quellTimelines[1].data.flushes.length === 0",
    )?;
    // vCPU 2 has halted before each second round, and vCPU 1 does not enter after the last one.
    holds(browser, &format!("quellTimelines[1].data.ipis.length === {}", FLUSHES / 2 * 3 - 1))
}

/// The part of the trace that a timeline shows, and its picture.
fn shown(browser: &mut Browser, timeline: usize) -> Result<(f64, f64, Value)> {
    let expression = format!(
        "(() => {{ const t = quellTimelines[{timeline}]; return [t.from, t.to, t.canvas.toDataURL()]; }})()"
    );
    let value = browser.evaluate(&expression)?;
    let number = |index: usize| value[index].as_f64().with_context(|| format!("{expression}: no number"));
    Ok((number(0)?, number(1)?, value[2].clone()))
}

/// The place of an element in the window, after scrolling to it: left, top, width and height.
fn place(browser: &mut Browser, selector: &str) -> Result<[f64; 4]> {
    let value = browser.evaluate(&format!(
        "(() => {{ const one = document.querySelector({}); one.scrollIntoView({{block: 'center', behavior: 'instant'}}); \
         const b = one.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; }})()",
        json!(selector)
    ))?;
    serde_json::from_value(value).with_context(|| format!("{selector} has no place"))
}

fn mouse(browser: &mut Browser, kind: &str, x: f64, y: f64, more: &Value) -> Result<()> {
    let mut event = json!({"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1});
    if let (Some(event), Some(more)) = (event.as_object_mut(), more.as_object()) {
        event.extend(more.clone());
    }
    browser.call("Input.dispatchMouseEvent", &event)?;
    Ok(())
}

fn click(browser: &mut Browser, x: f64, y: f64) -> Result<()> {
    mouse(browser, "mousePressed", x, y, &json!({"buttons": 1}))?;
    mouse(browser, "mouseReleased", x, y, &json!({}))
}

fn key(browser: &mut Browser, key: &str) -> Result<()> {
    for kind in ["keyDown", "keyUp"] {
        browser.call("Input.dispatchKeyEvent", &json!({"type": kind, "key": key}))?;
    }
    Ok(())
}

/// How an action must change the length of the part that is shown, and its beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    Shorter,
    Longer,
    Earlier,
    Later,
}

/// Buttons, wheel, keys and drags zoom and move a timeline.
fn moves(browser: &mut Browser, timeline: usize) -> Result<()> {
    use Change::{Earlier, Later, Longer, Shorter};
    let canvas = format!("#trace-{timeline} canvas");
    let actions = [
        ("button +", Shorter),
        ("button −", Longer),
        ("wheel up", Shorter),
        ("wheel up", Shorter),
        ("key ArrowRight", Later),
        ("key ArrowLeft", Earlier),
        ("drag left", Later),
        ("drag right", Earlier),
        ("key +", Shorter),
        ("key -", Longer),
        ("wheel down", Longer),
        ("button all", Longer),
    ];
    for (action, change) in actions {
        let before = shown(browser, timeline)?;
        let [left, top, width, height] = place(browser, &canvas)?;
        let (x, y) = (left + width / 2.0, top + height / 2.0);
        match action.split_once(' ') {
            Some(("button", text)) => {
                let place = match text {
                    "+" => "0.5",
                    "−" => "2",
                    _ => "all",
                };
                let button = format!("#trace-{timeline} [data-zoom='{place}']");
                let [left, top, width, height] = self::place(browser, &button)?;
                click(browser, left + width / 2.0, top + height / 2.0)?;
            }
            Some(("wheel", way)) => {
                let delta = if way == "up" { -100 } else { 100 };
                mouse(browser, "mouseWheel", x, y, &json!({"deltaX": 0, "deltaY": delta}))?;
            }
            Some(("key", name)) => {
                browser.evaluate(&format!("document.querySelector('{canvas}').focus()"))?;
                key(browser, name)?;
            }
            Some(("drag", way)) => {
                let shift = if way == "left" { -80.0 } else { 80.0 };
                mouse(browser, "mousePressed", x, y, &json!({"buttons": 1}))?;
                mouse(browser, "mouseMoved", x + shift, y, &json!({"buttons": 1}))?;
                mouse(browser, "mouseReleased", x + shift, y, &json!({}))?;
            }
            _ => bail!("there is no action {action}"),
        }
        let after = shown(browser, timeline)?;
        let (length, start) = (after.1 - after.0 - (before.1 - before.0), after.0 - before.0);
        let is_right = match change {
            Shorter => length < -1.0,
            Longer => length > 1.0,
            Earlier => length.abs() < 1.0 && start < -1.0,
            Later => length.abs() < 1.0 && start > 1.0,
        };
        ensure!(
            is_right && before.2 != after.2,
            "timeline {timeline}: {action} should show something {change:?}, and led from {} to {} to {} to {}{}",
            before.0,
            before.1,
            after.0,
            after.1,
            if before.2 == after.2 { "; the picture is the same" } else { "" }
        );
    }
    Ok(())
}

/// Clicks on what `pick` selects in a timeline: its x, and the CPU; returns the details.
fn details(browser: &mut Browser, timeline: usize, pick: &str) -> Result<String> {
    let [left, top, ..] = place(browser, &format!("#trace-{timeline} canvas"))?;
    let at = browser.evaluate(&format!(
        "(() => {{ const t = quellTimelines[{timeline}]; const [at, cpu] = {pick}; return [t.x(at), t.y(cpu) + ROW / 2]; }})()"
    ))?;
    let [x, y]: [f64; 2] = serde_json::from_value(at).with_context(|| format!("{pick}: no place"))?;
    click(browser, left + x, top + y)?;
    let text =
        browser.evaluate(&format!("document.querySelector('#trace-{timeline} .details').innerText"))?;
    Ok(text.as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" "))
}

fn answers_clicks(browser: &mut Browser) -> Result<()> {
    for (timeline, pick, parts) in [
        (
            0,
            "[t.data.flushes[7].start, t.data.flushes[7].cpu]",
            &["flush 8", "initiator vCPU 0", "targets 2", "deferred 1", "CPUs kicked 1", "3 list elements"][..],
        ),
        (0, "[t.data.cpus[1].spans[9][0], 1]", &["CPU 1", "begins at", "takes"]),
        (
            1,
            "[t.data.ipis[0][1], t.data.ipis[0][0]]",
            &["vector 251", "vCPU 0 on CPU 0", "vCPU 1 on CPU 1", "in guest mode"],
        ),
    ] {
        let text = details(browser, timeline, pick)?;
        for part in parts {
            ensure!(text.contains(part), "a click on {pick} does not show '{part}': {text}");
        }
    }
    Ok(())
}

/// Colours of the page's parts: the background, text, a bar of a plot, and three points of a
/// timeline's row.
fn colours(browser: &mut Browser) -> Result<Vec<Value>> {
    let colours = browser.evaluate(
        "(() => { const of = (selector, what) => getComputedStyle(document.querySelector(selector))[what];
           const t = quellTimelines[0], ratio = devicePixelRatio;
           const copy = new OffscreenCanvas(t.canvas.width, t.canvas.height);
           const context = copy.getContext('2d', {willReadFrequently: true});
           context.drawImage(t.canvas, 0, 0);
           const point = (at, cpu) => [...context.getImageData(t.x(at) * ratio, (t.y(cpu) + 4) * ratio, 1, 1).data].join();
           const kind = (kind) => { const s = t.data.cpus[0].spans.find((span) => span[2] === kind); return point((s[0] + s[1]) / 2, 0); };
           return [of('body', 'backgroundColor'), of('body', 'color'), of('#plot-ratios rect', 'fill'), kind(0), kind(1)]; })()",
    )?;
    Ok(colours.as_array().context("no colours")?.clone())
}

fn has_looks(browser: &mut Browser) -> Result<()> {
    let mut looks = Vec::new();
    for (name, medium, scheme) in report::LOOKS {
        browser.prefer(medium, scheme)?;
        looks.push((name, colours(browser)?));
        ensure!(browser.picture()?.starts_with(b"\x89PNG"), "{name}: no picture");
    }
    let [(_, light), (_, dark), (_, paper)] = &looks[..] else { bail!("{} looks", looks.len()) };
    for (index, (light, dark)) in light.iter().zip(dark).enumerate() {
        ensure!(light != dark, "colour {index} is {light} in both themes");
    }
    ensure!(paper[..2] == [json!("rgb(255, 255, 255)"), json!("rgb(0, 0, 0)")], "paper: {paper:?}");
    ensure!(paper[3] != dark[3], "timelines are dark on paper");
    browser.prefer("screen", "dark")?;
    holds(browser, "document.documentElement.dataset.theme === 'dark'")?;
    // The timelines are drawn for paper before a page is printed.
    browser.evaluate(
        "addEventListener('beforeprint', () => { window.printed = document.documentElement.dataset.theme; })",
    )?;
    browser.call("Page.printToPDF", &json!({}))?;
    holds(browser, "printed === 'light' && document.documentElement.dataset.theme === 'dark'")?;
    holds(browser, "document.querySelector('details').open")?;
    let [left, top, width, height] = place(browser, "#theme")?;
    click(browser, left + width / 2.0, top + height / 2.0)?;
    ensure!(colours(browser)? == *light, "the button does not change the theme");
    Ok(())
}

/// The page has caused no error and no message, and only itself was loaded.
fn is_quiet(browser: &Browser, page: &Path) -> Result<()> {
    for method in ["Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"] {
        let events = browser.events(method);
        ensure!(events.is_empty(), "{method}: {events:?}");
    }
    let requests = browser.events("Network.requestWillBeSent");
    let requested: BTreeSet<_> =
        requests.iter().filter_map(|event| event["request"]["url"].as_str()).collect();
    let own = browser::url(&fs::canonicalize(page)?);
    ensure!(requested == BTreeSet::from([own.as_str()]), "the page requests {requested:?}");
    Ok(())
}

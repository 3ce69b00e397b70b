//! `quell report`: results and traces as one HTML file that needs no network.
//!
//! | module | contents |
//! |---|---|
//! | `plots` | draws results with a plotting library |
//! | `results` | reads the JSON of `bench all`: its ratios |
//! | `runs` | its runs: medians and spreads of each way |
//! | `timeline` | selects the part of a trace to show |
//! | `page.html`, `page.css`, `timeline.js` | the page, its look in light, dark and on paper, and the timeline's behaviour |
//! | `picture.js` | has a page draw its timeline as an SVG file of its own |

#[cfg(test)]
mod figures;
mod plots;
mod results;
mod runs;
mod timeline;

use crate::browser::{Browser, Look};
use crate::cli::ReportArgs;
use crate::prelude::*;
use results::Results;
use std::fmt::Write as _;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("timeline.js");
const PICTURE: &str = include_str!("picture.js");

pub(crate) fn report(args: &ReportArgs) -> Result<u8> {
    let bytes = write(args)?;
    println!("{} ({} KiB)", args.output.display(), bytes.div_ceil(1024));
    if let Some(directory) = &args.screenshots {
        screenshots(&args.output, directory)?;
    }
    Ok(0)
}

/// Writes the report; returns its size.
pub(crate) fn write(args: &ReportArgs) -> Result<usize> {
    let results = args.results.as_deref().map(read).transpose()?.map(|it| Results::of(&it)).transpose()?;
    ensure!(results.is_some() || !args.trace.is_empty(), "nothing to report: name results or a trace");
    let traces = args.trace.iter().map(|path| trace(path, args)).collect::<Result<Vec<_>>>()?;
    let page = page(results.as_ref(), &traces)?;
    fs::write(&args.output, &page).with_context(|| format!("cannot write {}", args.output.display()))?;
    if let Some(file) = &args.picture {
        fs::write(file, picture(&args.output)?)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(page.len())
}

/// The first timeline of a page as a picture (SVG), drawn by the page itself.
pub(crate) fn picture(page: &Path) -> Result<String> {
    let svg = Browser::ask(page, Look::Light, PICTURE)?;
    Ok(svg.as_str().context("the page draws nothing")?.to_owned())
}

pub(crate) fn screenshots(page: &Path, directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    for look in Look::ALL {
        let file = directory.join(format!("{}.png", look.name()));
        Browser::picture(page, look, &file)?;
        println!("{}", file.display());
    }
    Ok(())
}

fn read(path: &Path) -> Result<Value> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))
}

/// A trace, named after its file.
fn trace(path: &Path, args: &ReportArgs) -> Result<(String, Value)> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let ns = |ms: u64| ms.saturating_mul(1_000_000);
    let shown = timeline::of_trace(&read(path)?, ns(args.window), args.from.map(ns))
        .with_context(|| format!("{} is no trace of `quell run --trace`", path.display()))?;
    Ok((name, shown))
}

fn escape(text: &str) -> String {
    text.chars().fold(String::new(), |mut escaped, char| {
        match char {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            other => escaped.push(other),
        }
        escaped
    })
}

/// Data for the page's script, in an element of its own. Neither the end of one begins in it, nor a
/// comment, behind which a script would not end where it seems to: JSON has `<` in strings alone.
fn embedded(data: &Value) -> String {
    format!("<script type=\"application/json\">{}</script>", data.to_string().replace('<', "\\u003c"))
}

fn page(results: Option<&Results>, traces: &[(String, Value)]) -> Result<String> {
    let mut body = String::new();
    if let Some(results) = results {
        body += &results.section()?;
    }
    for (index, (name, shown)) in traces.iter().enumerate() {
        writeln!(
            body,
            "<section class=\"trace\" id=\"trace-{index}\"><h2>Timeline: {}</h2>\
             <p class=\"hint\">Drag to move, turn the wheel or press + and − to zoom, click a flush for its numbers. \
             {}</p>\
             <div class=\"buttons\"><button data-zoom=\"0.5\">+</button><button data-zoom=\"2\">−</button>\
             <button data-zoom=\"all\">all</button></div>\
             <canvas tabindex=\"0\" role=\"img\" aria-label=\"what each CPU did when, and its flushes\"></canvas>\
             <ul class=\"legend\">{}</ul>\
             <dl class=\"details\"></dl>{}</section>",
            escape(name),
            timeline::summary(shown),
            timeline::legend(shown),
            embedded(shown)
        )?;
    }
    Ok(PAGE
        .replace("{{title}}", "Quell: report")
        .replace("{{style}}", STYLE)
        .replace("{{script}}", SCRIPT)
        // Replaced last, so that nothing in the results is taken for a placeholder.
        .replacen("{{body}}", &body, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_files_cannot_become_markup() {
        assert_eq!(escape("<b a='\"&"), "&lt;b a=&#39;&quot;&amp;");
        let shown = json!({"cpus": [], "flushes": [], "<!--": "</script><script>alert(1)<!--<script>"});
        let element = embedded(&shown);
        let data = element.strip_prefix("<script type=\"application/json\">").expect("begins it");
        let data = data.strip_suffix("</script>").expect("ends it");
        assert!(!data.contains('<'), "{data}");
        assert_eq!(serde_json::from_str::<Value>(data).expect("is JSON"), shown);
        let page = page(None, &[("<i>".to_owned(), shown)]).expect("is made");
        assert!(page.contains(&element) && !page.contains("<i>"));
    }

    #[test]
    fn a_page_is_whole_without_the_network() {
        let page = page(None, &[]).expect("is made");
        assert!(!page.contains("{{"), "a place is left");
        for word in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!page.replace("http://www.w3.org/2000/svg", "").contains(word), "{word}");
        }
    }
}

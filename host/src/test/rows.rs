//! The rows: `rows.toml` has them, and says what their keys mean.

use super::arm::{A72, MAX, N1};
use super::bochs::{DROPPING, FEW_TAGS, ON_VMX, RYZEN, SKYLAKE};
use super::cases::{Body, Case, Expect, Hostile, LOOPS, ProbeEnd, Stock, Talk};
use super::checks::Check;
use super::room::Act;
use crate::prelude::*;
use hostlink::config::FlushMode;
use hostlink::ctl::LogWay;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rows {
    text: BTreeMap<String, String>,
    row: Vec<Row>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Row {
    name: String,
    about: String,
    tool: Option<String>,
    status: i32,
    says: String,
    stock: Option<(u32, u32, String)>,
    expect: Expect,
    panic: Option<String>,
    without_cpus: Option<Vec<u32>>,
    probe: Option<String>,
    judged: ProbeEnd,
    hostile: Option<(u32, u32, String)>,
    ends: Option<String>,
    talk: Option<(String, String)>,
    check: Option<Check>,
    long: Option<String>,
    only_long: bool,
    with: Vec<String>,
    memory: Option<String>,
    words: String,
    by_ipis: bool,
    newer_kernel: bool,
    counted: bool,
    on_kvm: bool,
    bare: bool,
    nested: bool,
    on: Option<String>,
    also: Option<String>,
}

/// All of them. Their texts stay: they are read once.
pub(super) fn read(acts: &BTreeMap<&str, Act>) -> Result<Vec<Case>> {
    let Rows { mut text, row } = toml::from_str(include_str!("rows.toml")).context("rows.toml")?;
    text.insert("loop_names".to_owned(), LOOPS.to_owned());
    for text in text.values_mut() {
        *text = text.trim().lines().map(str::trim).collect::<Vec<_>>().join(" ");
    }
    let replaced = |said: &str| {
        // A text may mean another one.
        let texts = text.iter().chain(&text);
        let said =
            texts.fold(said.to_owned(), |said, (name, text)| said.replace(&format!("{{{name}}}"), text));
        &*said.leak()
    };
    let rows = &*row.leak();
    let is_there = |name: &str| rows.iter().any(|row| row.name == name);
    let others: Vec<_> = acts.keys().filter(|name| !is_there(name)).collect();
    ensure!(others.is_empty(), "acts without a row: {others:?}");
    rows.iter().map(|row| row.read(acts, &replaced)).collect()
}

fn platform(name: &str) -> Result<Platform> {
    Ok(match name {
        "max" => MAX,
        "neoverse-n1" => N1,
        "cortex-a72" => A72,
        "ryzen" => RYZEN,
        "skylake" => SKYLAKE,
        "dropping" => DROPPING,
        "few-tags" => FEW_TAGS,
        _ => bail!("there is no machine {name}"),
    })
}

fn end(name: Option<&str>) -> Result<Option<ExitCode>> {
    let find = |name| ExitCode::ALL.into_iter().find(|code| format!("{code:?}") == name);
    name.map(|name| find(name).with_context(|| format!("there is no end {name}"))).transpose()
}

impl Row {
    fn read(&'static self, acts: &BTreeMap<&str, Act>, text: &dyn Fn(&str) -> &'static str) -> Result<Case> {
        let also = self
            .also
            .as_deref()
            .map(|on| anyhow::Ok((if on == "max" { "_on_arm" } else { ON_VMX }, platform(on)?)));
        Ok(Case {
            name: &self.name,
            body: self.body(acts, text).with_context(|| &*self.name)?,
            about: &self.about,
            long: self.long.as_deref().map(text),
            only_long: self.only_long,
            settings: &self.with,
            memory: self.memory.as_deref().map_or(Ok(512 * MIB), size::parse).map_err(Error::msg)?,
            words: &self.words,
            flush: if self.by_ipis { FlushMode::Ipi } else { FlushMode::Hypercall },
            is_newer: self.newer_kernel,
            is_counted: self.counted,
            is_on_kvm: self.on_kvm,
            is_bare: self.bare,
            is_nested: self.nested,
            platform: self.on.as_deref().map_or(Ok(Platform::X86_64), platform)?,
            also: also.transpose()?,
        })
    }

    fn body(&'static self, acts: &BTreeMap<&str, Act>, text: &dyn Fn(&str) -> &'static str) -> Result<Body> {
        let ends = end(self.ends.as_deref())?;
        if let Some((vcpus, cpus, command)) = &self.stock {
            let panic = self.panic.as_deref().map(Expect::Panic);
            let without = self.without_cpus.as_deref().map(Expect::WithoutCpus);
            let expect = panic.or(without).unwrap_or(self.expect);
            return Ok(Body::Stock(Stock { vcpus: *vcpus, cpus: *cpus, command: text(command), expect }));
        }
        if let Some((vcpus, cpus, test)) = &self.hostile {
            let end = ends.unwrap_or(ExitCode::GuestPowerOff);
            return Ok(Body::Hostile(Hostile { test: text(test), vcpus: *vcpus, cpus: *cpus, end }));
        }
        if let Some((about, command)) = &self.talk {
            let about = match about.as_str() {
                "Refusals" => Talk::Refusals,
                "Devices" => Talk::Devices,
                "Memory" => Talk::Memory,
                "Watch" => Talk::Watch,
                way => Talk::DirtyLog(LogWay::named(way).with_context(|| format!("no talk is about {way}"))?),
            };
            return Ok(Body::Talk { command: text(command), about });
        }
        Ok(match (&self.tool, &self.probe, &self.check) {
            (Some(args), ..) => {
                Body::Tool { args: text(args), status: self.status, message: text(&self.says) }
            }
            (_, Some(test), _) => Body::Probe(text(test), ends.map_or(self.judged, ProbeEnd::Ended)),
            (_, _, Some(check)) => Body::Check(check),
            _ => Body::Act(*acts.get(&*self.name).context("there is no such act")?),
        })
    }
}

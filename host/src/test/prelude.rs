//! What most rows use.

pub(super) use crate::arch::{Arch, Platform};
pub(super) use crate::machine::process::{End, Flow, Machine, OFF, Outcome};
pub(super) use crate::machine::signals::Signals;
pub(super) use crate::machine::spec::{Clock, Spec};
pub(super) use crate::run::switches;
pub(super) use crate::size::{GIB, MIB};
pub(super) use crate::test::arm::MAX;
pub(super) use crate::test::cases::{Case, Expect, Talk, act, stock, tool};
pub(super) use crate::test::room::Room;
pub(super) use crate::vm::Guest;
pub(super) use crate::workspace;
pub(super) use anyhow::{Context, Result, anyhow, bail, ensure};
pub(super) use baremetal::pages::PAGE;
pub(super) use hostlink::config::{ResetPolicy, Switches};
pub(super) use hostlink::counters::Counter;
pub(super) use hostlink::ctl::record::Memory;
pub(super) use hostlink::ctl::{LogWay, Request};
pub(super) use hostlink::exit::ExitCode;
pub(super) use hostlink::guests::GuestState;
pub(super) use hostlink::name::Name;
pub(super) use serde_json::{Value, json};
pub(super) use std::collections::BTreeMap;
pub(super) use std::fs;
pub(super) use std::path::{Path, PathBuf};
pub(super) use std::process::{Command, Stdio};
pub(super) use std::time::Duration;

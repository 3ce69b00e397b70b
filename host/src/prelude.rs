//! What most files use.

pub(crate) use crate::arch::{Arch, Platform};
pub(crate) use crate::machine::counters::Snapshot;
pub(crate) use crate::machine::process::{End, Flow, Machine};
pub(crate) use crate::machine::signals::Signals;
pub(crate) use crate::machine::spec::{Clock, Spec};
pub(crate) use crate::results::{Samples, Subject, float};
pub(crate) use crate::size::{GIB, MIB};
pub(crate) use crate::table::table;
pub(crate) use crate::vm::{Guest, Hypervisor, StockGuest};
pub(crate) use crate::{size, workspace};
pub(crate) use anyhow::{Context, Error, Result, anyhow, bail, ensure};
pub(crate) use hostlink::config::Switches;
pub(crate) use hostlink::counters::Counter;
pub(crate) use hostlink::exit::ExitCode;
pub(crate) use hostlink::name::Name;
pub(crate) use serde::{Deserialize, Serialize};
pub(crate) use serde_json::{Value, json};
pub(crate) use std::collections::{BTreeMap, BTreeSet};
pub(crate) use std::ffi::{OsStr, OsString};
pub(crate) use std::ops::Range;
pub(crate) use std::path::{Path, PathBuf};
pub(crate) use std::process::{Command, Stdio};
pub(crate) use std::sync::{Arc, Mutex, PoisonError};
pub(crate) use std::thread::JoinHandle;
pub(crate) use std::time::{Duration, Instant};
pub(crate) use std::{env, fmt, fs, io, thread};
pub(crate) use tempfile::TempDir;

//! What most rows use.

pub(super) use crate::machine::process::Outcome;
pub(super) use crate::prelude::*;
pub(super) use crate::run::switches;
pub(super) use crate::test::cases::{Case, Expect, Talk};
pub(super) use crate::test::room::{Named, Room};
pub(super) use baremetal::pages::PAGE;
pub(super) use hostlink::config::ResetPolicy;
pub(super) use hostlink::ctl::record::Memory;
pub(super) use hostlink::ctl::{LogWay, Request};
pub(super) use hostlink::guests::GuestState;

//! Tests that need no KVM.

use super::*;
use crate::guest::{MEMORY_AT, Pass, value_of};

#[test]
fn sizes_and_parts_are_as_they_are_told() {
    let options =
        Options::program().parse(["--mib", "2", "--part", "log", "--log", "manual"]).expect("parses");
    assert_eq!((options.pages, options.parts, options.log), (512, vec![Part::Log], LogWay::Manual));
    assert_eq!(options.elsewhere, 0);
    let options = Options::program().parse(["--elsewhere", "2048", "--pages", "64"]).expect("parses");
    assert_eq!((options.pages, options.elsewhere), (64, 2048 * 256));
}

#[test]
fn slots_that_do_not_fit_together_are_refused() {
    let whole = ["--mib", "2048", "--elsewhere", "512"];
    Options::program().parse(whole).expect("fit exactly");
    let message = Options::program().parse(["--elsewhere", "2560", "--pages", "1"]).expect_err("is refused");
    assert_eq!(message, "--elsewhere: with the slot these are 2561 MiB, and there is room for 2560");
}

#[test]
fn a_log_names_these_pages_and_no_others() {
    let why = |log: &[u64], pages| round::expect_pages(log, pages).expect_err("is refused").to_string();
    round::expect_pages(&[u64::MAX, 0b11], 0..66).expect("is so");
    assert_eq!(why(&[u64::MAX, 0b11], 0..67), "the log lacks page 66, which was stored to");
    assert_eq!(why(&[u64::MAX], 0..67), "the log lacks page 64, which was stored to");
    assert_eq!(why(&[u64::MAX, 0b11], 0..65), "the log names page 65, which was not stored to");
    assert_eq!(why(&[0], 7..8), "the log lacks page 7, which was stored to");
}

#[test]
fn what_is_stored_says_where_and_when() {
    let pass = |salt| Pass { at: MEMORY_AT, count: 1, salt };
    assert_eq!(pass(1).value(MEMORY_AT), 0x4000_0001);
    assert_ne!(pass(1).value(MEMORY_AT), pass(2).value(MEMORY_AT));
    assert_ne!(pass(1).value(MEMORY_AT), pass(1).value(MEMORY_AT + 4096));
    assert_eq!(pass(u32::MAX).value(MEMORY_AT), 0x3fff_ffff, "32 bits");
    assert_eq!(value_of(&[0xe6, 0xf4, 0x8d]), 0x8d_f4e6);
}

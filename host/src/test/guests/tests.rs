//! What rows expect of a run: each expectation is disappointed by what it must not accept.

use super::expect::*;
use crate::check::{self, Verdict};
use crate::machine::process::refuses;
use crate::test::cases::{FLOOD_CLAIM, FLOOD_REPORTS, Hostile, LOOPS, ProbeEnd};
use crate::test::checks::Check;
use crate::test::kernels::{CHECKS, From, Kernel};
use crate::test::prelude::*;
use hostlink::config::NestedPage;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Output};
use std::time::{SystemTime, UNIX_EPOCH};

/// A command has come to its end.
const DONE: &str = "+event=exit status=0\n";

/// Of a section of `verdicts.txt` what is right, and the changes with which it must not be.
fn section(name: &str) -> (String, String) {
    let (_, text) = include_str!("verdicts.txt").split_once(&format!("[{name}]\n")).expect(name);
    let (wrong, right): (Vec<_>, Vec<_>) =
        text.lines().take_while(|line| !line.is_empty()).partition(|line| line.contains(" => "));
    (right.join("\n"), wrong.join("\n"))
}

fn judge(outcome: &Outcome, expect: Expect) -> Result<()> {
    let switches = Switches { vmid_churn: Some(3), nested_page: NestedPage::Small, ..Switches::default() };
    judge_stock(outcome, expect, &switches, Some(1000))
}

/// A stock guest's command has come to its end, and these are its other reports.
fn stock(expect: Expect, right: &str, wrong: &str) {
    let of_all = "
        end late => did not end in
        -0 => the command did not come to its end
        0.status=1 => the command's status is 1
        0.status=null => the command's status is null\n";
    refuses(|it| judge(it, expect), &(DONE.to_owned() + right), &(of_all.to_owned() + wrong));
}

/// The same of a section.
fn listed(expect: Expect, name: &str) {
    let (right, wrong) = section(name);
    stock(expect, &right, &wrong);
}

#[test]
fn u50_a_stock_guest_ends_as_its_row_expects() {
    for said in ["segfault at", "general protection fault", "BUG: unable", "BUG: Bad", "Oops: "] {
        let wrong = format!("console {said} 7f => the guest's kernel complains of '{said}'");
        stock(Expect::Success, "console BUG: soft lockup", &wrong);
    }
    let wrong = "end late => did not end in\n+event=exit status=0 => the command ended before the guest";
    refuses(|it| judge(it, Expect::PowerOff), "", wrong);
    let wrong =
        "end off => ended by Hypervisor(GuestPowerOff)\nlog quell: panic: b => it does not say \"audit\"";
    refuses(|it| judge(it, Expect::Panic("audit")), "end Panic\nlog quell: panic: audit", wrong);
    for sign in ["Kernel panic", "segfault at", "general protection fault", "BUG: ", "Oops: "] {
        let wrong = "console good => nothing breaks, and the guest ended by TimedOut";
        refuses(|it| judge(it, Expect::Damage), &format!("end late\nconsole {sign}0"), wrong);
    }
    let wrong = "0.status=0 => the command's status is 0\n-1 => nothing stale was found";
    refuses(|it| judge(it, Expect::Stale), "+event=exit status=1\n+event=stale", wrong);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("is later").as_secs();
    let wrong =
        "1.unix=1600000000 => the guest says it is 1600000000\n-1 => the guest did not say what time it is";
    stock(Expect::Date, &format!("+event=date unix={now}"), wrong);
    listed(Expect::WithoutCpus(&[1]), "without a CPU");
}

#[test]
fn u50_a_search_has_remapped_in_each_way_and_seen_changes() {
    // Of all runs together.
    listed(Expect::NothingStale, "nothing stale");
    let none = judge(&Outcome::of(DONE), Expect::NothingStale).expect_err("it has not ended");
    assert!(none.to_string().contains("the hunter did not come to its end"));
}

#[test]
fn u50_what_is_not_reported_is_not_taken_for_as_much_as_was_wanted() {
    listed(Expect::Intact, "intact");
    let loops = LOOPS
        .split(' ')
        .map(|name| format!("+event=end workload=loops loop={name} rounds_total=800 damaged=false ns=1\n"));
    let right =
        format!("+event=end workload=mixed tasks=4 damaged=false ns=1\n{}", loops.collect::<String>());
    stock(Expect::Loops, &right, &section("loops").1);
}

#[test]
fn u50_flushes_lost_kicks_and_stolen_time_are_counted() {
    listed(Expect::TlbIpis(true), "by IPIs");
    listed(Expect::TlbIpis(false), "by hypercalls");
    listed(Expect::FewLost, "few are lost");
    listed(Expect::Stolen, "stolen");
    let right = section("stolen").0;
    let judged =
        judge_stock(&Outcome::of(&(DONE.to_owned() + &right)), Expect::Stolen, &Switches::default(), None);
    assert!(judged.is_err_and(|error| error.to_string() == "the hypervisor's clock has no rate"));
}

#[test]
fn u50_a_flood_is_bounded_and_none_of_it_is_taken_for_the_hypervisors() {
    let kept = "(100000 bytes before this are not kept)";
    let right = format!("console {kept} {FLOOD_CLAIM}\ndropped {FLOOD_REPORTS}");
    let (long, most) = ("x".repeat(1 << 18), FLOOD_REPORTS - 2);
    let wrong = format!(
        "console {long} => bytes of the console are kept
        console {FLOOD_CLAIM} => it is not said that some are missing
        console {kept} => the guest's last line is not on its console
        log {FLOOD_CLAIM} => the guest's line is in the hypervisor's log
        dropped 0 => 1 reports are kept, and 0 are not
        dropped {most} => not, and some are lost"
    );
    stock(Expect::Flood, &right, &wrong);
}

#[test]
fn u50_bare_guests_pass_by_their_own_word_alone() {
    let all = format!(
        "log {} => the hypervisor's log has 32769 bytes\nend Panic => ended by\n",
        "x".repeat((32 << 10) + 1)
    );
    let passed = "+test=a result=pass\n+test=c result=pass";
    let probe = |end| move |it: &Outcome| judge_probe(it, "a count=3", end);
    let wrong = "0.result=fail => the guest says:\n0.test=d => there is no report of a";
    refuses(probe(ProbeEnd::Passed), passed, &(all.clone() + wrong));
    refuses(probe(ProbeEnd::AllPassed), passed, &(all.clone() + "1.result=maybe => the guest says:"));
    assert!(probe(ProbeEnd::AllPassed)(&Outcome::of("")).is_err(), "the guest ran no test");
    refuses(probe(ProbeEnd::AllPassedOnKvm), passed, &(all.clone() + "1.result=fail => the guest says:"));
    let mut replaced = Outcome::of("+test=a result=pass\n+test=c result=fail");
    replaced.reports[1]["why"] = "the other vendor's hypercall: Ok(())".into();
    probe(ProbeEnd::AllPassedOnKvm)(&replaced).expect("KVM does so");
    assert!(probe(ProbeEnd::AllPassed)(&replaced).is_err(), "nobody else does");
    let costs = "+case=cpuid value=33700\n+case=hypercall value=1\n+case=self-ipi value=1\n\
        +case=tsc-deadline value=1";
    let wrong = all.clone() + "0.value=33701 => a budget is exceeded\n-3 => a budget is exceeded";
    refuses(probe(ProbeEnd::WithinBudgetsOnKvm), costs, &wrong);
    let wrong = "0.result=pass => the guest has not noticed it: {\n-0 => there is no report of a";
    refuses(probe(ProbeEnd::Failed(2, 2)), "+test=a result=fail", &(all.clone() + wrong));
    let wrong = "end off => ended by Hypervisor(GuestPowerOff)\nlog none => the log has no registers";
    refuses(probe(ProbeEnd::Ended(ExitCode::GuestReset)), "end GuestReset\nlog   rax 0x1", wrong);
    let hostile =
        |end| move |it: &Outcome| judge_hostile(it, &Hostile { test: "a words", vcpus: 1, cpus: 1, end });
    let wrong = "1.result=fail => the guest says: c: {\n0.test=d => no report of a";
    refuses(hostile(ExitCode::GuestPowerOff), passed, &(all.clone() + wrong));
    refuses(hostile(ExitCode::GuestOutOfTables), "end GuestOutOfTables", "end off => ended by");
    let stopped = "end stopped\ncount slots.changes=5";
    let siege = |it: &Outcome| judge_siege(it, &[(Counter::SlotChanges, 5)]);
    refuses(siege, stopped, &(all + "count slots.changes=4 => slots.changes is 4, below 5"));
    let wrong = "
        end Panic => ended by
        +event=wrong => the guest says: {
        count slots.changes=4 => the guest's ROM came and went 4 times
        count => there are no counters";
    refuses(|it| judge_talk(it, true), stopped, wrong);
    refuses(|it| judge_talk(it, false), "end stopped", "");
}

#[test]
fn u50_a_kernel_passes_each_check_of_the_battery() {
    let kernel = Kernel { from: From::Backports, release: "6.12.", page_bytes: 4096 };
    let checks = CHECKS.map(|name| format!("\n+event=check check={name} ok=true why=b")).concat();
    let right = format!("+event=begin kernel=6.12.1 page_bytes=4096{checks}");
    refuses(|it| expect_battery(it, &kernel), &right, &section("battery").1);
}

#[test]
fn u50_the_tool_ends_with_its_status_and_says_why() {
    let why = |raw, text: &str| {
        let (status, stderr) = (ExitStatus::from_raw(raw), text.as_bytes().to_vec());
        judge_tool(&Output { status, stdout: Vec::new(), stderr }, 7, "not so")
            .map_err(|error| error.to_string())
    };
    assert_eq!(why(7 << 8, "why not so"), Ok(()));
    let is = |why: Result<(), String>, words: &str| why.is_err_and(|why| why.starts_with(words));
    assert!(is(why(0, "not so"), "ended with status 0 instead of status 7"));
    assert!(is(why(9, "not so"), "ended with signal 9 instead of status 7"));
    assert!(is(why(7 << 8, "so"), "the message is not 'not so' but:\nso"));
}

#[test]
fn u50_tlbchecks_rows_pass_or_notice_what_was_planted() {
    const ALL: [Verdict; 10] = [Verdict::Pass; 10];
    let judged = |check: &Check, is_wrong, results: &[Verdict]| {
        let row = |(index, result): (usize, &Verdict)| check::Row {
            row: format!("row-{index}"),
            subject: "quell",
            result: *result,
            why: "b".to_owned(),
        };
        let rows: Vec<_> = results.iter().enumerate().map(row).collect();
        judge_check(&rows, check, is_wrong).map_err(|error| error.to_string())
    };
    let with = |index: usize, result| {
        ALL.iter()
            .enumerate()
            .map(move |(at, all)| if at == index { result } else { *all })
            .collect::<Vec<_>>()
    };
    let clean = Check { may_skip: Some(vec!["row-9".to_owned()]), ..Check::default() };
    let fails = BTreeMap::from([("row-3".to_owned(), "b".to_owned())]);
    let known = Check { fails, rows: Some("row-*".to_owned()), ..Check::default() };
    let other = BTreeMap::from([("row-3".to_owned(), "c".to_owned())]);
    let other = Check { fails: other, ..Check::default() };
    let caught = Check { rows: Some("row-*".to_owned()), ..Check::default() };
    for (check, is_wrong, results, words) in [
        (&clean, false, ALL.to_vec(), ""),
        (&clean, false, with(8, Verdict::Fail), "these fail:\nrow-8: b"),
        (&clean, false, with(8, Verdict::Skip), "these are skipped:\nrow-8: b"),
        (&clean, false, with(9, Verdict::Skip), "only 9 rows pass"),
        (&clean, false, Vec::new(), "only 0 rows pass"),
        (&known, false, with(3, Verdict::Fail), ""),
        (&known, false, ALL.to_vec(), "these do not fail as they are known to: row-3"),
        (&known, false, with(3, Verdict::Skip), "these do not fail as they are known to: row-3"),
        (&known, false, [Verdict::Fail; 4].to_vec(), "these fail:\nrow-0: b\nrow-1: b\nrow-2: b"),
        (&other, false, with(3, Verdict::Fail), "these do not fail as they are known to: row-3"),
        (&caught, true, with(0, Verdict::Fail), ""),
        (&caught, true, with(0, Verdict::Skip), "none of the rows row-* fails"),
        (&caught, false, ALL[..1].to_vec(), ""),
        (&caught, false, vec![Verdict::Skip], "only 0 rows pass"),
        (&caught, false, with(0, Verdict::Fail), "these fail:\nrow-0: b"),
    ] {
        assert_eq!(judged(check, is_wrong, &results).err().unwrap_or_default(), words, "{results:?}");
    }
}

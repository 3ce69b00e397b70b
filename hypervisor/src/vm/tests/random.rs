//! Random requests about guests of all kinds, in any order and beside each other. A failure names
//! its seed; `QUELL_REQUESTS_SEED` runs from that one on, and `QUELL_REQUESTS_RUNS` so many.

use alloc::string::String;
use alloc::vec::Vec;

use hostlink::ctl::record::{self, Record};
use hostlink::guests::GuestState;

use super::Op::*;
use super::states::{Event, States, What};
use crate::vm::mock;
use crate::vm::mock::processor::{Op, create_several};
use baremetal::random::Random;

/// In the board's ticks.
const MS: u64 = 1_000_000;
/// The longest time from a request to its answer, for each request about the same guest that is
/// before it, and for itself: eight slices. Some stop a guest twice, and steps of others are
/// between their own.
const BOUND: u64 = 40 * MS;
const REQUESTS: usize = 60;
const RUNS: u64 = 10;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

const FOREVER: u32 = u32::MAX;
/// What guests do. Each has two vCPUs. See also [`ends`].
const HABITS: [[&[Op]; 2]; 7] = [
    [&[Start(1), Work(u64::MAX)], &[Work(u64::MAX)]],
    [&[Load(0x1000, 0), Store(0x1000, 1), Start(1), Work(20_000), Reset], &[Work(u64::MAX)]],
    [
        &[Start(1), Work(400_000), Reset],
        &[Load(0x3000, 0), StoreTry(0x2000), Sleep(50_000), Back(1, FOREVER)],
    ],
    [
        &[Start(1), Work(10_000), Send(1), WaitFor(1), Back(1, FOREVER)],
        &[WaitFor(0), Work(10_000), Send(0), Back(0, FOREVER)],
    ],
    [&[Start(1), Work(300_000), Crash], &[StoreTry(1 << 30), Try(1 << 32), Sleep(90_000), Back(0, FOREVER)]],
    [&[Start(1), Work(900_000), PowerOff], &[WaitFor(9)]],
    [&[Start(1), StoreTry(0x5000), StoreTry(1 << 30), Sleep(70_000), Back(1, FOREVER)], &[Done]],
];

/// How a guest of a habit may end by itself.
fn ends(habit: &[&[Op]]) -> &'static [GuestState] {
    match habit[0].last() {
        Some(Crash) => &[GuestState::Failed],
        Some(PowerOff) => &[GuestState::Off],
        _ => &[],
    }
}

fn guest(random: &mut Random, name: &str, cpus: u64) -> &'static str {
    let memory = 2 << random.below(2);
    let mut text = format!("name={name}\nvcpus=2\nmemory={}\nstart=manual", memory << 20);
    text += &format!("\nweight={}", [1, 10, 100, 100, 1000, 10_000][random.below(6) as usize]);
    if random.below(3) == 0 {
        text += &format!("\ncap={}", 1 + random.below(100));
    }
    if random.below(3) == 0 {
        text += &format!("\ncpus={}", random.below(cpus));
    }
    String::leak(text)
}

fn request(random: &mut Random) -> String {
    let name = NAMES[random.below(4) as usize];
    let slot = random.below(4);
    match random.below(36) {
        0..=2 => format!("guest-create {name}"),
        3..=6 => format!("guest-start {name}"),
        7..=9 => format!("guest-pause {name}"),
        10..=11 => format!("guest-resume {name}"),
        12 => format!("guest-wake {name}"),
        13 => format!("guest-reset {name}"),
        14..=15 => format!("guest-destroy {name}"),
        16..=17 => format!("@{name} add {:#x} 0x200000 rw", (1 << 30) + random.below(3) * (2 << 20)),
        18 => format!("@{name} delete {slot}"),
        19 => format!("@{name} log-start {slot} dirty-bits"),
        20 => format!("@{name} log-start {slot} write-protection"),
        21 => format!("@{name} log-fetch {slot}"),
        22 => format!("@{name} log-stop {slot}"),
        23 => format!("guest-send {name} 0x1 live"),
        24 => format!("guest-send {name} 0x1 still"),
        25 => format!("guest-receive {name} 0x9"),
        26 => format!("@{name} slots"),
        27 => format!("input {name} 0 6869"),
        28..=29 => "vms".into(),
        30..=33 => "guests".into(),
        34 => "memory".into(),
        _ => format!("@{name} stats"),
    }
}

fn about(line: &str) -> Option<&str> {
    line.split(' ').find_map(|word| NAMES.into_iter().find(|name| word.trim_start_matches('@') == *name))
}

/// Returns the longest time, in relation to its bound, in percent; and how often a guest's state
/// was compared with what it had to be.
fn run(seed: u64) -> (u64, usize) {
    let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let cpus = 1 + random.below(3);
    let keeper = ("name=keeper\nmemory=2097152", &[&[Work(u64::MAX)][..]][..]);
    let habits: Vec<_> = NAMES.map(|name| (name, HABITS[random.below(7) as usize])).into();
    let mut guests = vec![keeper];
    guests.extend(habits.iter().map(|(name, habit)| (guest(&mut random, name, cpus), &habit[..])));
    let board = create_several(cpus as usize, 64 << 20, &guests);
    board.zero_takes(random.below(1000));
    super::migration::cut_all(board, seed);

    let mut time = 2 * MS;
    let mut requests = vec![(MS, "memory".to_owned())];
    for _ in 0..REQUESTS {
        time += [0, 0, random.below(MS), random.below(6 * MS)][random.below(4) as usize];
        requests.push((time, request(&mut random)));
    }
    time += 100 * MS;
    requests.extend(NAMES.map(|name| (time, format!("guest-destroy {name}"))));
    requests.push((time + 100 * MS, "memory".to_owned()));
    let answers = board.answer_each(seed, &requests);

    let mut longest = 0;
    for (at, ((_, took), (when, line))) in answers.iter().zip(&requests).enumerate() {
        // Those that came before and may not have been answered yet.
        let before = answers[..at].iter().zip(&requests).filter(|((_, took), (asked, earlier))| {
            about(line).is_some() && about(earlier) == about(line) && asked + took > *when
        });
        let bound = BOUND * (1 + before.count() as u64);
        assert!(*took <= bound, "seed {seed}: '{line}' at {when} took {took}: {requests:?}");
        longest = longest.max(took * 100 / bound);
    }
    let free = |number: usize| {
        let start = format!("{number} : free=");
        board.answers().into_iter().find_map(|line| line.strip_prefix(&start).map(str::to_owned))
    };
    assert_eq!(free(1), free(requests.len()), "seed {seed}: memory is as before: {requests:?}");
    let lines = board.answers();
    let mut looks = 0;
    for (number, (name, habit)) in (1..).zip(&habits) {
        let mut events = Vec::new();
        for (place, ((answer, took), (asked, line))) in (1..).zip(answers.iter().zip(&requests)) {
            let mut add = |what| events.push(Event { asked: *asked, answered: asked + took, what });
            let start = format!("{place} : ");
            let mut records = lines.iter().filter_map(|line| line.strip_prefix(&start));
            match line.as_str() {
                line if about(line) == Some(*name) => add(What::Request(line, answer)),
                "guests" => records
                    .filter_map(|line| record::Guest::parse(line).ok())
                    .filter(|guest| guest.guest.as_str() == *name)
                    .for_each(|guest| add(What::Is(guest.state))),
                "vms" => {
                    let is_it = |line: &str| record::Vm::parse(line).is_ok_and(|vm| vm.vm == number);
                    add(What::Exists(records.any(is_it)));
                }
                _ => {}
            }
        }
        let looked = States::new(ends(&habit[..])).check(events);
        looks += looked.unwrap_or_else(|why| panic!("seed {seed}: guest {name}: {why}: {requests:?}"));
    }
    (longest, looks)
}

#[test]
fn random_requests_are_answered_within_their_bounds_and_memory_is_as_before() {
    let first = mock::number("QUELL_REQUESTS_SEED").unwrap_or(1);
    let runs: Vec<_> =
        (first..first + mock::number("QUELL_REQUESTS_RUNS").unwrap_or(RUNS)).map(run).collect();
    let looks: usize = runs.iter().map(|(_, looks)| looks).sum();
    assert!(looks > 10 * runs.len(), "states were seen {looks} times");
    let longest = runs.iter().map(|(longest, _)| longest).max();
    std::println!("the longest took {longest:?} % of its bound; {looks} looks at states");
}

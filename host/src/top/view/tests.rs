//! The drawing, on screens that are buffers.

use super::*;
use crate::top::rates::tests::rates;
use crate::top::source::made::MockMachine;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

fn watched() -> (MockMachine, App) {
    let machine = MockMachine::new(4);
    machine.begin();
    let app = App::new(machine.found.clone()).with_rates(rates(&[
        &[(Counter::ExitIo, 24_690), (Counter::FlushWait4us, 30), (Counter::FlushLists, 10)],
        &[(Counter::ExitWait, 2_000_000), (Counter::SchedSteal, 1500)],
        &[(Counter::FlushWait8us, 7), (Counter::FlushWaitMore, 1)],
        &[],
    ]));
    (machine, app)
}

fn drawn(app: &mut App, has_colours: bool, (width, height): (u16, u16)) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("begins");
    terminal
        .draw(|frame| {
            app.fit(rows(frame.area()));
            draw(frame, app, has_colours);
        })
        .expect("draws");
    terminal.backend().buffer().clone()
}

fn lines(buffer: &Buffer) -> Vec<String> {
    let row = |y| (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..buffer.area.height).map(|y| row(y).trim_end().to_owned()).collect()
}

fn press(app: &mut App, code: KeyCode) {
    app.press(KeyEvent::new(code, KeyModifiers::NONE));
}

#[test]
fn a_usual_terminal_shows_machine_vcpus_waits_and_keys() {
    let (_machine, mut app) = watched();
    app.refresh(Vec::new());
    let lines = lines(&drawn(&mut app, false, (80, 24)));
    let name = app.machine.name.clone();
    assert!(
        lines[0].starts_with(&format!("machine {name}  x86_64  4 vCPUs : 2 CPUs  up 0:00:")),
        "{lines:#?}"
    );
    assert_eq!(lines[1], "1.01M exits/s  5.0 flush requests/s  over 2.0 s");
    assert_eq!(lines[3], "vcpu exits    io   reg hcall  nest  intr  wait pause other flush merge defer›",);
    assert_eq!(lines[4], " all 1.01M 12.3k     0     0     0     0 1.00M     0     0   5.0     0     0",);
    assert_eq!(lines[5], "   0 12.3k 12.3k     ·     ·     ·     ·     ·     ·     ·   5.0     ·     ·");
    assert_eq!(lines[6], "   1 1.00M     ·     ·     ·     ·     · 1.00M     ·     ·     ·     ·     ·");
    assert!(lines[16].starts_with("flush waits in the interval"), "{lines:#?}");
    assert_eq!(lines[22], " 1µ   2µ   4µ   8µ  16µ  32µ  64µ  128µ 256µ 512µ  1m   2m   4m   8m  16m  >16m",);
    assert!(lines[23].starts_with("q quit  ? help  ←→s sort  r reverse  p pause  Tab machine"), "{lines:#?}");
}

#[test]
fn bars_are_as_high_as_there_are_waits() {
    let (_machine, mut app) = watched();
    let buffer = drawn(&mut app, false, (80, 24));
    let lines = lines(&buffer);
    let filled = |bar: u16| (17..22).filter(|&y| buffer[(bar * 5, y)].symbol() != " ").count();
    assert!(filled(2) == 5 && (1..=2).contains(&filled(3)) && filled(0) == 0, "{lines:#?}");
    assert!(lines[21].contains("30"), "{lines:#?}");
}

#[test]
fn a_small_terminal_shows_fewer_columns_and_no_waits() {
    let (_machine, mut app) = watched();
    let small = |app: &mut App| lines(&drawn(app, false, (40, 10)));
    let before = small(&mut app);
    assert!(before[0].starts_with(&format!("machine {}", app.machine.name)), "{before:#?}");
    assert_eq!(before[2], "vcpu exits    io   reg hcall  nest›");
    assert_eq!(before[4], "   0 12.3k 12.3k     ·     ·     ·");
    assert_eq!(before[9], "q quit  ? help  ←→s sort  r reverse  p p");
    press(&mut app, KeyCode::Left);
    let after = small(&mut app);
    assert_eq!(after[2], "vcpu‹merge defer  kick   inj steal");
    assert_eq!(after[4], "   1     ·     ·     ·     ·    75", "the one with most comes first");
}

#[test]
fn sizes_of_any_kind_are_drawn() {
    let (_machine, mut app) = watched();
    let machine = MockMachine::new(1);
    let mut empty = App::new(machine.found.clone());
    // The content behind the help is drawn as well.
    (app.has_help, empty.has_help) = (true, true);
    for width in (0..12).chain([18, 19, 38, 39, 40, 53, 77, 78, 79, 93, 94, 200]) {
        for height in [0, 1, 2, 3, 4, 5, 6, 7, 10, 17, 18, 19, 20, 24, 30] {
            app.sort = usize::from(width) % COLUMNS.len();
            drawn(&mut app, true, (width, height));
            drawn(&mut empty, true, (width, height));
        }
    }
}

#[test]
fn much_stolen_time_alone_is_highlighted() {
    let of = |title: &str, value| {
        let column = COLUMNS.iter().find(|column| column.title == title).expect("is one");
        figure(value, column)
    };
    let (dim, plain, red) = (Style::new().dim(), Style::new(), Style::new().bold().red());
    assert_eq!(of("steal", 0.0), cell("·".to_owned(), dim));
    assert_eq!(
        [49.0, 50.0].map(|value| of("steal", value)),
        [(49.0, plain), (50.0, red)].map(|(value, style)| cell(short(value), style))
    );
    assert_eq!(of("exits", 50.0), cell(short(50.0), plain));
}

#[test]
fn colours_are_left_out_where_they_are_not_wanted() {
    let (_machine, mut app) = watched();
    app.life = Life::Ended;
    let mut coloured = |has_colours| {
        let buffer = drawn(&mut app, has_colours, (80, 24));
        buffer.content.iter().filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset).count()
    };
    assert_eq!(coloured(false), 0);
    assert!(coloured(true) > 0);
}

#[test]
fn rows_are_scrolled_and_the_help_covers_them() {
    let counts = vec![&[][..]; 100];
    let machine = MockMachine::new(100);
    let mut app = App::new(machine.found.clone()).with_rates(rates(&counts));
    let first = |app: &mut App, size| lines(&drawn(app, false, size))[5].clone();
    assert!(first(&mut app, (80, 24)).starts_with("   0"));
    press(&mut app, KeyCode::End);
    assert!(first(&mut app, (80, 24)).starts_with("  89"), "{}", first(&mut app, (80, 24)));
    press(&mut app, KeyCode::Char('?'));
    let help = lines(&drawn(&mut app, false, (80, 24)));
    let text = help.join("\n");
    assert!(COLUMNS.iter().all(|column| text.contains(column.about)), "{text}");
    for key in ["Tab", "PgDn", "pause", "reverse", "quit", "waits:"] {
        assert!(text.contains(key), "{key}: {text}");
    }
}

#[test]
fn what_is_wrong_or_over_is_said() {
    let mut machine = MockMachine::new(1);
    let mut app = App::new(machine.found.clone());
    let text = |app: &mut App| lines(&drawn(app, false, (80, 24))).join("\n");
    assert!(text(&mut app).contains("has not begun to count"));
    machine.begin();
    app.refresh(Vec::new());
    assert!(text(&mut app).contains("one moment"));
    machine.end();
    app.refresh(Vec::new());
    assert!(text(&mut app).contains(&format!("machine {} has ended", app.machine.name)));
    app.trouble = Some("the hypervisor claims nonsense".into());
    assert!(text(&mut app).contains("claims nonsense"));
}

#[test]
fn waits_are_joined_until_they_fit() {
    assert_eq!(
        [200, 79, 78, 39, 38, 19, 18].map(waits_in_one),
        [Some(1), Some(1), Some(2), Some(2), Some(4), Some(4), None]
    );
    assert_eq!((0..16).filter_map(longest).count(), 15);
    assert_eq!([0, 9, 10, 14].map(longest), ["1µ", "512µ", "1m", "16m"].map(|text| Some(text.to_owned())));
    let counts = [0, 9_999, 10_000, 999_999, 1_000_000, u64::MAX].map(short_count);
    assert_eq!(counts, ["0", "9999", "10k", "999k", "1M", "many"]);
    for width in [39, 19] {
        let (_machine, mut app) = watched();
        let lines = lines(&drawn(&mut app, false, (width, 24)));
        assert!(lines[22].ends_with(if width == 39 { ">8m" } else { ">2m" }), "{lines:#?}");
    }
}

#[test]
fn two_keys_fit_beside_each_other() {
    for (name, about) in KEYS {
        assert!(name.chars().count() < 14 && about.chars().count() <= 24, "{name}");
    }
    assert!(2 * (14 + 24) + 2 <= usize::from(WIDE));
}

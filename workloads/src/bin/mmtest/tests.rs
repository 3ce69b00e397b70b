use super::*;
use crate::rom::tests::fake;
use std::fs;

fn parse(args: &[&str]) -> Result<Options, String> {
    Options::parse(args.iter().map(|arg| (*arg).to_owned()))
}

/// Runs with these arguments, and returns whether there was no error, and the last lines of the
/// report.
fn report_of(name: &str, args: &[&str], rom: &Rom) -> (bool, Vec<Value>) {
    let path = std::env::temp_dir().join(format!("quell-mmtest-{name}-{}", std::process::id()));
    let mut options = parse(args).expect("parses");
    options.report = Some(path.clone());
    let is_right = run(&options, rom).expect("runs");
    let text = fs::read_to_string(&path).expect("was written");
    fs::remove_file(&path).expect("removes");
    (is_right, text.lines().map(|line| serde_json::from_str(line).expect("is JSON")).collect())
}

#[test]
fn bad_options_are_named() {
    for args in
        [&["--threads", "0"][..], &["--memory", "x"], &["--toggles"], &["--passes", "0"], &["--colour", "1"]]
    {
        let message = parse(args).expect_err("is refused");
        assert!(message.starts_with(args[0]), "{args:?}: {message}");
    }
}

#[test]
fn all_toggles_and_passes_are_made() {
    let rom = fake("mmtest-right", |_| {});
    let args = ["--threads", "3", "--memory", "2", "--toggles", "70", "--passes", "2"];
    let (is_right, lines) = report_of("right", &args, &rom);
    assert!(is_right);
    let end = lines.last().expect("has lines");
    assert_eq!((&end["event"], &end["toggles"]), (&json!("end"), &json!(70)));
    assert_eq!((&end["rom_errors"], &end["canary_errors"]), (&json!(0), &json!(0)));
    assert!(end["passes"].as_u64() >= Some(6), "{end}");
    assert!(end["touches"].as_u64() >= Some(3 * 2 * 512), "{end}");
    assert!(end["faults"].as_u64() >= Some(3), "memory appears when it is touched: {end}");
    let times = &end["toggle_us"];
    let [min, median, max] = ["min", "median", "max"].map(|key| times[key].as_f64().expect("is there"));
    assert!(0.0 < min && min <= median && median <= max, "{times}");
}

#[test]
fn rounds_are_the_same_work_each_time() {
    let rom = fake("mmtest-rounds", |_| {});
    let args = ["--threads", "3", "--memory", "2", "--rounds", "7"];
    let (is_right, lines) = report_of("rounds", &args, &rom);
    assert!(is_right);
    let end = lines.last().expect("has lines");
    assert_eq!((&end["toggles"], &end["passes"]), (&json!(7), &json!(8 * 3)), "one pass comes before");
    assert_eq!(end["touches"], 8 * 3 * 2 * 256);
    assert!(end["round_us"]["min"].as_f64() > Some(0.0), "{end}");
}

#[test]
fn a_wrong_rom_is_reported() {
    let rom = fake("mmtest-wrong", |image| image[0x2001] ^= 0x80);
    let (is_right, lines) =
        report_of("wrong", &["--threads", "1", "--memory", "1", "--toggles", "130"], &rom);
    assert!(!is_right);
    let [.., end, damage] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(end["rom_errors"], 2, "in toggles 2 and 66: {end}");
    assert_eq!(
        (&damage["what"], &damage["toggle"], &damage["offset"]),
        (&json!("rom"), &json!(2), &json!(0x2001))
    );
}

#[test]
fn damage_is_described() {
    let damage = Damage { thread: 1, page: 2, expected: 3, found: 4 };
    let lines =
        damage_lines(&Toggles::default(), &Touched { first_damage: Some(damage), ..Touched::default() });
    assert_eq!(lines.len(), 1);
    assert_eq!(
        (&lines[0]["what"], &lines[0]["page"], &lines[0]["found"]),
        (&json!("canary"), &json!(2), &json!(4))
    );
}

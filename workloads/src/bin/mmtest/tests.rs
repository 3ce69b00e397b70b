use super::*;
use crate::rom::tests::fake;
use workloads::options::reported;

fn report_of(args: &[&str], rom: &Rom) -> (bool, Vec<Value>) {
    let options = Options::program().parse(args.iter().copied()).expect("parses");
    let (is_right, lines) = reported(|report| run(&options, rom, report));
    (is_right.expect("runs"), lines)
}

#[test]
fn all_toggles_and_passes_are_made() {
    let rom = fake("mmtest-right", |_| {});
    let args = ["--threads", "3", "--memory", "2", "--toggles", "70", "--passes", "2"];
    let (is_right, lines) = report_of(&args, &rom);
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
    let (is_right, lines) = report_of(&args, &rom);
    assert!(is_right);
    let end = lines.last().expect("has lines");
    assert_eq!((&end["toggles"], &end["passes"]), (&json!(7), &json!(8 * 3)), "one pass comes before");
    assert_eq!(end["touches"], 8 * 3 * 2 * 256);
    assert!(end["round_us"]["min"].as_f64() > Some(0.0), "{end}");
}

#[test]
fn a_wrong_rom_is_reported() {
    let rom = fake("mmtest-wrong", |image| image[0x2001] ^= 0x80);
    let (is_right, lines) = report_of(&["--threads", "1", "--memory", "1", "--toggles", "130"], &rom);
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

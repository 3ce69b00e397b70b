//! Tests of what a PC without a serial port shows on its screen. They read the text from pictures:
//! the font is the images' own.

use crate::cli::{self, ImageArgs};
use crate::image::{self, Entry};
use crate::machine::payload::Payload;
use crate::machine::process::Monitor;
use crate::test::prelude::*;
use crate::test::room::Act;
use baremetal::screen::{GLYPH_HEIGHT, GLYPH_WIDTH, glyph};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

pub(super) const ACTS: &[Named] = &[
    ("disc_shows_tlbcheck_by_bios", tlbcheck as Act),
    ("disc_shows_guests_by_uefi", guests),
    ("disc_shows_the_demo_by_bios", demo),
];

/// Longest time of a machine.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Time between two looks at the screen.
const LOOK_PERIOD: Duration = Duration::from_millis(300);

/// More than 4 GiB.
const PC_MEMORY: u64 = 6 << 30;

/// Shows what is to be seen next, after which keys are pressed: the text of the screen has all of
/// the first words, and none of the second.
struct Step(&'static [&'static str], &'static [&'static str], &'static [&'static str]);

/// The text that a portable pixmap shows in the images' font; cells without a glyph are `?`.
fn read(picture: &[u8]) -> Result<String> {
    let mut parts = picture.splitn(4, |byte| byte.is_ascii_whitespace());
    let mut word = || parts.next().and_then(|word| str::from_utf8(word).ok()).context("it has no head");
    let (kind, width, height) = (word()?, word()?.parse::<usize>()?, word()?.parse::<usize>()?);
    ensure!(kind == "P6", "it is no pixmap, but {kind}");
    let (_, pixels) = parts.next().and_then(|rest| rest.split_at_checked(4)).context("it has no pixels")?;
    ensure!(pixels.len() == width * height * 3, "{} bytes for {width} x {height}", pixels.len());
    let known: BTreeMap<&[u8], u8> =
        (b' '..=b'~').filter_map(|byte| Some((glyph(byte)?.pixels(), byte))).collect();
    let line = |row: usize| {
        let cell = |column: usize| {
            let line = |y: usize| {
                let at = (row * GLYPH_HEIGHT + y) * width + column * GLYPH_WIDTH;
                pixels[3 * at..].chunks(3).take(GLYPH_WIDTH)
            };
            let shown: Vec<u8> = (0..GLYPH_HEIGHT).flat_map(line).map(|pixel| pixel[0]).collect();
            known.get(&*shown).map_or('?', |byte| char::from(*byte))
        };
        (0..width / GLYPH_WIDTH).map(cell).collect::<String>().trim_end().to_owned()
    };
    Ok((0..height / GLYPH_HEIGHT).map(line).collect::<Vec<_>>().join("\n"))
}

/// Sits before the screen until all steps were made; returns the last text.
fn play(room: &Room<'_>, spec: Spec, steps: &'static [Step]) -> Result<String> {
    let spec = Spec { timeout: Some(TIMEOUT), has_ports: false, ..spec };
    let mut machine = Machine::start(&spec, room.signals)?;
    let seen = Rc::new(RefCell::new((Ok(String::new()), 0)));
    let (shown, monitor, picture) = (Rc::clone(&seen), machine.monitor(), room.directory.join("screen.ppm"));
    let last = Cell::new(Instant::now());
    machine.end_when(move || {
        if last.get().elapsed() < LOOK_PERIOD {
            return false;
        }
        last.set(Instant::now());
        let (text, at) = &mut *shown.borrow_mut();
        match look(&monitor, &picture, &steps[*at], text) {
            Ok(made) => *at += usize::from(made),
            Err(error) => *text = Err(error),
        }
        text.is_err() || *at == steps.len()
    });
    room.lab.ended(machine.run(|_, _| Ok(Flow::Continue))?);
    let (text, made) = seen.replace((Ok(String::new()), 0));
    let text = text?;
    ensure!(made == steps.len(), "the screen does not show {:?}, but:\n{text}", steps[made].0);
    Ok(text)
}

/// Looks at the screen, and does what comes next if that is due.
fn look(monitor: &Monitor, picture: &Path, step: &Step, text: &mut Result<String>) -> Result<bool> {
    // Before the firmware's first picture there is none.
    monitor.picture(picture)?;
    let shown = read(&fs::read(picture)?)?;
    let Step(words, others, keys) = step;
    let is_due =
        words.iter().all(|word| shown.contains(word)) && !others.iter().any(|word| shown.contains(word));
    *text = Ok(shown);
    if is_due {
        keys.iter().try_for_each(|key| monitor.press(key))?;
    }
    Ok(is_due)
}

/// A PC with a screen and these arguments.
fn pc(spec: Spec, args: &str) -> Spec {
    let qemu_args = ["-device VGA", args].join(" ").split_whitespace().map(str::to_owned).collect();
    Spec { memory: PC_MEMORY, qemu_args, ..spec }
}

/// The APIC ids of its six CPUs have a gap, and the firmware has left x2APIC mode on. The last page
/// has the verdict, the next one is the first.
fn tlbcheck(room: &Room<'_>) -> Result<()> {
    const STEPS: &[Step] = &[
        Step(&["ok 85 - init-keeps-translations", " 0 failed, ", "page 4 of 4"], &[], &["spc"]),
        Step(
            &["TAP version 14", "# 6 processors, ", "ok 1 - invlpg-leaves-page", "page 1 of 4"],
            &[],
            &["a"],
        ),
        Step(&["page 2 of 4"], &["TAP", "page 1"], &[]),
    ];
    let script = "insmod all_video\nmultiboot2 /boot/tlbcheck check\nwrmsr 0x1b 0xfee00d00\nboot\n";
    let disc = room.directory.join("disc.iso");
    image::disc(script, &[("tlbcheck", &workspace::build(workspace::TLBCHECK, Arch::X86_64)?)], &disc)?;
    let payload = Payload::Disc { disc, firmware: None };
    let args = "-machine hpet=off,pit=off -cpu EPYC,+svm,+npt,+x2apic \
                -smp cpus=6,sockets=2,cores=3,threads=1,maxcpus=6";
    let spec = pc(Spec::new(room.platform, payload, 6, PC_MEMORY), args);
    play(room, spec, STEPS).map(drop)
}

fn disc(room: &Room<'_>, args: ImageArgs, uefi: bool) -> Result<Spec> {
    let args = ImageArgs { output: room.directory.join("quell.iso"), timeout: 0, ..args };
    image::make(&args, None)?;
    image::spec(room.platform, &args.output, uefi)
}

/// The processor has no x2APIC mode. A key chooses a guest, and what is typed is for that one.
fn guests(room: &Room<'_>) -> Result<()> {
    const STEPS: &[Step] = &[
        Step(&["1 CPUs, ", "one waits"], &["two waits"], &["f2"]),
        Step(&["two waits"], &["one waits", "1 CPUs"], &["h", "i", "ret"]),
        Step(&["two got hi"], &["one"], &["f1", "y", "o", "ret"]),
        Step(&["one waits", "one got yo"], &["two"], &[]),
    ];
    let guest = |name: &str| {
        format!(
            "[[guest]]\nname = \"{name}\"\nmemory = \"256M\"\ncmdline = \"quiet\"\n\
             exec = \"echo {name} waits; read line; echo {name} got $line; sleep 1000\"\n"
        )
    };
    let path = room.directory.join("guests.toml");
    fs::write(&path, ["one", "two"].map(guest).concat())?;
    let args = ImageArgs { guests: Some(path), ..cli::arguments(&[])? };
    let spec = pc(disc(room, args, true)?, "-machine hpet=off,pit=off -cpu EPYC,+svm,+npt,-x2apic");
    play(room, spec, STEPS).map(drop)
}

/// Its guest ends both of its lives, and the table says what is true of any machine.
fn demo(room: &Room<'_>) -> Result<()> {
    const STEPS: &[Step] =
        &[Step(&["AMD EPYC", "hypercall", "vCPUs preempted", "switched itself off"], &[], &[])];
    let args = ImageArgs { demo: true, rounds: 5, vcpus: Some(3), ..cli::arguments(&[])? };
    let spec = disc(room, ImageArgs { default: Some(Entry::Demo), ..args }, false)?;
    let spec = pc(spec, "-machine i8042=off");
    let text = play(room, spec, STEPS)?;
    let row = |name: &str| {
        let line = text.lines().find_map(|line| line.split_once(name)).map(|(_, figures)| figures);
        let figures = line.map(|figures| figures.split_whitespace().map(|it| it.replace(',', "")).collect());
        figures.unwrap_or_else(Vec::new)
    };
    let number = |row: &[String], side: usize| row.get(side).and_then(|it| it.parse::<u64>().ok());
    let (ipis, deferred) = (row("guest's TLB IPIs"), row("flushes deferred to entry"));
    let is_right = number(&ipis, 0) > Some(0) && number(&ipis, 1) == Some(0);
    let is_right = is_right && number(&deferred, 0) == Some(0) && number(&deferred, 1) > Some(0);
    ensure!(is_right && row(" real ").len() == 5, "the table is wrong:\n{text}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A picture of this text.
    fn picture(rows: [&str; 2]) -> Vec<u8> {
        let (width, height) = (5 * GLYPH_WIDTH + 3, 2 * GLYPH_HEIGHT + 1);
        let pixel = |x: usize, y: usize| {
            let byte = rows.get(y / GLYPH_HEIGHT)?.as_bytes().get(x / GLYPH_WIDTH)?;
            glyph(*byte)?.pixel(x % GLYPH_WIDTH, y % GLYPH_HEIGHT)
        };
        let pixels = (0..height).flat_map(|y| (0..width).flat_map(move |x| [pixel(x, y).unwrap_or(0); 3]));
        format!("P6\n{width} {height}\n255\n").into_bytes().into_iter().chain(pixels).collect()
    }

    #[test]
    fn text_is_read_from_a_picture() {
        let mut shown = picture(["a {Q", "0O|~"]);
        assert_eq!(read(&shown).expect("is one"), "a {Q\n0O|~");
        let line = 5 * GLYPH_WIDTH + 3;
        let end = shown.len() - 3 * (2 * line - 3 * GLYPH_WIDTH - 1);
        shown[end] ^= 0x10;
        assert_eq!(read(&shown).expect("is one"), "a {Q\n0O|?", "a pixel differs");
        shown.pop();
        assert!(read(&shown).is_err() && read(b"P5\n1 1\n255\n").is_err() && read(b"").is_err());
    }
}

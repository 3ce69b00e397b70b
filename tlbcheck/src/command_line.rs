//! The command line: `check` or `bench`, with options.

/// The task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Task {
    /// Run the rows of checks.
    #[default]
    Check,
    /// Measure shootdowns.
    Bench,
    /// List the rows.
    List,
}

/// Instructions that the image deliberately omits, to show that rows detect the defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Omission {
    /// Every TLBI.
    Tlbi,
    /// TLBI VMALLE1 in all its forms.
    Vmalle1,
    /// Every DSB after a TLBI.
    Dsb,
    /// Broadcasts: each TLBI is for the processor's own TLB alone.
    Broadcast,
}

/// The options on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options<'a> {
    /// `check` (the default), `bench` or `list`.
    pub task: Task,
    /// `json`: the report is lines of JSON rather than text.
    pub json: bool,
    /// `report=com2`: the report goes to the second serial port, and text to the first.
    pub report_to_com2: bool,
    /// `only=ROW[,ROW]`: only these rows; a name that ends with `*` selects all that begin with it.
    pub only: Option<&'a str>,
    /// `cpus=N`: the maximum number of processors.
    pub cpus: Option<u32>,
    /// `rounds=N`: the number of rounds of each check, or of samples of each measurement.
    pub rounds: Option<u32>,
    /// `targets=halt`: targets of measured flushes sleep, rather than spin.
    pub targets_halt: bool,
    /// `exit=debug`: end by QEMU's debug exit device or by semihosting, not by ACPI or PSCI.
    pub debug_exit: bool,
    /// `drop=tlbi`, `drop=vmalle1`, `drop=dsb`, `drop=broadcast`: omit these. Arm64 only.
    pub omits: Option<Omission>,
}

impl<'a> Options<'a> {
    /// Parses a command line.
    ///
    /// # Errors
    ///
    /// The first word that is not recognised.
    pub fn parse(line: &'a str) -> Result<Self, &'a str> {
        let mut options = Self::default();
        for word in line.split_whitespace() {
            options.take(word).ok_or(word)?;
        }
        Ok(options)
    }

    fn take(&mut self, word: &'a str) -> Option<()> {
        let number = |text: &str| text.parse().ok().filter(|number| *number != 0);
        match word.split_once('=').unwrap_or((word, "")) {
            ("check", "") => self.task = Task::Check,
            ("bench", "" | "shootdown") => self.task = Task::Bench,
            ("list", "") => self.task = Task::List,
            ("json", "") => self.json = true,
            ("report", "com2") => self.report_to_com2 = true,
            ("only", rows) if !rows.is_empty() => self.only = Some(rows),
            ("cpus", count) => self.cpus = Some(number(count)?),
            ("rounds", count) => self.rounds = Some(number(count)?),
            ("targets", "halt") => self.targets_halt = true,
            ("targets", "spin") => self.targets_halt = false,
            ("exit", "debug") => self.debug_exit = true,
            ("exit", "acpi" | "psci") => self.debug_exit = false,
            ("drop", "tlbi") => self.omits = Some(Omission::Tlbi),
            ("drop", "vmalle1") => self.omits = Some(Omission::Vmalle1),
            ("drop", "broadcast") => self.omits = Some(Omission::Broadcast),
            ("drop", "dsb") => self.omits = Some(Omission::Dsb),
            // Words that loaders add for other kernels.
            ("console" | "BOOT_IMAGE", _) => {}
            _ => return None,
        }
        Some(())
    }

    /// Whether the row of this name is selected.
    pub fn wants(&self, row: &str) -> bool {
        let is_it = |wanted: &str| match wanted.strip_suffix('*') {
            Some(beginning) => row.starts_with(beginning),
            None => row == wanted,
        };
        self.only.is_none_or(|rows| rows.split(',').any(is_it))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_can_be_said() {
        let line = "console=ttyS0 bench json  report=com2 only=a,b* cpus=3 rounds=7 targets=halt exit=debug drop=vmalle1";
        let expected = Options {
            task: Task::Bench,
            json: true,
            report_to_com2: true,
            only: Some("a,b*"),
            cpus: Some(3),
            rounds: Some(7),
            targets_halt: true,
            debug_exit: true,
            omits: Some(Omission::Vmalle1),
        };
        assert_eq!(Options::parse(line), Ok(expected));
        assert_eq!(Options::parse(""), Ok(Options::default()));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        let words = "cpus=0 cpus= cpus=x only= exit=now jsonl targets=run check=1 report=com3 drop= drop=isb";
        for word in words.split(' ') {
            let line = std::format!("check {word} json");
            assert_eq!(Options::parse(&line), Err(word));
        }
    }

    #[test]
    fn rows_are_chosen_by_name_and_by_beginning() {
        let options = Options { only: Some("ring3,no-kick*"), ..Options::default() };
        assert!(options.wants("ring3") && options.wants("no-kick") && options.wants("no-kick-list"));
        assert!(!options.wants("ring3-call") && !options.wants("ring"));
        assert!(Options::default().wants("any"));
    }
}

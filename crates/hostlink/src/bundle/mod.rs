//! The bundle: one tar archive, handed to the hypervisor as its only boot module.
//!
//! | member | what it holds | required |
//! |---|---|---|
//! | [`CONFIG`] | what is for the whole machine, read by [`Config::parse_machine`] | yes |
//! | `guests/00`, `guests/01` and so on ([`Member::Guest`]) | each guest's configuration, read by [`Config::parse_guest`]; at most [`MAX_GUESTS`] | the first |
//! | `files/0`, `files/1` and so on ([`Member::File`]) | what the guests' keys `kernel` and `initrd` name, each once: kernels (a Linux bzImage or a 64-bit ELF with a PVH note; on Arm an uncompressed arm64 `Image`), and initial RAM disks, unchanged | if they are named |
//! | [`SYMBOLS`] | the hypervisor's own symbols for backtraces: lines of `ADDRESS NAME`, the address in hexadecimal without prefix, sorted by it | no |
//!
//! [`Reader`] reads it, whatever finds the members.

use crate::config::{Config, ConfigError, Console, MAX_GUESTS, MAX_TOTAL_VCPUS};
use crate::name::Name;
use arrayvec::{ArrayString, ArrayVec};
use core::fmt::{self, Write};

/// Name of the member with the configuration.
pub const CONFIG: &str = "config";
/// Name of the member with the hypervisor's symbols.
pub const SYMBOLS: &str = "symbols";

/// A member of a bundle. [`Display`](fmt::Display) writes its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Member<'b> {
    /// The one with this name.
    Named(&'b str),
    /// The configuration of the guest with this number.
    Guest(u32),
    /// The file with this number: a kernel or an initial RAM disk.
    File(u32),
}

impl fmt::Display for Member<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => f.write_str(name),
            Self::Guest(number) => write!(f, "guests/{number:02}"),
            Self::File(number) => write!(f, "files/{number}"),
        }
    }
}

/// What is wrong with a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BundleError<'b> {
    /// This member is missing.
    #[error("the bundle has no member '{0}'")]
    Missing(Member<'b>),
    /// This member is not text.
    #[error("the bundle's member '{0}' is not UTF-8")]
    NotText(Member<'b>),
    /// A configuration is wrong.
    #[error("{}{error}", beginning(*.member))]
    Config {
        /// The member.
        member: Member<'b>,
        /// What is wrong.
        error: ConfigError<'b>,
    },
    /// There are several guests, and the machine's console is to be that of the only one.
    #[error("console=machine is for one guest, and there are several")]
    OneConsole,
    /// Two guests have this name.
    #[error("two guests are called '{0}'")]
    SameName(Name),
    /// There are more than [`MAX_GUESTS`] guests.
    #[error("there are more than {MAX_GUESTS} guests")]
    TooManyGuests,
    /// The guests have this many vCPUs together, more than [`MAX_TOTAL_VCPUS`].
    #[error("the guests have {0} vCPUs together, at most {MAX_TOTAL_VCPUS} are possible")]
    TooManyVcpus(u32),
}

/// What a mistake in a member begins with: nothing if that is the machine's configuration.
fn beginning(member: Member<'_>) -> impl fmt::Display {
    fmt::from_fn(move |f| match member {
        Member::Named(CONFIG) => Ok(()),
        _ => write!(f, "{member}: "),
    })
}

/// What a bundle has for one guest.
#[derive(Clone, Copy, Debug)]
pub struct GuestFiles<'b> {
    /// Its configuration.
    pub config: Config<'b>,
    /// Its kernel.
    pub kernel: &'b [u8],
    /// Its initial RAM disk.
    pub initrd: Option<&'b [u8]>,
}

/// Reads a bundle whose members `find` finds by their names.
#[derive(Debug)]
pub struct Reader<'b, F> {
    find: F,
    machine: Config<'b>,
    guests: u32,
}

impl<'b, F: Fn(&str) -> Option<&'b [u8]>> Reader<'b, F> {
    /// Reads all configurations of the bundle.
    ///
    /// # Errors
    ///
    /// The first mistake. Afterwards [`Self::guest`] fails for no guest below
    /// [`Self::guest_count`].
    pub fn new(find: F) -> Result<Self, BundleError<'b>> {
        let (member, text) = (Member::Named(CONFIG), text(&find, Member::Named(CONFIG))?);
        let machine = Config::parse_machine(text).map_err(|error| BundleError::Config { member, error })?;
        let mut reader = Self { find, machine, guests: 0 };
        reader.guests = reader.count()?;
        reader.check()?;
        Ok(reader)
    }

    /// The number of guests, at least 1. A gap in the members' numbers is a mistake.
    fn count(&self) -> Result<u32, BundleError<'b>> {
        let has = |number: u32| found(&self.find, Member::Guest(number)).is_some();
        let count = (0..MAX_GUESTS).find(|number| !has(*number)).unwrap_or(MAX_GUESTS);
        if has(MAX_GUESTS) {
            return Err(BundleError::TooManyGuests);
        }
        match count == 0 || (count..MAX_GUESTS).any(has) {
            true => Err(BundleError::Missing(Member::Guest(count))),
            false => Ok(count),
        }
    }

    fn check(&self) -> Result<(), BundleError<'b>> {
        if self.machine.console == Console::Machine && self.guests > 1 {
            return Err(BundleError::OneConsole);
        }
        let mut names = ArrayVec::<Name, { MAX_GUESTS as usize }>::new();
        let mut vcpus = 0;
        for number in 0..self.guests {
            let config = self.guest(number)?.config;
            if names.contains(&config.name) || names.try_push(config.name).is_err() {
                return Err(BundleError::SameName(config.name));
            }
            vcpus += config.vcpus;
        }
        if vcpus > MAX_TOTAL_VCPUS {
            return Err(BundleError::TooManyVcpus(vcpus));
        }
        Ok(())
    }

    /// What is for the whole machine, among the defaults of a guest.
    pub const fn machine(&self) -> &Config<'b> {
        &self.machine
    }

    /// The number of guests, at least 1.
    pub const fn guest_count(&self) -> u32 {
        self.guests
    }

    /// What there is for a guest.
    ///
    /// # Errors
    ///
    /// There is no such guest.
    pub fn guest(&self, number: u32) -> Result<GuestFiles<'b>, BundleError<'b>> {
        let member = Member::Guest(number);
        let config = Config::parse_guest(text(&self.find, member)?, &self.machine);
        let config = config.map_err(|error| BundleError::Config { member, error })?;
        let must = |name| {
            let member = Member::Named(name);
            found(&self.find, member).ok_or(BundleError::Missing(member))
        };
        let initrd = config.initrd.map(must).transpose()?;
        Ok(GuestFiles { config, kernel: must(config.kernel)?, initrd })
    }

    /// The hypervisor's symbols.
    pub fn symbols(&self) -> Option<&'b [u8]> {
        found(&self.find, Member::Named(SYMBOLS))
    }
}

/// Longest name of a member.
const NAME_BYTES: usize = 100;

/// The contents of a member.
fn found<'b>(find: &impl Fn(&str) -> Option<&'b [u8]>, member: Member<'_>) -> Option<&'b [u8]> {
    let mut name = ArrayString::<NAME_BYTES>::new();
    // A longer name is not that of a member.
    write!(name, "{member}").ok()?;
    find(&name)
}

/// The text in a member.
fn text<'b>(
    find: &impl Fn(&str) -> Option<&'b [u8]>,
    member: Member<'b>,
) -> Result<&'b str, BundleError<'b>> {
    let bytes = found(find, member).ok_or(BundleError::Missing(member))?;
    core::str::from_utf8(bytes).map_err(|_| BundleError::NotText(member))
}

#[cfg(test)]
mod tests;

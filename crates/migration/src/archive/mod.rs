//! The state of a device as bytes.
//!
//! A device has one description, [`Described::describe`], which names its fields in order. By it
//! the state is written, and read into a device that was made with the same configuration. So a
//! field cannot be written and not read, and [`fields!`](crate::fields) does not compile while a
//! field of the structure is left out.
//!
//! Numbers are little-endian, and nothing is padded. A flag is a byte, 0 or 1. What the description
//! [keeps](Archive::same) of the receiver's, because the configuration says it, is compared.

mod kinds;
#[cfg(test)]
mod tests;

use core::ops::BitAnd;

/// What is wrong with a state that is read, or why it cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// It ends too early, or does not fit where it is written.
    Short,
    /// It goes on behind its end, for this number of bytes.
    Long(usize),
    /// This field has a value that it cannot have.
    Value(&'static str),
    /// This differs between the two sides: what is here, and what was there.
    Differs(&'static str, u64, u64),
    /// The same of rates in Hz.
    Rates(&'static str, u64, u64),
    /// A guest in this state cannot be written: what it has, or does.
    Unmovable(&'static str),
}

impl Flaw {
    /// The same, of the field with this name, unless an inner field is named.
    #[must_use]
    pub fn named(self, field: &'static str) -> Self {
        match self {
            Self::Value("") => Self::Value(field),
            other => other,
        }
    }

    /// The same, if the numbers that differ are rates in Hz.
    #[must_use]
    pub fn of_rates(self) -> Self {
        match self {
            Self::Differs(what, here, there) => Self::Rates(what, here, there),
            other => other,
        }
    }
}

/// A rate in Hz, as people read it.
struct Mhz(u64);

impl core::fmt::Display for Mhz {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}.{:06} MHz", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

impl core::fmt::Display for Flaw {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Short => f.write_str("it is too short"),
            Self::Long(bytes) => write!(f, "{bytes} bytes follow its end"),
            Self::Value(field) => write!(f, "{field} has a value that it cannot have"),
            // A number that is counted, or the bits of a register.
            Self::Differs(what, here, there) if here.max(there) < &10_000 => {
                write!(f, "{what} is {here} here, and was {there} there")
            }
            Self::Differs(what, here, there) => {
                write!(f, "{what} is {here:#x} here, and was {there:#x} there")
            }
            Self::Rates(what, here, there) => {
                write!(f, "{what} is {} here, and was {} there", Mhz(*here), Mhz(*there))
            }
            Self::Unmovable(what) => write!(f, "{what}"),
        }
    }
}

/// A state that is written or read by its description.
pub trait Described {
    /// Describes the state: passes each field to the archive, in an order that never changes within
    /// a version of the stream.
    ///
    /// # Errors
    ///
    /// What is wrong. A device that was being read has any mixture of values then: it is dropped.
    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw>;
}

enum Way<'a> {
    Write(&'a mut [u8]),
    Read(&'a [u8]),
    #[cfg(any(test, feature = "random"))]
    Random(u64),
}

/// The bytes of a state, which is being written or read.
pub struct Archive<'a> {
    way: Way<'a>,
    at: usize,
}

impl<'a> Archive<'a> {
    /// Writes a state to the beginning of `bytes`.
    pub const fn writer(bytes: &'a mut [u8]) -> Self {
        Self { way: Way::Write(bytes), at: 0 }
    }

    /// Reads the state that is all of `bytes`.
    pub const fn reader(bytes: &'a [u8]) -> Self {
        Self { way: Way::Read(bytes), at: 0 }
    }

    /// Gives each field a random value that it may have.
    #[cfg(any(test, feature = "random"))]
    pub const fn random(seed: u64) -> Self {
        Self { way: Way::Random(seed), at: 0 }
    }

    /// Whether fields get values.
    pub const fn is_reading(&self) -> bool {
        !matches!(self.way, Way::Write(_))
    }

    /// Ends the state; returns its length in bytes.
    ///
    /// # Errors
    ///
    /// [`Flaw::Long`] if not all has been read.
    pub fn finish(self) -> Result<usize, Flaw> {
        match self.way {
            Way::Read(bytes) if self.at != bytes.len() => Err(Flaw::Long(bytes.len() - self.at)),
            _ => Ok(self.at),
        }
    }

    /// Bytes as they are.
    ///
    /// # Errors
    ///
    /// [`Flaw::Short`].
    pub fn bytes(&mut self, field: &mut [u8]) -> Result<(), Flaw> {
        let end = self.at.checked_add(field.len()).ok_or(Flaw::Short)?;
        match &mut self.way {
            Way::Write(bytes) => bytes.get_mut(self.at..end).ok_or(Flaw::Short)?.copy_from_slice(field),
            Way::Read(bytes) => field.copy_from_slice(bytes.get(self.at..end).ok_or(Flaw::Short)?),
            #[cfg(any(test, feature = "random"))]
            Way::Random(seed) => field.fill_with(|| next_byte(seed)),
        }
        self.at = end;
        Ok(())
    }

    /// A value that follows from the machine: the other side's, or this one's if nobody is there.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    pub fn other(&mut self, here: u64) -> Result<u64, Flaw> {
        let mut there = here;
        if !self.is_random() {
            there.describe(self)?;
        }
        Ok(there)
    }

    /// A value that follows from the configuration: it is not changed, and the same on both sides.
    ///
    /// # Errors
    ///
    /// [`Flaw::Differs`], or that it cannot be read.
    pub fn same(&mut self, what: &'static str, here: u64) -> Result<(), Flaw> {
        let there = self.other(here)?;
        if there == here { Ok(()) } else { Err(Flaw::Differs(what, here, there)) }
    }

    /// A field that has only values which `kept` leaves as they are: bits that are not reserved, an
    /// address that is canonical. It never gets another one.
    ///
    /// # Errors
    ///
    /// [`Flaw::Value`], or that it cannot be read.
    pub fn fixed<T: Described + Copy + PartialEq>(
        &mut self,
        field: &mut T,
        kept: impl Fn(T) -> T,
    ) -> Result<(), Flaw> {
        let mut value = *field;
        value.describe(self)?;
        if self.is_random() {
            value = kept(value);
        }
        if kept(value) != value {
            return Err(Flaw::Value(""));
        }
        *field = value;
        Ok(())
    }

    /// A field in which only the bits of `may` can be set.
    ///
    /// # Errors
    ///
    /// [`Flaw::Value`], or that it cannot be read.
    pub fn within<T>(&mut self, field: &mut T, may: T) -> Result<(), Flaw>
    where
        T: Described + Copy + PartialEq + BitAnd<Output = T>,
    {
        self.fixed(field, |value| value & may)
    }

    /// The elements of a list that has room for `most`, at most 65,535.
    ///
    /// # Errors
    ///
    /// [`Flaw::Value`] if there are more, or that they cannot be read.
    pub fn list<L, T>(&mut self, list: &mut L, most: usize) -> Result<(), Flaw>
    where
        for<'b> &'b L: IntoIterator<Item = &'b T>,
        L: Default + Extend<T>,
        T: Described + Copy + Default,
    {
        let mut len = (&*list).into_iter().count() as u16;
        self.through(&mut len, |len| *len, |len| Some(len).filter(|len| usize::from(*len) <= most))?;
        if !self.is_reading() {
            return (&*list).into_iter().try_for_each(|&(mut element)| element.describe(self));
        }
        *list = L::default();
        for _ in 0..len {
            let mut element = T::default();
            element.describe(self)?;
            list.extend([element]);
        }
        Ok(())
    }

    /// A field in this way.
    ///
    /// # Errors
    ///
    /// As `describe`.
    pub fn by<T>(
        &mut self,
        field: &mut T,
        describe: impl FnOnce(&mut T, &mut Self) -> Result<(), Flaw>,
    ) -> Result<(), Flaw> {
        describe(field, self)
    }

    /// A field that is one of these values; their order is part of the format.
    ///
    /// # Errors
    ///
    /// [`Flaw::Value`], or that it cannot be read.
    pub fn choice<T: Copy + PartialEq>(&mut self, field: &mut T, of: &[T]) -> Result<(), Flaw> {
        let place =
            |value: &T| of.iter().position(|other| other == value).and_then(|at| u8::try_from(at).ok());
        self.through(
            field,
            |value| place(value).unwrap_or(u8::MAX),
            |code| of.get(usize::from(code)).copied(),
        )
    }

    /// A field in another form: `out` gives it, and `back` the field, if it has such a value.
    ///
    /// # Errors
    ///
    /// [`Flaw::Value`], or that it cannot be read.
    pub fn through<T, S: Described>(
        &mut self,
        field: &mut T,
        out: impl Fn(&T) -> S,
        back: impl Fn(S) -> Option<T>,
    ) -> Result<(), Flaw> {
        for _ in 0..self.draws() {
            let mut form = out(field);
            form.describe(self)?;
            if !self.is_reading() {
                return Ok(());
            }
            if let Some(value) = back(form) {
                *field = value;
                return Ok(());
            }
        }
        Err(Flaw::Value(""))
    }

    /// Whether fields get random values.
    pub const fn is_random(&self) -> bool {
        #[cfg(any(test, feature = "random"))]
        return matches!(self.way, Way::Random(_));
        #[cfg(not(any(test, feature = "random")))]
        false
    }

    /// How often a value is tried: random ones until one is admitted.
    const fn draws(&self) -> u32 {
        if self.is_random() { 100_000 } else { 1 }
    }
}

/// One step of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators").
#[cfg(any(test, feature = "random"))]
const fn next_byte(seed: &mut u64) -> u8 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*seed ^ *seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed >> 56) as u8
}

/// Describes a structure by its fields, all of which must be named:
///
/// * first those that are passed on, in the stream's order, each with what it must be, if not
///   all values are ones of it: `& MASK`, as [`Archive::within`] takes it, `[|value| …]` as
///   [`Archive::fixed`], or `(|value, archive| …)` as [`Archive::by`];
/// * after `same`, numbers that follow from the configuration, which must be equal on both sides;
/// * after `stays`, those that the receiver has of its own: say why beside them.
///
/// ```
/// struct Timer { count: u32, hz: u64, last_look: u64 }
///
/// // When somebody looked last is a time of the machine.
/// migration::described!(Timer: count & 0xffff; same hz; stays last_look);
/// ```
///
/// An enumeration is described by its values, as [`Archive::choice`] takes them, and a structure
/// around one value by that field, `0`:
///
/// ```
/// #[derive(Clone, Copy, PartialEq)]
/// enum Mode { Off, On }
/// struct Flags(u8);
///
/// migration::described!(Mode: [Self::Off, Self::On]);
/// migration::described!(Flags: 0 & 0x7f);
/// ```
#[macro_export]
macro_rules! described {
    (@impl $Type:ty, $this:ident, $archive:ident, $described:expr) => {
        impl $crate::Described for $Type {
            fn describe(&mut self, $archive: &mut $crate::Archive<'_>) -> Result<(), $crate::Flaw> {
                let $this = self;
                $described
            }
        }
    };
    ($Type:ty: [$($value:expr),*]) => {
        $crate::described!(@impl $Type, this, archive, archive.choice(this, &[$($value),*]));
    };
    ($Type:ty: 0 $($how:tt)*) => {
        $crate::described!(@impl $Type, this, archive, {
            let Self(value) = this;
            $crate::fields!(@one archive value $($how)*)
        });
    };
    ($Type:ty: $($fields:tt)*) => {
        $crate::described!(@impl $Type, this, archive, $crate::fields!(this, archive: $($fields)*));
    };
}

/// The same as an expression, for a description that has more than fields.
#[macro_export]
macro_rules! fields {
    (@one $archive:ident $field:ident) => { $crate::Described::describe($field, $archive) };
    (@one $archive:ident $field:ident & $mask:expr) => { $archive.within($field, $mask) };
    (@one $archive:ident $field:ident [$kept:expr]) => { $archive.fixed($field, $kept) };
    (@one $archive:ident $field:ident ($way:expr)) => { $archive.by($field, $way) };
    ($value:expr, $archive:ident: $($field:ident $([$kept:expr])? $(($way:expr))? $(& $mask:expr)?),* $(; same $($same:ident),*)? $(; stays $($stays:ident),*)?) => {{
        let Self { $($field,)* $($($same,)*)? $($($stays: _,)*)? } = $value;
        $($crate::fields!(@one $archive $field $([$kept])? $(($way))? $(& $mask)?).map_err(|flaw| flaw.named(stringify!($field)))?;)*
        $($($archive.same(stringify!($same), u64::from(*$same))?;)*)?
        Ok::<(), $crate::Flaw>(())
    }};
}

//! Descriptions of what the language has itself.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::{Archive, Described, Flaw};

macro_rules! numbers {
    ($($number:ty)*) => { $(impl Described for $number {
        fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
            let mut bytes = self.to_le_bytes();
            archive.bytes(&mut bytes)?;
            *self = Self::from_le_bytes(bytes);
            Ok(())
        }
    })* };
}
numbers!(u8 u16 u32 u64 u128 i8 i16 i32 i64);

/// Nobody else uses the atomic meanwhile.
macro_rules! atomics {
    ($($atomic:ty)*) => { $(impl Described for $atomic {
        fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
            (&*self).describe(archive)
        }
    }

    /// For an atomic in what several share, of which nobody else makes use meanwhile.
    impl Described for &$atomic {
        fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
            // Relaxed: nobody else uses it.
            let mut value = self.load(Ordering::Relaxed);
            value.describe(archive)?;
            self.store(value, Ordering::Relaxed);
            Ok(())
        }
    })* };
}
atomics!(AtomicU8 AtomicU16 AtomicU32 AtomicU64 AtomicBool);

/// Those of what is model-checked.
#[cfg(loom)]
mod models {
    use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

    use super::{Archive, Described, Flaw, Ordering};

    atomics!(AtomicU8 AtomicU32 AtomicU64);
}

impl Described for bool {
    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        archive.choice(self, &[false, true])
    }
}

impl<T: Described, const N: usize> Described for [T; N] {
    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        self.iter_mut().try_for_each(|each| each.describe(archive))
    }
}

impl<T: Described + Default> Described for Option<T> {
    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        let mut is_some = self.is_some();
        is_some.describe(archive)?;
        match self {
            _ if !is_some => *self = None,
            Some(value) => value.describe(archive)?,
            None => self.insert(T::default()).describe(archive)?,
        }
        Ok(())
    }
}

impl Described for () {
    fn describe(&mut self, _: &mut Archive<'_>) -> Result<(), Flaw> {
        Ok(())
    }
}

macro_rules! tuples {
    ($(($($type:ident $at:tt),*))*) => { $(impl<$($type: Described),*> Described for ($($type,)*) {
        fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
            $(self.$at.describe(archive)?;)*
            Ok(())
        }
    })* };
}
tuples!((A 0, B 1) (A 0, B 1, C 2) (A 0, B 1, C 2, D 3));

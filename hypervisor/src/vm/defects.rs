//! The deliberate defect of an image under test, by which tests show that they detect it.

use hostlink::config::Config;
use hostlink::defect::Defect;
use stay::{Mistake, Mistakes};

/// The deliberate defect that the configuration selects.
#[cfg(feature = "defects")]
static DEFECT: spin::Once<Defect> = spin::Once::new();

/// Enables the defect that the configuration selects.
#[cfg(feature = "defects")]
pub fn make_defect(config: &Config<'_>) {
    if let Some(defect) = config.switches.defect {
        DEFECT.call_once(|| defect);
    }
}

/// Images for users have no defects: the configuration was refused.
#[cfg(not(feature = "defects"))]
pub const fn make_defect(_: &Config<'_>) {}

/// The enabled defect; `None` before the configuration is read.
#[cfg(feature = "defects")]
pub fn defect() -> Option<Defect> {
    DEFECT.get().copied()
}

/// Whether the hypervisor has this defect enabled.
#[cfg(feature = "defects")]
pub fn makes(wanted: Defect) -> bool {
    defect() == Some(wanted)
}

/// Images for users have no defects.
#[cfg(not(feature = "defects"))]
#[inline(always)]
pub const fn makes(_: Defect) -> bool {
    false
}

/// Passes the configured defects on to the steps of a stay.
#[derive(Clone, Copy, Debug)]
pub struct Defects;

impl Mistakes for Defects {
    #[inline(always)]
    fn makes(&self, mistake: Mistake) -> bool {
        /// Those that have one name here and there.
        macro_rules! defect_of {
            ($($name:ident)*) => {
                match mistake {
                    Mistake::NotKicked => Defect::NoKick,
                    Mistake::NotWaited => Defect::EarlyReturn,
                    Mistake::ArrivalWithoutDrop => Defect::NoArrivalFlush,
                    $(Mistake::$name => Defect::$name,)*
                    _ => return false,
                }
            };
        }
        makes(defect_of! {
            DebtForgotten CalledOffEntrySettles TagNotWritten ControlNotWritten TagKept TagShared
            RolloverKept RolloverByTag EnteredInSpite FlushNotCarriedOut StartsOverWithAll
            PageNotInvalidated ListCutShort WrongTagInvalidated PageLeftOut RangeLeftOut
            PiecesKept RestOfListForgotten SpaceNotMasked GlobalsSpared FirstBankOnly
            NestedTakenAsGuests NestedSettledEarly InvvpidForInvept GuestsTakenAsNested
            ArrivalWithoutInvept StampNotCompared FormerRootDropped OtherRootDropped RootPushedOut
            RootKept EntryTrusted InvvpidSparesGlobals VpidZero
        })
    }
}

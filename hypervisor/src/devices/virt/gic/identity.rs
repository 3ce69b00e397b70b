//! The affinities of vCPUs, and the identification registers of the frames.

/// The affinity of a vCPU, Aff3.Aff2.Aff1.Aff0 from the highest byte: as in GICR_TYPER bits 63:32.
/// Whoever takes it for the vCPU's index does not compile.
///
/// There are sixteen vCPUs in a cluster, because one SGI names up to sixteen values of Aff0
/// (ICC_SGI1R_EL1 without range selector).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Affinity(pub u32);

impl Affinity {
    /// That of vCPU `index`.
    pub const fn of(index: u8) -> Self {
        Self(((index as u32 / 16) << 8) | (index as u32 % 16))
    }

    /// As MPIDR_EL1, GICD_IROUTER and PSCI have it: Aff3 in bits 39:32, Aff2 to Aff0 in bits 23:0.
    pub const fn from_mpidr(value: u64) -> Self {
        Self((value >> 32 << 24 | value & 0xff_ffff) as u32)
    }

    /// The one of `vcpu_count` vCPUs that has it.
    pub const fn vcpu(self, vcpu_count: u8) -> Option<u8> {
        let (cluster, member) = (self.0 >> 8, self.0 & 0xff);
        if cluster > 15 || member > 15 {
            return None;
        }
        let index = (cluster * 16 + member) as u8;
        if index < vcpu_count { Some(index) } else { None }
    }
}

/// MPIDR_EL1 of vCPU `index`: its affinity and bit 31, which is RES1.
pub const fn mpidr(index: u8) -> u64 {
    1 << 31 | Affinity::of(index).0 as u64
}

/// GICD_IIDR and GICR_IIDR: implementer Arm (JEP106 0x43b), which defines this register layout, and
/// a product of our own.
pub(super) const IIDR: u32 = 0x51 << 24 | 0x43b;

/// The frame whose identification registers are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Distributor,
    Redistributor,
}

/// The identification registers at 0xffd0 to 0xfffc of a frame (IHI 0069H sections 12.8 and 12.10,
/// with Arm's values): PIDR4 to PIDR7, PIDR0 to PIDR3, CIDR0 to CIDR3. PIDR2 identifies a GICv3.
pub(super) const fn identification(frame: Frame, offset: u32) -> u32 {
    match offset {
        0xffd0 => 0x44,
        0xffe0 => match frame {
            Frame::Distributor => 0x92,
            Frame::Redistributor => 0x93,
        },
        0xffe4 => 0xb4,
        0xffe8 => 0x3b,
        0xfff0 => 0x0d,
        0xfff4 => 0xf0,
        0xfff8 => 0x05,
        0xfffc => 0xb1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn affinities_lead_back() {
        for index in 0..=254 {
            let affinity = Affinity::of(index);
            assert_eq!(affinity.vcpu(255), Some(index));
            assert_eq!(affinity.vcpu(index), None, "one more than there are");
            assert_eq!(Affinity::from_mpidr(mpidr(index) & 0xff_00ff_ffff), affinity);
        }
        // vCPU 35 is member 3 of cluster 2. The four levels are bytes; the highest is apart.
        assert_eq!((Affinity::of(35), mpidr(35)), (Affinity(0x203), 0x8000_0203));
        assert_eq!(Affinity::from_mpidr(0x44_0033_2211), Affinity(0x4433_2211));
        for strange in [16, 0xff, 0x1000, 0x1_0000, 0x100_0000, u32::MAX, 0x0f0f] {
            assert_eq!(Affinity(strange).vcpu(255), None, "{strange:#x}");
        }
    }
}

//! System registers that trap.

use hostlink::counters::Counter;

use super::sysreg::read;
use super::{inject, vgic};
use crate::arm64::identity;
use crate::devices::gic::{self, Sgi, SgiGroup};
use crate::vm::{Context, Next, increase};

/// Of the syndrome: the instruction is MRS.
const READ: u64 = 1;

/// A register's encoding: op0, op1, CRn, CRm, op2.
type Name = (u32, u32, u32, u32, u32);

const ICC_SGI1R: Name = (3, 0, 12, 11, 5);
const ICC_ASGI1R: Name = (3, 0, 12, 11, 6);
const ICC_SGI0R: Name = (3, 0, 12, 11, 7);
const ICC_DIR: Name = (3, 0, 12, 11, 1);
const ACTLR: Name = (3, 0, 1, 0, 1);
/// Data cache maintenance by set and way: nothing has to be done, for it is for a processor's own power-down, and stage 2
/// keeps memory coherent (HCR_EL2.TSW).
const DC_ISW: Name = (1, 0, 7, 6, 2);
const DC_CSW: Name = (1, 0, 7, 10, 2);
const DC_CISW: Name = (1, 0, 7, 14, 2);

impl Context<'_> {
    /// MSR, MRS or a system instruction.
    pub(crate) fn on_system_register(&mut self, syndrome: u64) -> Next {
        let field = |shift: u32, mask: u64| (syndrome >> shift & mask) as u32;
        let name = (field(20, 3), field(14, 7), field(10, 15), field(1, 15), field(17, 7));
        let register = field(5, 31) as usize;
        let is_known = if syndrome & READ != 0 {
            match self.read_register(name) {
                Some(value) => {
                    if let Some(place) = self.state.registers.x.get_mut(register) {
                        *place = value;
                    }
                    true
                }
                None => false,
            }
        } else {
            let value = self.state.registers.x.get(register).copied().unwrap_or(0);
            self.write_register(name, value)
        };
        if is_known {
            self.skip(syndrome);
        } else {
            log::debug!("vCPU {}: no system register {name:?}", self.vcpu.index);
            inject::undefined(&mut self.state.registers);
        }
        Next::Resume
    }

    fn read_register(&mut self, name: Name) -> Option<u64> {
        match name {
            (3, 0, 0, crm @ 1..=7, op2) => Some(identity::shown(crm, op2, identification(crm, op2))),
            // Debug registers: there are none to speak of.
            (2, ..) => Some(0),
            ACTLR => Some(read!("actlr_el1")),
            _ => None,
        }
    }

    fn write_register(&mut self, name: Name, value: u64) -> bool {
        match name {
            ICC_SGI1R | ICC_ASGI1R => self.send(Sgi::new(value), SgiGroup::Group1),
            ICC_SGI0R => self.send(Sgi::new(value), SgiGroup::Group0),
            ICC_DIR => {
                let view = self.state.view();
                let gic::Deactivate(intids) = self.state.gic.deactivate(value, &view);
                vgic::deactivate(intids);
            }
            (2, ..) | ACTLR | DC_ISW | DC_CSW | DC_CISW => {}
            _ => return false,
        }
        true
    }

    /// A software-generated interrupt.
    fn send(&mut self, sgi: Sgi, group: SgiGroup) {
        let mut sent = 0;
        for index in sgi.targets(self.vcpu.index as u8, self.vm.vcpu_count() as u8) {
            let Some(vcpu) = self.vm.vcpus.get(usize::from(index)) else { continue };
            vcpu.inbox.interrupts.post_sgi(sgi, group);
            self.vm.notify(vcpu);
            sent += 1;
        }
        increase(&self.counters[Counter::IrqIpi as usize], sent);
    }
}

/// The processor's ID register S3_0_C0_C`crm`_`op2`. What is not there reads as 0.
fn identification(crm: u32, op2: u32) -> u64 {
    macro_rules! table {
        ($($crm:literal $row:literal,)*) => {
            match (crm, op2) {
                $(
                    ($crm, 0) => read!($row "0"),
                    ($crm, 1) => read!($row "1"),
                    ($crm, 2) => read!($row "2"),
                    ($crm, 3) => read!($row "3"),
                    ($crm, 4) => read!($row "4"),
                    ($crm, 5) => read!($row "5"),
                    ($crm, 6) => read!($row "6"),
                    ($crm, 7) => read!($row "7"),
                )*
                _ => 0,
            }
        };
    }
    table! {
        1 "s3_0_c0_c1_",
        2 "s3_0_c0_c2_",
        3 "s3_0_c0_c3_",
        4 "s3_0_c0_c4_",
        5 "s3_0_c0_c5_",
        6 "s3_0_c0_c6_",
        7 "s3_0_c0_c7_",
    }
}

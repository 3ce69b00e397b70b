//! System registers that trap.

use hostlink::counters::Counter;

use super::debug::{self, counts as debug_counts};
use super::sysreg::read;
use super::{inject, vgic};
use crate::arch::Context;
use crate::arm64::identity;
use crate::arm64::registers::Treatment;
use crate::devices::gic::{self, Sgi, SgiGroup};
use crate::vm::{Next, increase};

/// Of the syndrome: the instruction is MRS.
const READ: u64 = 1;

impl Context<'_> {
    /// MSR, MRS or a system instruction.
    pub(crate) fn on_system_register(&mut self, syndrome: u64) -> Next {
        let field = |shift: u32, mask: u64| (syndrome >> shift & mask) as u32;
        let name = (field(20, 3), field(14, 7), field(10, 15), field(1, 15), field(17, 7));
        let register = field(5, 31) as usize;
        let is_read = syndrome & READ != 0;
        let mut treatment = Treatment::of(name, is_read);
        if inject::is_from_el0(&self.state.registers) {
            treatment = treatment.at_el0(self.state.debug.opens_channel());
        }
        let is_known = if is_read {
            match self.read_register(treatment) {
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
            self.write_register(treatment, value)
        };
        if is_known {
            self.skip(syndrome);
        } else {
            log::debug!("vCPU {}: no system register {name:?}", self.vcpu.index);
            inject::undefined(&mut self.state.registers);
        }
        Next::Resume
    }

    fn read_register(&mut self, treatment: Treatment) -> Option<u64> {
        match treatment {
            Treatment::Identification { crm, op2 } => {
                Some(identity::shown(crm, op2, identification(crm, op2)))
            }
            Treatment::Revision => Some(read!("revidr_el1")),
            Treatment::Constant(value) => Some(value),
            Treatment::Auxiliary => Some(read!("actlr_el1")),
            Treatment::Debug(register) => self.state.debug.read(register, debug_counts()),
            Treatment::SendGroup1
            | Treatment::SendGroup0
            | Treatment::Deactivate
            | Treatment::SetWay
            | Treatment::Undefined => None,
        }
    }

    fn write_register(&mut self, treatment: Treatment, value: u64) -> bool {
        match treatment {
            Treatment::SendGroup1 => self.send(Sgi::new(value), SgiGroup::Group1),
            Treatment::SendGroup0 => self.send(Sgi::new(value), SgiGroup::Group0),
            Treatment::Deactivate => {
                let view = self.state.view();
                let gic::Deactivate(intids) = self.state.gic.deactivate(value, &view);
                vgic::deactivate(intids);
            }
            Treatment::Debug(register) => {
                let is_done = self.state.debug.write(register, debug_counts(), value);
                debug::apply(&self.state.debug, debug_counts());
                return is_done;
            }
            Treatment::Constant(_) | Treatment::Auxiliary | Treatment::SetWay => {}
            Treatment::Identification { .. } | Treatment::Revision | Treatment::Undefined => return false,
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

//! Switches Xen's Hyper-V interface on for a domain that has not run yet: `viridian DOMAIN MASK`.
//! xl does that for HVM domains alone; for PVH domains it drops the setting without a message.
//!
//! Sources: Xen's public/hvm/hvm_op.h and params.h, and Linux's uapi/xen/privcmd.h.

use rustix::ioctl::{Direction, Opcode, Updater, ioctl, opcode};
use std::env;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::process::ExitCode;

const DEVICE: &str = "/dev/xen/privcmd";
const PRIVCMD_HYPERCALL: Opcode = opcode::from_components(Direction::None, b'P', 0, size_of::<Hypercall>());
const HYPERVISOR_HVM_OP: u64 = 34;
const HVMOP_SET_PARAM: u64 = 0;
const HVM_PARAM_VIRIDIAN: u32 = 9;

/// `struct privcmd_hypercall`.
#[repr(C)]
struct Hypercall {
    op: u64,
    arguments: [u64; 5],
}

/// `struct xen_hvm_param`, in one page.
#[repr(C, align(16))]
struct Parameter {
    domain: u16,
    padding: u16,
    index: u32,
    value: u64,
}

fn set(domain: u16, value: u64) -> io::Result<()> {
    let device = File::options().read(true).write(true).open(DEVICE)?;
    let parameter = Parameter { domain, padding: 0, index: HVM_PARAM_VIRIDIAN, value };
    let address = (&raw const parameter).expose_provenance() as u64;
    let mut call = Hypercall { op: HYPERVISOR_HVM_OP, arguments: [HVMOP_SET_PARAM, address, 0, 0, 0] };
    // SAFETY: the kernel reads `call`, and Xen `parameter`; both outlive the call. It changes
    // nothing of this program.
    unsafe { ioctl(&device, Updater::<PRIVCMD_HYPERCALL, _>::new(&mut call))? };
    Ok(())
}

fn main() -> ExitCode {
    let words: Vec<_> = env::args().skip(1).collect();
    let numbers = match &words[..] {
        [domain, mask] => domain.parse().ok().zip(mask.parse().ok()),
        _ => None,
    };
    let wrong = || io::Error::new(ErrorKind::InvalidInput, "expected a domain's number and a mask");
    match numbers.ok_or_else(wrong).and_then(|(domain, mask)| set(domain, mask)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("viridian: cannot switch the interface on: {error}");
            ExitCode::FAILURE
        }
    }
}

//! Guests are created, and end.

use hostlink::config::MAX_TOTAL_VCPUS;
use hostlink::exit::ExitCode;

use super::arch::Arch;
use super::context::Context;
use super::files::{CreateError, Files};
use super::host::Host;
use super::machine::{self, Vm, attention};
use super::switch::Leave;
use crate::sched::VcpuIndex;

impl<A: Arch> Host<A> {
    /// Creates the guests of the bundle.
    ///
    /// # Errors
    ///
    /// What the machine lacks, or what is wrong with the files.
    pub fn create_guests(&'static self) -> Result<(), CreateError> {
        (0..)
            .zip(&self.bundle.guests)
            .try_for_each(|(number, files)| self.create_guest(number, *files).map(|_| ()))
    }

    /// Creates and loads the guest of this number.
    ///
    /// # Errors
    ///
    /// What the machine lacks, or what is wrong with the files.
    fn create_guest(&'static self, number: u32, files: Files) -> Result<&'static Vm<A>, CreateError> {
        let first = self.find_rows(files.config.vcpus).ok_or(CreateError::NoRows)?;
        self.create_guest_in(number, first, files)
    }

    /// The same in these rows, which are free.
    pub(super) fn create_guest_in(
        &'static self,
        number: u32,
        first: VcpuIndex,
        files: Files,
    ) -> Result<&'static Vm<A>, CreateError> {
        let vm = machine::create(self, number, first, files)?;
        vm.load_at_once().map_err(CreateError::Load)?;
        self.enter_rows(vm);
        self.guests.lock()[number as usize] = Some(vm);
        Ok(vm)
    }

    /// The first of so many adjacent free rows; `None` if there are not as many.
    fn find_rows(&self, count: u32) -> Option<VcpuIndex> {
        let guests = self.guests.lock();
        let used = || guests.iter().flatten().map(|vm| vm.rows());
        let is_free = |first: &u32| used().all(|rows| rows.end <= *first || first + count <= rows.start);
        // A place begins where another ends.
        let places = core::iter::once(0).chain(used().map(|rows| rows.end));
        places.filter(|first| first + count <= MAX_TOTAL_VCPUS).filter(is_free).min()
    }

    /// All vCPUs of a guest that has ended have left their CPUs.
    pub(super) fn guest_ended(&self) {}
}

impl<A: Arch> Context<'_, A> {
    /// The guest has ended, in the way that `code` says.
    #[cold]
    pub(super) fn end(&mut self, code: ExitCode) -> Option<Leave> {
        let _ = attention::END;
        A::exit(code)
    }
}

//! Guests on Quell: the bundle that passes them to the hypervisor, and the machine around them.

use super::{Guest, Hypervisor, words};
use crate::machine::bundle::Bundle;
use crate::machine::devices::{self, Built, Devices};
use crate::machine::spec::{Payload, Spec};
use crate::prelude::*;
use hostlink::bundle::Member;
use hostlink::config::Config;

/// Guests for one machine: their configurations, and the files that these name, each once.
pub(super) struct OnQuell {
    platform: Platform,
    machine: Config<'static>,
    configs: Vec<String>,
    files: Vec<Vec<u8>>,
    devices: Built,
}

impl OnQuell {
    /// No guests yet. `machine` is for all of them, `devices` are those of each.
    pub(super) fn new<'d>(
        platform: Platform,
        machine: Config<'static>,
        devices: impl Iterator<Item = &'d Devices>,
    ) -> Result<Self> {
        let devices = devices::build(platform, devices, true)?;
        Ok(Self { platform, machine, configs: Vec::new(), files: Vec::new(), devices })
    }

    /// Adds the next guest. `config` has what is about its place among the others.
    pub(super) fn add(&mut self, guest: &Guest, config: &Config<'_>) -> Result<()> {
        words::check(self.platform.arch(), &guest.cmdline)?;
        let kernel = fs::read(&guest.kernel)
            .with_context(|| format!("cannot read the kernel {}", guest.kernel.display()))?;
        let kernel = self.member(&kernel);
        let initrd = guest.initrd.as_deref().map(|initrd| self.member(initrd));
        let config = Config {
            vcpus: guest.vcpus,
            memory: guest.memory,
            flush: guest.flush,
            reset: guest.reset,
            switches: guest.switches,
            kernel: &kernel,
            initrd: initrd.as_deref(),
            devices: self.devices.names.get(self.configs.len()).map_or("", String::as_str),
            cmdline: &guest.cmdline,
            ..*config
        };
        self.configs.push(config.of_guest().to_string());
        Ok(())
    }

    /// The member with these contents.
    fn member(&mut self, contents: &[u8]) -> String {
        let index = self.files.iter().position(|known| known == contents).unwrap_or_else(|| {
            self.files.push(contents.to_owned());
            self.files.len() - 1
        });
        Member::File(u32::try_from(index).unwrap_or(u32::MAX)).to_string()
    }

    /// Writes the bundle; returns its size.
    pub(super) fn write(&self, hypervisor: &Hypervisor, path: &Path) -> Result<u64> {
        let machine = self.machine.of_machine().to_string();
        Bundle::new(&machine, &self.configs, &self.files, &hypervisor.symbols.table).write(path)?;
        Ok(fs::metadata(path)?.len())
    }

    /// A machine with so many CPUs, and with as much memory as `memory` says for a bundle of a
    /// size. The bundle is written to `directory`.
    pub(super) fn spec(
        &self,
        hypervisor: &Hypervisor,
        cpus: u32,
        memory: impl FnOnce(u64) -> Result<u64>,
        directory: &Path,
    ) -> Result<Spec> {
        ensure!(
            hypervisor.arch == self.platform.arch(),
            "the hypervisor and its guest are of different architectures"
        );
        let bundle = directory.join("bundle.tar");
        let memory = memory(self.write(hypervisor, &bundle)?)? + hypervisor.extra_memory;
        let payload = Payload::Quell {
            hypervisor: hypervisor.image.clone(),
            bundle,
            beacon: hypervisor.symbols.beacon,
        };
        let devices = self.devices.args.clone();
        Ok(Spec { devices, ..Spec::new(self.platform, payload, cpus, memory) })
    }
}

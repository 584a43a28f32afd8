//! The networks of both programs, and the initial state of their nodes.

use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context, Result};

use super::mode::Mode;
use super::programs::Programs;
use super::world::World;
use crate::control_link::ControlLink;
use crate::network::{Namespace, Network, Server};

/// The two worlds, for kube-proxy and for Signpost, in which no program has run in another mode.
#[derive(Debug)]
pub(super) struct Ground {
    // Dropped first: the servers run in the worlds.
    #[expect(dead_code, reason = "held for the sake of their end")]
    servers: [Vec<Server>; 2],
    pub(super) worlds: [World; 2],
    /// The number of earlier pairs of worlds.
    number: u8,
    setting: Option<Setting>,
}

/// The mode for which the nodes are prepared.
#[derive(Debug)]
struct Setting {
    mode: Mode,
    /// The iptables programs on both nodes, in mode iptables.
    programs: Option<Programs>,
}

// === impl Ground ===

impl Ground {
    /// Builds the first worlds, whose nodes reach the API server in `control`.
    pub(super) fn build(network: &Network, control: &Namespace) -> Result<Ground> {
        Ground::build_number(0, network, control)
    }

    /// Builds new worlds. Their number differs, because interfaces of the previous ones, and thus
    /// their names, may still exist for a moment.
    pub(super) fn rebuild(&mut self, network: &Network, control: &Namespace) -> Result<()> {
        *self = Ground::build_number(self.number + 1, network, control)?;
        Ok(())
    }

    fn build_number(number: u8, network: &Network, control: &Namespace) -> Result<Ground> {
        let worlds = [World::build()?, World::build()?];
        let servers = [worlds[0].start_servers()?, worlds[1].start_servers()?];
        for (world, (name, last)) in worlds.iter().zip([("kube-proxy", 1), ("signpost", 2)]) {
            let link = ControlLink {
                control,
                far_end: &format!("{name}-{number}"),
                own: Ipv4Addr::new(10, 123, 1 + number, last),
            };
            link.connect(network, world.node()?)?;
        }
        Ok(Ground {
            servers,
            worlds,
            number,
            setting: None,
        })
    }

    /// Whether no other mode than `mode` has been used.
    pub(super) fn suits(&self, mode: Mode) -> bool {
        let setting = self.setting.as_ref();
        setting.is_none_or(|setting| setting.mode == mode)
    }

    /// Prepares both nodes so that proxies detect `mode` as the active one. `folder` is for links.
    pub(super) fn prepare(&mut self, mode: Mode, folder: &Path) -> Result<()> {
        if self.setting.is_some() {
            return Ok(());
        }
        let link = |variant| Programs::link(folder, variant);
        let programs = mode.variant().map(link).transpose()?;
        if let Some(programs) = &programs {
            let mut worlds = self.worlds.iter();
            worlds.try_for_each(|world| programs.hint(world.node()?))?;
        }
        self.setting = Some(Setting { mode, programs });
        Ok(())
    }

    /// Returns the prepared mode, and the iptables programs for it.
    pub(super) fn setting(&self) -> Result<(Mode, Option<&Programs>)> {
        let setting = self.setting.as_ref();
        let setting = setting.context("no mode was prepared in this network yet")?;
        Ok((setting.mode, setting.programs.as_ref()))
    }
}

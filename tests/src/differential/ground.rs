//! Where both programs run, and what their nodes are like before they come.

use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context, Result};

use super::mode::Mode;
use super::programs::Programs;
use super::world::World;
use crate::control_link::ControlLink;
use crate::network::{Namespace, Network, Server};

/// Two worlds, theirs and ours, that no program has touched in another mode.
#[derive(Debug)]
pub(super) struct Ground {
    // Dropped first: they run in the worlds.
    #[expect(dead_code, reason = "held for the sake of their end")]
    servers: [Vec<Server>; 2],
    pub(super) worlds: [World; 2],
    /// How many were there before.
    number: u8,
    setting: Option<Setting>,
}

/// What nodes are prepared for.
#[derive(Debug)]
struct Setting {
    mode: Mode,
    /// In mode iptables, the only ones that are used on both nodes.
    programs: Option<Programs>,
}

// === impl Ground ===

impl Ground {
    /// The first, whose nodes reach `api_server` by way of `control`.
    pub(super) fn build(
        network: &Network,
        control: &Namespace,
        api_server: Ipv4Addr,
    ) -> Result<Ground> {
        Ground::build_number(0, network, control, api_server)
    }

    /// Another one, as the first was: interfaces of the one before may still be going, and their
    /// names with them.
    pub(super) fn rebuild(
        &mut self,
        network: &Network,
        control: &Namespace,
        api_server: Ipv4Addr,
    ) -> Result<()> {
        *self = Ground::build_number(self.number + 1, network, control, api_server)?;
        Ok(())
    }

    fn build_number(
        number: u8,
        network: &Network,
        control: &Namespace,
        api_server: Ipv4Addr,
    ) -> Result<Ground> {
        let worlds = [World::build()?, World::build()?];
        let servers = [worlds[0].start_servers()?, worlds[1].start_servers()?];
        for (world, (name, last)) in worlds.iter().zip([("theirs", 1), ("ours", 2)]) {
            let link = ControlLink {
                control,
                api_server,
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

    /// Whether it is as good as new for `mode`.
    pub(super) fn suits(&self, mode: Mode) -> bool {
        let setting = self.setting.as_ref();
        setting.is_none_or(|setting| setting.mode == mode)
    }

    /// Makes both nodes such that `mode` is what a proxy finds in use. `folder` is for links.
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

    /// The mode it is prepared for, and the programs of iptables in that.
    pub(super) fn setting(&self) -> Result<(Mode, Option<&Programs>)> {
        let setting = self.setting.as_ref();
        let setting = setting.context("nobody was told what to do in this network yet")?;
        Ok((setting.mode, setting.programs.as_ref()))
    }
}

//! The shared settings of the programs of one control plane, and their start.

use std::net::SocketAddrV4;
use std::panic::resume_unwind;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::runtime::Builder;

use super::credentials::{self, Kubeconfig, SigningKey, Token, User};
use super::folder::{Folder, argument};
use super::programs::Programs;
use super::server::Server;
use super::{ADMINISTRATOR, Component, Options, arguments, client, port};
use crate::deadline::wait_for;

/// How long a program may take to be ready: seconds, but many more on a machine that also builds.
const START_DEADLINE: Duration = Duration::from_secs(120);

/// The port of an API server in its own network namespace.
const PORT_IN_NAMESPACE: u16 = 6443;

/// The settings fixed before the first program starts.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) programs: Programs,
    pub(super) options: Options,
    pub(super) address: SocketAddrV4,
    pub(super) folder: Folder,
}

impl Setting {
    /// Builds the programs if needed, chooses a port and writes the files required for the start.
    pub(super) fn prepare(options: Options) -> Result<Setting> {
        let programs = Programs::build()?;
        let folder = Folder::new()?;
        let port = match &options.network {
            None => port::find_free(options.bind)?,
            Some(_) => PORT_IN_NAMESPACE,
        };
        let address = SocketAddrV4::new(options.bind, port);

        SigningKey::generate()?.save(&folder)?;
        let users: Vec<(User, Token)> = [User::administrator()]
            .into_iter()
            .chain(options.users.iter().cloned())
            .map(|user| (user, Token::random()))
            .collect();
        credentials::save_tokens(&folder, &users)?;
        for (user, token) in &users {
            Kubeconfig { address, token }.save(&folder, &user.name)?;
        }
        Ok(Setting {
            programs,
            options,
            address,
            folder,
        })
    }

    /// Returns the settings of a control plane of the host with this folder.
    pub(super) fn of_host(options: Options, folder: &Path) -> Result<Setting> {
        Ok(Setting {
            programs: Programs::build()?,
            address: SocketAddrV4::new(options.bind, PORT_IN_NAMESPACE),
            folder: Folder::Host(folder.to_owned()),
            options,
        })
    }

    /// Starts etcd; returns when it accepts connections.
    pub(super) fn start_etcd(&self) -> Result<Server> {
        let mut server = self.start(Component::Etcd, &arguments::of_etcd(&self.folder))?;
        let socket = self.folder.etcd_socket();
        wait_for("etcd to open its socket", START_DEADLINE, || {
            server.ensure_runs()?;
            Ok(socket.exists().then_some(()))
        })
        .with_context(|| server.describe_log())?;
        Ok(server)
    }

    /// Starts an API server at `address`; returns when it is ready. All of them have one log.
    pub(super) fn start_api_server(&self, address: SocketAddrV4) -> Result<Server> {
        let arguments = arguments::of_api_server(&self.folder, address, &self.options);
        let mut server = self.start(Component::ApiServer, &arguments)?;
        self.wait_for_answer(&mut server, address, "/readyz")?;
        Ok(server)
    }

    /// Starts the controller manager; returns when its controllers work.
    pub(super) fn start_controller_manager(&self) -> Result<Server> {
        let arguments = arguments::of_controller_manager(&self.folder, self.options.kubelets);
        let mut server = self.start(Component::ControllerManager, &arguments)?;
        // The controller manager serves no health check here, but one of its controllers creates
        // this object.
        let made = "/api/v1/namespaces/default/serviceaccounts/default";
        self.wait_for_answer(&mut server, self.address, made)?;
        Ok(server)
    }

    /// Starts the scheduler. Returns at once, because the scheduler serves no health check here.
    pub(super) fn start_scheduler(&self) -> Result<Server> {
        self.start(Component::Scheduler, &arguments::of_scheduler(&self.folder))
    }

    /// Returns a kubectl command with a kubeconfig.
    pub(super) fn kubectl(&self, kubeconfig: &Path) -> Command {
        let mut command = self.command("kubectl");
        // Ignore the user's configuration, preferences and cache.
        command.env_remove("KUBECONFIG").env("KUBERC", "off");
        command.arg(argument("kubeconfig", kubeconfig));
        command.arg(argument("cache-dir", &self.folder.kubectl_cache()));
        command
    }

    fn command(&self, program: &str) -> Command {
        self.programs
            .command(program, self.options.network.as_ref())
    }

    fn start(&self, component: Component, arguments: &[String]) -> Result<Server> {
        let name = component.program();
        let mut command = self.command(name);
        command.args(arguments);
        Server::start(name, &command, &self.folder.log(name))
    }

    /// Waits until the API server at `address` has an answer for this path.
    fn wait_for_answer(
        &self,
        server: &mut Server,
        address: SocketAddrV4,
        path: &str,
    ) -> Result<()> {
        let started = Instant::now();
        let what = format!("an answer for {path}");
        wait_for(&what, START_DEADLINE, || {
            server.ensure_runs()?;
            Ok(self.ask(address, path).ok())
        })
        .with_context(|| server.describe_log())
        .with_context(|| {
            format!(
                "{} was not ready after {:?}",
                server.name(),
                started.elapsed()
            )
        })
    }

    /// Asks the API server without kubectl: one for each attempt took a sixth of the processor time
    /// of a start.
    fn ask(&self, address: SocketAddrV4, path: &str) -> Result<()> {
        let kubeconfig = self.folder.kubeconfig(ADMINISTRATOR);
        self.block_on(async || client::ask(&kubeconfig, address, path).await)
    }

    /// Runs `request` to its end in the network of the control plane.
    pub(super) fn block_on<T: Send>(
        &self,
        request: impl AsyncFnOnce() -> Result<T> + Send,
    ) -> Result<T> {
        let run = || {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(request())
        };
        match &self.options.network {
            // On a thread without a runtime, which that of the caller may have.
            None => {
                thread::scope(|scope| scope.spawn(run).join()).unwrap_or_else(|p| resume_unwind(p))
            }
            Some(namespace) => namespace.enter(run)?,
        }
    }
}

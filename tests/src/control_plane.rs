//! A real Kubernetes control plane for a test: etcd, API server and controller manager without
//! kubelets.
//!
//! ```text
//!  kubectl, operator, agents --https, token--> kube-apiserver --unix socket--> etcd
//!                                                    ^
//!                                         kube-controller-manager
//! ```
//!
//! Unless kubelets join it ([`Kubelets::Real`]), the test creates Nodes and Pods and writes their
//! status. Everything that follows from them is real: EndpointSlices, garbage collection, service
//! accounts, the DaemonSet's Pods, the deletion of a namespace.
//!
//! Authorization is RBAC: a user other than the [administrator](ADMINISTRATOR) may do only what
//! bindings allow. All files are in one temporary folder. Dropping the [`ControlPlane`], also by a
//! panic, ends the processes and removes the folder; the processes end with the test process even
//! if that is killed.

mod arguments;
mod client;
mod contents;
mod credentials;
mod folder;
mod host;
mod kubectl;
mod objects;
mod operator_manifests;
mod port;
mod programs;
mod server;
mod setting;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

pub use arguments::SERVICE_CIDRS;
pub use client::client;
pub use contents::Contents;
pub use credentials::{ADMINISTRATOR, KUBE_PROXY, ServiceAccount, User};
pub use host::FOLDER_ON_HOST;
pub use objects::Objects;
pub use operator_manifests::OPERATOR_MANIFESTS;

use credentials::{Kubeconfig, Token};
use programs::Programs;
use server::Server;
use setting::Setting;

use crate::network::Namespace;

/// The network, the users and the kubelets of a control plane.
#[derive(Debug, Clone)]
pub struct Options {
    /// The address on which the API server listens, also the name in its certificate. If it is not
    /// a loopback address, it becomes the endpoint of the Service `kubernetes`.
    pub bind: Ipv4Addr,
    /// The network namespace in which everything runs; by default that of the test. The address must
    /// already exist there.
    pub network: Option<Namespace>,
    /// The users besides the administrator. They have no permissions until a binding grants them.
    pub users: Vec<User>,
    /// The kubelets that run the Pods.
    pub kubelets: Kubelets,
    /// The number of API servers in the cluster according to this one. With more than one, it
    /// serves a new kind 5 seconds after its definition.
    pub api_server_count: u8,
}

/// The kubelets of a control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kubelets {
    /// The test acts as the kubelets and writes the status of Nodes and Pods. There is no scheduler
    /// and only the controllers that tests depend on, and Pods need no service account.
    Acted,
    /// Real kubelets, as members of the group `system:nodes`. The scheduler, the controllers and
    /// the admission plugins are those of any cluster.
    Real,
}

/// A running control plane.
#[derive(Debug)]
pub struct ControlPlane {
    // Dropped before the folder. Absent in an emulated machine whose host runs them.
    servers: Option<Servers>,
    setting: Setting,
}

/// The programs.
#[derive(Debug)]
struct Servers {
    // Fields are dropped in this order: users of a server before the server.
    scheduler: Option<Server>,
    controller_manager: Option<Server>,
    second_api_server: Option<Server>,
    api_server: Option<Server>,
    etcd: Server,
    /// What a test has done to the API servers since their start.
    change: Option<&'static str>,
}

/// A program of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    /// etcd, the store.
    Etcd,
    /// The API server.
    ApiServer,
    /// The controllers for EndpointSlices, service accounts, garbage collection and more.
    ControllerManager,
    /// The scheduler, if there are kubelets.
    Scheduler,
}

// === impl Options ===

impl Default for Options {
    /// A loopback address of this network namespace, only the administrator, one API server.
    fn default() -> Options {
        Options {
            bind: Ipv4Addr::LOCALHOST,
            network: None,
            users: Vec::new(),
            kubelets: Kubelets::Acted,
            api_server_count: 1,
        }
    }
}

// === impl ControlPlane ===

impl ControlPlane {
    /// Builds the programs if needed (many minutes; progress on standard error) and starts them;
    /// returns when requests are served and the controllers run. If a program ends or is not ready
    /// in time, the error contains the end of its log. In an emulated machine whose host runs a
    /// control plane for it ([`FOLDER_ON_HOST`]), this is that one.
    pub fn start(options: Options) -> Result<ControlPlane> {
        ensure!(
            options.users.iter().all(|user| user.name != ADMINISTRATOR),
            "the user {ADMINISTRATOR} is there already"
        );
        if let Some(folder) = host::folder() {
            let setting = Setting::of_host(options, &folder)?;
            host::connect(&setting)?;
            return Ok(ControlPlane {
                servers: None,
                setting,
            });
        }
        let setting = Setting::prepare(options)?;
        let etcd = setting.start_etcd()?;
        let api_server = setting.start_api_server(setting.address)?;
        let controller_manager = setting.start_controller_manager()?;
        let scheduler = match setting.options.kubelets {
            Kubelets::Acted => None,
            Kubelets::Real => Some(setting.start_scheduler()?),
        };
        let servers = Servers {
            scheduler,
            controller_manager: Some(controller_manager),
            second_api_server: None,
            api_server: Some(api_server),
            etcd,
            change: None,
        };
        Ok(ControlPlane {
            servers: Some(servers),
            setting,
        })
    }

    /// Returns the address of the API server.
    pub fn address(&self) -> SocketAddrV4 {
        self.setting.address
    }

    /// Returns the socket of etcd.
    pub fn etcd_socket(&self) -> PathBuf {
        self.setting.folder.etcd_socket()
    }

    /// Returns the folder of its files, for [`FOLDER_ON_HOST`].
    pub fn folder(&self) -> &Path {
        self.setting.folder.path()
    }

    /// Returns the folder with the programs: etcd, kube-apiserver, kube-controller-manager, and, if
    /// built from source, kubectl and kube-proxy of the same version.
    pub fn programs(&self) -> &Path {
        self.setting.programs.folder()
    }

    /// Returns the file with the certificates that signed the API server's, in PEM.
    pub fn certificate_authority(&self) -> PathBuf {
        self.setting.folder.certificate_authority()
    }

    /// Returns the kubeconfig file of the administrator or of one of [`Options::users`].
    pub fn kubeconfig(&self, user: &str) -> Result<PathBuf> {
        let file = self.setting.folder.kubeconfig(user);
        ensure!(file.exists(), "this control plane knows no user {user:?}");
        Ok(file)
    }

    /// Creates a kubeconfig file for an existing service account, with a token that is valid for a
    /// day. If a Node is named, the token is bound to it, so that the API server knows that the
    /// client belongs to that node.
    pub fn kubeconfig_of_account(&self, account: &ServiceAccount) -> Result<PathBuf> {
        self.kubeconfig_at(self.setting.address, account)
    }

    /// The same for a client that reaches the API server at `address`, as through a load balancer.
    pub fn kubeconfig_at(
        &self,
        address: SocketAddrV4,
        account: &ServiceAccount,
    ) -> Result<PathBuf> {
        let token = Token::from_server(&self.kubectl(&account.token_arguments())?);
        let kubeconfig = Kubeconfig {
            address,
            token: &token,
        };
        kubeconfig.save(&self.setting.folder, &account.file_name(address.port()))
    }

    /// Kills the API server, unless it runs on the host of this machine; its stored data remains.
    /// With real kubelets, controllers and scheduler end too, as in a cluster where they lose their
    /// leases.
    pub fn stop_api_server(&mut self) {
        if let Some(servers) = &mut self.servers {
            if self.setting.options.kubelets == Kubelets::Real {
                servers.scheduler = None;
                servers.controller_manager = None;
            }
            servers.api_server = None;
            servers.change = Some("a stop of the API server");
        }
    }

    /// Restarts what [`ControlPlane::stop_api_server`] ended, at the same address; returns when the
    /// API server is ready. Does nothing if it is running.
    pub fn start_api_server(&mut self) -> Result<()> {
        if let Some(servers) = &mut self.servers
            && servers.api_server.is_none()
        {
            servers.api_server = Some(self.setting.start_api_server(self.setting.address)?);
            if self.setting.options.kubelets == Kubelets::Real {
                servers.controller_manager = Some(self.setting.start_controller_manager()?);
                servers.scheduler = Some(self.setting.start_scheduler()?);
            }
        }
        Ok(())
    }

    /// Starts a second API server on the same etcd, with the same credentials and certificate;
    /// returns its address when it is ready. Only for a control plane in the network namespace of
    /// the test.
    pub fn start_second_api_server(&mut self) -> Result<SocketAddrV4> {
        ensure!(self.setting.options.network.is_none(), "it has a namespace");
        let servers = self
            .servers
            .as_mut()
            .context("it runs on another machine")?;
        let ip = *self.setting.address.ip();
        let address = SocketAddrV4::new(ip, port::find_free(ip)?);
        servers.change = Some("the start of a second API server");
        servers.second_api_server = Some(self.setting.start_api_server(address)?);
        Ok(address)
    }

    /// Returns the log of a program so far.
    pub fn logs(&self, component: Component) -> Result<String> {
        server::read_log(&self.setting.folder.log(component.program()))
    }

    /// Fails if one of the programs that should be running has ended.
    pub fn ensure_runs(&mut self) -> Result<()> {
        let Some(servers) = &mut self.servers else {
            return Ok(());
        };
        servers.etcd.ensure_runs()?;
        let running = [
            &mut servers.api_server,
            &mut servers.second_api_server,
            &mut servers.scheduler,
            &mut servers.controller_manager,
        ];
        running
            .into_iter()
            .flatten()
            .try_for_each(Server::ensure_runs)
    }
}

// === impl Component ===

impl Component {
    fn program(self) -> &'static str {
        match self {
            Component::Etcd => "etcd",
            Component::ApiServer => "kube-apiserver",
            Component::ControllerManager => "kube-controller-manager",
            Component::Scheduler => "kube-scheduler",
        }
    }
}

/// Builds the programs if needed: many minutes, with progress on standard error.
/// [`ControlPlane::start`] does this too, but inside a private network namespace the modules cannot
/// be downloaded. Returns the folder of the programs.
pub fn build_programs() -> Result<PathBuf> {
    Ok(Programs::build()?.folder().to_owned())
}

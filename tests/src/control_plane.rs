//! A real Kubernetes control plane for a test: etcd, API server and controller manager, on their own.
//!
//! ```text
//!  kubectl, operator, agents --https, token--> kube-apiserver --unix socket--> etcd
//!                                                    ^
//!                                         kube-controller-manager
//! ```
//!
//! Unless kubelets come to it ([`Kubelets::Real`]), Nodes and Pods are objects a test makes, and
//! their status is what the test says it is. What follows from them is real: EndpointSlices,
//! garbage collection, service accounts, the DaemonSet's Pods, the end of a namespace.
//!
//! Authorization is RBAC: a user who is not the [administrator](ADMINISTRATOR) may do what bindings
//! allow and nothing else. Everything is in one temporary folder, which goes with the processes
//! when the [`ControlPlane`] goes, even by a panic; the processes end with the test's even when
//! that is killed.

mod arguments;
mod client;
mod credentials;
mod folder;
mod kubectl;
mod operator_manifests;
mod port;
mod programs;
mod server;
mod setting;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

pub use arguments::SERVICE_CIDRS;
pub use client::client;
pub use credentials::{ADMINISTRATOR, ServiceAccount, User};
pub use operator_manifests::OPERATOR_MANIFESTS;

use credentials::{Kubeconfig, Token};
use programs::Programs;
use server::Server;
use setting::Setting;

/// How a control plane is reached, and by whom.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the API server listens, and what it calls itself in its certificate. When it is not a
    /// loopback address, the Service `kubernetes` has it as its endpoint.
    pub bind: Ipv4Addr,
    /// The file of the network namespace that everything runs in; ours, if none. The address must
    /// be there already.
    pub network: Option<PathBuf>,
    /// Who can log in besides the administrator, with no permission until a binding gives one.
    pub users: Vec<User>,
    /// Who runs the Pods.
    pub kubelets: Kubelets,
    /// How many API servers this one takes the cluster to have. With more than one it serves a new kind 5 seconds
    /// after its definition.
    pub api_server_count: u8,
}

/// Who stands in for the nodes of a control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kubelets {
    /// The test, which writes the status of Nodes and Pods. There is no scheduler, only the
    /// controllers whose work tests see run, and Pods need no service account.
    Acted,
    /// Kubelets, as members of the group `system:nodes`. There is a scheduler, and controllers and
    /// admission are those of any cluster.
    Real,
}

/// A running control plane.
#[derive(Debug)]
pub struct ControlPlane {
    // Fields are dropped in this order: who uses a server goes before it, and all before the folder.
    scheduler: Option<Server>,
    controller_manager: Server,
    api_server: Option<Server>,
    etcd: Server,
    setting: Setting,
}

/// A program of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    /// The store.
    Etcd,
    /// What everyone talks to.
    ApiServer,
    /// The loops behind EndpointSlices, service accounts, garbage collection and more.
    ControllerManager,
    /// What gives Pods their nodes, where there are kubelets.
    Scheduler,
}

// === impl Options ===

impl Default for Options {
    /// On a loopback address of this network namespace, for the administrator alone, with one API server.
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
    /// Builds the programs unless they are built (many minutes; progress on standard error), starts
    /// them, and returns when requests are served and the controllers run. When one of them ends or
    /// is not ready in time, the error has the end of its log.
    pub fn start(options: Options) -> Result<ControlPlane> {
        ensure!(
            options.users.iter().all(|user| user.name != ADMINISTRATOR),
            "the user {ADMINISTRATOR} is there already"
        );
        let setting = Setting::prepare(options)?;
        let etcd = setting.start_etcd()?;
        let api_server = setting.start_api_server()?;
        let controller_manager = setting.start_controller_manager()?;
        let scheduler = match setting.options.kubelets {
            Kubelets::Acted => None,
            Kubelets::Real => Some(setting.start_scheduler()?),
        };
        Ok(ControlPlane {
            scheduler,
            controller_manager,
            api_server: Some(api_server),
            etcd,
            setting,
        })
    }

    /// Where the API server listens.
    pub fn address(&self) -> SocketAddrV4 {
        self.setting.address
    }

    /// Where etcd listens.
    pub fn etcd_socket(&self) -> PathBuf {
        self.setting.folder.etcd_socket()
    }

    /// The folder with the programs: etcd, kube-apiserver, kube-controller-manager, and the kubectl
    /// and kube-proxy of the same version when we have built them.
    pub fn programs(&self) -> &Path {
        self.setting.programs.folder()
    }

    /// The certificates that the API server's is signed with, in PEM.
    pub fn certificate_authority(&self) -> PathBuf {
        self.setting.folder.certificate_authority()
    }

    /// The kubeconfig file of the administrator or of one of [`Options::users`].
    pub fn kubeconfig(&self, user: &str) -> Result<PathBuf> {
        let file = self.setting.folder.kubeconfig(user);
        ensure!(file.exists(), "this control plane knows no user {user:?}");
        Ok(file)
    }

    /// A new kubeconfig file for a service account that exists, with a token that is good for a
    /// day, and bound to a Node if one is named: the API server then knows that it is that node's.
    pub fn kubeconfig_of_account(&self, account: &ServiceAccount) -> Result<PathBuf> {
        let token = Token::from_server(&self.kubectl(&account.token_arguments())?);
        let kubeconfig = Kubeconfig {
            address: self.setting.address,
            token: &token,
        };
        kubeconfig.save(&self.setting.folder, &account.file_name())
    }

    /// Ends the API server as a crash does; what it has stored stays.
    pub fn stop_api_server(&mut self) {
        self.api_server = None;
    }

    /// Starts the API server again after [`ControlPlane::stop_api_server`], at the same address,
    /// and returns when it is ready. Does nothing when it runs.
    pub fn start_api_server(&mut self) -> Result<()> {
        if self.api_server.is_none() {
            self.api_server = Some(self.setting.start_api_server()?);
        }
        Ok(())
    }

    /// What a program has logged so far.
    pub fn logs(&self, component: Component) -> Result<String> {
        server::read_log(&self.setting.folder.log(component.program()))
    }

    /// Fails when one of the programs that were started and not stopped has ended.
    pub fn ensure_runs(&mut self) -> Result<()> {
        self.etcd.ensure_runs()?;
        if let Some(api_server) = &mut self.api_server {
            api_server.ensure_runs()?;
        }
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.ensure_runs()?;
        }
        self.controller_manager.ensure_runs()
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

/// Builds the programs unless they are built: many minutes, with progress on standard error.
/// [`ControlPlane::start`] does it too, but where there is a network namespace of our own around us
/// there is no way to the modules. Returns the folder they are in.
pub fn build_programs() -> Result<PathBuf> {
    Ok(Programs::build()?.folder().to_owned())
}

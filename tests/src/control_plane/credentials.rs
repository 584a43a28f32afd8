//! The users and their credentials.

use std::fs;
use std::net::SocketAddrV4;
use std::path::PathBuf;

use anyhow::{Context, Result};
use rcgen::KeyPair;
use serde_json::json;

use super::folder::Folder;

/// The user with all permissions.
pub const ADMINISTRATOR: &str = "admin";
/// The user to which Kubernetes' default roles grant the permissions that kube-proxy needs.
pub const KUBE_PROXY: &str = "system:kube-proxy";

/// A user with a token in the API server's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The user name in RBAC.
    pub name: String,
    /// The groups in RBAC.
    pub groups: Vec<String>,
}

/// A service account for which a token is requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAccount {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The Node to which the token is bound, as a Pod's token is to the Node of the Pod.
    pub node: Option<String>,
}

/// A bearer token.
#[derive(Debug)]
pub(super) struct Token(String);

/// The key pair for service account tokens.
#[derive(Debug)]
pub(super) struct SigningKey(KeyPair);

/// The connection data of one user.
#[derive(Debug)]
pub(super) struct Kubeconfig<'a> {
    pub(super) address: SocketAddrV4,
    pub(super) token: &'a Token,
}

// === impl User ===

impl User {
    /// Creates a user without additional groups.
    pub fn named(name: &str) -> User {
        User {
            name: name.to_owned(),
            groups: Vec::new(),
        }
    }

    pub(super) fn administrator() -> User {
        User {
            name: ADMINISTRATOR.to_owned(),
            groups: vec!["system:masters".to_owned()],
        }
    }
}

// === impl ServiceAccount ===

impl ServiceAccount {
    /// Creates the account `name` in `namespace` with an unbound token.
    pub fn new(namespace: &str, name: &str) -> ServiceAccount {
        ServiceAccount {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            node: None,
        }
    }

    /// Binds the token to this Node.
    pub fn on_node(self, node: &str) -> ServiceAccount {
        ServiceAccount {
            node: Some(node.to_owned()),
            ..self
        }
    }

    /// Returns the kubectl arguments that print a token.
    pub(super) fn token_arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            "create".to_owned(),
            "token".to_owned(),
            self.name.clone(),
            format!("--namespace={}", self.namespace),
            "--duration=24h".to_owned(),
        ];
        if let Some(node) = &self.node {
            arguments.push("--bound-object-kind=Node".to_owned());
            arguments.push(format!("--bound-object-name={node}"));
        }
        arguments
    }

    /// Returns a name that is unique among users, bindings of accounts and ports of API servers.
    pub(super) fn file_name(&self, port: u16) -> String {
        let node = self.node.as_deref().unwrap_or_default();
        format!(
            "system:serviceaccount:{}:{}:{node}:{port}",
            self.namespace, self.name
        )
    }
}

// === impl Token ===

impl Token {
    /// Creates a random token. Another control plane rejects it, so that a client that reaches the
    /// wrong one fails.
    pub(super) fn random() -> Token {
        use std::hash::{BuildHasher, RandomState};
        // Each state has its own random keys, so its hash of an empty value is random enough here.
        let half = || RandomState::new().hash_one(());
        Token(format!("{:016x}{:016x}", half(), half()))
    }

    /// Parses a token issued by the API server.
    pub(super) fn from_server(output: &str) -> Token {
        Token(output.trim().to_owned())
    }
}

/// Writes the API server's list of users.
pub(super) fn save_tokens(folder: &Folder, users: &[(User, Token)]) -> Result<()> {
    let mut list = String::new();
    for (User { name, groups }, Token(token)) in users {
        // token, name, uid, groups
        list += &format!("{token},\"{name}\",\"{name}\",\"{}\"\n", groups.join(","));
    }
    fs::write(folder.tokens(), list).context("failed to write the list of tokens")
}

// === impl SigningKey ===

impl SigningKey {
    pub(super) fn generate() -> Result<SigningKey> {
        let pair = KeyPair::generate().context("failed to generate a key for service accounts")?;
        Ok(SigningKey(pair))
    }

    pub(super) fn save(&self, folder: &Folder) -> Result<()> {
        fs::write(folder.signing_key(), self.0.serialize_pem())
            .and_then(|()| fs::write(folder.verifying_key(), self.0.public_key_pem()))
            .context("failed to write the key for service accounts")
    }
}

// === impl Kubeconfig ===

impl Kubeconfig<'_> {
    /// Writes the kubeconfig under this name; returns its path. The API server creates the
    /// certificate file that it refers to.
    pub(super) fn save(&self, folder: &Folder, name: &str) -> Result<PathBuf> {
        let cluster = json!({
            "server": format!("https://{}", self.address),
            "certificate-authority": folder.certificate_authority(),
        });
        // JSON is valid YAML and needs no quoting rules.
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": name, "user": {"token": self.token.0}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
            "current-context": "test",
        });
        let file = folder.kubeconfig(name);
        fs::write(&file, format!("{kubeconfig:#}\n"))
            .with_context(|| format!("failed to write the kubeconfig of {name}"))?;
        Ok(file)
    }
}

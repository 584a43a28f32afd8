//! Who may log in, and with what.

use std::fs;
use std::net::SocketAddrV4;
use std::path::PathBuf;

use anyhow::{Context, Result};
use rcgen::KeyPair;
use serde_json::json;

use super::folder::Folder;

/// The user who may do everything.
pub const ADMINISTRATOR: &str = "admin";

/// Someone who logs in with a token of the API server's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// What RBAC calls the user.
    pub name: String,
    /// What RBAC calls the groups of the user.
    pub groups: Vec<String>,
}

/// A service account that a token is wanted for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAccount {
    /// Where it is.
    pub namespace: String,
    /// Its name there.
    pub name: String,
    /// The Node that the token is bound to, as a Pod's token is to the Node the Pod runs on.
    pub node: Option<String>,
}

/// What a user shows to the API server.
#[derive(Debug)]
pub(super) struct Token(String);

/// The pair of keys for the tokens of service accounts.
#[derive(Debug)]
pub(super) struct SigningKey(KeyPair);

/// How one user reaches the API server.
#[derive(Debug)]
pub(super) struct Kubeconfig<'a> {
    pub(super) address: SocketAddrV4,
    pub(super) token: &'a Token,
}

// === impl User ===

impl User {
    /// A user in no group but those that everyone is in.
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
    /// The account `name` in `namespace`, its token bound to nothing.
    pub fn new(namespace: &str, name: &str) -> ServiceAccount {
        ServiceAccount {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            node: None,
        }
    }

    /// The same account, its token bound to this Node.
    pub fn on_node(self, node: &str) -> ServiceAccount {
        ServiceAccount {
            node: Some(node.to_owned()),
            ..self
        }
    }

    /// What makes kubectl print a token.
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

    /// What no user and no other binding of an account has.
    pub(super) fn file_name(&self) -> String {
        let node = self.node.as_deref().unwrap_or_default();
        format!(
            "system:serviceaccount:{}:{}:{node}",
            self.namespace, self.name
        )
    }
}

// === impl Token ===

impl Token {
    /// One that no other control plane takes: a client that reaches the wrong one is refused.
    pub(super) fn random() -> Token {
        use std::hash::{BuildHasher, RandomState};
        // Each state has keys of its own; what it makes of nothing is as good as random here.
        let half = || RandomState::new().hash_one(());
        Token(format!("{:016x}{:016x}", half(), half()))
    }

    /// One that the API server has issued.
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
    /// Writes it under this name and returns where. The API server's certificate is verified
    /// against a file that is there as soon as the API server serves.
    pub(super) fn save(&self, folder: &Folder, name: &str) -> Result<PathBuf> {
        let cluster = json!({
            "server": format!("https://{}", self.address),
            "certificate-authority": folder.certificate_authority(),
        });
        // JSON is YAML, and needs no thought about quotes.
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

//! The proxy on the way to the API server, by the rules of kubectl. kube compares `NO_PROXY` with the
//! address of the proxy in the place of that of the API server.

use std::env;
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::process::Command;

use axum::http::Uri;
use ipnet::IpNet;
use kube::config::{Kubeconfig, KubeconfigError};

use crate::arguments::Access;

/// Returns the proxy to `server`: that of the kubeconfig's context, or of the environment unless
/// `NO_PROXY` exempts `server`.
pub(super) fn read_proxy(access: &Access, server: &Uri) -> Result<Option<Uri>, KubeconfigError> {
    let file = match &access.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    // Without a file, the configuration is that of a Pod.
    let named = file.ok().and_then(|file| of_context(&file, access));
    let url = named.or_else(|| {
        let url = variable(["HTTPS_PROXY", "https_proxy"])?;
        let exempt = variable(["NO_PROXY", "no_proxy"]).unwrap_or_default();
        (!is_exempt(server, &exempt)).then_some(url)
    });
    let Some(mut url) = url else {
        return Ok(None);
    };
    if !url.contains("://") {
        url.insert_str(0, "http://");
    }
    url.parse::<Uri>()
        .map(Some)
        .map_err(KubeconfigError::ParseProxyUrl)
}

fn of_context(file: &Kubeconfig, access: &Access) -> Option<String> {
    let name = access.context.as_ref().or(file.current_context.as_ref())?;
    let context = file.contexts.iter().find(|context| context.name == *name)?;
    let name = &context.context.as_ref()?.cluster;
    let cluster = file.clusters.iter().find(|cluster| cluster.name == *name)?;
    let url = cluster.cluster.as_ref()?.proxy_url.clone();
    url.filter(|url| !url.is_empty())
}

fn variable(names: [&str; 2]) -> Option<String> {
    let mut values = names.into_iter().filter_map(|name| env::var(name).ok());
    values.find(|value| !value.is_empty())
}

/// Runs this program again, in the place of this process, with a `NO_PROXY` without empty entries. Returns if
/// there are none, or if that fails.
///
/// kubectl and curl skip such entries, and kube refuses them. It takes the list from the environment alone,
/// which no function that is safe can change.
pub(crate) fn exec_without_empty_entries() {
    let lists = ["NO_PROXY", "no_proxy"].map(|name| (name, env::var(name).unwrap_or_default()));
    let filled = lists.map(|(name, list)| Some((name, without_empty_entries(&list)?)));
    let mut arguments = env::args_os();
    if filled.iter().all(Option::is_none) {
        return;
    }
    if let (Ok(program), Some(name)) = (env::current_exe(), arguments.next()) {
        let mut command = Command::new(program);
        command.arg0(name).args(arguments);
        // If it fails, kube says what it refuses.
        let _ = command.envs(filled.into_iter().flatten()).exec();
    }
}

/// `list`, the value of `NO_PROXY`, without its empty entries; `None` if it has none. Pure.
fn without_empty_entries(list: &str) -> Option<String> {
    let entries: Vec<&str> = list.split(',').map(str::trim).collect();
    let filled: Vec<&str> = entries
        .iter()
        .copied()
        .filter(|it| !it.is_empty())
        .collect();
    (!list.is_empty() && filled.len() < entries.len()).then(|| filled.join(","))
}

/// Whether `list`, the value of `NO_PROXY`, exempts `server`, or it is this machine. Pure.
fn is_exempt(server: &Uri, list: &str) -> bool {
    let host = server.host().unwrap_or_default();
    let host = host.trim_matches(['[', ']']).to_lowercase();
    let address: Option<IpAddr> = host.parse().ok();
    let port = server.port_u16().unwrap_or(443);
    let is_local = host == "localhost" || address.is_some_and(|address| address.is_loopback());
    let mut entries = list
        .split(',')
        .map(str::trim)
        .filter(|entry| !entry.is_empty());
    is_local || entries.any(|entry| covers(entry, &host, address, port))
}

/// Whether one entry of `NO_PROXY` covers a host. Pure.
fn covers(entry: &str, host: &str, address: Option<IpAddr>, port: u16) -> bool {
    if entry == "*" {
        return true;
    }
    if let Ok(network) = entry.parse::<IpNet>() {
        return address.is_some_and(|address| network.contains(&address));
    }
    let (name, of_port) = match entry.rsplit_once(':') {
        Some((name, of_port)) if !name.contains(':') || name.ends_with(']') => {
            (name, of_port.parse::<u16>().ok())
        }
        _ => (entry, None),
    };
    let name = name.trim_matches(['[', ']']).to_lowercase();
    let is_named = match (name.parse::<IpAddr>(), address) {
        (Ok(named), Some(address)) => named == address,
        (Ok(_), None) | (Err(_), Some(_)) => false,
        (Err(_), None) => {
            let domain = name.trim_start_matches("*.").trim_start_matches('.');
            let is_domain = host == domain && !name.starts_with(['.', '*']);
            is_domain
                || host
                    .strip_suffix(domain)
                    .is_some_and(|rest| rest.ends_with('.'))
        }
    };
    is_named && of_port.is_none_or(|of_port| of_port == port)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Failure story T432.
    #[test]
    fn t432_no_proxy_exempts_api_servers_as_it_does_for_kubectl() {
        for (server, list, expected) in [
            ("https://10.0.0.1:6443", "10.0.0.0/8", true),
            ("https://10.0.0.1:6443", "10.0.0.1", true),
            ("https://10.0.0.1:6443", "10.0.0.1:443, 10.0.0.1:6443", true),
            ("https://10.0.0.1:6443", "10.0.0.1:443", false),
            ("https://[fd00::1]:6443", "fd00::/64", true),
            ("https://[fd00::1]:6443", "fd00::1", true),
            ("https://[fd00::1]:6443", "[fd00::1]:6443", true),
            ("https://api.example.com", "example.com", true),
            ("https://api.example.com", ".example.com", true),
            ("https://api.example.com", "*.Example.com", true),
            ("https://example.com", ".example.com", false),
            ("https://example.com", "example.com", true),
            ("https://badexample.com", "example.com", false),
            ("https://api.example.com", "10.0.0.0/8,*", true),
            ("https://api.example.com", "", false),
            ("https://api.example.com", ",example.org, ,", false),
            ("https://127.0.0.1:6443", "", true),
            ("https://localhost:6443", "", true),
        ] {
            let server_uri: Uri = server.parse().expect("an address");
            assert_eq!(is_exempt(&server_uri, list), expected, "{server}, {list}");
        }
    }

    /// Failure story T460.
    #[test]
    fn t460_only_lists_with_empty_entries_are_changed() {
        for (list, expected) in [
            (",foo, bar ,,", Some("foo,bar")),
            (",", Some("")),
            (" ", Some("")),
            ("", None),
            ("foo, bar", None),
        ] {
            assert_eq!(without_empty_entries(list).as_deref(), expected, "{list:?}");
        }
    }
}

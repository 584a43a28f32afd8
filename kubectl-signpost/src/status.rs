//! `status`: the configuration of every profile and the progress of its nodes.

mod report;
mod text;

use std::time::Instant;

use crds::{NodeProxy, ProxyProfile};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use runtime::chain;

use crate::arguments::{Access, Format, StatusOptions};
use crate::cluster::{Cluster, ClusterError};
use crate::ending::Ending;
use crate::installation::Installation;
use crate::output::{Paint, serialize};
use crate::{nodes, print, program_name};

use report::operator_absent_since;
pub(crate) use report::{Health, ProfileReport, Report};
pub(crate) use text::{render_operator_absence, render_trouble};

/// How often objects are read while a command waits. A list of profiles is a few kilobytes.
pub(crate) const POLL: std::time::Duration = std::time::Duration::from_secs(1);

/// Reads the status, waits if requested, and prints it.
pub(crate) async fn run(
    access: &Access,
    options: &StatusOptions,
    paint: Paint,
) -> anyhow::Result<Ending> {
    let cluster = Cluster::open(access).await?;
    let begun = Instant::now();
    let mut said = String::new();
    let report = loop {
        let report = match read(&cluster, options).await {
            Ok(report) => report,
            // The API server answered before, so it may be restarting.
            Err(error)
                if error.is_passing() && !said.is_empty() && begun.elapsed() < options.timeout =>
            {
                eprintln!("{}: {}; trying again", program_name(), chain(&error));
                tokio::time::sleep(POLL).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let finished = report.health == Health::Healthy;
        if !options.wait || finished || begun.elapsed() >= options.timeout {
            break report;
        }
        let line = text::progress(&report);
        if line != said {
            eprintln!("waiting: {line}");
            said = line;
        }
        tokio::time::sleep(POLL).await;
    };
    match serialize(&report, options.output)? {
        Some(text) => print(&text)?,
        None => {
            print(&text::render(&report, paint))?;
            if options.output == Format::Wide {
                let mut proxies = cluster.read_all::<NodeProxy>().await?;
                if let Some(name) = &options.profile {
                    proxies
                        .objects
                        .retain(|proxy| proxy.spec.profile_name == *name);
                }
                let nodes = nodes::Listing::of(&proxies, &[]);
                print(&format!("\n{}", nodes::render(&nodes, Format::Wide, paint)))?;
            }
        }
    }
    if options.wait && report.health != Health::Healthy {
        let next = match report.operator_absent_since {
            None => "`kubectl signpost nodes --not-ready` names the nodes",
            Some(_) => "no operator runs: `kubectl signpost check` says more",
        };
        eprintln!(
            "{}: not healthy after {} s; {next}",
            program_name(),
            begun.elapsed().as_secs()
        );
    }
    Ok(report.health.into())
}

async fn read(cluster: &Cluster, options: &StatusOptions) -> Result<Report, ClusterError> {
    let leases = read_leases(cluster).await?;
    let report = read_profiles(cluster, options).await?;
    Ok(report.with_operator(&leases, Timestamp::now()))
}

/// Returns since when no operator has renewed its Lease, if that is long ago.
pub(crate) async fn read_operator_absence(
    cluster: &Cluster,
) -> Result<Option<Timestamp>, ClusterError> {
    let leases = read_leases(cluster).await?;
    Ok(operator_absent_since(&leases, Timestamp::now()))
}

/// Reads the Leases of operators in Signpost's namespaces: a Lease elsewhere may have any name.
async fn read_leases(cluster: &Cluster) -> Result<Vec<Lease>, ClusterError> {
    let mut leases = match cluster.read_operator_leases().await {
        // A user who may read Signpost's objects may lack permission to list Leases.
        Err(error) if error.is_forbidden() => return Ok(Vec::new()),
        read => read?,
    };
    if leases.is_empty() {
        return Ok(leases);
    }
    let installation = Installation::read(cluster).await?;
    leases.retain(|lease| installation.contains(lease));
    Ok(leases)
}

async fn read_profiles(cluster: &Cluster, options: &StatusOptions) -> Result<Report, ClusterError> {
    if let Some(name) = &options.profile {
        let profile: ProxyProfile = cluster.read_one(name).await?;
        return Ok(Report::of_one(&profile));
    }
    let profiles = cluster.read_all::<ProxyProfile>().await?;
    let proxies = cluster.read_all::<NodeProxy>().await?;
    let nodes = match cluster.read_nodes().await {
        Ok(nodes) => Some(nodes),
        // A user who may read Signpost's objects may lack permission to read Nodes.
        Err(error) if error.is_forbidden() => None,
        Err(error) => return Err(error),
    };
    Ok(Report::of(&profiles, &proxies, nodes.as_deref()))
}

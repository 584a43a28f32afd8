//! `dashboard`: a page on loopback that shows the cluster live, with the user's own rights.
//!
//! ```text
//! watches --News--> Facts --View::of--> newest View --View::difference--> line of JSON --> page
//! ```
//!
//! [`ClusterState`] holds the objects as last received. The pure functions behind `status`, `nodes` and
//! `rollout status` compute a [`View`] from them. A page receives one whole view, and then the
//! differences between its view and the newest. A slow page therefore skips views, and nothing
//! queues up for it.

mod connection;
mod facts;
mod gate;
mod questions;
mod routes;
mod view;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use crds::{NodeProxy, ProxyProfile};
use k8s_openapi::api::core::v1::Node;
use kube::config::Kubeconfig;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};

use crate::advice::problem;
use crate::arguments::{Access, DashboardOptions};
use crate::cluster::{Cluster, Depth, ObjectEvent};
use crate::ending::Ending;
use crate::{print, rollout};
use facts::{ClusterState, Source};
use gate::{AccessControl, Token};
use view::View;

/// Changes within this interval are sent to pages together.
const GATHERED: Duration = Duration::from_millis(300);

/// Serves the page until Ctrl-C.
pub(crate) async fn run(access: &Access, options: &DashboardOptions) -> anyhow::Result<Ending> {
    let cluster = Cluster::open(access).await?;
    // An error that the page cannot show, such as an invalid kubeconfig, is an error of the
    // command.
    cluster.read_all::<ProxyProfile>().await?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, options.port)).await;
    let listener = listener.with_context(|| {
        let what = format!("failed to listen on 127.0.0.1:{}", options.port);
        problem(
            what,
            "leave out --port, which takes any free port, or give another",
        )
    })?;
    let port = listener.local_addr()?.port();
    let token = Token::random()?;
    let address = format!("http://127.0.0.1:{port}/#token={token}");

    let facts = ClusterState::new(
        cluster.server(),
        cluster.default_namespace(),
        rollout::flags(access, current_context(access).as_deref()),
    );
    let (publish, views) = watch::channel(Arc::new(View::of(&facts)));
    let (sender, events) = mpsc::unbounded_channel();
    let send = |source| {
        let sender = sender.clone();
        // The receiver lives as long as the command.
        move |event| drop(sender.send((source, event)))
    };
    let profiles = cluster.follow::<ProxyProfile>(Depth::Whole, send(Source::Profiles));
    let proxies = cluster.follow::<NodeProxy>(Depth::Whole, send(Source::NodeProxies));
    let nodes = cluster.follow::<Node>(Depth::Metadata, send(Source::Nodes));
    let routes = routes::router(&AccessControl::new(port, token), views, cluster.clone());

    print(&format!("{address}\n"))?;
    eprintln!(
        "The page shows what you may read to every user of this machine who has this address. Ctrl-C ends it."
    );
    // Cancel safe: the command ends when the first of these ends.
    tokio::select! {
        served = axum::serve(listener, routes) => served.context("failed to serve the page")?,
        () = keep_up(facts, events, &publish) => {}
        _ = profiles => {}
        _ = proxies => {}
        _ = nodes => {}
        interrupted = tokio::signal::ctrl_c() => interrupted.context("failed to wait for Ctrl-C")?,
    }
    Ok(Ending::Success)
}

/// The context that the kubeconfig selects now; `None` in a Pod, which has none.
fn current_context(access: &Access) -> Option<String> {
    let file = match &access.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    file.ok()?.current_context
}

/// Publishes a view of `facts` after each change, until the channel closes.
async fn keep_up(
    mut facts: ClusterState,
    mut events: mpsc::UnboundedReceiver<(Source, ObjectEvent)>,
    publish: &watch::Sender<Arc<View>>,
) {
    while let Some((source, first)) = events.recv().await {
        facts.apply(source, first, jiff::Timestamp::now());
        let until = Instant::now() + GATHERED;
        while let Ok(Some((source, next))) = timeout_at(until, events.recv()).await {
            facts.apply(source, next, jiff::Timestamp::now());
        }
        publish.send_replace(Arc::new(View::of(&facts)));
    }
}

//! `check`: whether Signpost can be installed, or whether the installation is complete.

mod points;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use crate::arguments::{Access, CheckOptions};
use crate::cluster::{Cluster, ClusterError};
use crate::ending::Ending;
use crate::installation::read_signpost_pods;
use crate::output::Paint;
use crate::placement::read_placements;
use crate::pod_network::PodNetwork;
use crate::print;
use points::{Evidence, Right};
pub(crate) use points::{first, name_outside};

/// The resources that an installation creates, as group and resource.
const CREATED: [(&str, &str); 6] = [
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("rbac.authorization.k8s.io", "clusterroles"),
    ("rbac.authorization.k8s.io", "clusterrolebindings"),
    (
        "admissionregistration.k8s.io",
        "validatingadmissionpolicies",
    ),
    ("apps", "daemonsets"),
    ("", "namespaces"),
];

/// The label selector for all objects of Signpost.
pub(crate) const SELECTOR: &str = "app.kubernetes.io/name=signpost";

/// Checks the cluster and prints the result.
pub(crate) async fn run(
    access: &Access,
    options: &CheckOptions,
    paint: Paint,
) -> anyhow::Result<Ending> {
    let cluster = Cluster::open(access).await?;
    let evidence = observe(&cluster).await?;
    let points = match options.pre {
        true => points::before(&evidence),
        false => points::after(&evidence),
    };
    print(&points::render(&points, paint))?;
    Ok(points::ending(&points))
}

async fn observe(cluster: &Cluster) -> Result<Evidence, ClusterError> {
    let mut rights = Vec::new();
    for (group, resource) in CREATED {
        rights.push(Right {
            resource,
            allowed: may_create(cluster, group, resource).await?,
        });
    }
    let version = cluster.read_version().await?;
    let (namespace, name) = ("kube-system", "kube-proxy");
    Ok(Evidence {
        version: (version.major, version.minor),
        nodes: cluster.read_nodes().await?,
        pods: cluster.read_of_each(PodNetwork::of).await?,
        signpost: read_signpost_pods(cluster, SELECTOR).await?,
        placements: read_placements(cluster).await?,
        forwarding: absent(cluster.read_of_each(points::name_forwarding).await)?
            .unwrap_or_default(),
        kube_proxy: absent(cluster.read_in::<DaemonSet>(namespace, name).await)?,
        kube_proxy_configuration: absent(cluster.read_in::<ConfigMap>(namespace, name).await)?,
        definitions: [
            absent(definition(cluster, "proxyprofiles.signpost.dev").await)?,
            absent(definition(cluster, "nodeproxies.signpost.dev").await)?,
        ],
        profiles: absent(cluster.read_all().await)?.map(|read| read.objects),
        proxies: absent(cluster.read_all().await)?.map(|read| read.objects),
        rights,
    })
}

async fn definition(
    cluster: &Cluster,
    name: &str,
) -> Result<CustomResourceDefinition, ClusterError> {
    cluster.read_one(name).await
}

async fn may_create(cluster: &Cluster, group: &str, resource: &str) -> Result<bool, ClusterError> {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some(group.to_owned()),
                resource: Some(resource.to_owned()),
                verb: Some("create".to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let review = cluster.create(&review).await?;
    Ok(review.status.is_some_and(|status| status.allowed))
}

/// Returns `None` if the object does not exist or may not be read.
pub(crate) fn absent<T>(read: Result<T, ClusterError>) -> Result<Option<T>, ClusterError> {
    match read {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.is_absent() || error.is_forbidden() => Ok(None),
        Err(error) => Err(error),
    }
}

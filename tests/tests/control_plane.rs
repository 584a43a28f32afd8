//! The control plane for tests, from a user's perspective.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Arguments;
use serde_json::{Value, json};
use tests::control_plane::{Component, Contents, ControlPlane, Options, ServiceAccount, User};
use tests::deadline::wait_for;
use tests::named;
use tests::network::Process;
use tests::pool::{Pool, Restored};
use tests::trial::trial;

/// A controller reacts within a second or two; the rest is a reserve for busy machines.
const DEADLINE: Duration = Duration::from_secs(60);

/// The start takes seconds, unless the programs are built first.
const START_DEADLINE: Duration = Duration::from_secs(1800);

const NODE: &str = "
apiVersion: v1
kind: Node
metadata: {name: node-1}
spec: {podCIDRs: [10.0.1.0/24, 'fd00:0:0:1::/64']}
";

const SHOP: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  selector: {app: web}
  ipFamilyPolicy: RequireDualStack
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, labels: {app: web}}
spec:
  nodeName: node-1
  containers: [{name: web, image: none.invalid/web}]
";

const PROFILE: &str = "
apiVersion: signpost.dev/v1alpha1
kind: ProxyProfile
metadata: {name: default}
spec: {}
";

const PODS_READER: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: pods-reader}
rules: [{apiGroups: [''], resources: [pods], verbs: [get, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: pods-reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: pods-reader}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: alice}]
";

/// A control plane that several tests use, and what it has stored before.
struct Shared {
    control_plane: ControlPlane,
    contents: Contents,
}

// === impl Shared ===

impl Shared {
    fn start() -> Result<Shared> {
        let control_plane = start()?;
        Ok(Shared {
            contents: control_plane.observe_contents()?,
            control_plane,
        })
    }

    fn restore(&mut self) -> Result<Restored> {
        self.control_plane.return_to(&self.contents)
    }
}

type Test = fn() -> Result<()>;
type SharingTest = fn(&ControlPlane) -> Result<()>;

/// The tests that only add objects.
const SHARED: [(&str, SharingTest); 4] = named![
    a_service_with_a_ready_pod_gets_endpoint_slices_of_both_families,
    a_namespace_is_deleted_with_what_is_in_it,
    what_a_deleted_object_owned_is_deleted,
    a_token_bound_to_a_node_tells_the_api_server_which_node,
];

/// The others, each with a control plane of its own.
const OWN: [(&str, Test); 7] = named![
    what_a_test_adds_is_removed_and_what_it_changes_is_named,
    a_user_may_do_what_a_binding_allows_and_nothing_else,
    two_control_planes_know_nothing_of_each_other,
    an_api_server_that_was_away_has_everything_and_the_controllers_go_on,
    an_address_that_the_machine_does_not_have_is_named,
    nothing_is_left_when_it_goes,
    nothing_runs_on_when_the_program_that_started_it_is_killed,
];

fn main() -> Result<()> {
    let arguments = Arguments::from_args();
    let pool = Pool::new(Shared::start, Shared::restore);
    let shared = SHARED.map(|(name, test)| {
        let test = move |shared: &mut Shared| test(&shared.control_plane);
        (name, test)
    });
    let mut trials = pool.trials(shared);
    trials.extend(OWN.map(|(name, test)| trial(name, test)));
    libtest_mimic::run(&arguments, trials).exit();
}

fn start() -> Result<ControlPlane> {
    ControlPlane::start(Options::default())
}

fn get(control_plane: &ControlPlane, arguments: &[&str]) -> Result<Value> {
    let mut all = vec!["get", "--output=json"];
    all.extend(arguments);
    serde_json::from_str(&control_plane.kubectl(&all)?).context("kubectl prints JSON")
}

fn ready_since(time: &str) -> Value {
    json!([{"type": "Ready", "status": "True", "lastTransitionTime": time}])
}

/// Creates a Node, and a Service with one ready Pod on it.
fn open_shop(control_plane: &ControlPlane) -> Result<()> {
    control_plane.apply(NODE)?;
    control_plane.apply(SHOP)?;
    let node = json!({"status": {
        "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
        "conditions": ready_since("2026-01-01T00:00:00Z"),
    }});
    control_plane.patch_status("node/node-1", "default", &node.to_string())?;
    let pod = json!({"status": {
        "phase": "Running",
        "podIP": "10.0.1.5",
        "podIPs": [{"ip": "10.0.1.5"}, {"ip": "fd00:0:0:1::5"}],
        "conditions": ready_since("2026-01-01T00:00:01Z"),
    }});
    control_plane.patch_status("pod/web-1", "shop", &pod.to_string())
}

/// Waits for the ready endpoint in the Service's slice of this family, and returns the slice.
fn wait_for_endpoint(control_plane: &ControlPlane, family: &str) -> Result<Value> {
    let selector = "--selector=kubernetes.io/service-name=web";
    wait_for("a ready endpoint", DEADLINE, || {
        let slices = get(
            control_plane,
            &["endpointslices", "--namespace=shop", selector],
        )?;
        let slices = slices["items"]
            .as_array()
            .context("a list has items")?
            .clone();
        Ok(slices.into_iter().find(|slice| {
            slice["addressType"] == family && slice["endpoints"][0]["conditions"]["ready"] == true
        }))
    })
}

fn a_service_with_a_ready_pod_gets_endpoint_slices_of_both_families(
    control_plane: &ControlPlane,
) -> Result<()> {
    open_shop(control_plane)?;
    for (family, address) in [("IPv4", "10.0.1.5"), ("IPv6", "fd00:0:0:1::5")] {
        let slice = wait_for_endpoint(control_plane, family)?;
        let endpoint = &slice["endpoints"][0];
        assert_eq!(endpoint["addresses"], json!([address]));
        assert_eq!(endpoint["nodeName"], "node-1");
        assert_eq!(slice["ports"][0]["port"], 8080);
        // Network programming latency is measured from this time.
        let annotations = &slice["metadata"]["annotations"];
        assert_eq!(
            annotations["endpoints.kubernetes.io/last-change-trigger-time"], "2026-01-01T00:00:01Z",
            "{slice:#}"
        );
    }
    let service = get(control_plane, &["service", "web", "--namespace=shop"])?;
    let ips = service["spec"]["clusterIPs"].to_string();
    assert!(
        ips.contains("10.96.") && ips.contains("fd00:10:96::"),
        "{ips}"
    );
    Ok(())
}

fn a_namespace_is_deleted_with_what_is_in_it(control_plane: &ControlPlane) -> Result<()> {
    control_plane.apply(NODE)?;
    control_plane.apply(SHOP)?;
    // The deletion of a Pod on a Node waits for the kubelet, and there is none.
    let now = [
        "delete",
        "pod",
        "web-1",
        "--namespace=shop",
        "--force",
        "--grace-period=0",
    ];
    control_plane.kubectl(&now)?;
    control_plane.kubectl(&["delete", "namespace", "shop", "--timeout=60s"])?;
    let namespaces = control_plane.kubectl(&["get", "namespaces", "--output=name"])?;
    assert!(!namespaces.contains("namespace/shop"), "{namespaces}");
    Ok(())
}

fn what_a_deleted_object_owned_is_deleted(control_plane: &ControlPlane) -> Result<()> {
    control_plane.apply(NODE)?;
    let node = get(control_plane, &["node", "node-1"])?;
    let owned = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "of-node-1", "namespace": "kube-public", "ownerReferences": [{
            "apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": node["metadata"]["uid"],
        }]},
    });
    control_plane.apply(&owned.to_string())?;
    control_plane.kubectl(&["delete", "node", "node-1"])?;
    wait_for("the garbage collector", DEADLINE, || {
        let left = control_plane.kubectl(&["get", "configmaps", "--namespace=kube-public"])?;
        Ok((!left.contains("of-node-1")).then_some(()))
    })
}

fn a_user_may_do_what_a_binding_allows_and_nothing_else() -> Result<()> {
    let control_plane = ControlPlane::start(Options {
        users: vec![User::named("alice")],
        ..Options::default()
    })?;
    let list_pods = ["get", "pods", "--all-namespaces"];
    let refusal = control_plane.kubectl_as("alice", &list_pods);
    let refusal = format!("{:#}", refusal.expect_err("nothing is bound to alice yet"));
    assert!(
        refusal.contains(r#"User "alice" cannot list resource "pods""#),
        "{refusal}"
    );

    control_plane.apply(PODS_READER)?;
    // The authorizer receives bindings from a watch.
    wait_for("alice's permission", DEADLINE, || {
        Ok(control_plane.kubectl_as("alice", &list_pods).ok())
    })?;
    let refusal = control_plane.kubectl_as("alice", &["delete", "pod", "web-1"]);
    let refusal = format!("{:#}", refusal.expect_err("alice may only read"));
    assert!(
        refusal.contains(r#"User "alice" cannot delete resource "pods""#),
        "{refusal}"
    );

    let unknown = control_plane.kubeconfig("bob").expect_err("bob is no user");
    assert!(unknown.to_string().contains("bob"), "{unknown}");
    Ok(())
}

fn a_token_bound_to_a_node_tells_the_api_server_which_node(
    control_plane: &ControlPlane,
) -> Result<()> {
    control_plane.apply(NODE)?;
    control_plane.kubectl(&[
        "create",
        "serviceaccount",
        "agent",
        "--namespace=kube-system",
    ])?;
    let account = ServiceAccount::new("kube-system", "agent").on_node("node-1");
    let kubeconfig = control_plane.kubeconfig_of_account(&account)?;
    let mut whoami = control_plane.kubectl_command(&kubeconfig);
    let output = whoami.args(["auth", "whoami", "--output=json"]).output()?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let whoami: Value = serde_json::from_slice(&output.stdout)?;
    let user = &whoami["status"]["userInfo"];
    assert_eq!(user["username"], "system:serviceaccount:kube-system:agent");
    assert_eq!(
        user["extra"]["authentication.kubernetes.io/node-name"],
        json!(["node-1"])
    );
    Ok(())
}

fn what_a_test_adds_is_removed_and_what_it_changes_is_named() -> Result<()> {
    let mut control_plane = start()?;
    let contents = control_plane.observe_contents()?;
    let kinds =
        "nodes,namespaces,crds,clusterroles,clusterrolebindings,validatingadmissionpolicies";
    let list = ["get", kinds, "--output=name"];
    let before = control_plane.kubectl(&list)?;
    open_shop(&control_plane)?;
    wait_for_endpoint(&control_plane, "IPv4")?;
    control_plane.apply(PODS_READER)?;
    control_plane.apply_operator_manifests()?;
    control_plane.apply(PROFILE)?;
    ensure!(control_plane.return_to(&contents)? == Restored::Completely);
    assert_eq!(control_plane.kubectl(&list)?, before);

    control_plane.kubectl(&["label", "namespace", "default", "edited=yes"])?;
    let edit = Restored::NotAfter("an edit of Namespace default".to_owned());
    assert_eq!(control_plane.return_to(&contents)?, edit);
    control_plane.kubectl(&["label", "namespace", "default", "edited-"])?;
    ensure!(control_plane.return_to(&contents)? == Restored::Completely);
    control_plane.kubectl(&["delete", "clusterrole", "view"])?;
    let deletion = Restored::NotAfter("the deletion of ClusterRole view".to_owned());
    assert_eq!(control_plane.return_to(&contents)?, deletion);
    Ok(())
}

fn two_control_planes_know_nothing_of_each_other() -> Result<()> {
    let one = start()?;
    let other = start()?;
    one.apply(NODE)?;
    assert_ne!(one.address(), other.address());
    assert_eq!(
        one.kubectl(&["get", "nodes", "--output=name"])?,
        "node/node-1\n"
    );
    assert_eq!(other.kubectl(&["get", "nodes", "--output=name"])?, "");
    Ok(())
}

fn an_api_server_that_was_away_has_everything_and_the_controllers_go_on() -> Result<()> {
    let mut control_plane = start()?;
    control_plane.apply(NODE)?;
    control_plane.stop_api_server();
    let away = control_plane.kubectl(&["get", "nodes"]);
    let away = format!("{:#}", away.expect_err("no server listens"));
    assert!(away.contains("refused"), "{away}");

    control_plane.start_api_server()?;
    assert_eq!(
        control_plane.kubectl(&["get", "nodes", "--output=name"])?,
        "node/node-1\n"
    );
    open_shop(&control_plane)?;
    wait_for_endpoint(&control_plane, "IPv4")?;
    let contents = control_plane.observe_contents()?;
    let stop = Restored::NotAfter("a stop of the API server".to_owned());
    assert_eq!(control_plane.return_to(&contents)?, stop);
    control_plane.ensure_runs()
}

fn an_address_that_the_machine_does_not_have_is_named() -> Result<()> {
    let start = ControlPlane::start(Options {
        bind: Ipv4Addr::new(192, 0, 2, 1),
        ..Options::default()
    });
    let error = format!("{:#}", start.expect_err("the address is for documents"));
    ensure!(error.contains("192.0.2.1"), "{error}");
    Ok(())
}

fn nothing_is_left_when_it_goes() -> Result<()> {
    let control_plane = start()?;
    let kubeconfig = control_plane.kubeconfig("admin")?;
    let address = control_plane.address();
    ensure!(!control_plane.logs(Component::ApiServer)?.is_empty());
    drop(control_plane);
    assert!(!kubeconfig.exists(), "its folder is removed");
    TcpStream::connect(address).expect_err("its API server has ended");
    Ok(())
}

fn nothing_runs_on_when_the_program_that_started_it_is_killed() -> Result<()> {
    // The killed process cannot remove its files, so put them where this test can.
    let files = tempfile::tempdir()?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_control-plane-up"));
    command.env("TMPDIR", files.path());
    let mut starter = Process::start("control-plane-up", command)?;
    let said = starter.next_line(START_DEADLINE)?;
    let kubeconfig = said
        .strip_prefix("export KUBECONFIG=")
        .context("it says where its kubeconfig is")?;
    let kubeconfig: Value = serde_json::from_str(&std::fs::read_to_string(kubeconfig)?)?;
    let server = kubeconfig["clusters"][0]["cluster"]["server"].as_str();
    let address: SocketAddr = server
        .and_then(|url| url.strip_prefix("https://"))
        .context("a URL")?
        .parse()?;
    TcpStream::connect(address).context("its API server listens")?;
    // The drop sends SIGKILL.
    drop(starter);
    wait_for("its API server to end", DEADLINE, || {
        Ok(TcpStream::connect(address).err().map(drop))
    })?;
    let folder = files.path().display().to_string();
    wait_for("its other programs to end", DEADLINE, || {
        Ok((!runs_with(&folder)?).then_some(()))
    })
}

/// Whether a process with this text in its command line is running.
fn runs_with(argument: &str) -> Result<bool> {
    for process in std::fs::read_dir("/proc")? {
        // Entries that are not processes, and processes that have just ended, have no command line.
        let arguments = std::fs::read(process?.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&arguments).contains(argument) {
            return Ok(true);
        }
    }
    Ok(false)
}

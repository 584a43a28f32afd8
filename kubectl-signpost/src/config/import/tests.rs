use proptest::prelude::*;
use serde_json::json;

use super::super::source::find_configuration;
use super::addresses::CLUSTER_CIDR;
use super::*;

/// The configuration as kubeadm writes it.
const KUBEADM: &str = include_str!("kubeadm.yaml");

fn imported(document: &Value) -> Imported {
    let source = find_configuration(std::slice::from_ref(document)).expect("a configuration");
    import("default", source).expect("a profile")
}

fn of(fields: Value) -> Imported {
    let mut document = fields;
    document["kind"] = json!("KubeProxyConfiguration");
    document["apiVersion"] = json!("kubeproxy.config.k8s.io/v1alpha1");
    imported(&document)
}

fn notes(imported: &Imported) -> Vec<String> {
    imported.notes.iter().map(ToString::to_string).collect()
}

#[test]
fn t145_what_kubeadm_writes_becomes_a_profile_of_what_was_chosen() {
    let map = json!({
        "kind": "ConfigMap",
        "data": {"config.conf": KUBEADM, "kubeconfig.conf": "apiVersion: v1\nkind: Config\n"},
    });
    let imported = imported(&map);
    assert_eq!(
        imported.profile["spec"],
        json!({
            "mode": "iptables",
            "detectLocal": {"mode": "ClusterCIDR", "clusterCIDRs": ["10.244.0.0/16"]},
        })
    );
    let fields: Vec<&str> = imported
        .notes
        .iter()
        .map(|note| note.field.as_str())
        .collect();
    assert_eq!(fields, ["mode", "clientConnection.kubeconfig"]);
}

#[test]
fn every_choice_has_its_place() {
    let imported = of(json!({
        "mode": "ipvs",
        "ipvs": {"scheduler": "lc", "strictARP": true, "syncPeriod": "1m0s", "excludeCIDRs": ["10.9.0.0/16"]},
        "iptables": {"masqueradeAll": true, "masqueradeBit": 7, "localhostNodePorts": false},
        "detectLocalMode": "BridgeInterface",
        "detectLocal": {"bridgeInterface": "cni0"},
        "nodePortAddresses": ["10.0.0.0/8", "localhost"],
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "2h0m0s"},
        "healthzBindAddress": "127.0.0.1",
        "metricsBindAddress": "[::]:10249",
        "featureGates": {"AllowServiceExternalIPs": false},
    }));
    assert_eq!(
        imported.profile["spec"],
        json!({
            "mode": "ipvs",
            "syncPeriod": "1m",
            "loadBalancer": {"scheduler": "lc"},
            "masquerade": {"all": true, "markBit": 7},
            "iptables": {"localhostNodePorts": false},
            "ipvs": {"strictARP": true, "excludeCIDRs": ["10.9.0.0/16"]},
            "detectLocal": {"mode": "BridgeInterface", "bridgeInterface": "cni0"},
            "nodePorts": {"addresses": ["10.0.0.0/8"], "localhost": "userspace"},
            "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "2h"},
            "healthzBindAddress": "127.0.0.1:10256",
            "metricsBindAddress": "[::]:10249",
            "allowServiceExternalIPs": false,
        })
    );
}

#[test]
fn t146_what_has_no_place_or_no_effect_is_named_with_the_reason() {
    let imported = of(json!({
        "mode": "nftables",
        "detectLocalMode": "ClusterCIDR",
        "hostnameOverride": "n1",
        "portRange": "1-2",
        "winkernel": {"enableDSR": true},
        "featureGates": {"ComponentFlagz": true},
        "ipvs": {"scheduler": "sh"},
        "iptables": {"masqueradeBit": 3},
        "bindAddress": "::",
        "udpIdleTimeout": "250ms",
        "conntrack": {"min": -1},
        "nodePortAddresses": ["everywhere"],
        "clientConnection": {"qps": 7.5},
        "syncPeriod": "1s",
    }));
    let notes = notes(&imported);
    for expected in [
        "hostnameOverride: a profile is for many nodes",
        "portRange: kube-proxy does not read it either",
        "winkernel: is for Windows",
        "featureGates.ComponentFlagz: ",
        "ipvs.scheduler: kube-proxy does not read it in mode nftables",
        "iptables.masqueradeBit: kube-proxy does not read it in mode nftables",
        "spec.bindAddress: it has no effect yet",
        "udpIdleTimeout: KubeProxyConfiguration of Kubernetes 1.36 has no such field",
        "syncPeriod: KubeProxyConfiguration of Kubernetes 1.36 has no such field",
        "spec.conntrack.min: a profile does not accept it (",
        "nodePortAddresses: \"everywhere\" is not a CIDR",
        "clientConnection.qps: 7.5 is rounded to 8",
        "clusterCIDR: is empty",
    ] {
        let found = notes.iter().any(|note| note.starts_with(expected));
        assert!(found, "{expected:?} is not in {notes:#?}");
    }
}

/// `config import > profile.yaml && kubectl apply` masqueraded the traffic of all Pods: the CIDR was
/// not one, and the profile fell back to its default.
#[test]
fn t236_a_value_that_is_left_out_is_a_problem_and_what_happens_instead_is_named() {
    for fields in [
        json!({"mode": "nftables", "clusterCIDR": "10.0.0.0/33"}),
        json!({"mode": "nftables", "clusterCIDR": ["10.0.0.0/8"]}),
        json!({"mode": "nftables", "detectLocalMode": "BridgeInterface",
               "detectLocal": {"bridgeInterface": "a name that is too long"}}),
    ] {
        let imported = of(fields);
        let left_out = |note: &&Note| note.loss == Loss::LeftOut;
        let fields = imported.notes.iter().filter(left_out);
        let fields: Vec<&str> = fields.map(|note| note.field.as_str()).collect();
        assert!(fields.contains(&"spec.detectLocal"), "{imported:#?}");
        assert!(fields.len() >= 2, "{imported:#?}");
    }
    let imported = of(
        json!({"mode": "nftables", "conntrack": "a lot", "clientConnection": {"qps": "fast"},
                             "detectLocalMode": "NodeCIDR", "clusterCIDR": "10.0.0.0/8"}),
    );
    let losses: Vec<(&str, Loss)> = imported
        .notes
        .iter()
        .map(|note| (note.field.as_str(), note.loss))
        .collect();
    assert_eq!(
        losses,
        [
            ("clientConnection.qps", Loss::LeftOut),
            ("clusterCIDR", Loss::Harmless),
            ("conntrack", Loss::LeftOut),
        ],
        "{imported:#?}"
    );
}

#[test]
fn what_is_no_configuration_is_refused_with_what_to_give() {
    for document in [
        json!(null),
        json!({"kind": "ConfigMap", "data": {"x": "y"}}),
        json!([]),
    ] {
        let error = find_configuration(&[document]).expect_err("there is none");
        assert!(error.next.contains("--config"), "{error:?}");
    }
    let later =
        json!({"kind": "KubeProxyConfiguration", "apiVersion": "kubeproxy.config.k8s.io/v1alpha2"});
    let error = find_configuration(&[later]).expect_err("another version");
    assert!(error.to_string().contains("v1alpha2"), "{error}");
}

#[test]
fn what_the_agent_prints_at_configz_is_read_too() {
    let printed = json!({"kubeproxy.config.k8s.io": {
        "kind": "KubeProxyConfiguration", "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "mode": "nftables",
        "detectLocalMode": "NodeCIDR", "nodePortAddresses": ["primary"],
    }});
    let spec = imported(&printed).profile["spec"].clone();
    assert_eq!(
        spec,
        json!({"mode": "nftables", "nodePorts": {"addresses": ["primary"]}})
    );
}

#[test]
fn patterns_of_files_are_kept_and_said_to_be_of_another_program() {
    let vmodule = json!([{"filePattern": "proxier", "verbosity": 4}]);
    let imported = of(json!({"mode": "nftables", "logging": {"vmodule": vmodule}}));
    assert_eq!(imported.profile["spec"]["logging"]["vmodule"], vmodule);
    let notes = notes(&imported);
    let note = "logging.vmodule: kube-proxy's patterns name files of its source";
    assert!(
        notes.iter().any(|found| found.starts_with(note)),
        "{notes:?}"
    );
}

/// Values that occur in files, valid and invalid.
fn any_value() -> impl Strategy<Value = Value> {
    let texts = [
        "",
        "0s",
        "1m30s",
        "-5s",
        "100000h",
        "10.0.0.0/8",
        "fd00::/64,10.0.0.0/8",
        "10.0.0.0/8,10.1.0.0/16",
        "primary",
        "all",
        "localhost",
        "0.0.0.0",
        "::",
        "[::1]:0",
        "rr",
        "nftables",
        "ipvs",
        "iptables",
        "kernelspace",
        "ClusterCIDR",
        "BridgeInterface",
        "NodeCIDR",
        "InterfaceNamePrefix",
        "cni0",
        "a name that is too long",
        "json",
        "1.35",
    ];
    let text = prop::sample::select(texts.to_vec()).prop_map(|text| json!(text));
    prop_oneof![
        text.clone(),
        any::<i64>().prop_map(|number| json!(number)),
        (0_i64..40).prop_map(|number| json!(number)),
        any::<bool>().prop_map(|value| json!(value)),
        Just(Value::Null),
        prop::collection::vec(text, 0..4).prop_map(|items| json!(items)),
    ]
}

fn any_configuration() -> impl Strategy<Value = Value> {
    let fields = FIELDS.iter().map(|field| field.from);
    let others = [
        "mode",
        "iptables.syncPeriod",
        "iptables.minSyncPeriod",
        "iptables.masqueradeBit",
        "iptables.masqueradeAll",
        "nftables.syncPeriod",
        "nftables.minSyncPeriod",
        "nftables.masqueradeBit",
        "ipvs.syncPeriod",
        "ipvs.scheduler",
        "nodePortAddresses",
        "detectLocalMode",
        "clusterCIDR",
        "featureGates",
        "hostnameOverride",
        "unheardOf",
        "ipvs",
        "logging",
    ];
    let paths: Vec<&'static str> = fields.chain(others).collect();
    let field = (prop::sample::select(paths), any_value());
    prop::collection::vec(field, 0..20).prop_map(|fields| {
        let mut document = json!({});
        for (path, value) in fields {
            match path.split_once('.') {
                None => document[path] = value,
                Some((section, name)) => {
                    if !document[section].is_object() {
                        document[section] = json!({});
                    }
                    document[section][name] = value;
                }
            }
        }
        document
    })
}

/// Whether a field with this value is as if it were not there.
fn is_default(path: &str, value: &Value) -> bool {
    let form = FIELDS.iter().find(|field| field.from == path);
    let is_it = match form.map(|field| field.form) {
        Some(Form::Plain(default)) => {
            serde_json::from_str(default).is_ok_and(|d: Value| d == *value)
        }
        Some(Form::Text(default) | Form::Address(default, _)) => *value == default,
        Some(Form::Rate(default)) => value.as_f64() == Some(default),
        Some(Form::Duration(defaults)) => {
            go_duration::milliseconds(value).is_some_and(|span| defaults.contains(&span))
        }
        None => match path {
            "detectLocalMode" => *value == CLUSTER_CIDR,
            "featureGates" => false,
            _ => [json!("30s"), json!("1s"), json!(14)].contains(value),
        },
    };
    // A generated file has zero values for fields that are not set, but `false` is a choice where
    // the default is `true`.
    let is_choice = form.is_some_and(|field| matches!(field.form, Form::Plain("true")));
    is_it || value.is_null() || (!is_set(value) && !is_choice)
}

proptest! {
    #[test]
    fn no_field_is_overlooked(document in any_configuration()) {
        let whole = of(document.clone());
        for (section, value) in document.as_object().into_iter().flatten() {
            let fields = value.as_object().map(|fields| fields.iter().collect());
            let fields: Vec<(&String, &Value)> = fields.unwrap_or_default();
            let leaves = fields.iter().map(|(name, value)| (format!("{section}.{name}"), *value));
            let own = fields.is_empty().then(|| (section.clone(), value));
            for (path, value) in leaves.chain(own).filter(|(path, value)| !is_default(path, value)) {
                let mut without = document.clone();
                match path.split_once('.') {
                    None => without.as_object_mut().and_then(|root| root.remove(&path)),
                    Some((section, name)) => without[section].as_object_mut().and_then(|root| root.remove(name)),
                };
                prop_assert!(of(without) != whole, "{path}: {value} is overlooked: {whole:#?}");
            }
        }
    }

    #[test]
    fn whatever_a_file_has_the_profile_is_one_that_the_api_server_accepts(document in any_configuration()) {
        let imported = of(document);
        let parsed = crds::parse_profile(&imported.profile);
        prop_assert!(parsed.is_ok(), "{parsed:?} of {imported:#?}");
    }
}

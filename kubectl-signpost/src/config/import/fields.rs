//! The mapping of KubeProxyConfiguration fields, from types.go and defaults.go of Kubernetes 1.36.

/// A field with exactly one counterpart.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    pub(super) from: &'static str,
    /// The path below `spec`.
    pub(super) to: &'static str,
    pub(super) form: Form,
}

/// How to convert a value. A default value is not converted, because both have the same default.
#[derive(Debug, Clone, Copy)]
pub(super) enum Form {
    /// Unchanged; the default as JSON.
    Plain(&'static str),
    /// Text; an empty text also means the default.
    Text(&'static str),
    /// `IP:port`; the port is used for an IP address alone.
    Address(&'static str, u16),
    /// A rate of requests; 0 also means the default.
    Rate(f64),
    /// A duration; the defaults in milliseconds.
    Duration(&'static [u64]),
}

const fn plain(from: &'static str, to: &'static str, default: &'static str) -> Field {
    Field {
        from,
        to,
        form: Form::Plain(default),
    }
}

const fn span(from: &'static str, to: &'static str, defaults: &'static [u64]) -> Field {
    Field {
        from,
        to,
        form: Form::Duration(defaults),
    }
}

const fn text(from: &'static str, to: &'static str, default: &'static str) -> Field {
    Field {
        from,
        to,
        form: Form::Text(default),
    }
}

/// The fields with one counterpart each that depend neither on the mode nor on other fields.
pub(super) const FIELDS: &[Field] = &[
    plain(
        "iptables.localhostNodePorts",
        "iptables.localhostNodePorts",
        "true",
    ),
    plain("ipvs.excludeCIDRs", "ipvs.excludeCIDRs", "[]"),
    plain("ipvs.strictARP", "ipvs.strictARP", "false"),
    span("ipvs.tcpTimeout", "ipvs.tcpTimeout", &[0]),
    span("ipvs.tcpFinTimeout", "ipvs.tcpFinTimeout", &[0]),
    span("ipvs.udpTimeout", "ipvs.udpTimeout", &[0]),
    text(
        "detectLocal.bridgeInterface",
        "detectLocal.bridgeInterface",
        "",
    ),
    text(
        "detectLocal.interfaceNamePrefix",
        "detectLocal.interfaceNamePrefix",
        "",
    ),
    plain("conntrack.maxPerCore", "conntrack.maxPerCore", "32768"),
    plain("conntrack.min", "conntrack.min", "131072"),
    span(
        "conntrack.tcpEstablishedTimeout",
        "conntrack.tcpEstablishedTimeout",
        &[86_400_000],
    ),
    span(
        "conntrack.tcpCloseWaitTimeout",
        "conntrack.tcpCloseWaitTimeout",
        &[3_600_000],
    ),
    plain("conntrack.tcpBeLiberal", "conntrack.tcpBeLiberal", "false"),
    span("conntrack.udpTimeout", "conntrack.udpTimeout", &[0]),
    span(
        "conntrack.udpStreamTimeout",
        "conntrack.udpStreamTimeout",
        &[0],
    ),
    span("configSyncPeriod", "configSyncPeriod", &[0, 900_000]),
    text("bindAddress", "bindAddress", "0.0.0.0"),
    Field {
        from: "healthzBindAddress",
        to: "healthzBindAddress",
        form: Form::Address("0.0.0.0:10256", 10_256),
    },
    Field {
        from: "metricsBindAddress",
        to: "metricsBindAddress",
        form: Form::Address("127.0.0.1:10249", 10_249),
    },
    plain("bindAddressHardFail", "bindAddressHardFail", "false"),
    plain("enableProfiling", "enableProfiling", "false"),
    text(
        "showHiddenMetricsForVersion",
        "showHiddenMetricsForVersion",
        "",
    ),
    plain("oomScoreAdj", "oomScoreAdj", "-999"),
    text(
        "clientConnection.acceptContentTypes",
        "clientConnection.acceptContentTypes",
        "",
    ),
    text(
        "clientConnection.contentType",
        "clientConnection.contentType",
        "application/vnd.kubernetes.protobuf",
    ),
    Field {
        from: "clientConnection.qps",
        to: "clientConnection.qps",
        form: Form::Rate(5.0),
    },
    Field {
        from: "clientConnection.burst",
        to: "clientConnection.burst",
        form: Form::Rate(10.0),
    },
    text("logging.format", "logging.format", "text"),
    plain("logging.verbosity", "logging.verbosity", "0"),
    span(
        "logging.flushFrequency",
        "logging.flushFrequency",
        &[0, 5_000],
    ),
    plain("logging.vmodule", "logging.vmodule", "[]"),
];

/// The fields without a counterpart in a profile, and why.
pub(super) const NO_PLACE: &[(&str, &str)] = &[
    (
        "clientConnection.kubeconfig",
        "the agent needs it before it can read any profile: its flag --kubeconfig; in a Pod it has a service account",
    ),
    (
        "hostnameOverride",
        "a profile is for many nodes: the agent's flag --node, which the chart sets to the Node's name",
    ),
    ("logging.options", "a log line has one form for each format"),
    ("portRange", "kube-proxy does not read it either"),
    ("windowsRunAsService", "is for Windows"),
    ("winkernel", "is for Windows"),
];

/// The fields that have fields of their own.
pub(super) const SECTIONS: &[&str] = &[
    "clientConnection",
    "conntrack",
    "detectLocal",
    "iptables",
    "ipvs",
    "logging",
    "nftables",
];

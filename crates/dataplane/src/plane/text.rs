//! Rules as text, for output, golden files and diffs: sorted, one paragraph for each frontend.

use std::fmt;

use crate::{
    Affinity, Dataplane, Frontend, FrontendKey, FrontendKind, Scheduler, ServiceRules, Target,
    TrafficPolicy,
};

impl fmt::Display for Dataplane {
    /// Prints every Service sorted by name, like [`ServiceRules`], with the reason for each
    /// frontend that it is not served. Prints nothing without Services.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (service, rules) in self.services().sorted() {
            write_rules(f, rules, |key| {
                if let Some(refused) = self.refusal(service, key) {
                    return Some(format!("it {}", refused.reserved));
                }
                let (winner, _) = self.frontends().get(key)?.winner();
                (winner != service).then(|| format!("{winner} has it"))
            })?;
        }
        Ok(())
    }
}

impl fmt::Display for ServiceRules {
    /// Prints the name and, indented, the frontends with their targets, the hairpins, the health
    /// check and the rejections.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_rules(f, self, |_| None)
    }
}

fn write_rules(
    f: &mut fmt::Formatter<'_>,
    rules: &ServiceRules,
    not_served: impl Fn(&FrontendKey) -> Option<String>,
) -> fmt::Result {
    writeln!(f, "{}", rules.service)?;
    for (key, frontend) in &rules.frontends {
        write!(f, "  {key}: {frontend}")?;
        match not_served(key) {
            Some(reason) => writeln!(f, ", not served here: {reason}")?,
            None => writeln!(f)?,
        }
        write_targets(f, frontend)?;
    }
    for hairpin in &rules.hairpins {
        let (address, port) = (hairpin.address, hairpin.port);
        let target = Target { address, port };
        writeln!(f, "  hairpin {target}/{}", hairpin.protocol)?;
    }
    if let Some(check) = &rules.health_check {
        let (port, count) = (check.port, check.local_endpoints.total());
        writeln!(f, "  health check on {port}: {count} local endpoints")?;
    }
    for rejection in &rules.rejections {
        writeln!(f, "  rejected {}: {}", rejection.field, rejection.message)?;
    }
    Ok(())
}

/// Prints the lists that packets can be sent to, and only those.
fn write_targets(f: &mut fmt::Formatter<'_>, frontend: &Frontend) -> fmt::Result {
    let mut write_list = |name: &str, targets: &[Target]| {
        let texts: Vec<String> = targets.iter().map(Target::to_string).collect();
        match (texts.is_empty(), frontend.has_endpoints) {
            (false, _) => writeln!(f, "    {name}: {}", texts.join(", ")),
            (true, true) => writeln!(f, "    {name}: none, drop"),
            (true, false) => writeln!(f, "    {name}: none, reject"),
        }
    };
    if frontend.kind != FrontendKind::ClusterIp || frontend.policy == TrafficPolicy::Cluster {
        write_list("cluster", &frontend.cluster)?;
    }
    if frontend.policy == TrafficPolicy::Local {
        write_list("local", &frontend.local)?;
    }
    Ok(())
}

impl fmt::Display for Frontend {
    /// Prints the kind and the policy, without targets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)?;
        if !self.service_port.port.is_empty() {
            write!(f, ", port {}", self.service_port.port)?;
        }
        match self.policy {
            TrafficPolicy::Cluster => f.write_str(", policy Cluster")?,
            TrafficPolicy::Local => f.write_str(", policy Local")?,
        }
        if let Affinity::ClientIp { timeout } = self.affinity {
            write!(f, ", affinity {}s", timeout.as_secs())?;
        }
        if self.scheduler != Scheduler::Random {
            write!(f, ", scheduler {}", self.scheduler)?;
        }
        if !self.source_ranges.is_empty() {
            let ranges: Vec<String> = self.source_ranges.iter().map(ToString::to_string).collect();
            write!(f, ", only from {}", ranges.join(", "))?;
        }
        Ok(())
    }
}

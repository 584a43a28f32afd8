//! An explanation as text: at most 100 columns, differences marked with `!`, what is not honoured
//! with `note:`.

use std::collections::BTreeSet;
use std::fmt::{self, Display};

use backend::count;

use super::answer::{
    EndpointAnswer, EndpointOf, Explanation, FrontendAnswer, KernelAnswer, PieceAnswer, PieceState,
    PortAnswer, ServiceAnswer, Usage,
};

/// The maximum width of a line.
const WIDTH: usize = 100;

/// The pieces of a Service that were printed already.
type Printed<'a> = BTreeSet<(PieceState, &'a str)>;

impl Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for remark in &self.remarks {
            line(f, 0, remark)?;
        }
        for use_of in &self.endpoint_of {
            write_endpoint_of(f, use_of)?;
        }
        if let Some(unclaimed) = &self.unclaimed {
            write_frontend(f, unclaimed, &mut Printed::new())?;
        }
        for service in &self.services {
            write_service(f, service)?;
        }
        for kernel in &self.kernel {
            write_kernel(f, kernel)?;
        }
        Ok(())
    }
}

fn write_service(f: &mut fmt::Formatter<'_>, service: &ServiceAnswer) -> fmt::Result {
    line(f, 0, &format!("Service {}", service.service))?;
    let mut facts = vec![
        format!("type {}", service.kind),
        format!("internal policy {}", service.internal_traffic_policy),
    ];
    facts.extend(
        service
            .external_traffic_policy
            .map(|policy| format!("external policy {policy}")),
    );
    facts.push(match service.affinity_seconds {
        Some(seconds) => format!("affinity by client address for {seconds} s"),
        None => "no affinity".to_owned(),
    });
    line(f, 2, &facts.join(", "))?;
    if !service.source_ranges.is_empty() {
        let ranges = service.source_ranges.join(", ");
        line(f, 2, &format!("load-balancer IPs only from {ranges}"))?;
    }
    if let Some(check) = &service.health_check {
        let (port, count) = (check.port, count(check.local_endpoints, "ready endpoint"));
        line(
            f,
            2,
            &format!("health check on port {port}: {count} on this node"),
        )?;
    }
    for sentence in &service.unsupported_fields {
        line(f, 2, &format!("note: {sentence}"))?;
    }
    for port in &service.ports {
        write_port(f, port)?;
    }
    let mut printed = Printed::new();
    for frontend in &service.frontends {
        write_frontend(f, frontend, &mut printed)?;
    }
    if !service.memberships.is_empty() {
        line(f, 2, "its cluster IPs, and its endpoints on this node")?;
        write_new(f, 4, &service.memberships, &mut printed)?;
    }
    Ok(())
}

fn write_port(f: &mut fmt::Formatter<'_>, port: &PortAnswer) -> fmt::Result {
    let mut text = match port.name.as_str() {
        "" => format!("port {}", port.port),
        name => format!("port {name}, {}", port.port),
    };
    if let Some(number) = port.node_port {
        text.push_str(&format!(", node port {number}"));
    }
    if port.endpoints.is_empty() {
        text.push_str(": no endpoints");
    }
    line(f, 2, &text)?;
    for endpoint in &port.endpoints {
        line(f, 4, &describe_endpoint(endpoint))?;
    }
    Ok(())
}

/// `10.0.1.5:8080 on node-1 (here), ready: used`.
fn describe_endpoint(endpoint: &EndpointAnswer) -> String {
    let mut text = endpoint.address.clone();
    if let Some(node) = &endpoint.node {
        text.push_str(&format!(" on {node}"));
    }
    if endpoint.here {
        text.push_str(" (here)");
    }
    text.push_str(if endpoint.ready {
        ", ready"
    } else {
        ", not ready"
    });
    if endpoint.serving && !endpoint.ready {
        text.push_str(", serving");
    }
    if endpoint.terminating {
        text.push_str(", terminating");
    }
    if !endpoint.hinted_for.is_empty() {
        text.push_str(&format!(", hinted for {}", endpoint.hinted_for.join(", ")));
    }
    text.push_str(match endpoint.usage {
        Usage::Used => ": used",
        Usage::UsedUnlessLocal => ": used, but not under policy Local",
        Usage::UsedIfLocal => ": used under policy Local only",
        Usage::Unused => ": not used",
    });
    if let Some(because) = &endpoint.because {
        text.push_str(&format!(", because {because}"));
    }
    text
}

fn write_endpoint_of(f: &mut fmt::Formatter<'_>, use_of: &EndpointOf) -> fmt::Result {
    let port = match use_of.port.as_str() {
        "" => String::new(),
        port => format!(", port {port}"),
    };
    line(f, 2, &format!("Service {}{port}", use_of.service))?;
    line(f, 4, &describe_endpoint(&use_of.endpoint))
}

fn write_frontend<'a>(
    f: &mut fmt::Formatter<'_>,
    frontend: &'a FrontendAnswer,
    printed: &mut Printed<'a>,
) -> fmt::Result {
    let mut text = frontend.address.clone();
    if !frontend.kind.is_empty() {
        let port = match frontend.port.as_str() {
            "" => String::new(),
            port => format!(", port {port}"),
        };
        text.push_str(&format!(
            " ({}{port}, policy {})",
            frontend.kind, frontend.policy
        ));
    }
    line(f, 2, &text)?;
    for sentence in &frontend.connections {
        line(f, 4, sentence)?;
    }
    if let Some(reserved) = &frontend.refused {
        let text = format!("note: not served for this Service: the address {reserved}");
        return line(f, 4, &text);
    }
    if let Some(other) = &frontend.served_for {
        let text =
            format!("note: not served for this Service: {other} has it too, and takes precedence");
        return line(f, 4, &text);
    }
    write_new(f, 4, &frontend.elements, printed)?;
    let (sound, damaged): (Vec<_>, Vec<_>) = frontend
        .chains
        .iter()
        .partition(|chain| matches!(chain.state, PieceState::Present | PieceState::Unverified));
    let names: Vec<String> = sound
        .iter()
        .map(|chain| chain.piece.replacen("chain ", "", 1))
        .collect();
    if !names.is_empty() {
        let word = if names.len() == 1 { "chain" } else { "chains" };
        line(f, 4, &format!("{word} {}", names.join(", ")))?;
    }
    write_pieces(f, 4, damaged)
}

/// Prints the pieces that were not printed before: in mode iptables, frontends of a Service share
/// chains.
fn write_new<'a>(
    f: &mut fmt::Formatter<'_>,
    indent: usize,
    pieces: &'a [PieceAnswer],
    printed: &mut Printed<'a>,
) -> fmt::Result {
    let new = |piece: &&'a PieceAnswer| printed.insert((piece.state, piece.piece.as_str()));
    write_pieces(f, indent, pieces.iter().filter(new).collect::<Vec<_>>())
}

fn write_pieces<'a>(
    f: &mut fmt::Formatter<'_>,
    indent: usize,
    pieces: impl IntoIterator<Item = &'a PieceAnswer>,
) -> fmt::Result {
    for piece in pieces {
        let mark = match piece.state {
            PieceState::Present | PieceState::Unverified => "",
            PieceState::Missing => "! missing in the kernel: ",
            PieceState::Leftover => "! leftover: ",
            PieceState::Draining => "draining: ",
            PieceState::Different => "! differs: ",
        };
        line(f, indent, &format!("{mark}{}", piece.piece))?;
        if piece.state == PieceState::Different && piece.found.is_empty() {
            line(f, indent + 2, "in the kernel it is empty")?;
        }
        for found in &piece.found {
            line(f, indent + 2, &format!("in the kernel: {found}"))?;
        }
    }
    Ok(())
}

fn write_kernel(f: &mut fmt::Formatter<'_>, kernel: &KernelAnswer) -> fmt::Result {
    line(f, 0, &format!("{}: {}", kernel.family, kernel.table))?;
    write_pieces(f, 2, &kernel.damaged)?;
    match &kernel.last_sync {
        Some(sync) => line(f, 2, &format!("last sync: {sync}")),
        None => Ok(()),
    }
}

/// Writes a line, wrapped between words if it is too wide.
pub(crate) fn line(f: &mut impl fmt::Write, indent: usize, text: &str) -> fmt::Result {
    let mut room = WIDTH.saturating_sub(indent);
    let mut start = indent;
    let mut row = String::new();
    for word in text.split(' ') {
        if !row.is_empty() && row.chars().count() + 1 + word.chars().count() > room {
            writeln!(f, "{:start$}{row}", "")?;
            row.clear();
            // Continuation lines are indented.
            start = indent + 4;
            room = WIDTH.saturating_sub(start);
        }
        if !row.is_empty() {
            row.push(' ');
        }
        row.push_str(word);
    }
    writeln!(f, "{:start$}{row}", "")
}

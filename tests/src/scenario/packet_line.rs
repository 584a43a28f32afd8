//! `pod 10.0.1.9 -> 10.96.0.10:80/tcp = 10.0.1.5:8080`: a packet and its verdict.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use dataplane::{Choice, Family, Origin, Packet, Port, Protocol, Target, Verdict};
use testkit::address_plan as addresses;

const SHAPE: &str = "a packet line is ORIGIN SOURCE -> DESTINATION:PORT/PROTOCOL = VERDICT";

/// Parses the words after `packet`.
pub(super) fn parse_packet_line(words: &[&str]) -> Result<(Packet, Verdict), String> {
    let [origin, source, "->", destination, "=", verdict @ ..] = words else {
        return Err(SHAPE.to_owned());
    };
    let source: IpAddr = source
        .parse()
        .map_err(|_| format!("{source:?} is not an address"))?;
    let (destination, protocol) = parse_destination(destination, Family::of(source))?;
    if destination.is_ipv4() != source.is_ipv4() {
        return Err(format!(
            "{source} and {destination} are of different families"
        ));
    }
    let packet = Packet {
        origin: parse_origin(origin, source)?,
        source,
        destination: destination.ip(),
        protocol,
        port: parse_port(destination.port())?,
    };
    Ok((packet, parse_verdict(&verdict.join(" "))?))
}

/// Parses the origin and adds its interface in the address plan.
fn parse_origin(word: &str, source: IpAddr) -> Result<Origin, String> {
    let uplink: Arc<str> = addresses::UPLINK.into();
    Ok(match word {
        "pod" => {
            let numbers = 2..=254;
            let number = numbers
                .into_iter()
                .find(|n| addresses::pod_address(1, *n, Family::of(source)) == source)
                .ok_or_else(|| format!("{source} is not the address of a pod on this node"))?;
            let interface = format!("{}{number}", addresses::POD_INTERFACE_PREFIX).into();
            Origin::Pod { interface }
        }
        "remote-pod" => Origin::PodElsewhere { interface: uplink },
        "node" => Origin::Node,
        "loopback" => Origin::Loopback,
        "outside" => Origin::Outside { interface: uplink },
        _ => {
            return Err(format!(
                "{word:?} is not an origin: pod, remote-pod, node, loopback or outside"
            ));
        }
    })
}

/// Parses `ADDRESS:PORT/PROTOCOL`, where `node` stands for the node's address of `family`.
fn parse_destination(text: &str, family: Family) -> Result<(SocketAddr, Protocol), String> {
    let wrong = || format!("{text:?} is not DESTINATION:PORT/PROTOCOL");
    let (address, protocol) = text.rsplit_once('/').ok_or_else(wrong)?;
    let protocol = Protocol::ALL
        .into_iter()
        .find(|known| known.to_string() == protocol)
        .ok_or_else(|| format!("{protocol:?} is not a protocol: tcp, udp or sctp"))?;
    let address = match address.strip_prefix("node:") {
        Some(port) => {
            let port = port.parse().map_err(|_| wrong())?;
            SocketAddr::new(addresses::node_address(1, family), port)
        }
        None => address.parse().map_err(|_| wrong())?,
    };
    Ok((address, protocol))
}

fn parse_port(number: u16) -> Result<Port, String> {
    Port::new(number).ok_or_else(|| "0 is not a port".to_owned())
}

/// Parses the format in which [`Verdict`] prints.
fn parse_verdict(text: &str) -> Result<Verdict, String> {
    match text {
        "" => return Err(SHAPE.to_owned()),
        "reject" => return Ok(Verdict::Reject),
        "drop" => return Ok(Verdict::Drop),
        "untouched" => return Ok(Verdict::Untouched),
        _ => {}
    }
    let mut choices = Vec::new();
    for list in text.split("; ") {
        let (list, masquerade) = match list.strip_suffix(" masqueraded") {
            Some(list) => (list, true),
            None => (list, false),
        };
        for target in list.split(", ") {
            choices.push(parse_choice(target, masquerade)?);
        }
    }
    choices.sort();
    Ok(Verdict::Deliver(choices))
}

fn parse_choice(text: &str, masquerade: bool) -> Result<Choice, String> {
    let wrong = || {
        format!(
            "{text:?} is not a verdict: ADDRESS:PORT, …; … masqueraded, or reject, drop, untouched"
        )
    };
    let (target, weight) = text.split_once(" x").unwrap_or((text, "1"));
    let target: SocketAddr = target.parse().map_err(|_| wrong())?;
    Ok(Choice {
        target: Target {
            address: target.ip(),
            port: parse_port(target.port())?,
        },
        weight: weight.parse().map_err(|_| wrong())?,
        masquerade,
    })
}

#[cfg(test)]
mod tests {
    use super::parse_packet_line;

    fn parse(text: &str) -> Result<String, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (packet, verdict) = parse_packet_line(&words)?;
        Ok(format!("{packet} = {verdict}"))
    }

    #[test]
    fn a_line_reads_as_it_prints() {
        for (line, printed) in [
            (
                "pod 10.0.1.9 -> 10.96.0.10:80/tcp = 10.0.1.5:8080, 10.0.2.7:8080",
                "pod 10.0.1.9 via veth9 -> 10.96.0.10:80/tcp = 10.0.1.5:8080, 10.0.2.7:8080",
            ),
            (
                "pod 10.0.1.5 -> 10.96.0.10:80/tcp = 10.0.2.7:8080; 10.0.1.5:8080 masqueraded",
                "pod 10.0.1.5 via veth5 -> 10.96.0.10:80/tcp = \
                 10.0.2.7:8080; 10.0.1.5:8080 masqueraded",
            ),
            (
                "outside 2001:db8:113::2 -> node:30080/udp = [fd00:10:0:1::5]:53 x2 masqueraded",
                "outside 2001:db8:113::2 via eth0 -> [fd00:192:168::1]:30080/udp = \
                 [fd00:10:0:1::5]:53 x2 masqueraded",
            ),
            (
                "node 192.168.0.1 -> 10.96.0.10:80/sctp = drop",
                "node 192.168.0.1 -> 10.96.0.10:80/sctp = drop",
            ),
        ] {
            assert_eq!(parse(line).as_deref(), Ok(printed));
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, message) in [
            (
                "pod 10.0.2.7 -> 10.96.0.10:80/tcp = drop",
                "10.0.2.7 is not the address of a pod on this node",
            ),
            (
                "client 10.0.2.7 -> 10.96.0.10:80/tcp = drop",
                "\"client\" is not an origin: pod, remote-pod, node, loopback or outside",
            ),
            (
                "node 10.0.2 -> 10.96.0.10:80/tcp = drop",
                "\"10.0.2\" is not an address",
            ),
            (
                "node 10.0.2.1 -> 10.96.0.10:80 = drop",
                "\"10.96.0.10:80\" is not DESTINATION:PORT/PROTOCOL",
            ),
            (
                "node 10.0.2.1 -> 10.96.0.10:80/icmp = drop",
                "\"icmp\" is not a protocol: tcp, udp or sctp",
            ),
            (
                "node 10.0.2.1 -> [fd00:10:96::10]:80/tcp = drop",
                "10.0.2.1 and [fd00:10:96::10]:80 are of different families",
            ),
            (
                "node 10.0.2.1 -> 10.96.0.10:80/tcp = lost",
                "\"lost\" is not a verdict: ADDRESS:PORT, …; … masqueraded, or reject, drop, untouched",
            ),
        ] {
            assert_eq!(parse(line), Err(message.to_owned()));
        }
    }
}

//! Rules as `iptables-save` prints them.

use std::fmt;

use super::{BuiltIn, Match, PacketEnd, Recent, Rule, States, TableName, Target};

impl fmt::Display for Rule {
    /// Prints the rule as `iptables-save` does behind `-A chain `, except where equal spellings
    /// exist.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let not = |inverted: bool| if inverted { "! " } else { "" };
        if let Some(source) = &self.source {
            write!(f, "{}-s {} ", not(source.inverted), source.range)?;
        }
        if let Some(destination) = &self.destination {
            write!(f, "{}-d {} ", not(destination.inverted), destination.range)?;
        }
        if let Some(input) = &self.input {
            let plus = if input.is_prefix { "+" } else { "" };
            write!(f, "{}-i {}{plus} ", not(input.inverted), input.name)?;
        }
        if let Some(protocol) = self.protocol {
            write!(f, "-p {protocol} ")?;
        }
        for asked in &self.matches {
            self.write_match(asked, f)?;
        }
        if let Some(comment) = &self.comment {
            write!(f, "-m comment --comment \"{comment}\" ")?;
        }
        self.target.fmt(f)
    }
}

impl Rule {
    fn write_match(&self, asked: &Match, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match asked {
            Match::DestinationPorts { first, last } => {
                if let Some(protocol) = self.protocol {
                    write!(f, "-m {protocol} ")?;
                }
                match first == last {
                    true => write!(f, "--dport {first} "),
                    false => write!(f, "--dport {first}:{last} "),
                }
            }
            Match::LocalAddress(PacketEnd::Source) => f.write_str("-m addrtype --src-type LOCAL "),
            Match::LocalAddress(PacketEnd::Destination) => {
                f.write_str("-m addrtype --dst-type LOCAL ")
            }
            Match::ConnectionState(states) => write!(f, "-m conntrack --ctstate {states} "),
            Match::UnconfirmedConnection => f.write_str("-m conntrack ! --ctstatus CONFIRMED "),
            Match::Mark { value, mask } => write!(f, "-m mark --mark {value:#x}/{mask:#x} "),
            Match::Recent { list, what } => match what {
                Recent::Check { seconds } => write!(
                    f,
                    "-m recent --rcheck --seconds {seconds} --reap --name {list} --rsource "
                ),
                Recent::Set => write!(f, "-m recent --set --name {list} --rsource "),
            },
            Match::Random { probability } => {
                let share = f64::from(*probability) / f64::from(Match::CERTAIN);
                write!(f, "-m statistic --mode random --probability {share:.11} ")
            }
            Match::Nth { every } => {
                write!(f, "-m statistic --mode nth --every {every} --packet 0 ")
            }
        }
    }
}

impl fmt::Display for States {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (States::INVALID, "INVALID"),
            (States::NEW, "NEW"),
            (States::RELATED, "RELATED"),
            (States::ESTABLISHED, "ESTABLISHED"),
            (States::DNAT, "DNAT"),
        ];
        let names: Vec<&str> = names
            .into_iter()
            .filter_map(|(state, name)| self.has(state).then_some(name))
            .collect();
        f.write_str(&names.join(","))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Accept => f.write_str("-j ACCEPT"),
            Target::Drop => f.write_str("-j DROP"),
            Target::Return => f.write_str("-j RETURN"),
            Target::Jump(chain) => write!(f, "-j {chain}"),
            Target::Goto(chain) => write!(f, "-g {chain}"),
            Target::DestinationNat { address, port } => {
                let to = std::net::SocketAddr::new(*address, *port);
                write!(f, "-j DNAT --to-destination {to}")
            }
            Target::Masquerade => f.write_str("-j MASQUERADE --random-fully"),
            Target::Mark { value, mask } => write!(f, "-j MARK --set-xmark {value:#x}/{mask:#x}"),
            Target::Reject => f.write_str("-j REJECT"),
        }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TableName::Nat => "nat",
            TableName::Filter => "filter",
        })
    }
}

impl fmt::Display for BuiltIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BuiltIn::Prerouting => "PREROUTING",
            BuiltIn::Input => "INPUT",
            BuiltIn::Forward => "FORWARD",
            BuiltIn::Output => "OUTPUT",
            BuiltIn::Postrouting => "POSTROUTING",
        })
    }
}

//! Parses a scenario file.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

use dataplane::{Packet, Verdict};

use super::Setting;
use super::packet_line::parse_packet_line;

/// A parsed scenario.
#[derive(Debug, Clone)]
pub struct Script {
    /// The steps in order.
    pub steps: Vec<Step>,
    /// The sections below `-- NAME --` lines, by name.
    pub sections: BTreeMap<String, Section>,
}

/// One step of the scenario.
#[derive(Debug, Clone)]
pub struct Step {
    /// Its line number, from 1.
    pub line: usize,
    /// Its text with single spaces.
    pub text: String,
    /// The action to perform.
    pub action: Action,
}

/// The action of a step.
#[derive(Debug, Clone)]
pub enum Action {
    /// Create or replace the objects of these sections.
    Apply(Vec<String>),
    /// Delete the objects of these sections.
    Delete(Vec<String>),
    /// Use the default configuration with these changes.
    Configure(Vec<Setting>),
    /// Restart with no state but the objects.
    Restart,
    /// Compare a result.
    Expect(Expectation),
    /// Check where a packet goes.
    Packet {
        /// The packet.
        packet: Packet,
        /// Its expected verdict.
        expected: Verdict,
    },
    /// Check the session affinity of a client.
    Keeps {
        /// The packet that every connection begins with.
        packet: Packet,
        /// The possible endpoints of its client.
        expected: Verdict,
    },
}

/// The result that an `expect` step compares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expectation {
    /// The last programming step wrote nothing.
    NoChange,
    /// The programmed state matches a section.
    Prints {
        /// The form of the state.
        dump: Dump,
        /// The section.
        section: String,
    },
}

/// A printable form of the programmed state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dump {
    /// The [`dataplane::Dataplane`].
    Dataplane,
    /// The elements of the nftables sets, both families.
    Nftables,
    /// The rules of iptables that the story changes, both families.
    Iptables,
    /// The sets and virtual servers of the IPVS backend.
    Ipvs,
    /// The unsupported or rejected settings, with the messages for their author.
    Rejections,
}

/// The text below a `-- NAME --` line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// The text, whole lines.
    pub text: String,
    /// The line numbers of the text in the file, from 1.
    pub lines: RangeInclusive<usize>,
}

/// An error in a scenario with its line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ParseError {
    /// The line, from 1.
    pub line: usize,
    /// The error message.
    pub message: String,
}

// === impl Script ===

impl Script {
    /// Parses the text of a scenario. Verifies that every section used by a step exists.
    pub fn parse(text: &str) -> Result<Script, ParseError> {
        let mut script = Script {
            steps: Vec::new(),
            sections: BTreeMap::new(),
        };
        let mut open: Option<String> = None;
        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            let at = |message| ParseError {
                line: number,
                message,
            };
            if let Some(name) = parse_section_line(line) {
                let section = Section {
                    text: String::new(),
                    lines: number + 1..=number,
                };
                if script.sections.insert(name.to_owned(), section).is_some() {
                    return Err(at(format!("there are two sections called {name:?}")));
                }
                open = Some(name.to_owned());
            } else if let Some(section) = open.as_ref().and_then(|n| script.sections.get_mut(n)) {
                section.text.push_str(line);
                section.text.push('\n');
                section.lines = *section.lines.start()..=number;
            } else if let Some(step) = parse_step(line, number).map_err(at)? {
                script.steps.push(step);
            }
        }
        script.check_sections()?;
        Ok(script)
    }

    fn check_sections(&self) -> Result<(), ParseError> {
        for step in &self.steps {
            let (Action::Apply(names) | Action::Delete(names)) = &step.action else {
                continue;
            };
            if let Some(name) = names.iter().find(|name| !self.sections.contains_key(*name)) {
                let message = format!("there is no section called {name:?}");
                let line = step.line;
                return Err(ParseError { line, message });
            }
        }
        Ok(())
    }
}

fn parse_section_line(line: &str) -> Option<&str> {
    let name = line.strip_prefix("-- ")?.strip_suffix(" --")?.trim();
    (!name.is_empty()).then_some(name)
}

fn parse_step(line: &str, number: usize) -> Result<Option<Step>, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let Some((verb, rest)) = words.split_first() else {
        return Ok(None);
    };
    if verb.starts_with('#') {
        return Ok(None);
    }
    let action = match *verb {
        "apply" => Action::Apply(parse_section_names(rest)?),
        "delete" => Action::Delete(parse_section_names(rest)?),
        "configure" => {
            let settings = rest.iter().map(|word| word.parse());
            Action::Configure(settings.collect::<Result<_, _>>()?)
        }
        "restart" if rest.is_empty() => Action::Restart,
        "restart" => return Err("restart takes nothing".to_owned()),
        "expect" => Action::Expect(parse_expectation(rest)?),
        "packet" => {
            let (packet, expected) = parse_packet_line(rest)?;
            Action::Packet { packet, expected }
        }
        "keeps" => {
            let (packet, expected) = parse_packet_line(rest)?;
            if !matches!(expected, Verdict::Deliver(_)) {
                return Err("only an endpoint can be kept".to_owned());
            }
            Action::Keeps { packet, expected }
        }
        other => {
            return Err(format!(
                "{other:?} is not a step: apply, delete, configure, restart, packet, keeps or expect"
            ));
        }
    };
    Ok(Some(Step {
        line: number,
        text: words.join(" "),
        action,
    }))
}

fn parse_section_names(words: &[&str]) -> Result<Vec<String>, String> {
    if words.is_empty() {
        return Err("which sections?".to_owned());
    }
    Ok(words.iter().map(|word| (*word).to_owned()).collect())
}

fn parse_expectation(words: &[&str]) -> Result<Expectation, String> {
    let dump = match words.first() {
        Some(&"no") if words == ["no", "change"] => return Ok(Expectation::NoChange),
        first => {
            let dumps = Dump::ALL.into_iter();
            let dump = dumps.map(|dump| (dump, dump.to_string()));
            let mut dump = dump.filter(|(_, word)| first.is_some_and(|first| first == word));
            let known = "expect takes `no change`, `dataplane`, `nftables`, `iptables`, `ipvs` or `rejections`";
            dump.next().ok_or(known)?.0
        }
    };
    if words.len() > 2 {
        return Err("a dump takes at most one label".to_owned());
    }
    let section = words.join(" ");
    Ok(Expectation::Prints { dump, section })
}

// === impl Dump ===

impl Dump {
    const ALL: [Dump; 5] = [
        Dump::Dataplane,
        Dump::Nftables,
        Dump::Iptables,
        Dump::Ipvs,
        Dump::Rejections,
    ];
}

impl fmt::Display for Dump {
    /// Prints the keyword in scenarios.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dump::Dataplane => "dataplane",
            Dump::Nftables => "nftables",
            Dump::Iptables => "iptables",
            Dump::Ipvs => "ipvs",
            Dump::Rejections => "rejections",
        })
    }
}

#[cfg(test)]
mod tests;

//! Converts a KubeProxyConfiguration v1alpha1 to a ProxyProfile. Pure.
//!
//! The profile reproduces kube-proxy's configuration except for values that are the default of
//! both: only explicit choices remain. A value that the profile does not accept is left out and
//! noted, so that the profile is always valid.

mod addresses;
mod fields;
mod go_duration;

use std::fmt;

use crds::unsupported::{unsupported_fields, written_fields};
use crds::{EffectiveConfig, ProxyProfile, Span};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::source::{Source, is_set};
use crate::advice::{Problem, problem};
use fields::{FIELDS, Form, NO_PLACE, SECTIONS};

/// A profile and the notes about it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Imported {
    /// The object, with the explicitly chosen fields.
    pub(crate) profile: Value,
    pub(crate) notes: Vec<Note>,
}

/// A setting that the profile does not reproduce.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Note {
    /// The field of KubeProxyConfiguration, or the field below `spec` of the profile.
    pub(crate) field: String,
    pub(crate) message: String,
    #[serde(skip)]
    pub(crate) loss: Loss,
}

/// Whether a user has to act on a note.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// kube-proxy does not use the setting either, or Signpost needs none.
    Harmless,
    /// The profile lacks a value, and does something else instead.
    LeftOut,
}

/// The state of a conversion.
struct Import {
    source: Source,
    spec: Value,
    notes: Vec<Note>,
}

/// The modes of kube-proxy on Linux.
const MODES: [&str; 3] = ["iptables", "ipvs", "nftables"];

/// Creates the profile `name` from `source`.
pub(crate) fn import(name: &str, source: Source) -> Result<Imported, Problem> {
    let mut import = Import {
        source,
        spec: json!({}),
        notes: Vec::new(),
    };
    let mode = import.mode();
    import.sections(&mode);
    import.fields(&mode);
    import.node_ports();
    import.detect_local();
    import.feature_gates();
    import.without_place();
    import.finish(name)
}

// === impl Import ===

impl Import {
    fn note(&mut self, field: &str, message: impl Into<String>) {
        self.notes.push(Note {
            field: field.to_owned(),
            message: message.into(),
            loss: Loss::Harmless,
        });
    }

    /// Notes that the value of a field is not in the profile.
    fn leave_out(&mut self, field: &str, why: impl Into<String>) {
        self.notes.push(Note {
            field: field.to_owned(),
            message: why.into(),
            loss: Loss::LeftOut,
        });
    }

    /// Sets the field at `path` below `spec`.
    fn set(&mut self, path: &str, value: Value) {
        let mut at = &mut self.spec;
        for name in path.split('.') {
            at = &mut at[name];
        }
        *at = value;
    }

    fn mode(&mut self) -> String {
        let mode = match self.source.take_text("mode") {
            Some(mode) if MODES.contains(&mode.as_str()) => mode,
            Some(other) => {
                self.leave_out("mode", format!("Signpost has no mode {other}: iptables is used, kube-proxy's default on Linux"));
                "iptables".to_owned()
            }
            None => {
                self.note("mode", "is not set, which is iptables on Linux; nftables is Signpost's default, and faster");
                "iptables".to_owned()
            }
        };
        self.set("mode", json!(mode));
        mode
    }

    /// Converts the settings that kube-proxy has in one section per mode. kube-proxy reads only the
    /// section of its mode.
    fn sections(&mut self, mode: &str) {
        let bits = if mode == "nftables" {
            "nftables"
        } else {
            "iptables"
        };
        // kube-proxy's default of minSyncPeriod is 1s, and 0s in mode ipvs. Both are left out:
        // Signpost writes in less time than it would wait.
        for (name, form) in [
            ("syncPeriod", Form::Duration(&[0, 30_000])),
            ("minSyncPeriod", Form::Duration(&[0, 1_000])),
        ] {
            let from = format!("{mode}.{name}");
            if let Some(value) = self.source.take(&from) {
                self.put(&from, name, form, value);
            }
        }
        for (name, to, defaults) in [
            ("masqueradeBit", "masquerade.markBit", "14"),
            ("masqueradeAll", "masquerade.all", "false"),
        ] {
            let from = format!("{bits}.{name}");
            if let Some(value) = self.source.take(&from) {
                self.put(&from, to, Form::Plain(defaults), value);
            }
        }
        if let Some(scheduler) = self.source.take_text("ipvs.scheduler") {
            match mode {
                "ipvs" => self.set("loadBalancer.scheduler", json!(scheduler)),
                _ => self.note("ipvs.scheduler", format!("kube-proxy does not read it in mode {mode}; to use it in any mode of Signpost, set spec.loadBalancer.scheduler")),
            }
        }
        for other in MODES {
            for name in [
                "syncPeriod",
                "minSyncPeriod",
                "masqueradeBit",
                "masqueradeAll",
            ] {
                let path = format!("{other}.{name}");
                let defaults = [json!("30s"), json!("1s"), json!(14)];
                let value = self.source.take(&path);
                if value.is_some_and(|value| is_set(&value) && !defaults.contains(&value)) {
                    self.note(&path, format!("kube-proxy does not read it in mode {mode}"));
                }
            }
        }
    }

    /// Converts the fields with one counterpart each.
    fn fields(&mut self, mode: &str) {
        for field in FIELDS {
            let Some(value) = self.source.take(field.from) else {
                continue;
            };
            let kept = self.spec.clone();
            self.put(field.from, field.to, field.form, value);
            let section = field.from.split_once('.').map(|(section, _)| section);
            let of_another_mode = section.filter(|of| MODES.contains(of) && *of != mode);
            if let Some(other) = of_another_mode.filter(|_| self.spec != kept) {
                self.note(field.from, format!("kube-proxy does not read it in mode {mode}; the profile has it for mode {other}"));
            }
        }
    }

    fn put(&mut self, from: &str, to: &str, form: Form, value: Value) {
        match form {
            Form::Plain(default) => {
                let is_default =
                    serde_json::from_str::<Value>(default).is_ok_and(|default| default == value);
                if !is_default {
                    self.set(to, value);
                }
            }
            Form::Text(default) => match value.as_str().map(str::trim) {
                Some(text) if text.is_empty() || text == default => {}
                Some(text) => self.set(to, json!(text)),
                None => self.leave_out(from, format!("{value} is not text; it is left out")),
            },
            Form::Address(default, port) => match value.as_str().map(str::trim) {
                Some(text) if text.is_empty() || text == default => {}
                Some(text) => {
                    let bare = text.parse::<std::net::IpAddr>().ok();
                    let whole = bare.map(|ip| std::net::SocketAddr::new(ip, port).to_string());
                    self.set(to, json!(whole.unwrap_or_else(|| text.to_owned())));
                }
                None => self.leave_out(from, format!("{value} is not text; it is left out")),
            },
            Form::Rate(default) => match value.as_f64() {
                Some(rate) if rate == 0.0 || rate == default => {}
                Some(rate) => {
                    let whole = rate.ceil();
                    if whole != rate {
                        self.note(from, format!("{rate} is rounded to {whole}"));
                    }
                    // A value out of range is rejected below.
                    self.set(to, json!(format!("{whole:.0}").parse().unwrap_or(i64::MAX)));
                }
                None => self.leave_out(from, format!("{value} is not a number; it is left out")),
            },
            Form::Duration(defaults) => match go_duration::milliseconds(&value) {
                Some(milliseconds) if defaults.contains(&milliseconds) => {}
                Some(milliseconds) => self.set(to, json!(Span::milliseconds(milliseconds))),
                None => self.leave_out(
                    from,
                    format!("{value} is not a duration that a profile accepts; it is left out"),
                ),
            },
        }
    }

    fn feature_gates(&mut self) {
        let mut gates = match self.source.take("featureGates") {
            None => return,
            Some(Value::Object(gates)) => gates,
            Some(other) => {
                return self.leave_out(
                    "featureGates",
                    format!("{other} is not a map; it is left out"),
                );
            }
        };
        if gates.remove("AllowServiceExternalIPs") == Some(json!(false)) {
            self.set("allowServiceExternalIPs", json!(false));
        }
        for gate in gates.keys() {
            self.note(
                &format!("featureGates.{gate}"),
                "Signpost has none of kube-proxy's feature gates",
            );
        }
    }

    /// Notes the fields that have no counterpart in a profile, each with the reason.
    fn without_place(&mut self) {
        for (path, why) in NO_PLACE {
            if self.source.take(path).is_some_and(|value| is_set(&value)) {
                self.note(path, *why);
            }
        }
        for path in self.source.rest() {
            if SECTIONS.contains(&path.as_str()) {
                self.leave_out(&path, "is a section of fields; another value is left out");
            } else {
                self.note(
                    &path,
                    "KubeProxyConfiguration of Kubernetes 1.36 has no such field",
                );
            }
        }
    }

    /// Removes the values that a profile does not accept, and notes what has no effect.
    fn finish(mut self, name: &str) -> Result<Imported, Problem> {
        let detected = self.spec["detectLocal"]["mode"].clone();
        let profile = loop {
            let object = json!({
                "apiVersion": "signpost.dev/v1alpha1",
                "kind": "ProxyProfile",
                "metadata": {"name": name},
                "spec": self.spec,
            });
            let errors = match crds::parse_profile(&object) {
                Ok(profile) => break (object, profile),
                Err(errors) => errors,
            };
            // One error at a time: removing one field may also resolve other errors of its section.
            let Some(error) = errors.into_iter().next() else {
                continue;
            };
            let path = error.field.strip_prefix("spec.").unwrap_or_default();
            // Every iteration removes fields, so the loop ends.
            let Some(path) = remove(&mut self.spec, path) else {
                let what = format!("no valid profile can be made: {error}");
                return Err(problem(
                    what,
                    "give another name of the profile with --name",
                ));
            };
            self.leave_out(
                &format!("spec.{path}"),
                format!(
                    "a profile does not accept it ({}); it is left out",
                    error.message
                ),
            );
        };
        let (object, profile) = profile;
        if object["spec"]["detectLocal"]["mode"] != detected {
            self.leave_out(
                "spec.detectLocal",
                "the profile detects traffic of local Pods by each Node's spec.podCIDRs (NodeCIDR) \
                 instead: set it before you apply the profile",
            );
        }
        if !profile.spec.logging.complete().vmodule.is_empty() {
            self.note(
                "logging.vmodule",
                "kube-proxy's patterns name files of its source, which the agent does not have; set the names of modules that \
                 its log lines begin with",
            );
        }
        self.notes.extend(without_effect(&profile));
        Ok(Imported {
            profile: object,
            notes: self.notes,
        })
    }
}

fn without_effect(profile: &ProxyProfile) -> Vec<Note> {
    let config = EffectiveConfig::of(&profile.spec);
    let fields = unsupported_fields(&config, &written_fields(&profile.spec));
    let note = |field: crds::unsupported::UnsupportedField| Note {
        field: format!("spec.{}", field.field),
        message: field.message,
        loss: Loss::Harmless,
    };
    fields.into_iter().map(note).collect()
}

/// Removes the field at `path`, or the innermost enclosing section that exists; returns the removed
/// path.
fn remove(spec: &mut Value, path: &str) -> Option<String> {
    let path = path.split('[').next().unwrap_or_default();
    let mut names: Vec<&str> = path.split('.').collect();
    while let Some(name) = names.pop() {
        let mut section = Some(&mut *spec);
        for outer in &names {
            section = section.and_then(|section| section.get_mut(*outer));
        }
        let fields: Option<&mut Map<String, Value>> = section.and_then(Value::as_object_mut);
        if fields.and_then(|fields| fields.remove(name)).is_some() {
            names.push(name);
            return Some(names.join("."));
        }
    }
    None
}

// === impl Note ===

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

#[cfg(test)]
mod tests;

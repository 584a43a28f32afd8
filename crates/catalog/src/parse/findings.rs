//! Collects the rejections of one object while it is parsed.

use std::fmt;
use std::net::IpAddr;

use dataplane::{ObjectKind, Port, Protocol, Rejection};

use super::{Parsed, address, protocol_called};
use crate::ObjectKey;
use crate::object::name::{LABEL, is_label};
use crate::object::{Field, Scalar, field::quoted};

/// The maximum number of rejections that are kept for one object: a status shows 20 in total, and
/// an object can contain as many errors as it has list entries.
const MOST_REJECTIONS: usize = 100;

/// The rejections of one object.
#[derive(Debug)]
pub(crate) struct Findings<'a> {
    kind: ObjectKind,
    key: &'a ObjectKey,
    rejections: Vec<Rejection>,
    /// The number of further rejections that are not kept.
    unnamed: usize,
}

/// A rejection of a field, already recorded. The caller decides how much is rejected with the
/// field: nothing, the entry that contains it, or the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rejected;

// === impl Findings ===

impl<'a> Findings<'a> {
    pub(crate) fn new(kind: ObjectKind, key: &'a ObjectKey) -> Findings<'a> {
        Findings {
            kind,
            key,
            rejections: Vec::new(),
            unnamed: 0,
        }
    }

    pub(crate) fn into_parsed<T>(mut self, value: Option<T>) -> Parsed<T> {
        if let (Some(last), 1..) = (self.rejections.last_mut(), self.unnamed) {
            let unnamed = self.unnamed;
            last.message += &format!("; {unnamed} more fields of this object are not honoured");
        }
        Parsed {
            value,
            rejections: self.rejections,
        }
    }

    /// Records that the field at `path` is not honoured.
    pub(crate) fn reject(&mut self, path: fmt::Arguments<'_>, message: String) -> Rejected {
        if self.rejections.len() < MOST_REJECTIONS {
            self.rejections.push(Rejection {
                object: self.key.of_kind(self.kind),
                field: path.to_string(),
                message,
            });
        } else {
            self.unnamed += 1;
        }
        Rejected
    }

    /// Returns the part of `list` that is read: its first `most` entries. `instead` ends the
    /// message and says what happens to the rest.
    pub(crate) fn bounded<'f, T>(
        &mut self,
        path: &str,
        list: &'f [T],
        most: usize,
        instead: &str,
    ) -> &'f [T] {
        let Some((first, rest)) = list
            .split_at_checked(most)
            .filter(|(_, rest)| !rest.is_empty())
        else {
            return list;
        };
        let message = format!(
            "only the first {most} are read; {} more {instead}",
            rest.len()
        );
        self.reject(format_args!("{path}[{most}]"), message);
        first
    }

    /// Returns the value of a field. `instead` ends the message and says what happens without it.
    pub(crate) fn value<'f, T: Scalar>(
        &mut self,
        path: fmt::Arguments<'_>,
        field: &'f Field<T>,
        instead: &str,
    ) -> Result<Option<&'f T>, Rejected> {
        match field {
            Field::Absent => Ok(None),
            Field::Given(value) => Ok(Some(value)),
            Field::Odd(shown) => {
                Err(self.reject(path, format!("{shown} is not {}; {instead}", T::WORDS)))
            }
        }
    }

    /// Returns the text of a field; empty if absent, as the API writes an unset text.
    pub(crate) fn text<'f>(
        &mut self,
        path: fmt::Arguments<'_>,
        field: &'f Field<String>,
        instead: &str,
    ) -> Result<&'f str, Rejected> {
        Ok(self.value(path, field, instead)?.map_or("", String::as_str))
    }

    /// Returns the name of a port; empty if absent.
    pub(crate) fn port_name<'f>(
        &mut self,
        path: fmt::Arguments<'_>,
        field: &'f Field<String>,
        instead: &str,
    ) -> Result<&'f str, Rejected> {
        match self.text(path, field, instead)? {
            name if name.is_empty() || is_label(name) => Ok(name),
            name => Err(self.reject(path, format!("{} is not {LABEL}; {instead}", quoted(name)))),
        }
    }

    /// Parses a list entry as an address; records a rejection if it is not one.
    pub(crate) fn address(
        &mut self,
        path: fmt::Arguments<'_>,
        field: &Field<String>,
        instead: &str,
    ) -> Result<IpAddr, Rejected> {
        let text = self.text(path, field, instead)?;
        address::parse_ip(text).ok_or_else(|| {
            self.reject(
                path,
                format!("{} is not an IP address; {instead}", quoted(text)),
            )
        })
    }

    /// Returns a port; `None` if it is absent or 0, which is how the API writes an unset number.
    pub(crate) fn port(
        &mut self,
        path: fmt::Arguments<'_>,
        field: &Field<i64>,
        instead: &str,
    ) -> Result<Option<Port>, Rejected> {
        let number = match self.value(path, field, instead)? {
            None | Some(0) => return Ok(None),
            Some(number) => *number,
        };
        match u16::try_from(number).ok().and_then(Port::new) {
            Some(port) => Ok(Some(port)),
            None => Err(self.reject(
                path,
                format!("{number} is not a port (1 to 65535); {instead}"),
            )),
        }
    }

    /// Returns a protocol; TCP if absent.
    pub(crate) fn protocol(
        &mut self,
        path: fmt::Arguments<'_>,
        field: &Field<String>,
        instead: &str,
    ) -> Result<Protocol, Rejected> {
        let text = self.text(path, field, instead)?;
        protocol_called(text).ok_or_else(|| {
            self.reject(
                path,
                format!("{} is not TCP, UDP or SCTP; {instead}", quoted(text)),
            )
        })
    }
}

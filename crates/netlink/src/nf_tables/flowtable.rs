//! Flowtables: packets of the connections in one, if they arrive on its devices, are forwarded
//! without traversing any chain of a later hook.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Named;
use super::decode::{missing, unknown};
use crate::wire::{Attributes, Message, Writer};

/// `NF_NETDEV_INGRESS`: the only hook at which a flowtable can be.
const INGRESS: u32 = 0;

/// A flowtable without its devices and connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flowtable {
    /// Its name, unique in its table.
    pub name: Arc<str>,
    /// Its order among the chains at hook ingress of the same device; lower comes first.
    pub priority: i32,
}

/// A flowtable as the kernel lists it, with the names of its devices.
pub type ListedFlowtable = (Flowtable, BTreeSet<Arc<str>>);

/// `NFTA_FLOWTABLE_NAME`.
const NAME: u16 = 2;
/// `NFTA_FLOWTABLE_HOOK`.
const HOOK: u16 = 3;
/// `NFTA_FLOWTABLE_FLAGS`.
const FLAGS: u16 = 7;

/// `enum nft_flowtable_hook_attributes`.
mod hook {
    pub(super) const NUMBER: u16 = 1;
    pub(super) const PRIORITY: u16 = 2;
    pub(super) const DEVICES: u16 = 3;
}

/// `NFTA_DEVICE_NAME`.
const DEVICE: u16 = 1;

/// Encodes a flowtable, with a device to add to it or to remove from it. Linux 5.10 requires hook and
/// priority also for that, and later ones compare them.
pub(super) fn encode(writer: &mut Writer, flowtable: &Flowtable, device: Option<&str>) {
    writer.string(NAME, &flowtable.name);
    let open = writer.nest(HOOK);
    writer.u32(hook::NUMBER, INGRESS);
    writer.bytes(hook::PRIORITY, &flowtable.priority.to_be_bytes());
    if let Some(device) = device {
        let list = writer.nest(hook::DEVICES);
        writer.string(DEVICE, device);
        writer.close(list);
    }
    writer.close(open);
}

/// Encodes the name of a flowtable to remove.
pub(super) fn encode_name(writer: &mut Writer, name: &str) {
    writer.string(NAME, name);
}

/// Decodes a flowtable with the names of its devices. Returns its name even if Signpost did not write
/// it.
pub(crate) fn flowtable(
    message: &Message<'_>,
) -> Result<Named<ListedFlowtable>, super::DecodeError> {
    let attributes = message.attributes();
    let name = attributes
        .string(NAME)
        .ok_or(missing("flowtable", "name"))?;
    let name: Arc<str> = name.into();
    let content = content(&attributes, &name);
    Ok((name, content))
}

fn content(
    attributes: &Attributes<'_>,
    name: &Arc<str>,
) -> Result<ListedFlowtable, super::DecodeError> {
    let hook = attributes
        .nested(HOOK)
        .ok_or(missing("flowtable", "hook"))?;
    if hook.u32(hook::NUMBER) != Some(INGRESS) {
        return Err(unknown("flowtable", "hook"));
    }
    if attributes.u32(FLAGS).unwrap_or(0) != 0 {
        return Err(unknown("flowtable", "flags"));
    }
    let priority = hook.u32(hook::PRIORITY);
    let priority = priority.ok_or(missing("flowtable", "priority"))?;
    let devices = hook.nested(hook::DEVICES).into_iter().flatten();
    let devices = devices.map(|(kind, name)| match kind {
        DEVICE => text(name).ok_or(unknown("flowtable", "device")),
        _ => Err(unknown("flowtable", "device")),
    });
    let flowtable = Flowtable {
        name: Arc::clone(name),
        priority: priority.cast_signed(),
    };
    Ok((flowtable, devices.collect::<Result<_, _>>()?))
}

/// A string with its terminating zero.
fn text(bytes: &[u8]) -> Option<Arc<str>> {
    let name = bytes.strip_suffix(&[0])?;
    Some(std::str::from_utf8(name).ok()?.into())
}

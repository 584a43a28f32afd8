//! The packet marks by which a mode may forward packets.

/// Marks with the same bits under a mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForwardingMarks {
    /// The bits that all of the marks have.
    pub value: u32,
    /// The mask of these bits.
    pub mask: u32,
}

/// The marks of packets that a mode forwards although no DNAT has redirected them.
///
/// While one mode replaces another, the rules of both are in the kernel. Where a mode
/// refuses packets to a cluster IP because nothing has redirected them, it passes these.
pub const FORWARDING_MARKS: ForwardingMarks = ForwardingMarks {
    value: 0x5340_0000,
    mask: 0xfff0_0000,
};

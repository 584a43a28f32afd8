//! The framing that all netlink families share: writes and reads messages and attributes.

/// Length of `struct nlmsghdr` (include/uapi/linux/netlink.h).
pub(crate) const HEADER: usize = 16;

/// `NLM_F_REQUEST`.
pub(crate) const REQUEST: u16 = 0x1;
/// `NLM_F_ACK`.
pub(crate) const ACK: u16 = 0x4;
/// `NLM_F_DUMP`, `NLM_F_ROOT | NLM_F_MATCH`.
pub(crate) const DUMP: u16 = 0x300;
/// `NLM_F_DUMP_INTR`: the state changed while it was dumped.
pub(crate) const DUMP_INTERRUPTED: u16 = 0x10;
/// `NLM_F_REPLACE`.
pub(crate) const REPLACE: u16 = 0x100;
/// `NLM_F_EXCL`.
pub(crate) const EXCLUSIVE: u16 = 0x200;
/// `NLM_F_CREATE`.
pub(crate) const CREATE: u16 = 0x400;
/// `NLM_F_APPEND`.
pub(crate) const APPEND: u16 = 0x800;

/// `NLMSG_ERROR`; also an acknowledgement, with error 0.
pub(crate) const ERROR: u16 = 2;
/// `NLMSG_DONE`.
pub(crate) const DONE: u16 = 3;

/// `NLA_F_NESTED`.
const NESTED: u16 = 0x8000;
/// `NLA_TYPE_MASK`.
const TYPE_MASK: u16 = 0x3fff;

/// Writes messages, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

/// The position of a length to fill in.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub(crate) struct Open(usize);

/// One received message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    /// The port of the socket that requested it or caused the notification; 0 for none.
    pub(crate) port: u32,
    pub(crate) payload: &'a [u8],
}

/// The messages of one datagram.
#[derive(Debug)]
pub(crate) struct Messages<'a>(&'a [u8]);

/// The attributes of one message or of one nested attribute: type and value.
#[derive(Debug, Clone)]
pub(crate) struct Attributes<'a>(&'a [u8]);

// === impl Writer ===

impl Writer {
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Begins a message with a `struct nfgenmsg` after its header.
    pub(crate) fn begin(
        &mut self,
        kind: u16,
        flags: u16,
        sequence: u32,
        family: u8,
        resource: u16,
    ) -> Open {
        let [high, low] = resource.to_be_bytes();
        self.begin_with(kind, flags, sequence, [family, 0, high, low])
    }

    /// Begins a message with a `struct genlmsghdr` after its header.
    pub(crate) fn begin_generic(
        &mut self,
        kind: u16,
        flags: u16,
        sequence: u32,
        command: u8,
        version: u8,
    ) -> Open {
        self.begin_with(kind, flags, sequence, [command, version, 0, 0])
    }

    /// Begins a message of rtnetlink, such as one with a `struct rtmsg` after its header.
    pub(crate) fn begin_route<const N: usize>(
        &mut self,
        kind: u16,
        flags: u16,
        sequence: u32,
        second: [u8; N],
    ) -> Open {
        self.begin_with(kind, flags, sequence, second)
    }

    fn begin_with<const N: usize>(
        &mut self,
        kind: u16,
        flags: u16,
        sequence: u32,
        second: [u8; N],
    ) -> Open {
        let open = Open(self.bytes.len());
        self.bytes.extend_from_slice(&0u32.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&flags.to_ne_bytes());
        self.bytes.extend_from_slice(&sequence.to_ne_bytes());
        self.bytes.extend_from_slice(&0u32.to_ne_bytes());
        self.bytes.extend_from_slice(&second);
        open
    }

    pub(crate) fn end(&mut self, Open(start): Open) {
        let length = u32::try_from(self.bytes.len() - start).expect("a message is under 4 GiB");
        self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
    }

    /// Sets further flags of the message that begins at `open`.
    pub(crate) fn flag(&mut self, Open(start): Open, flags: u16) {
        let at = start + 6;
        let present = u16::from_ne_bytes([self.bytes[at], self.bytes[at + 1]]);
        self.bytes[at..at + 2].copy_from_slice(&(present | flags).to_ne_bytes());
    }

    pub(crate) fn nest(&mut self, kind: u16) -> Open {
        let open = Open(self.bytes.len());
        self.bytes.extend_from_slice(&0u16.to_ne_bytes());
        self.bytes.extend_from_slice(&(kind | NESTED).to_ne_bytes());
        open
    }

    pub(crate) fn close(&mut self, Open(start): Open) {
        let length = u16::try_from(self.bytes.len() - start)
            .expect("writers of lists keep attributes under 64 KiB");
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }

    pub(crate) fn bytes(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(4 + value.len()).expect("values are under 64 KiB");
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.pad();
    }

    /// Writes a string with its terminating zero.
    pub(crate) fn string(&mut self, kind: u16, value: &str) {
        let length = u16::try_from(5 + value.len()).expect("names are under 64 KiB");
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(0);
        self.pad();
    }

    /// Writes a big-endian number, as nfnetlink uses them.
    pub(crate) fn u32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// Writes a number in host byte order, as generic netlink uses them.
    pub(crate) fn native_u32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// Like [`Writer::native_u32`].
    pub(crate) fn native_u16(&mut self, kind: u16, value: u16) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    pub(crate) fn u8(&mut self, kind: u16, value: u8) {
        self.bytes(kind, &[value]);
    }

    fn pad(&mut self) {
        while !self.bytes.len().is_multiple_of(4) {
            self.bytes.push(0);
        }
    }
}

// === impl Messages ===

impl<'a> Messages<'a> {
    pub(crate) fn parse(datagram: &'a [u8]) -> Messages<'a> {
        Messages(datagram)
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let header = self.0.get(..HEADER)?;
        let length = usize::try_from(u32::from_ne_bytes(header[..4].try_into().ok()?)).ok()?;
        let payload = self.0.get(HEADER..length)?;
        let message = Message {
            kind: u16::from_ne_bytes([header[4], header[5]]),
            flags: u16::from_ne_bytes([header[6], header[7]]),
            sequence: u32::from_ne_bytes(header[8..12].try_into().ok()?),
            port: u32::from_ne_bytes(header[12..16].try_into().ok()?),
            payload,
        };
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some(message)
    }
}

// === impl Message ===

impl<'a> Message<'a> {
    /// The errno of a `NLMSG_ERROR`, as a positive number; 0 is an acknowledgement.
    pub(crate) fn errno(&self) -> i32 {
        self.payload
            .get(..4)
            .and_then(|bytes| bytes.try_into().ok())
            .map_or(0, |bytes| i32::from_ne_bytes(bytes).saturating_neg())
    }

    /// The family of the `struct nfgenmsg`.
    pub(crate) fn family(&self) -> Option<u8> {
        self.payload.first().copied()
    }

    /// The command of the `struct genlmsghdr`.
    pub(crate) fn command(&self) -> Option<u8> {
        self.payload.first().copied()
    }

    /// The attributes behind the `struct nfgenmsg` or `struct genlmsghdr`, which have the same
    /// length.
    pub(crate) fn attributes(&self) -> Attributes<'a> {
        self.attributes_behind(4)
    }

    /// The attributes behind a header of this length, which is a multiple of four.
    pub(crate) fn attributes_behind(&self, header: usize) -> Attributes<'a> {
        Attributes(self.payload.get(header..).unwrap_or(&[]))
    }
}

// === impl Attributes ===

impl<'a> Attributes<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Attributes<'a> {
        Attributes(bytes)
    }

    /// The value of the first attribute of this type.
    pub(crate) fn get(&self, kind: u16) -> Option<&'a [u8]> {
        self.clone()
            .find(|(other, _)| *other == kind)
            .map(|(_, value)| value)
    }

    pub(crate) fn nested(&self, kind: u16) -> Option<Attributes<'a>> {
        self.get(kind).map(Attributes)
    }

    pub(crate) fn u32(&self, kind: u16) -> Option<u32> {
        Some(u32::from_be_bytes(self.get(kind)?.try_into().ok()?))
    }

    pub(crate) fn native_u32(&self, kind: u16) -> Option<u32> {
        Some(u32::from_ne_bytes(self.get(kind)?.try_into().ok()?))
    }

    pub(crate) fn native_u16(&self, kind: u16) -> Option<u16> {
        Some(u16::from_ne_bytes(self.get(kind)?.try_into().ok()?))
    }

    pub(crate) fn u8(&self, kind: u16) -> Option<u8> {
        self.get(kind)?.first().copied()
    }

    pub(crate) fn string(&self, kind: u16) -> Option<&'a str> {
        let bytes = self.get(kind)?;
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        std::str::from_utf8(&bytes[..end]).ok()
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<(u16, &'a [u8])> {
        let header = self.0.get(..4)?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & TYPE_MASK;
        let value = self.0.get(4..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    }
}

//! The last state of a table, and whether another program has changed it since.

use super::kernel::Info;
use super::outline::Outline;

/// What a table was like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// It was not there.
    Absent,
    /// As the kernel describes it here, with these rules of Signpost.
    As(Info, Outline),
    /// It could not be read, or another program has changed it since.
    Unread,
}

/// What a table is like that is about to be changed, against what it was like when it was last seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finding {
    /// The same, or nothing was known of it.
    AsLeft,
    /// Another program has changed it, and as far as the [`Outline`] shows not Signpost's rules. Only
    /// reading the table shows the rest.
    Touched,
    /// A rule of Signpost is missing, or was added. A change made now would hide that: the table would
    /// count as unchanged.
    Damaged,
}

// === impl Finding ===

impl Finding {
    pub(super) fn of(seen: Option<Seen>, info: Info, outline: Outline) -> Finding {
        let (left_info, left) = match seen {
            None => return Finding::AsLeft,
            Some(Seen::Unread) => return Finding::Touched,
            Some(Seen::Absent) => (None, Outline::NOTHING),
            Some(Seen::As(info, outline)) => (Some(info), outline),
        };
        match left == outline {
            false => Finding::Damaged,
            true if left_info == Some(info) || outline == Outline::NOTHING => Finding::AsLeft,
            true => Finding::Touched,
        }
    }
}

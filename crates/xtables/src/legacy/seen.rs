//! The last observed state of a table, and whether another program has changed it since.

use super::kernel::Info;
use super::table_summary::TableSummary;

/// The last observed state of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// The table did not exist.
    Absent,
    /// The table had this description and these rules of Signpost.
    As(Info, TableSummary),
    /// The table could not be read, or another program has changed it since.
    Unread,
}

/// How the state of a table that is about to be changed compares with the last observed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finding {
    /// It is the same, or there was no observed state.
    AsLeft,
    /// Another program has changed the table but, as far as the [`TableSummary`] shows, not Signpost's
    /// rules. Only reading the table shows the rest.
    Touched,
    /// A rule of Signpost is missing or was added. Changing the table now would hide that, because
    /// the table would then count as unchanged.
    Damaged,
}

// === impl Finding ===

impl Finding {
    pub(super) fn of(seen: Option<Seen>, info: Info, table_summary: TableSummary) -> Finding {
        let (left_info, left) = match seen {
            None => return Finding::AsLeft,
            Some(Seen::Unread) => return Finding::Touched,
            Some(Seen::Absent) => (None, TableSummary::NOTHING),
            Some(Seen::As(info, table_summary)) => (Some(info), table_summary),
        };
        match left == table_summary {
            false => Finding::Damaged,
            true if left_info == Some(info) || table_summary == TableSummary::NOTHING => {
                Finding::AsLeft
            }
            true => Finding::Touched,
        }
    }
}

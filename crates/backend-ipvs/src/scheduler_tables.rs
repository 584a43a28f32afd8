//! The kernel memory that a scheduler takes for each virtual server.

use backend::UnsupportedField;
use dataplane::{FrontendKey, PersistentMap, Scheduler, ServiceKey};
use netlink::ipvs::SchedulerName;

use crate::plan::scheduler_name;

/// How many Services without room for their tables are named in each family. There may be thousands,
/// every sync asks, and other rejections are to be read, too.
const NAMED: usize = 8;

/// Kernel memory, in pages of 4 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Pages(pub(crate) usize);

/// The tables of all virtual servers of a family that serve: 640 MiB. That is room for the `mh` of 20,480, and so for
/// 10,000 Service ports of policy Cluster in one namespace, which may have half.
pub(crate) const MOST: Pages = Pages(163_840);

/// The table of one virtual server with this scheduler, of the size that kernels are built with by
/// default: `sh` and `dh` have 256 entries, `lblc` and `lblcr` 1,024 lists, `mh` 4,093 entries, of 8
/// bytes each with a header, and the allocator rounds up to a power of two. Not the entries of these
/// lists, one for each address of the Service that has connections.
pub(crate) fn table_of(scheduler: &SchedulerName) -> Pages {
    Pages(match scheduler.as_str() {
        "sh" | "dh" => 1,
        "lblc" | "lblcr" => 4,
        "mh" => 8,
        _ => 0,
    })
}

/// What takes the place of a scheduler for whose table there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Replacement {
    pub(crate) asked: Scheduler,
    pub(crate) used: Scheduler,
    /// The room that it waits for: of `asked`, or of one that is nearer to it than `used`.
    pub(crate) growth: Pages,
}

/// A Service with virtual servers of which that is so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WithoutTable {
    /// The first frontend that leads to one.
    pub(crate) frontend: FrontendKey,
    /// The one that waits for least.
    pub(crate) replacement: Replacement,
}

/// Some of these Services, as many as can be read, and how many others there are.
pub(crate) fn without_table(
    services: &PersistentMap<ServiceKey, WithoutTable>,
) -> Vec<UnsupportedField> {
    let others = match services.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(", as on ports of {more} Services that are not named"),
    };
    let unsupported_field = |(service, held): (&ServiceKey, &WithoutTable)| {
        let WithoutTable {
            frontend,
            replacement: Replacement { asked, used, .. },
        } = held;
        let (asked, used) = (scheduler_name(*asked), scheduler_name(*used));
        let message = format!(
            "{used} in the place of scheduler {asked} on this port, and perhaps on others of the \
             Service{others}: the tables of schedulers take at most 640 MiB of the kernel's memory \
             in each family, those of one namespace no more than they leave for others, and there \
             is no room for another one; {asked} is used when others have left enough"
        );
        UnsupportedField {
            service: service.clone(),
            frontend: *frontend,
            field: "spec.ports",
            message: message.into(),
        }
    };
    let mut named: Vec<_> = services.iter().take(NAMED).map(unsupported_field).collect();
    named.sort();
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t370_the_tables_of_ten_thousand_ports_fit_into_one_namespace() {
        let name = SchedulerName::new("mh").expect("a name");
        let Pages(each) = table_of(&name);
        assert!(2 * 10_000 * each <= MOST.0);
        assert_eq!(MOST.0 * 4 / 1024, 640, "as documented");
    }
}

//! Settings of the network namespace that the mode needs. They apply to IPVS as a whole, also to
//! virtual servers of other programs, and stay when the mode is left.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use netlink::ipvs::ForeignVirtualServer;
use thiserror::Error;

use crate::rules::print_foreign;

/// One file below `net/ipv4/vs`, which exists once IPVS is loaded.
#[derive(Debug)]
struct Setting {
    name: &'static str,
    /// The value it must have.
    value: &'static str,
    need: Need,
    /// The consequence if it is not set.
    otherwise: &'static str,
    /// The consequence for virtual servers of other programs if it is set.
    for_others: &'static str,
}

/// Whether the mode works without a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// No: connections fail.
    Essential,
    /// Yes, with a disadvantage.
    Advisable,
}

static SETTINGS: [Setting; 3] = [
    Setting {
        name: "conntrack",
        value: "1",
        need: Need::Essential,
        otherwise: "connections that need masquerading get no replies",
        for_others: "conntrack keeps their connections",
    },
    Setting {
        name: "expire_nodest_conn",
        value: "1",
        need: Need::Advisable,
        otherwise: "connections to an endpoint that is gone hang until they time out",
        for_others: "connections to an endpoint that is removed from them end at its next packet",
    },
    // Added in Linux 5.17.
    Setting {
        name: "run_estimation",
        value: "0",
        need: Need::Advisable,
        otherwise: "the kernel spends time on the rates of every endpoint",
        for_others: "the kernel counts nothing for them, so that ipvsadm --stats and --rate print 0",
    },
];

/// The settings below one directory.
#[derive(Debug)]
pub(super) struct Settings {
    /// `/proc/sys`, or where it is mounted writable.
    root: PathBuf,
    /// Where settings can be read in any case.
    readable: PathBuf,
    /// The settings that could not be set, each with the consequence.
    missing: Vec<String>,
    /// The settings that have the value since the last commit.
    set: Vec<&'static Setting>,
}

/// The error for an essential setting that could not be set.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("{0}; set it on the node, or mount the node's /proc/sys/net/ipv4/vs writable")]
pub(super) struct Unset(String);

// === impl Settings ===

impl Settings {
    pub(super) fn below(root: &Path) -> Settings {
        Settings {
            root: root.to_owned(),
            readable: "/proc/sys".into(),
            missing: Vec::new(),
            set: Vec::new(),
        }
    }

    /// Sets what differs. A setting that cannot be set does not prevent others: in a container
    /// `/proc/sys` may be read-only. Fails if an essential one could not be set. The settings are
    /// those of the calling thread's network namespace.
    pub(super) fn commit(&mut self) -> Result<(), Unset> {
        self.missing.clear();
        self.set.clear();
        let mut essential = None;
        for setting in &SETTINGS {
            let Err(error) = self.set(setting) else {
                self.set.push(setting);
                continue;
            };
            // Older kernels do not have all of them.
            if error.kind() == ErrorKind::NotFound && setting.need == Need::Advisable {
                continue;
            }
            let file = file(&self.root, setting);
            let Setting {
                value, otherwise, ..
            } = setting;
            let file = file.display();
            let text = format!("{file} could not be set to {value}: {error}: {otherwise}");
            if setting.need == Need::Essential {
                essential.get_or_insert_with(|| Unset(text.clone()));
            }
            self.missing.push(text);
        }
        essential.map_or(Ok(()), Err)
    }

    pub(super) fn missing(&self) -> &[String] {
        &self.missing
    }

    /// Says what the settings mean for virtual servers of other programs, if there are any.
    pub(super) fn affected(&self, foreign: &[ForeignVirtualServer]) -> Option<String> {
        let named = print_foreign(foreign).filter(|_| !self.set.is_empty())?;
        let set = self.set.iter().map(|setting| {
            let Setting {
                name,
                value,
                for_others,
                ..
            } = setting;
            format!("with {name}={value} {for_others}")
        });
        let set: Vec<String> = set.collect();
        Some(format!(
            "mode ipvs needs sysctls of net.ipv4.vs that hold for all virtual servers of the node: {}; those of \
             other programs are {named}",
            set.join(", ")
        ))
    }

    /// Succeeds if another program has set the value, even where this process cannot write.
    fn set(&self, setting: &Setting) -> io::Result<()> {
        let writable = file(&self.root, setting);
        let written = match is_set(&writable, setting) {
            Ok(true) => return Ok(()),
            Ok(false) => fs::write(&writable, setting.value),
            Err(error) => Err(error),
        };
        let Err(error) = written else {
            return Ok(());
        };
        match is_set(&file(&self.readable, setting), setting) {
            Ok(true) => Ok(()),
            Ok(false) if error.kind() == ErrorKind::NotFound => {
                Err(io::Error::other("it is not mounted there"))
            }
            Ok(false) | Err(_) => Err(error),
        }
    }
}

fn file(root: &Path, setting: &Setting) -> PathBuf {
    root.join("net/ipv4/vs").join(setting.name)
}

fn is_set(file: &Path, setting: &Setting) -> io::Result<bool> {
    let text = fs::read_to_string(file)?;
    Ok(text.trim() == setting.value)
}

#[cfg(test)]
mod tests {
    use netlink::ipvs::AddressedServer;

    use super::*;

    #[test]
    fn what_differs_is_set_and_what_cannot_be_is_named() {
        let root = std::env::temp_dir().join(format!("signpost-settings-{}", std::process::id()));
        let folder = root.join("net/ipv4/vs");
        fs::create_dir_all(&folder).expect("a folder");
        for name in ["conntrack", "expire_nodest_conn"] {
            fs::write(folder.join(name), "0\n").expect("a file");
        }
        let readable = root.join("readable");
        let mut settings = Settings {
            readable: readable.clone(),
            ..Settings::below(&root)
        };
        assert_eq!(settings.commit(), Ok(()));
        assert_eq!(settings.missing(), &[] as &[String]);
        let read = |name| fs::read_to_string(folder.join(name)).expect("a file");
        assert_eq!([read("conntrack"), read("expire_nodest_conn")], ["1", "1"]);

        fs::remove_file(folder.join("expire_nodest_conn")).expect("it was there");
        fs::create_dir(folder.join("expire_nodest_conn")).expect("a folder in the way");
        assert_eq!(settings.commit(), Ok(()), "the mode works without it");
        let [missing] = settings.missing() else {
            panic!("{:?}", settings.missing());
        };
        assert!(
            missing.contains("vs/expire_nodest_conn could not be set to 1"),
            "{missing}"
        );

        fs::remove_file(folder.join("conntrack")).expect("it was there");
        let unset = settings.commit().expect_err("the mode needs it");
        let unset = unset.to_string();
        assert!(
            unset.contains("vs/conntrack could not be set to 1"),
            "{unset}"
        );
        assert_eq!(settings.missing().len(), 2);

        let folder = readable.join("net/ipv4/vs");
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("conntrack"), "0\n").expect("a file");
        let unset = settings.commit().expect_err("the mode needs it");
        assert!(unset.to_string().contains("not mounted there"), "{unset}");
        fs::write(folder.join("conntrack"), "1\n").expect("a file");
        assert_eq!(settings.commit(), Ok(()), "another program has set it");
        fs::remove_dir_all(&root).expect("the folder goes");
    }

    /// Failure story T364.
    #[test]
    fn t364_what_the_sysctls_mean_for_virtual_servers_of_others_is_said_while_there_are_any() {
        let root = std::env::temp_dir().join(format!("signpost-affected-{}", std::process::id()));
        let folder = root.join("net/ipv4/vs");
        fs::create_dir_all(&folder).expect("a folder");
        let foreign = |count: u8| -> Vec<ForeignVirtualServer> {
            let server = |last| {
                ForeignVirtualServer::Addressed(AddressedServer {
                    protocol: 6,
                    address: ([192, 0, 2, last], 80).into(),
                })
            };
            (0..count).map(server).collect()
        };
        let mut settings = Settings {
            readable: root.join("readable"),
            ..Settings::below(&root)
        };
        assert_eq!(settings.affected(&foreign(1)), None, "nothing is set yet");
        for name in ["conntrack", "run_estimation"] {
            fs::write(folder.join(name), "1\n").expect("a file");
        }
        assert_eq!(settings.commit(), Ok(()));
        assert_eq!(settings.affected(&[]), None);
        let text = settings.affected(&foreign(11)).expect("they are affected");
        let expected = "with conntrack=1 conntrack keeps their connections, with run_estimation=0 the kernel counts \
                        nothing for them, so that ipvsadm --stats and --rate print 0; those of other programs are \
                        TCP 192.0.2.0:80, ";
        assert!(text.contains(expected), "{text}");
        assert!(text.ends_with(", TCP 192.0.2.7:80 and 3 more"), "{text}");
        fs::remove_dir_all(&root).expect("the folder goes");
    }
}

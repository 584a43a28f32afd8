//! Settings of the network namespace that the mode needs. They are those of IPVS as a whole, and stay when the mode
//! is left: for virtual servers of other programs they hold as well.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// One file below `net/ipv4/vs`, which exists once IPVS is loaded.
struct Setting {
    name: &'static str,
    /// What it has to say.
    value: &'static str,
    /// What happens without it.
    otherwise: &'static str,
}

const SETTINGS: [Setting; 3] = [
    Setting {
        name: "conntrack",
        value: "1",
        otherwise: "connections that need masquerading get no replies",
    },
    Setting {
        name: "expire_nodest_conn",
        value: "1",
        otherwise: "connections to an endpoint that is gone hang until they time out",
    },
    // Added in Linux 5.17.
    Setting {
        name: "run_estimation",
        value: "0",
        otherwise: "the kernel spends time on the rates of every endpoint",
    },
];

/// The settings below one directory.
#[derive(Debug)]
pub(super) struct Settings {
    /// `/proc/sys`, or where it is mounted writable.
    root: PathBuf,
    /// Those that could not be set, each with what follows from that.
    missing: Vec<String>,
}

// === impl Settings ===

impl Settings {
    pub(super) fn below(root: &Path) -> Settings {
        Settings {
            root: root.to_owned(),
            missing: Vec::new(),
        }
    }

    /// Sets what differs. What cannot be set keeps nothing else from being set: in a container `/proc/sys` may be
    /// read-only. Settings are those of the calling thread's network namespace.
    pub(super) fn commit(&mut self) {
        let missing = SETTINGS.iter().filter_map(|setting| {
            let file = self.root.join("net/ipv4/vs").join(setting.name);
            let error = match set(&file, setting.value) {
                Ok(()) => return None,
                // Older kernels do not have all of them.
                Err(error)
                    if error.kind() == ErrorKind::NotFound && setting.name != "conntrack" =>
                {
                    return None;
                }
                Err(error) => error,
            };
            let Setting {
                value, otherwise, ..
            } = setting;
            let file = file.display();
            Some(format!(
                "{file} could not be set to {value}: {error}: {otherwise}"
            ))
        });
        self.missing = missing.collect();
    }

    pub(super) fn missing(&self) -> &[String] {
        &self.missing
    }
}

fn set(file: &Path, value: &str) -> io::Result<()> {
    match fs::read_to_string(file)?.trim() == value {
        true => Ok(()),
        false => fs::write(file, value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_set_and_what_cannot_be_is_named() {
        let root = std::env::temp_dir().join(format!("signpost-settings-{}", std::process::id()));
        let folder = root.join("net/ipv4/vs");
        fs::create_dir_all(&folder).expect("a folder");
        for name in ["conntrack", "expire_nodest_conn"] {
            fs::write(folder.join(name), "0\n").expect("a file");
        }
        let mut settings = Settings::below(&root);
        settings.commit();
        assert_eq!(settings.missing(), &[] as &[String]);
        let read = |name| fs::read_to_string(folder.join(name)).expect("a file");
        assert_eq!([read("conntrack"), read("expire_nodest_conn")], ["1", "1"]);
        fs::remove_file(folder.join("conntrack")).expect("it was there");
        settings.commit();
        let [missing] = settings.missing() else {
            panic!("{:?}", settings.missing());
        };
        assert!(
            missing.contains("vs/conntrack could not be set to 1"),
            "{missing}"
        );
        fs::remove_dir_all(&root).expect("the folder goes");
    }
}

//! What the thread that executes a guest can still reach of the host once the machine is set up: the files that it needs, and no TCP port. A flaw in translated code
//! or in a device then leads to nothing else. Landlock does it (landlock(7)), without privileges, as far as the host's kernel knows it.

use anyhow::{Context, Result};
use clap::ValueEnum;
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr,
    path_beneath_rules,
};
use std::path::PathBuf;

/// The newest set of rights that is known here. Older kernels take those of it that they know.
const KNOWN: ABI = ABI::V5;

/// Whether the host is kept from the guest by more than this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sandbox {
    /// As far as the host's kernel can
    On,
    /// Not at all: for those who debug Tollgate itself
    Off,
}

/// What may be reached.
#[derive(Debug, Default)]
pub struct Reach {
    /// Files, and directories with all that is in them, that may be read.
    pub readable: Vec<PathBuf>,
    /// … that may be changed, too.
    pub writable: Vec<PathBuf>,
}

impl Reach {
    /// From now on this thread, and those that it starts, reach nothing else by name. What is open stays open.
    pub fn confine(&self) -> Result<()> {
        let failed = "the sandbox can't be set up (--sandbox off runs without)";
        let rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(KNOWN))
            .and_then(|rules| rules.handle_access(AccessNet::from_all(KNOWN)))
            .and_then(Ruleset::create)
            .and_then(|rules| rules.add_rules(path_beneath_rules(&self.readable, AccessFs::from_read(KNOWN))))
            .and_then(|rules| rules.add_rules(path_beneath_rules(&self.writable, AccessFs::from_all(KNOWN))))
            .context(failed)?;
        rules.restrict_self().context(failed)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use landlock::RulesetStatus;
    use std::fs::File;
    use std::net::TcpListener;

    /// Whether the host's kernel can do it.
    fn is_known() -> bool {
        let status = std::thread::spawn(|| {
            let rules = Ruleset::default().handle_access(AccessFs::from_all(ABI::V1)).unwrap();
            rules.create().unwrap().restrict_self().unwrap().ruleset
        });
        status.join().unwrap() != RulesetStatus::NotEnforced
    }

    #[test]
    fn nothing_else_is_reached() {
        if !is_known() {
            eprintln!("skipped: this kernel has no Landlock");
            return;
        }
        let directory = std::env::temp_dir().join(format!("tollgate-contain-{}", std::process::id()));
        for part in ["readable", "writable", "other"] {
            std::fs::create_dir_all(directory.join(part)).unwrap();
            std::fs::write(directory.join(part).join("file"), "text").unwrap();
        }
        let inside = directory.clone();
        let thread = std::thread::spawn(move || {
            let file = |part: &str| inside.join(part).join("file");
            let open = File::open(file("other")).unwrap();
            let reach = Reach { readable: vec![inside.join("readable")], writable: vec![inside.join("writable")] };
            reach.confine().unwrap();
            assert_eq!(std::fs::read_to_string(file("readable")).unwrap(), "text");
            assert!(std::fs::write(file("readable"), "x").is_err());
            std::fs::write(file("writable"), "x").unwrap();
            std::fs::rename(file("writable"), inside.join("writable/moved")).unwrap();
            assert!(File::open(file("other")).is_err());
            assert!(File::open("/etc/passwd").is_err());
            assert!(std::fs::remove_file(file("other")).is_err());
            assert!(std::fs::create_dir(inside.join("new")).is_err());
            assert!(std::process::Command::new("/bin/true").status().is_err());
            // Only newer kernels have rights for the network; what they have is denied.
            let _ = TcpListener::bind("127.0.0.1:0");
            // What was open stays so.
            assert_eq!(std::io::read_to_string(open).unwrap(), "text");
        });
        let ended = thread.join();
        std::fs::remove_dir_all(&directory).unwrap();
        ended.unwrap();
    }
}

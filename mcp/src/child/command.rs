//! How the process of a server is started.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::{env, fmt};

/// The variables that each server receives.
const INHERITED: [&str; 4] = ["PATH", "HOME", "TMPDIR", "LANG"];

/// A program, its arguments and its environment. `Debug` shows no value of the environment.
#[derive(Clone)]
pub(crate) struct Command {
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    pub(crate) dir: Option<PathBuf>,
    env: BTreeMap<OsString, OsString>,
    inherited: Vec<OsString>,
}

impl Command {
    pub(crate) fn new(program: OsString, args: Vec<OsString>) -> Self {
        let inherited = INHERITED.map(OsString::from).to_vec();
        Self { program, args, dir: None, env: BTreeMap::new(), inherited }
    }

    pub(crate) fn set(&mut self, name: OsString, value: OsString) {
        self.env.insert(name, value);
    }

    pub(crate) fn inherit(&mut self, name: OsString) {
        self.inherited.push(name);
    }

    pub(super) fn build(&self) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(&self.program);
        command.args(&self.args).env_clear();
        command.envs(self.inherited.iter().filter_map(|name| Some((name, env::var_os(name)?))));
        command.envs(&self.env);
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        #[cfg(unix)]
        command.process_group(0);
        command
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command")
            .field("program", &self.program)
            .field("args", &self.args.len())
            .field("env", &self.env.keys())
            .finish_non_exhaustive()
    }
}

//! The log of a run, which all its processes write.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;

/// The point at which a process waits.
#[derive(Debug)]
pub(crate) enum Stop {
    /// After so many other points.
    Number(usize),
    /// The first one of a kind, such as `before question`.
    Kind(String),
}

impl Stop {
    pub(crate) fn read(text: String) -> Self {
        text.parse().map_or(Self::Kind(text), Self::Number)
    }

    /// Returns `true` if this is the point.
    fn is_here(&mut self, words: &[&str]) -> bool {
        match self {
            Self::Number(0) => true,
            Self::Number(left) => {
                *left -= 1;
                false
            }
            Self::Kind(kind) => {
                let (when, wanted) = kind.split_once(' ').unwrap_or_default();
                words[0] == when && words[1..].iter().any(|word| word.split(' ').next() == Some(wanted))
            }
        }
    }
}

/// The log of a process, which waits at a point.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    file: File,
    process: String,
    stop: Mutex<Option<Stop>>,
    counts: AtomicBool,
}

impl Log {
    /// Opens the log. If `counts` is `false`, only the points after [`count_points`](Self::count_points) are counted.
    pub(crate) fn open(folder: &Path, stop: Option<Stop>, counts: bool) -> io::Result<Arc<Self>> {
        let path = folder.join("log");
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        Ok(Arc::new(Self {
            path,
            file,
            process: process::id().to_string(),
            stop: Mutex::new(stop),
            counts: AtomicBool::new(counts),
        }))
    }

    /// Adds a line, such as `["4711","model","main","2"]`: the first word is the number of the process.
    pub(crate) fn add(&self, words: &[&str]) {
        let words: Vec<_> = [&*self.process].iter().chain(words).copied().collect();
        // One call of `write` for each line, so that a kill leaves whole lines.
        let line = format!("{}\n", json!(words));
        (&self.file).write_all(line.as_bytes()).expect("the log can be written");
    }

    /// Adds a line for a point. If the process has to wait here, says so, and blocks the thread of the runtime until a
    /// line arrives.
    pub(crate) fn point(&self, words: &[&str]) {
        self.add(words);
        if !self.counts.load(Ordering::Relaxed) {
            return;
        }
        let mut stop = self.stop.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = stop.as_mut().is_some_and(|stop| stop.is_here(words));
        if waits {
            *stop = None;
        }
        drop(stop);
        if waits {
            println!("at a point");
            io::stdin().lines().next();
        }
    }

    /// Counts the points from here on.
    pub(crate) fn count_points(&self) {
        self.counts.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if another process of the run has not ended.
    pub(crate) fn other_lives(&self) -> io::Result<bool> {
        let text = fs::read_to_string(&self.path)?;
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Vec<String>>(line).ok());
        let processes: BTreeSet<_> = lines.filter_map(|words| words.into_iter().next()).collect();
        Ok(processes.iter().any(|process| *process != self.process && Path::new("/proc").join(process).exists()))
    }
}

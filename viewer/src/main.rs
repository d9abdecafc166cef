//! Shows a recording in the browser, and follows it while it grows.
//!
//! ```text
//! emitree-view RECORDING.jsonl
//!     --listen ADDRESS   the address of the page; 127.0.0.1:0 by default, where 0 is any free port
//!     --allow-remote     allows addresses that other machines can reach
//!     --export FILE      writes one HTML file that opens without a server, and ends
//! ```
//!
//! The recording is a file that a `JsonlFile` sink writes. It need not exist yet. The printed address contains a random
//! token. The environment variable `EMITREE_VIEW_TOKEN` sets a token of at least 16 characters, so that an open page
//! survives a restart.

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use emitree_sinks::runs::RecordingFile;
use emitree_viewer::{Viewer, export};
use lexopt::prelude::{Long, Short, Value, ValueExt};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let causes = std::iter::successors(error.source(), |cause| (*cause).source());
            let text: String = causes.map(|cause| format!(": {cause}")).collect();
            eprintln!("error: {error}{text}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let Some(arguments) = Arguments::parse()? else {
        print!("{}", help());
        return Ok(());
    };
    let title = arguments.recording.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let source = RecordingFile::new(&arguments.recording);
    if let Some(to) = &arguments.export {
        return export_to(&source, &title, to);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut viewer = Viewer::bind(arguments.listen).source(source).title(title);
        if arguments.is_remote {
            viewer = viewer.allow_remote();
        }
        if let Ok(token) = std::env::var("EMITREE_VIEW_TOKEN") {
            viewer = viewer.token(token);
        }
        let viewer = viewer.await?;
        writeln!(stdout(), "{}", viewer.url())?;
        Ok(viewer.serve().await?)
    })
}

fn export_to(source: &RecordingFile, title: &str, to: &PathBuf) -> Result<()> {
    // A recording that is misspelled must not become an empty page.
    File::open(source.path()).map_err(|error| format!("cannot read `{}`: {error}", source.path().display()))?;
    if to.canonicalize().is_ok_and(|to| source.path().canonicalize().is_ok_and(|from| from == to)) {
        return Err(format!("`{}` is the recording itself; export to another file", to.display()).into());
    }
    let file = File::create(to).map_err(|error| format!("cannot write `{}`: {error}", to.display()))?;
    let exported = export(source, title, BufWriter::new(file))?;
    println!("{} records, {} runs ({} unfinished)", exported.records, exported.runs, exported.unfinished);
    if exported.lost > 0 || exported.malformed > 0 {
        println!("{} events lost, {} malformed lines", exported.lost, exported.malformed);
    }
    Ok(())
}

struct Arguments {
    recording: PathBuf,
    listen: String,
    is_remote: bool,
    export: Option<PathBuf>,
}

impl Arguments {
    /// Returns `None` if the command line asks for help.
    fn parse() -> Result<Option<Self>> {
        let mut recording = None;
        let mut export = None;
        let mut is_remote = false;
        let mut listen = "127.0.0.1:0".to_owned();
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("help") | Short('h') => return Ok(None),
                Long("listen") => listen = parser.value()?.string()?,
                Long("allow-remote") => is_remote = true,
                Long("export") => export = Some(parser.value()?.into()),
                Value(path) if recording.is_none() => recording = Some(path.into()),
                other => return Err(other.unexpected().into()),
            }
        }
        let recording = recording.ok_or("no recording is named; use `emitree-view RECORDING.jsonl`")?;
        Ok(Some(Self { recording, listen, is_remote, export }))
    }
}

/// The comment at the top of this file.
fn help() -> String {
    let comment = include_str!("main.rs").lines().map_while(|line| line.strip_prefix("//!"));
    let lines = comment.filter(|line| !line.trim().starts_with("```"));
    lines.map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line))).collect()
}

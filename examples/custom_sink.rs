//! A custom sink that writes events as rows of a CSV file.
//!
//! ```text
//! cargo run --example custom_sink -- events.csv
//! ```
//!
//! The sink implements four methods, which write a record, flush the file, set the capacity of the queue, and choose which
//! events are lost when the queue is full. The library does the rest: the bounded queue, the thread, counts and gaps for lost
//! events, flushing and closing.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::sync::mpsc;
use std::time::Duration;

use emitree::emitter::BoxError;
use emitree::sinks::{Overflow, SinkRecord};
use emitree::{Emitter, Sink};
use serde::Serialize;

#[path = "shared/help.rs"]
mod help;

#[derive(Serialize)]
struct Tick {
    n: u32,
}

/// Writes rows of id, time, path and payload.
struct Csv {
    file: BufWriter<File>,
    /// Simulates a slow disk: each row waits for a message, or for the end of the channel.
    ready: mpsc::Receiver<()>,
}

impl Sink for Csv {
    fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError> {
        // An error means that the sender was dropped: from then on the disk is fast.
        let _ = self.ready.recv();
        match record {
            SinkRecord::Event(event) => {
                let payload = event.payload.get().replace('"', "\"\"");
                writeln!(self.file, "{},{},{},\"{payload}\"", event.id, event.created_at.to_rfc3339(), event.path)?;
            }
            // A gap replaces lost events.
            SinkRecord::Gap(gap) => writeln!(self.file, "# {} events were lost here", gap.lost)?,
            _ => {}
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), BoxError> {
        Ok(self.file.flush()?)
    }

    /// Returns the maximum number of records that wait for the sink.
    fn capacity(&self) -> usize {
        8
    }

    /// Makes a full queue drop the oldest record instead of blocking the program.
    fn overflow(&self) -> Overflow {
        Overflow::DropOldest
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    if help::is_asked(include_str!("custom_sink.rs")) {
        return Ok(());
    }
    let path = std::env::args().nth(1).unwrap_or_else(|| "events.csv".to_owned());
    let (disk, ready) = mpsc::channel();
    let clock = Emitter::new().child("clock")?;
    let sink = clock.pipe_to(Csv { file: BufWriter::new(File::create(&path)?), ready })?;

    // The disk is stuck, and the emits do not wait for it: the oldest events are lost.
    for n in 0..100 {
        clock.emit("tick", &mut Tick { n }).await?;
    }
    drop(disk);
    // Waits up to 5 s for the sink to write the remaining records. The report counts the delivered events.
    let report = sink.close(Duration::from_secs(5)).await;
    println!("{path}: {} written, {} lost", report.delivered, report.lost);
    Ok(())
}

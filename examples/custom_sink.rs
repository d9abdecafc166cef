//! A sink of one's own: events as rows of a CSV file.
//!
//! ```text
//! cargo run --example custom_sink -- events.csv
//! ```
//!
//! The sink says how to write one record, how many may wait, and what happens when more do. Everything else comes for
//! nothing: the bounded queue, the thread, counting what was lost and saying where, flushing and closing.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::sync::mpsc;
use std::time::Duration;

use emitree::emitter::BoxError;
use emitree::sinks::{Overflow, SinkRecord};
use emitree::{Emitter, Sink};
use serde::Serialize;

#[derive(Serialize)]
struct Tick {
    n: u32,
}

/// Rows of id, time, path and payload.
struct Csv {
    file: BufWriter<File>,
    /// Stands for a slow disk: no row is written before this says so.
    ready: mpsc::Receiver<()>,
}

impl Sink for Csv {
    fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError> {
        // Once the sender is gone, the disk is fast.
        let _ = self.ready.recv();
        match record {
            SinkRecord::Event(event) => {
                let payload = event.payload.get().replace('"', "\"\"");
                writeln!(self.file, "{},{},{},\"{payload}\"", event.id, event.created_at.to_rfc3339(), event.path)?;
            }
            SinkRecord::Gap(gap) => writeln!(self.file, "# {} events were lost here", gap.lost)?,
            _ => {}
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), BoxError> {
        Ok(self.file.flush()?)
    }

    fn capacity(&self) -> usize {
        8
    }

    fn overflow(&self) -> Overflow {
        Overflow::DropOldest
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "events.csv".to_owned());
    let (disk, ready) = mpsc::channel();
    let clock = Emitter::new().child("clock")?;
    let sink = clock.pipe_to(Csv { file: BufWriter::new(File::create(&path)?), ready })?;

    // The disk does not answer, and nobody waits for it: of these, the oldest are lost.
    for n in 0..100 {
        clock.emit("tick", &mut Tick { n }).await?;
    }
    drop(disk);
    let report = sink.close(Duration::from_secs(5)).await;
    println!("{path}: {} written, {} lost", report.delivered, report.lost);
    Ok(())
}

//! Exports a recording as OpenTelemetry spans, to the collector that the environment names.

use std::env;
use std::process::ExitCode;
use std::time::Duration;

use emitree_emitter::{BoxError, Sink};
use emitree_otlp::{Dialect, Otlp};
use emitree_sinks::read_jsonl;

const HELP: &str = "\
Exports the runs of a recording as spans. The variables of OpenTelemetry name the collector, such as
OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318.

    cargo run -p emitree-otlp --example export -- RECORDING.jsonl [--open-inference] [--content]

    --open-inference  names the attributes as OpenInference does, for Phoenix
    --content         exports inputs, outputs and messages too";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (options, files): (Vec<&str>, Vec<&str>) =
        arguments.iter().map(|text| &**text).partition(|text| text.starts_with('-'));
    let [file] = files[..] else {
        println!("{HELP}");
        return if options == ["--help"] { ExitCode::SUCCESS } else { ExitCode::from(2) };
    };
    match export(file, &options) {
        Ok(spans) => println!("{spans}"),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Writes each record to the sink. Returns a text with the number of records. A line that is not a record, such as the last
/// one after a crash, is reported, and the others are exported.
fn export(file: &str, options: &[&str]) -> Result<String, BoxError> {
    // Somebody waits for the answer, and a recording can be sent again.
    let mut otlp = Otlp::from_env()?.retry_for(Duration::from_secs(5));
    for option in options {
        otlp = match *option {
            "--open-inference" => otlp.dialect(Dialect::OpenInference),
            "--content" => otlp.content(true),
            other => return Err(format!("unknown option `{other}`; --help lists the options").into()),
        };
    }
    let (mut sink, mut count) = (otlp.sink(), 0);
    for record in read_jsonl(file)? {
        match record {
            Ok(record) => {
                sink.write(&record)?;
                count += 1;
            }
            Err(error) => eprintln!("{error}"),
        }
    }
    sink.close()?;
    Ok(format!("the spans of {count} records were sent"))
}

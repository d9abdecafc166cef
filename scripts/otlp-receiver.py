"""Receives the spans of a recording with code that shares nothing with emitree, and compares them with the recording.

Usage: otlp-receiver.py RECORDING.jsonl PROGRAM [ARGUMENT...]
The program is started with OTEL_EXPORTER_OTLP_ENDPOINT, and must send the spans of the recording there."""
import json, os, subprocess, sys, threading
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

spans = []

class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        assert (self.path, self.headers["content-type"]) == ("/v1/traces", "application/x-protobuf"), self.path
        request = ExportTraceServiceRequest()
        request.ParseFromString(self.rfile.read(int(self.headers["content-length"])))
        spans.extend(s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass

def nanoseconds(text):
    whole, _, fraction = text.rstrip("Z").partition(".")
    seconds = datetime.fromisoformat(whole).replace(tzinfo=timezone.utc).timestamp()
    return int(seconds) * 10**9 + int(fraction.ljust(9, "0") or 0)

def main():
    recording, program = sys.argv[1], sys.argv[2:]
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    subprocess.run(program, check=True, env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint})

    events = [json.loads(line) for line in open(recording, encoding="utf-8")]
    lifecycle = [e for e in events if e["context"].get("internal")]
    started = {e["trace"]["run_id"]: e for e in lifecycle if e["path"].endswith("start")}
    finished = {e["trace"]["run_id"]: e for e in lifecycle if e["path"].endswith("finish")}
    span_id = lambda run: run.replace("-", "")[16:]
    by_id = {s.span_id.hex(): s for s in spans}
    assert len(spans) == len(by_id) == len(started) > 0, f"{len(spans)} spans, {len(started)} runs"
    for run, start in started.items():
        span, trace = by_id[span_id(run)], start["trace"]
        assert span.trace_id.hex() == trace["id"].replace("-", ""), span
        assert span.parent_span_id.hex() == span_id(trace["parent_run_id"] or ""), span
        assert span.name.endswith(start["creator"]["name"]) and span.name.strip(), span
        assert span.kind == (3 if start["creator"]["kind"] == "ChatModel" else 1), span
        # The event `start` may be late: then the run begins at its end minus its duration.
        duration = finished[run]["payload"]["duration_ns"]
        began = min(nanoseconds(start["created_at"]), nanoseconds(finished[run]["created_at"]) - duration)
        assert span.start_time_unix_nano == began, span
        assert span.end_time_unix_nano - span.start_time_unix_nano == duration, span
        parent = by_id.get(span.parent_span_id.hex(), span)
        # The end is read from the clock, and the duration from another one, so both may differ a little.
        assert parent.start_time_unix_nano <= span.start_time_unix_nano + 1_000_000, span
        assert span.end_time_unix_nano <= parent.end_time_unix_nano + 1_000_000, span
        for a in span.attributes:
            kind = a.value.WhichOneof("value")
            assert a.key and kind, span
            assert not a.key.endswith("_tokens") or kind == "int_value", a
            assert a.key != "gen_ai.response.finish_reasons" or a.value.array_value.values[0].string_value, a
    print(f"{len(spans)} spans are those of the recording")

main()

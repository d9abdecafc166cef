//! The environment variables of OpenTelemetry.

use std::env::VarError;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use crate::sampler::Sampler;
use crate::{Otlp, OtlpError};

type Result<T> = std::result::Result<T, OtlpError>;

/// The endpoint without a variable.
const ENDPOINT: &str = "http://localhost:4318";

/// Variables that would change how spans are sent, and have no effect here. An error is better than spans that are sent
/// in another way than somebody wants.
const UNSUPPORTED: [&str; 6] = [
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CLIENT_KEY",
    "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY",
];

/// Reads variables through a function, so that tests do not change the environment.
pub(crate) fn read(variable: &dyn Fn(&str) -> std::result::Result<String, VarError>) -> Result<Otlp> {
    let env = Env(variable);
    // Read first: if the exporter is disabled, no other variable may be an error, however wrong it is.
    if env.is_disabled()? {
        return Ok(Otlp::to(ENDPOINT)?.disabled());
    }
    for name in UNSUPPORTED {
        if let Some(value) = env.get(name)? {
            return Err(invalid(name, &value, "it is not supported: the certificates of the system are used"));
        }
    }
    let protocol = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
    env.only(protocol, "http/protobuf", "the only protocol is `http/protobuf`")?;
    let compression = ["OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "OTEL_EXPORTER_OTLP_COMPRESSION"];
    env.only(compression, "none", "the only compression is `none`")?;
    let mut otlp = env.endpoint()?;
    for (name, value) in env.headers()? {
        otlp = otlp.header(&name, &value)?;
    }
    if let Some(timeout) = env.timeout()? {
        otlp = otlp.timeout(timeout);
    }
    otlp = otlp.sampler(env.sampler()?).content(env.has_content()?);
    for (name, value) in env.resource()? {
        otlp = otlp.resource(&name, &value);
    }
    Ok(otlp)
}

struct Env<'a>(&'a dyn Fn(&str) -> std::result::Result<String, VarError>);

impl Env<'_> {
    /// Returns the value of a variable. As OpenTelemetry says, an empty variable counts as unset.
    fn get(&self, name: &'static str) -> Result<Option<String>> {
        match (self.0)(name) {
            Ok(value) => Ok(Some(value.trim().to_owned()).filter(|value| !value.is_empty())),
            Err(VarError::NotPresent) => Ok(None),
            Err(VarError::NotUnicode(text)) => Err(invalid(name, &text.to_string_lossy(), "it is not valid Unicode")),
        }
    }

    /// Returns the first of two variables that is set, with its name.
    fn either(&self, names: [&'static str; 2]) -> Result<Option<(&'static str, String)>> {
        for name in names {
            if let Some(value) = self.get(name)? {
                return Ok(Some((name, value)));
            }
        }
        Ok(None)
    }

    fn only(&self, names: [&'static str; 2], only: &str, expected: &'static str) -> Result<()> {
        match self.either(names)? {
            Some((name, value)) if value != only => Err(invalid(name, &value, expected)),
            _ => Ok(()),
        }
    }

    fn endpoint(&self) -> Result<Otlp> {
        if let Some(url) = self.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")? {
            return Otlp::to_exactly(&url);
        }
        let url = self.get("OTEL_EXPORTER_OTLP_ENDPOINT")?;
        Otlp::to(url.as_deref().unwrap_or(ENDPOINT))
    }

    fn headers(&self) -> Result<Vec<(String, String)>> {
        match self.either(["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"])? {
            // The value is not quoted: it may have a key.
            Some((name, list)) => pairs(&list)
                .ok_or_else(|| invalid(name, "…", "write a list such as `authorization=Basic%20abc,x-key=1`")),
            None => Ok(Vec::new()),
        }
    }

    fn timeout(&self) -> Result<Option<Duration>> {
        let set = self.either(["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"])?;
        let Some((name, value)) = set else { return Ok(None) };
        let milliseconds = value.parse().ok().filter(|milliseconds| *milliseconds > 0);
        let invalid = || invalid(name, &value, "write a number of milliseconds above 0");
        Ok(Some(Duration::from_millis(milliseconds.ok_or_else(invalid)?)))
    }

    fn resource(&self) -> Result<Vec<(String, String)>> {
        let name = "OTEL_RESOURCE_ATTRIBUTES";
        let list = self.get(name)?.unwrap_or_default();
        let expected = "write a list such as `deployment.environment.name=test,team=a%20b`";
        let mut attributes = pairs(&list).ok_or_else(|| invalid(name, &list, expected))?;
        // The name of the service takes precedence over the attribute.
        attributes.extend(self.get("OTEL_SERVICE_NAME")?.map(|service| ("service.name".to_owned(), service)));
        Ok(attributes)
    }

    fn sampler(&self) -> Result<Sampler> {
        let name = "OTEL_TRACES_SAMPLER";
        let expected = "it is `parentbased_always_on` or `parentbased_traceidratio`";
        match self.get(name)?.as_deref() {
            None | Some("parentbased_always_on") => Ok(Sampler::ALWAYS),
            Some("parentbased_traceidratio") => self.ratio(),
            Some(other) => Err(invalid(name, other, expected)),
        }
    }

    fn ratio(&self) -> Result<Sampler> {
        let name = "OTEL_TRACES_SAMPLER_ARG";
        let Some(value) = self.get(name)? else { return Ok(Sampler::ALWAYS) };
        let share = value.parse().ok().filter(|share| (0.0..=1.0).contains(share));
        share.map(Sampler::ratio).ok_or_else(|| invalid(name, &value, "write a number from 0 to 1"))
    }

    fn is_disabled(&self) -> Result<bool> {
        let name = "OTEL_SDK_DISABLED";
        match self.get(name)?.map(|value| value.to_ascii_lowercase()).as_deref() {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(other) => Err(invalid(name, other, "it is `true` or `false`")),
        }
    }

    /// Reads whether content is exported. Instrumentations in Python also know names for events, which we do not send.
    fn has_content(&self) -> Result<bool> {
        let name = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT";
        match self.get(name)?.map(|value| value.to_ascii_lowercase()).as_deref() {
            None | Some("false" | "no_content" | "event_only") => Ok(false),
            Some("true" | "span_only" | "span_and_event") => Ok(true),
            Some(other) => Err(invalid(name, other, "it is `true` or `false`")),
        }
    }
}

/// Reads a list such as `a=1,b=2`, whose names and values are percent-encoded.
fn pairs(list: &str) -> Option<Vec<(String, String)>> {
    // The list is split before its parts are decoded, so an encoded comma or `=` belongs to its text.
    let pairs = list.split(',').map(str::trim).filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let decoded = |text: &str| Some(percent_decode_str(text.trim()).decode_utf8().ok()?.into_owned());
            let (name, value) = pair.split_once('=')?;
            Some((decoded(name)?, decoded(value)?)).filter(|(name, _)| !name.is_empty())
        })
        .collect()
}

fn invalid(name: &'static str, value: &str, expected: &'static str) -> OtlpError {
    OtlpError::Variable { name, value: value.to_owned(), expected }
}

#[cfg(test)]
mod tests {
    use emitree_emitter::{Sink, SinkRecord};

    use super::*;

    /// Makes an exporter from these variables alone.
    fn read_from(variables: &[(&str, &str)]) -> Result<Otlp> {
        let variable = |name: &str| variables.iter().find(|(known, _)| *known == name);
        read(&|name| variable(name).map(|(_, value)| (*value).to_owned()).ok_or(VarError::NotPresent))
    }

    fn shown(variables: &[(&str, &str)]) -> String {
        format!("{:?}", read_from(variables).unwrap())
    }

    #[test]
    fn the_variables_of_opentelemetry_are_read() {
        let rows: [(&[(&str, &str)], &str); 17] = [
            (&[], "\"http://localhost:4318/v1/traces\""),
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a/b/")], "\"http://a/b/v1/traces\""),
            (&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://a/b")], "\"http://a/b\""),
            (
                &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a"), ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://b")],
                "\"http://b/\"",
            ),
            (&[("OTEL_EXPORTER_OTLP_HEADERS", "X-a=1, b=c%20d")], "headers: [\"x-a\", \"b\"]"),
            (
                &[("OTEL_EXPORTER_OTLP_HEADERS", "a=1"), ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "b=1")],
                "headers: [\"b\"]",
            ),
            (&[("OTEL_EXPORTER_OTLP_TIMEOUT", "250")], "timeout: 250ms"),
            (&[("OTEL_EXPORTER_OTLP_TIMEOUT", " ")], "timeout: 10s"),
            (&[("OTEL_SERVICE_NAME", "desk")], "(\"service.name\", \"desk\")"),
            (&[("OTEL_RESOURCE_ATTRIBUTES", "a.b=c%20d")], "(\"a.b\", \"c d\")"),
            (
                &[("OTEL_RESOURCE_ATTRIBUTES", "service.name=x"), ("OTEL_SERVICE_NAME", "desk")],
                "resource: [(\"service.name\", \"desk\")]",
            ),
            (&[("OTEL_TRACES_SAMPLER", "parentbased_always_on")], "threshold: 0 "),
            (
                &[("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "0.5")],
                "threshold: 36028797018963968 ",
            ),
            (&[("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")], "with_content: true"),
            // The other signals of the program may be sent in another way.
            (
                &[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")],
                "\"http://localhost:4318/v1/traces\"",
            ),
            (
                &[("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"), ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "none")],
                "\"http://localhost:4318/v1/traces\"",
            ),
            (&[("OTEL_RESOURCE_ATTRIBUTES", "a%2Cb=c%3Dd")], "(\"a,b\", \"c=d\")"),
        ];
        for (variables, expected) in rows {
            let shown = shown(variables);
            assert!(shown.contains(expected), "{variables:?}: {shown}");
        }
    }

    #[test]
    fn a_value_that_cannot_be_used_is_an_error_that_quotes_it() {
        let rows = [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "the only protocol is `http/protobuf`"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "the only protocol is `http/protobuf`"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip", "the only compression is `none`"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca.pem", "it is not supported"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s", "write a number of milliseconds above 0"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "0", "write a number of milliseconds above 0"),
            ("OTEL_TRACES_SAMPLER", "always_off", "it is `parentbased_always_on` or `parentbased_traceidratio`"),
            ("OTEL_RESOURCE_ATTRIBUTES", "a", "write a list such as"),
            ("OTEL_RESOURCE_ATTRIBUTES", "=a", "write a list such as"),
            ("OTEL_SDK_DISABLED", "yes", "it is `true` or `false`"),
            ("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "all", "it is `true` or `false`"),
        ];
        for (name, value, expected) in rows {
            let error = read_from(&[(name, value)]).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("the environment variable `{name}` is `{value}`: {expected}")),
                "{error}"
            );
        }
        for share in ["1.5", "-1", "NaN", "half"] {
            let sampler = ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio");
            let error = read_from(&[sampler, ("OTEL_TRACES_SAMPLER_ARG", share)]).unwrap_err().to_string();
            assert!(error.ends_with(&format!("`{share}`: write a number from 0 to 1")), "{error}");
        }
        let error = read_from(&[("OTEL_EXPORTER_OTLP_HEADERS", "key%ff=secret,key")]).unwrap_err().to_string();
        assert!(error.contains("`…`: write a list such as") && !error.contains("secret"), "{error}");
    }

    /// The `start` of an outermost run with this context.
    fn start(context: &serde_json::Value) -> SinkRecord {
        let run = "01a220d4-9313-70f2-b2ad-6751bb32e81b";
        let start = serde_json::json!({
            "id": run, "path": "run.start", "created_at": "2026-01-01T00:00:00Z", "creator": null,
            "context": context, "group_id": null, "payload_type": "T", "payload": {},
            "trace": {"id": run, "run_id": run, "parent_run_id": null},
        });
        SinkRecord::from_json(&start.to_string()).unwrap()
    }

    /// Returns the number of spans that the start of a run opens.
    fn opened(variables: &[(&str, &str)], context: &serde_json::Value) -> Option<u64> {
        let mut sink = read_from(variables).unwrap().sink();
        sink.write(&start(context)).unwrap();
        sink.progress().map(|progress| progress.buffered)
    }

    #[test]
    fn an_exporter_that_is_disabled_counts_all_events_as_delivered() {
        let context = serde_json::json!({"internal": true});
        assert_eq!(opened(&[("OTEL_SDK_DISABLED", "true")], &context), Some(0));
        assert_eq!(opened(&[("OTEL_SDK_DISABLED", "false")], &context), Some(1));
        // The other variables do not matter then, such as those for the SDKs of other programs.
        let others = [("OTEL_SDK_DISABLED", "TRUE"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")];
        assert_eq!(opened(&others, &context), Some(0));
    }

    #[test]
    fn a_ratio_does_not_apply_to_traces_that_another_process_began() {
        for share in ["0", "1"] {
            let ratio = [("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", share)];
            let own = serde_json::json!({"internal": true});
            assert_eq!(opened(&ratio, &own).map(|opened| opened.to_string()).as_deref(), Some(share));
            for flags in [0, 1] {
                let joined = serde_json::json!({"internal": true, "trace": {"flags": flags}});
                assert_eq!(opened(&ratio, &joined), Some(flags), "share {share}");
            }
        }
    }
}

//! The names and the kinds of spans.

use opentelemetry_proto::tonic::trace::v1::span::SpanKind as Kind;

/// The kind of a span: its place between a client and a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SpanKind {
    /// Work inside of the program.
    #[default]
    Internal,
    /// A request to another service.
    Client,
    /// The work on a request of another service.
    Server,
    /// A message for another service.
    Producer,
    /// The work on a message of another service.
    Consumer,
}

impl From<SpanKind> for Kind {
    fn from(kind: SpanKind) -> Self {
        match kind {
            SpanKind::Internal => Self::Internal,
            SpanKind::Client => Self::Client,
            SpanKind::Server => Self::Server,
            SpanKind::Producer => Self::Producer,
            SpanKind::Consumer => Self::Consumer,
        }
    }
}

/// The names and the kinds of spans, by the kind of the run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    /// The rows that the user adds.
    pub(crate) own: Vec<(String, String, SpanKind)>,
}

/// The kinds of runs whose spans have a name of their own. All other spans have the name of the run.
const NAMES: &[(&str, &str, SpanKind)] = &[
    ("Agent", "invoke_agent {name}", SpanKind::Internal),
    ("Workflow", "invoke_workflow {name}", SpanKind::Internal),
    ("ChatModel", "chat {name}", SpanKind::Client),
    ("Tool", "execute_tool {name}", SpanKind::Internal),
];

impl Names {
    pub(super) fn of(&self, kind: &str, name: &str) -> (String, SpanKind) {
        let own = self.own.iter().map(|(kind, name, span)| (&**kind, &**name, *span));
        let row = own.chain(NAMES.iter().copied()).find(|(of, ..)| *of == kind);
        let (pattern, span) = row.map_or(("{name}", SpanKind::Internal), |(_, pattern, span)| (pattern, span));
        let text = pattern.replace("{name}", name);
        let text = text.trim();
        // The kind of a run without lifecycle events is not known.
        let text = if text.is_empty() { if kind.is_empty() { "run" } else { kind } } else { text };
        (text.to_owned(), span)
    }
}

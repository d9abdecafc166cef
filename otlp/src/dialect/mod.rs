//! The names of attributes, as tables.

mod common;
mod gen_ai;
mod open_inference;

use crate::spans::Fact;

/// The names that the attributes of spans have. Each tool that shows traces reads one of them best.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// The GenAI conventions of OpenTelemetry, `semantic-conventions-genai` v0.1.0, all of which are in development.
    #[default]
    GenAi,
    /// The conventions of `OpenInference`, which Phoenix reads, as of `openinference-semantic-conventions` 0.1.32.
    OpenInference,
}

impl Dialect {
    /// Returns the attributes of the dialect, and then the attributes that all dialects have.
    ///
    /// If several rows set the same attribute, the first row that fits the run and has a value is used.
    pub fn rows(self) -> impl Iterator<Item = &'static Row> {
        let (rows, _) = self.table();
        rows.iter().chain(common::ROWS)
    }

    /// Returns the name that the dialect has for a provider of emitree, such as `x_ai` for `xai`.
    pub(crate) fn provider(self, name: &str) -> &str {
        let (_, providers) = self.table();
        providers.iter().find(|(ours, _)| *ours == name).map_or(name, |(_, theirs)| *theirs)
    }

    const fn table(self) -> (&'static [Row], &'static [(&'static str, &'static str)]) {
        match self {
            Self::GenAi => (gen_ai::ROWS, gen_ai::PROVIDERS),
            Self::OpenInference => (open_inference::ROWS, open_inference::PROVIDERS),
        }
    }
}

/// A row of a dialect: a fact about the runs of a kind, and the attribute that has its value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Row {
    /// The kind of the runs, such as `ChatModel`; `*` for all kinds.
    pub kind: &'static str,
    /// The fact.
    pub fact: Fact,
    /// The name of the attribute. For [`Form::FlatMessages`] and [`Form::FlatTools`] it is the beginning of the names.
    pub attribute: &'static str,
    /// The form of the value.
    pub form: Form,
    /// The version of the conventions in which the attribute has this name, or the reason for it.
    pub since: &'static str,
    /// `true` if the conventions require the attribute. Limits never remove it.
    pub is_required: bool,
}

impl Row {
    /// Makes a row whose value is [plain](Form::Plain).
    #[must_use]
    pub const fn new(kind: &'static str, fact: Fact, attribute: &'static str, since: &'static str) -> Self {
        Self { kind, fact, attribute, form: Form::Plain, since, is_required: false }
    }

    /// Sets the form of the value.
    #[must_use]
    pub const fn form(mut self, form: Form) -> Self {
        self.form = form;
        self
    }

    /// Marks the attribute as required.
    #[must_use]
    pub const fn required(mut self) -> Self {
        self.is_required = true;
        self
    }

    /// Returns `true` if the row is about the runs of a kind.
    pub(crate) fn fits(&self, kind: &str) -> bool {
        self.kind == "*" || self.kind == kind
    }
}

/// The form in which an attribute has a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Form {
    /// A string, a number, a boolean or a list of strings as itself, anything else as a JSON string.
    Plain,
    /// A string as itself, anything else as a JSON string.
    Text,
    /// A JSON string.
    Json,
    /// `text/plain` for a string, and `application/json` for anything else.
    MimeType,
    /// The first value of a list.
    First,
    /// Messages as a JSON string, in the shape of OpenTelemetry's GenAI conventions.
    Messages,
    /// The messages that a model returned, each with a finish reason, as a JSON string.
    OutputMessages,
    /// A system prompt as a JSON string that contains a list of parts.
    Instructions,
    /// Descriptions of tools as a JSON string.
    ToolDefinitions,
    /// Messages as attributes of their own, such as `llm.input_messages.0.message.role`.
    FlatMessages,
    /// Descriptions of tools as attributes of their own, such as `llm.tools.0.tool.json_schema`.
    FlatTools,
    /// The name that the dialect has for a provider.
    Provider,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_has_the_well_known_name_of_the_dialect() {
        let rows = [
            ("openai", "openai", "openai"),
            ("deepseek", "deepseek", "deepseek"),
            ("gemini", "gcp.gemini", "google"),
            ("mistral", "mistral_ai", "mistralai"),
            ("xai", "x_ai", "xai"),
            ("my server", "my server", "my server"),
        ];
        for (ours, gen_ai, open_inference) in rows {
            let names = [Dialect::GenAi, Dialect::OpenInference].map(|dialect| dialect.provider(ours));
            assert_eq!(names, [gen_ai, open_inference]);
        }
    }
}

//! What each server accepts, as far as its documentation, its source or public reports say. `docs/models.md` shows the
//! same facts as a table, with their sources.
//!
//! The wire is adapted, and the history is not: a session can move from any server to any other. A rule that nobody
//! needs is not applied, so that a server receives its own messages back as it wrote them.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use crate::openai::content::Images;

/// What a server accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rules {
    pub(super) demand: Demand,
    pub(super) ids: Ids,
    pub(super) order: Order,
    /// The content of a message that has only calls, if it must not be `null`.
    pub(super) content_of_calls: Option<&'static str>,
    pub(super) dialect: Dialect,
    pub(super) images: Images,
}

/// The field that a server demands of each message with calls, even if another model made the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    Nothing,
    /// `DeepSeek` demands `reasoning_content`, which may be empty.
    Reasoning,
    /// Gemini demands a signature on the first call of each message of the current turn.
    Signature,
}

/// The ids of calls that a server accepts, from all ids to few.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ids {
    /// Any text. A gateway may keep data in its ids, so they are not changed without need.
    Any,
    /// At most 40 characters.
    Short,
    /// At most 40 letters, digits, `_` and `-`.
    Word,
    /// Nine letters or digits.
    Nine,
}

/// The order of roles that a server accepts, from any order to few.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Order {
    Any,
    /// The conversation begins with the user, and no message of the model follows directly behind another.
    Joined,
    /// As `Joined`, and no message of the user follows directly behind another or behind a result. System messages
    /// stand at the beginning only, as one message.
    Alternating,
}

/// The part of JSON Schema that a server accepts in tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Any,
    /// The root is an object without a choice of schemas.
    OpenAi,
    /// As `OpenAi`, and the names of properties are short words.
    Anthropic,
    /// Patterns have both anchors.
    LlamaCpp,
    /// A part of `OpenAPI` 3.0.
    Gemini,
}

/// The rules of servers about which nothing is known, of Groq, Ollama and Together.
///
/// - images: a message of the user is what all servers with images read; Ollama has no other way:
///   <https://github.com/ollama/ollama/issues/16332>
pub(super) const ANY: Rules = Rules {
    demand: Demand::Nothing,
    ids: Ids::Any,
    order: Order::Any,
    content_of_calls: None,
    dialect: Dialect::Any,
    images: Images::OfUsers,
};

/// Also of Azure.
///
/// - images: <https://github.com/openai/openai-openapi/issues/523> (not refused in tool messages, but not seen)
/// - ids: <https://github.com/vercel/ai/issues/5171>
/// - schemas: <https://github.com/cecli-dev/cecli/issues/281>
pub(super) const OPENAI: Rules = Rules { ids: Ids::Short, dialect: Dialect::OpenAi, ..ANY };

/// - ids: <https://docs.claude.com/en/api/messages> (`tool_use.id` has the pattern `^[a-zA-Z0-9_-]+$`)
/// - schemas: <https://github.com/dearlordylord/huly-mcp/issues/66>, <https://github.com/anthropics/claude-code/issues/79418>
pub(super) const ANTHROPIC: Rules = Rules { ids: Ids::Word, dialect: Dialect::Anthropic, ..ANY };

/// - reasoning: <https://api-docs.deepseek.com/guides/thinking_mode>
pub(super) const DEEPSEEK: Rules = Rules { demand: Demand::Reasoning, ..ANY };

/// - signatures: <https://ai.google.dev/gemini-api/docs/thought-signatures>
/// - order: <https://github.com/google-gemini/gemini-cli/issues/11814> (a call follows the user or a result)
/// - schemas: <https://ai.google.dev/api/caching#Schema>, <https://github.com/taylorwilsdon/google_workspace_mcp/issues/1099>,
///   <https://github.com/google-gemini/gemini-cli/issues/3178> (`format`),
///   <https://github.com/google-gemini/gemini-cli/issues/5923> (nesting)
pub(super) const GEMINI: Rules =
    Rules { demand: Demand::Signature, order: Order::Joined, dialect: Dialect::Gemini, ..ANY };

/// - ids, order: <https://github.com/mistralai/mistral-common/blob/main/src/mistral_common/protocol/instruct/validator.py>
///   (no user behind a result, no system message behind a result or an answer). Neighbours of one role are accepted, and
///   joined by Mistral itself.
pub(super) const MISTRAL: Rules = Rules { ids: Ids::Nine, order: Order::Alternating, ..ANY };

/// Also of LM Studio, which runs llama.cpp. The name of a model says little about its template, so the strictest
/// templates count.
///
/// - ids: <https://github.com/ggml-org/llama.cpp/issues/26359>
/// - order: <https://github.com/ggml-org/llama.cpp/pull/10572> (Mistral's template skips calls and results when it counts
///   roles), <https://github.com/ggml-org/llama.cpp/pull/14246> (one system message, at the beginning)
/// - schemas: <https://github.com/ggml-org/llama.cpp/issues/26930>
/// - images: its server reads them in each role
///   (<https://github.com/ggml-org/llama.cpp/blob/master/tools/server/server-common.cpp>), but not each template does
pub(super) const LLAMA_CPP: Rules =
    Rules { ids: Ids::Nine, order: Order::Alternating, dialect: Dialect::LlamaCpp, ..ANY };

/// - ids of models of OpenAI: <https://github.com/openclaw/openclaw/pull/875>
/// - images: <https://github.com/OpenRouterTeam/ai-sdk-provider/issues/181>,
///   <https://github.com/mastra-ai/mastra/issues/17876> (tool messages with `image_url` reach the model)
pub(super) const OPENROUTER: Rules = Rules { ids: Ids::Short, images: Images::Anywhere, ..ANY };

/// The ids of Kimi are a part of its prompt, so ids are changed only for models that refuse them.
///
/// - order: <https://github.com/microsoft/autogen/issues/3597>, <https://github.com/google/adk-python/issues/1373>,
///   <https://github.com/vllm-project/vllm/issues/41114> (templates of Mistral, Gemma and Qwen)
/// - images: <https://github.com/vllm-project/vllm/issues/43203> (refused in tool messages)
pub(super) const VLLM: Rules = Rules { order: Order::Alternating, ..ANY };

/// - content of calls: <https://github.com/langchain-ai/langchain/issues/34140>
pub(super) const XAI: Rules = Rules { content_of_calls: Some(""), ..ANY };

/// Models that bring their rules to each server: the words in their names, and the rules.
///
/// - Claude: gateways pass ids on
/// - Mistral: <https://github.com/NousResearch/hermes-agent/issues/20154>, <https://github.com/vllm-project/vllm/issues/9019>
/// - Gemma: <https://github.com/google/adk-python/issues/1373>
static FAMILIES: [(&[&str], Rules); 3] = [
    (&["claude"], ANTHROPIC),
    (&["gemma"], Rules { order: Order::Alternating, ..ANY }),
    (&["codestral", "devstral", "magistral", "ministral", "mistral", "mixtral", "pixtral", "voxtral"], MISTRAL),
];

impl Rules {
    /// Returns the rules for one of the server's models.
    pub(super) fn with_model(self, model: &str) -> Self {
        let model = model.to_ascii_lowercase();
        let mut rules = self;
        for (words, family) in &FAMILIES {
            if words.iter().any(|word| model.contains(word)) {
                rules.ids = rules.ids.max(family.ids);
                rules.order = rules.order.max(family.order);
                if rules.dialect == Dialect::Any {
                    rules.dialect = family.dialect;
                }
            }
        }
        rules
    }
}

/// Returns a name of a call that every server accepts: a model may invent names, such as one with its special tokens.
///
/// All servers take 1 to 64 letters, digits, `_` and `-`, and Gemini's names do not begin with a digit or `-`:
/// <https://portkey.ai/error-library/pattern-mismatch-error-10474>,
/// <https://cloud.google.com/vertex-ai/generative-ai/docs/reference/nodejs/latest/vertexai/functiondeclaration>
pub(super) fn fit_name(name: &str, dialect: Dialect) -> Cow<'_, str> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let begins = |name: &str| name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    // A tool's name fits, and goes back as it is declared.
    let is_word = (1..=64).contains(&name.len()) && name.chars().all(fits);
    if is_word && (dialect != Dialect::Gemini || begins(name)) {
        return name.into();
    }
    let mut fitting: String = name.chars().take(64).map(|c| if fits(c) { c } else { '_' }).collect();
    if !begins(&fitting) {
        fitting.insert(0, '_');
        fitting.truncate(64);
    }
    fitting.into()
}

impl Ids {
    fn accepts(self, id: &str) -> bool {
        let is_alphanumeric = || id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let is_word = || id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
        match self {
            Self::Any => true,
            Self::Short => id.chars().count() <= 40,
            Self::Word => id.len() <= 40 && is_word(),
            Self::Nine => id.len() == 9 && is_alphanumeric(),
        }
    }

    /// Returns an id that the server accepts. It depends on nothing but the id, so a call and its result get the same
    /// one, in each request.
    pub(super) fn fit(self, id: &str) -> Cow<'_, str> {
        const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        if self.accepts(id) {
            return id.into();
        }
        let hash = Sha256::digest(id);
        let mut number = hash.iter().take(8).fold(0, |number: u64, byte| (number << 8) | u64::from(*byte));
        let mut fitting = String::with_capacity(9);
        for _ in 0..9 {
            fitting.push(char::from(DIGITS[(number % 62) as usize]));
            number /= 62;
        }
        fitting.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_fits_stays_and_any_other_becomes_nine_characters_of_its_hash() {
        let long = "c".repeat(41);
        let table = [
            (Ids::Any, &*long, true),
            (Ids::Short, &long, false),
            (Ids::Short, &long[..40], true),
            (Ids::Short, "functions.get:0", true),
            (Ids::Word, "functions.get:0", false),
            (Ids::Word, "toolu_01-x", true),
            (Ids::Nine, "call_1234", false),
            (Ids::Nine, "abcDEF123", true),
            (Ids::Nine, "abcDEF12", false),
            (Ids::Nine, "äbcDEF12", false),
        ];
        for (ids, id, stays) in table {
            let fitting = ids.fit(id);
            assert_eq!(fitting == id, stays, "{ids:?} {id}");
            assert!(ids.accepts(&fitting) && ids.fit(&fitting) == fitting, "{ids:?} {id}: {fitting}");
        }
        assert_eq!(Ids::Nine.fit("call_1"), "Bu09e4fdz");
        assert_ne!(Ids::Nine.fit("call_1"), Ids::Nine.fit("call_2"));
    }

    #[test]
    fn a_name_of_a_call_that_a_server_refuses_goes_back_in_a_form_that_every_server_takes() {
        let long = "n".repeat(65);
        let table = [
            ("get_weather-2", "get_weather-2"),
            ("browser.open<|channel|>commentary", "browser_open__channel__commentary"),
            ("get weather", "get_weather"),
            ("", "_"),
            ("$READFILE", "_READFILE"),
            ("2 words", "_2_words"),
            ("größe", "gr__e"),
            (&long, &long[..64]),
        ];
        for (name, expected) in table {
            assert_eq!(fit_name(name, Dialect::Any), expected, "{name}");
        }
        for (dialect, expected) in [(Dialect::OpenAi, "2fast"), (Dialect::Gemini, "_2fast")] {
            assert_eq!(fit_name("2fast", dialect), expected, "{dialect:?}");
        }
    }

    #[test]
    fn a_model_of_a_family_brings_its_rules_to_each_server() {
        for model in ["mistralai/Devstral-Small-2507", "mistral-large-latest", "Ministral-8B"] {
            assert_eq!((ANY.with_model(model).ids, OPENROUTER.with_model(model).ids), (Ids::Nine, Ids::Nine));
        }
        assert_eq!(OPENROUTER.with_model("anthropic/claude-sonnet-4").ids, Ids::Word);
        assert_eq!(VLLM.with_model("moonshotai/Kimi-K2-Instruct"), VLLM);
    }
}

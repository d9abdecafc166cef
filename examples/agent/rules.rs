//! A model that needs no network. It answers by rules, and calls tools as a language model would.
//!
//! It turns the question into steps, calls one tool after another, replaces "that" with the last number, and lists the
//! results when all steps are done.

use emitree::agent::{ChatRequest, Message, Reply, ScriptedModel};
use serde_json::{Value, json};

/// The answer to questions that no rule matches.
const HELP: &str = "I work by rules, and understand questions such as: how many words, lines, characters or bytes has \
                    FILE; which lines of FILE mention TEXT; read FILE; list DIRECTORY; what is 3 * (4 + 5); and what is \
                    that times 17.";

pub(crate) fn model() -> ScriptedModel {
    ScriptedModel::by("rules", |request| answer(request).in_pieces(8))
}

/// One step towards an answer: a tool call, or a part of the question that no rule matches.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Call { tool: &'static str, arguments: Value, says: String },
    Unknown(String),
}

fn answer(request: &ChatRequest) -> Reply {
    let question = request.last_user_text();
    // Only results since the last question count, because the session may contain earlier questions.
    let since = request.messages.iter().rposition(|message| message.text() == question).unwrap_or(0);
    let results: Vec<_> = request.messages[since..].iter().flat_map(|message| results(message)).collect();
    let steps = steps(&question);
    if let Some(failed) = results.iter().find(|result| result.1) {
        return Reply::text(format!("I could not answer: {}", text(&failed.0)));
    }
    match steps.get(results.len()) {
        Some(Step::Call { tool, arguments, .. }) => {
            let that = results.iter().rev().find_map(|(result, _)| number(result));
            Reply::calls([(*tool, with_that(arguments.clone(), that))])
        }
        Some(Step::Unknown(part)) => Reply::text(format!("I do not understand {part:?}. {HELP}")),
        None if steps.is_empty() => Reply::text(HELP),
        None => {
            let lines = steps.iter().zip(&results).map(|(step, (result, _))| match step {
                Step::Call { says, .. } => format!("{says}: {}", text(result)),
                Step::Unknown(part) => part.clone(),
            });
            Reply::text(lines.collect::<Vec<_>>().join("\n"))
        }
    }
}

/// Returns the results of a message, each with `true` if it is an error.
fn results(message: &Message) -> Vec<(Value, bool)> {
    message.tool_results().map(|result| (result.response.clone(), result.is_error)).collect()
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns the number in a result, if there is one.
fn number(result: &Value) -> Option<String> {
    result.as_number().or_else(|| result["count"].as_number()).map(ToString::to_string)
}

/// Replaces "that" with the last number.
fn with_that(mut arguments: Value, that: Option<String>) -> Value {
    if let (Some(Value::String(expression)), Some(that)) = (arguments.get_mut("expression"), that) {
        *expression = expression.replace("that", &that);
    }
    arguments
}

fn steps(question: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    // A part that names no file refers to the last file that was named.
    let mut path = None;
    for part in parts(question) {
        path = path_of(&part).or(path);
        steps.extend(steps_of(&part, path.as_deref()));
    }
    steps
}

/// Splits the text at each " and " or punctuation mark before a word that begins a new question, except inside quotes.
fn parts(question: &str) -> Vec<String> {
    const BEGINS: [&str; 12] = [
        "how ",
        "what ",
        "what's ",
        "which ",
        "list ",
        "read ",
        "show ",
        "search ",
        "find ",
        "count ",
        "calculate ",
        "then ",
    ];
    let mut parts = vec![String::new()];
    let mut quoted = false;
    let mut rest = question.trim();
    while let Some(next) = rest.chars().next() {
        quoted ^= next == '"';
        let joint = [", and ", " and ", ", ", "; ", "? ", ". "].into_iter().find(|joint| {
            let begins = |after: &str| BEGINS.iter().any(|begin| after.to_lowercase().starts_with(begin));
            !quoted && rest.strip_prefix(joint).is_some_and(begins)
        });
        match joint {
            Some(joint) => {
                rest = &rest[joint.len()..];
                parts.push(String::new());
            }
            None => {
                parts.last_mut().expect("never empty").push(next);
                rest = &rest[next.len_utf8()..];
            }
        }
    }
    let clean = |part: String| part.trim().trim_end_matches(['?', '.', '!']).trim_end().to_owned();
    parts.into_iter().map(clean).filter(|part| !part.is_empty()).collect()
}

fn steps_of(part: &str, path: Option<&str>) -> Vec<Step> {
    let lower = part.to_lowercase();
    let words: Vec<_> = lower.split(|c: char| !c.is_alphanumeric()).collect();
    let call = |tool, arguments, says: String| vec![Step::Call { tool, arguments, says }];
    let asks_to = |verbs: &[&str]| verbs.iter().any(|verb| words.contains(verb));
    if asks_to(&["list", "files"]) {
        let dir = part.split_whitespace().next_back().filter(|word| word.contains('/') || *word == ".");
        let dir = dir.or_else(|| path_of(part).is_none().then_some(".")).unwrap_or(".");
        return call("list", json!({ "path": dir }), format!("the files in {dir}"));
    }
    if let Some(path) = path {
        if let Some(wanted) = wanted(part, path) {
            let says = format!("lines of {path} with {wanted:?}");
            return call("search", json!({ "path": path, "text": wanted }), says);
        }
        let kinds = ["words", "lines", "characters", "bytes"].into_iter().filter(|kind| words.contains(kind));
        let count = |what| Step::Call {
            tool: "count",
            arguments: json!({ "path": path, "what": what }),
            says: format!("{what} of {path}"),
        };
        let counts: Vec<_> = kinds.map(count).collect();
        if !counts.is_empty() {
            return counts;
        }
        if asks_to(&["read", "show"]) {
            return call("read", json!({ "path": path }), path.to_owned());
        }
    }
    match expression(&lower) {
        Some(expression) => call("calculate", json!({ "expression": expression }), part.to_owned()),
        None => vec![Step::Unknown(part.to_owned())],
    }
}

/// Returns the first word that looks like a path: it has a letter, and a dot, a slash or a hyphen.
fn path_of(part: &str) -> Option<String> {
    let words = part.split_whitespace().map(|word| word.trim_matches(['?', ',', '"', '\'', '`', ';']));
    let is_path = |word: &&str| {
        let word = word.trim_end_matches('.');
        word.contains(|c: char| c.is_alphabetic()) && (word.contains('.') || word.contains('/') || word.contains('-'))
    };
    words.map(|word| word.trim_end_matches('.')).find(is_path).map(str::to_owned)
}

/// Returns the text to search for: the quoted text after the verb, or everything up to the file name or the end.
fn wanted(part: &str, path: &str) -> Option<String> {
    let verbs = ["mention", "contain", "search", "find"];
    // Only ASCII letters change, so that byte positions are the same in both texts.
    let lower = part.to_ascii_lowercase();
    let verb = verbs.into_iter().find(|verb| lower.contains(verb))?;
    let rest = &part[lower.find(verb)? + verb.len()..];
    let rest = rest.strip_prefix('s').unwrap_or(rest).trim();
    let quoted = ['"', '\'', '`'].into_iter().find_map(|quote| rest.strip_prefix(quote)?.split(quote).next());
    let bare = || rest.split(path).next().unwrap_or(rest).trim().trim_end_matches(" in").trim_end_matches(" of").trim();
    let bare = || bare().trim_start_matches("for ").trim();
    Some(quoted.unwrap_or_else(bare).to_owned()).filter(|wanted| !wanted.is_empty())
}

/// Returns the arithmetic expression in a part, with words replaced by operators. Returns `None` if a word is unknown.
fn expression(lower: &str) -> Option<String> {
    const WORDS: [(&str, &str); 12] = [
        ("multiplied by", "*"),
        ("divided by", "/"),
        ("to the power of", "^"),
        ("times", "*"),
        ("plus", "+"),
        ("minus", "-"),
        ("squared", "^2"),
        ("over", "/"),
        ("×", "*"),
        ("÷", "/"),
        ("what is", ""),
        ("what's", ""),
    ];
    let mut text = format!(" {} ", lower.replace("calculate", "").replace("then ", "").replace("how much is", ""));
    for (word, operator) in WORDS {
        text = text.replace(word, operator);
    }
    let text = text.replace(" it ", " that ");
    let digits = text.replace("that", "");
    let is_part = |c: char| c.is_ascii_digit() || " .+-*/^()%".contains(c);
    let is_arithmetic = digits.chars().all(is_part) && text.contains(|c: char| c.is_ascii_digit() || c == 't');
    is_arithmetic.then(|| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(question: &str) -> Vec<String> {
        let line = |step| match step {
            Step::Call { tool, arguments, .. } => format!("{tool} {arguments}"),
            Step::Unknown(part) => format!("? {part}"),
        };
        steps(question).into_iter().map(line).collect()
    }

    #[test]
    fn questions_become_steps() {
        let table: [(&str, &[&str]); 9] = [
            (
                "How many words has README.md, and what is that times 17?",
                &[r#"count {"path":"README.md","what":"words"}"#, r#"calculate {"expression":"that * 17"}"#],
            ),
            (
                "How many words and lines has docs/limits.md?",
                &[
                    r#"count {"path":"docs/limits.md","what":"words"}"#,
                    r#"count {"path":"docs/limits.md","what":"lines"}"#,
                ],
            ),
            ("Which lines of README.md mention \"and what\"?", &[r#"search {"path":"README.md","text":"and what"}"#]),
            ("find tower in README.md", &[r#"search {"path":"README.md","text":"tower"}"#]),
            ("list docs/", &[r#"list {"path":"docs/"}"#]),
            ("What is (3 + 4.5) * 2?", &[r#"calculate {"expression":"(3 + 4.5) * 2"}"#]),
            (
                "How many lines has LICENSE-MIT and how many words?",
                &[r#"count {"path":"LICENSE-MIT","what":"lines"}"#, r#"count {"path":"LICENSE-MIT","what":"words"}"#],
            ),
            ("Sing me a song.", &["? Sing me a song"]),
            ("", &[]),
        ];
        for (question, expected) in table {
            assert_eq!(calls(question), expected, "{question:?}");
        }
    }
}

//! Servers that speak OpenAI's protocol, with their addresses and environment variables.

use std::ffi::OsString;
use std::net::Ipv6Addr;

use emitree_runtime::{Error, Result};
use reqwest::Url;

use crate::model::registry::split;
use crate::openai::OpenAiBuilder;
use crate::openai::rules::{self, Rules};

/// A server that [`OpenAi::from_name`](crate::OpenAi::from_name) supports.
pub(crate) struct Known {
    pub(crate) name: &'static str,
    pub(super) base_url: &'static str,
    /// The variable that overrides the base URL.
    url_variable: Option<&'static str>,
    /// The variables that may contain the key. The first variable that is set is used.
    pub(super) key_variables: &'static [&'static str],
    /// `true` if the server at `base_url` refuses requests without a key.
    pub(super) needs_key: bool,
    /// What the server accepts.
    pub(super) rules: Rules,
}

impl Known {
    const fn hosted(name: &'static str, base_url: &'static str, key_variables: &'static [&'static str]) -> Self {
        Self { name, base_url, url_variable: None, key_variables, needs_key: true, rules: rules::ANY }
    }

    const fn local(name: &'static str, base_url: &'static str, key_variables: &'static [&'static str]) -> Self {
        Self { name, base_url, url_variable: None, key_variables, needs_key: false, rules: rules::ANY }
    }

    const fn url_variable(mut self, variable: &'static str) -> Self {
        self.url_variable = Some(variable);
        self
    }

    const fn rules(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }
}

/// The default server of `OpenAi::builder`.
pub(super) static OPENAI: Known = Known::hosted("openai", "https://api.openai.com/v1", &["OPENAI_API_KEY"])
    .url_variable("OPENAI_BASE_URL")
    .rules(rules::OPENAI);

/// The other servers, sorted by name.
static OTHERS: [Known; 12] = [
    Known::hosted("anthropic", "https://api.anthropic.com/v1", &["ANTHROPIC_API_KEY"]).rules(rules::ANTHROPIC),
    Known::hosted("deepseek", "https://api.deepseek.com/v1", &["DEEPSEEK_API_KEY"]).rules(rules::DEEPSEEK),
    Known::hosted(
        "gemini",
        "https://generativelanguage.googleapis.com/v1beta/openai",
        &["GEMINI_API_KEY", "GOOGLE_API_KEY"],
    )
    .rules(rules::GEMINI),
    Known::hosted("groq", "https://api.groq.com/openai/v1", &["GROQ_API_KEY"]),
    Known::local("llamacpp", "http://localhost:8080/v1", &["LLAMA_API_KEY"]).rules(rules::LLAMA_CPP),
    Known::local("lmstudio", "http://localhost:1234/v1", &["LM_STUDIO_API_KEY"])
        .url_variable("LM_STUDIO_API_BASE")
        .rules(rules::LLAMA_CPP),
    Known::hosted("mistral", "https://api.mistral.ai/v1", &["MISTRAL_API_KEY"]).rules(rules::MISTRAL),
    Known::local("ollama", "http://localhost:11434/v1", &["OLLAMA_API_KEY"]).url_variable("OLLAMA_HOST"),
    Known::hosted("openrouter", "https://openrouter.ai/api/v1", &["OPENROUTER_API_KEY"]).rules(rules::OPENROUTER),
    Known::hosted("together", "https://api.together.xyz/v1", &["TOGETHER_API_KEY"]),
    Known::local("vllm", "http://localhost:8000/v1", &["VLLM_API_KEY"])
        .url_variable("HOSTED_VLLM_API_BASE")
        .rules(rules::VLLM),
    Known::hosted("xai", "https://api.x.ai/v1", &["XAI_API_KEY"]).rules(rules::XAI),
];

/// Iterates over all servers.
pub(crate) fn all() -> impl Iterator<Item = &'static Known> {
    [&OPENAI].into_iter().chain(&OTHERS)
}

/// Returns the rules of the server at an address. The address of a known server counts, even if the builder is for
/// another server. Nothing is known about the server at any other address of `OpenAi::builder`.
pub(super) fn rules(server: &Known, url: &Url) -> Rules {
    let is_at = |known: &&Known| Url::parse(known.base_url).is_ok_and(|own| own.host_str() == url.host_str());
    if let Some(known) = all().filter(|known| known.needs_key).find(is_at) {
        return known.rules;
    }
    if is_openai(url) || url.host_str().is_some_and(|host| host.ends_with(".openai.azure.com")) {
        return OPENAI.rules;
    }
    if server.name == OPENAI.name { rules::ANY } else { server.rules }
}

/// Returns `true` for the address of OpenAI. Its regions have their own hosts, such as `eu.api.openai.com`.
pub(super) fn is_openai(url: &Url) -> bool {
    url.host_str().is_some_and(|host| format!(".{host}").ends_with(".api.openai.com"))
}

/// Returns the builder for the model with this name. `environment` returns the value of a variable.
pub(super) fn builder(name: &str, environment: impl Fn(&str) -> Option<OsString>) -> Result<OpenAiBuilder> {
    let (server, model) = split(name)?;
    let Some(known) = all().find(|known| known.name == server) else {
        let names: Vec<_> = all().map(|known| format!("`{}`", known.name)).collect();
        return Err(Error::new(format!(
            "the server `{server}` of `{name}` is not known; known servers are {}; for another server, use `OpenAi::builder` and `base_url`",
            names.join(", ")
        )));
    };
    let value = |variable: &str| match environment(variable).map(OsString::into_string) {
        None => Ok(None),
        Some(Ok(text)) => Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
        // The text may be a key, so it is not quoted.
        Some(Err(_)) => Err(Error::new(format!("the environment variable `{variable}` is not valid Unicode"))),
    };
    let mut builder = OpenAiBuilder::new(known, model.to_owned());
    if let Some(variable) = known.url_variable
        && let Some(url) = value(variable)?
    {
        builder = builder.base_url(if variable == "OLLAMA_HOST" { ollama(&url) } else { url });
    }
    for variable in known.key_variables {
        if let Some(key) = value(variable)? {
            return Ok(builder.api_key(key));
        }
    }
    Ok(builder)
}

/// Returns the base URL for a value of `OLLAMA_HOST`. As in Ollama, the value may be in quotes, and the host may be
/// missing. The scheme is `http` by default, and the port is 11434 if the value has neither a scheme nor a port. The
/// value `ollama.com` is an exception: it means `https://ollama.com`.
fn ollama(host: &str) -> String {
    let host = host.trim_matches(['"', '\'']);
    let (is_url, text) = match host.split_once("://") {
        Some(_) => (true, host.to_owned()),
        None if host == "ollama.com" => (true, "https://ollama.com".to_owned()),
        None if host.parse::<Ipv6Addr>().is_ok() => (false, format!("http://[{host}]")),
        None if host.starts_with(':') => (false, format!("http://localhost{host}")),
        None => (false, format!("http://{host}")),
    };
    let Ok(mut url) = Url::parse(&text) else {
        // The text is not a URL, so `build` will return an error.
        return text;
    };
    // `url` leaves out the default port of `http`, so the port is read from the same URL with another scheme.
    if !is_url && Url::parse(&text.replacen("http", "ollama", 1)).is_ok_and(|url| url.port().is_none()) {
        let _ = url.set_port(Some(11434));
    }
    // A server can listen on these addresses, but on some systems a client cannot connect to them.
    if matches!(url.host_str(), Some("0.0.0.0" | "[::]")) {
        let _ = url.set_host(Some("localhost"));
    }
    format!("{}/v1", url.as_str().trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn ollama_host_is_parsed_as_ollama_parses_it() {
        let table = [
            ("example.com", "http://example.com:11434/v1"),
            ("example.com:80", "http://example.com/v1"),
            ("example.com:1234", "http://example.com:1234/v1"),
            (":1234", "http://localhost:1234/v1"),
            ("0.0.0.0", "http://localhost:11434/v1"),
            ("0.0.0.0:1234", "http://localhost:1234/v1"),
            ("[::1]:1234", "http://[::1]:1234/v1"),
            ("http://example.com", "http://example.com/v1"),
            ("https://example.com/", "https://example.com/v1"),
            ("https://example.com/ollama", "https://example.com/ollama/v1"),
            ("[::]:1234", "http://localhost:1234/v1"),
            ("::1", "http://[::1]:11434/v1"),
            ("\"example.com\"", "http://example.com:11434/v1"),
            ("ollama.com", "https://ollama.com/v1"),
        ];
        for (host, expected) in table {
            assert_eq!(ollama(host), expected, "{host}");
        }
    }

    #[test]
    fn the_rules_are_those_of_the_address_or_else_of_the_name() {
        let table = [
            ("openai", "https://eu.api.openai.com/v1", rules::OPENAI),
            ("openai", "https://mine.openai.azure.com/openai/v1", rules::OPENAI),
            ("openai", "https://api.mistral.ai/v1", rules::MISTRAL),
            ("openai", "http://localhost:8000/v1", rules::ANY),
            ("gemini", "http://localhost:8000/v1", rules::GEMINI),
            ("vllm", "https://api.anthropic.com/v1", rules::ANTHROPIC),
        ];
        for (name, url, expected) in table {
            let known = all().find(|known| known.name == name).unwrap();
            assert_eq!(rules(known, &Url::parse(url).unwrap()), expected, "{name} {url}");
        }
    }

    type Variables<'a> = &'a [(&'a str, &'a OsStr)];

    /// Builds a provider with these variables. Returns its address and its keys.
    fn built(name: &str, variables: Variables<'_>) -> Result<(String, Vec<String>)> {
        let environment = |asked: &str| {
            let found = variables.iter().find(|(variable, _)| *variable == asked);
            found.map(|(_, value)| (*value).to_owned())
        };
        let provider = builder(name, environment)?.build()?;
        let server = &provider.shared.server;
        Ok((server.address.clone(), server.secrets.clone()))
    }

    #[test]
    fn the_key_is_read_from_the_first_variable_that_is_set() {
        let a = ("GEMINI_API_KEY", "key a".as_ref());
        let b = ("GOOGLE_API_KEY", " key b\n".as_ref());
        let none: &[&str] = &[];
        let table: [(&str, Variables<'_>, &[&str]); 7] = [
            ("gemini:m", &[a, b], &["key a"]),
            ("gemini:m", &[b], &["key b"]),
            ("gemini:m", &[("GEMINI_API_KEY", "".as_ref()), b], &["key b"]),
            ("gemini:m", &[("GEMINI_API_KEY", " \n".as_ref()), b], &["key b"]),
            ("ollama:m", &[], none),
            ("ollama:m", &[("OLLAMA_API_KEY", "".as_ref())], none),
            ("ollama:m", &[("OLLAMA_API_KEY", "c".as_ref()), ("OPENAI_API_KEY", "d".as_ref())], &["c"]),
        ];
        for (name, variables, keys) in table {
            assert_eq!(built(name, variables).unwrap().1, keys, "{name}, {variables:?}");
        }
    }

    #[test]
    fn each_key_variable_of_each_server_is_read_and_the_error_for_a_missing_key_names_it() {
        for known in all() {
            let name = format!("{}:m", known.name);
            for variable in known.key_variables {
                assert_eq!(built(&name, &[(variable, "k".as_ref())]).unwrap().1, ["k"], "{variable}");
                if known.needs_key {
                    for value in [None, Some((*variable, OsStr::new("")))] {
                        let error = built(&name, value.as_slice()).unwrap_err().to_string();
                        assert!(error.starts_with(&format!("`{}` needs an API key", known.name)), "{error}");
                        assert!(error.contains(&format!("`{variable}`")), "{error}");
                    }
                }
            }
            assert!(known.needs_key || built(&name, &[]).is_ok(), "{name}");
        }
    }

    #[test]
    fn the_base_url_is_read_from_the_variable_of_its_server_and_then_no_key_is_needed() {
        for known in all() {
            let name = format!("{}:m", known.name);
            let key = (known.key_variables[0], OsStr::new("k"));
            assert_eq!(built(&name, &[key]).unwrap().0, known.base_url, "{name}");
            if let Some(variable) = known.url_variable {
                let set = |value: &'static str| built(&name, &[(variable, value.as_ref())]);
                assert_eq!(set(" http://localhost:1/v1 ").unwrap().0.trim_end_matches("/v1"), "http://localhost:1");
                let empty = built(&name, &[(variable, "".as_ref()), key]);
                assert_eq!(empty.unwrap().0, known.base_url, "{variable}");
            }
        }
        assert_eq!(built("ollama:m", &[("OLLAMA_HOST", ":1".as_ref())]).unwrap().0, "http://localhost:1/v1");
        assert_eq!(built("vllm:m", &[("OLLAMA_HOST", ":1".as_ref())]).unwrap().0, "http://localhost:8000/v1");
    }

    #[test]
    #[cfg(unix)]
    fn the_error_for_a_variable_that_is_not_unicode_does_not_contain_its_value() {
        use std::os::unix::ffi::OsStrExt;
        let value = OsStr::from_bytes(b"s3cr3t\xff");
        for variable in ["OPENAI_API_KEY", "OPENAI_BASE_URL"] {
            let error = built("openai:m", &[(variable, value)]).unwrap_err();
            assert_eq!(error.to_string(), format!("the environment variable `{variable}` is not valid Unicode"));
            assert!(!format!("{error:?} {}", error.explain()).contains("s3cr3t"), "{error:?}");
        }
        // A variable that is not needed is not read.
        let variables = [("GEMINI_API_KEY", OsStr::new("k")), ("GOOGLE_API_KEY", value), ("OPENAI_API_KEY", value)];
        assert_eq!(built("gemini:m", &variables).unwrap().1, ["k"]);
    }

    /// Returns the cells of the rows that begin with the name of a server.
    fn rows<'a>(text: &'a str, prefix: &'a str) -> Vec<Vec<&'a str>> {
        let rows = text.lines().filter_map(|line| line.trim_start().strip_prefix(prefix)?.strip_suffix('|'));
        let rows = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
        rows.filter(|cells| all().any(|known| cells[0] == format!("`{}`", known.name))).collect()
    }

    fn quoted(names: &[&str]) -> String {
        names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn the_tables_in_the_documentation_list_each_server_with_its_variables() {
        let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/models.md");
        let expected: Vec<_> = all()
            .map(|known| {
                let Known { name, base_url, url_variable, key_variables, .. } = known;
                [quoted(&[name]), quoted(&[base_url]), quoted(url_variable.as_slice()), quoted(key_variables)]
            })
            .collect();
        assert_eq!(rows(&std::fs::read_to_string(guide).unwrap(), "|"), expected);
        let expected: Vec<_> = all()
            .map(|known| {
                let urls: Vec<_> = [known.base_url].into_iter().chain(known.url_variable).collect();
                [quoted(&[known.name]), quoted(&urls), quoted(known.key_variables)]
            })
            .collect();
        assert_eq!(rows(include_str!("builder.rs"), "/// |"), expected);
    }

    #[test]
    fn the_servers_are_sorted_and_their_names_fit_into_a_namespace() {
        assert!(OTHERS.is_sorted_by_key(|known| known.name));
        for known in all() {
            assert!(known.name.chars().all(|c| c.is_ascii_alphanumeric()), "{}", known.name);
        }
    }
}

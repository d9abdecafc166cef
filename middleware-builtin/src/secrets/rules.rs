//! What is looked for: a table of patterns, each with what its match has to pass besides.
//!
//! 1. Every repetition is bounded, so a match has a longest length, and so has what is looked back at.
//! 2. A pattern whose first part may be long begins with the character before it: so one attempt at it is under way at a
//!    time, however the text looks.
//! 3. A match is what the first group has, or all of it where that is empty. The first rule of the table whose match
//!    passes wins.

use super::checks::{self, Check};
use super::kind::Kind;
use super::tail::Tail;

/// One pattern.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) kind: Kind,
    pub(super) pattern: String,
    /// Letters, digits and boundaries are those of Unicode.
    pub(super) is_unicode: bool,
    pub(super) check: Check,
    /// What follows the match and belongs to it.
    pub(super) tail: Option<Tail>,
    /// It knows its value by the name before it: a rule that knows the value itself is asked first.
    pub(super) is_vague: bool,
}

impl Rule {
    fn new(kind: Kind, pattern: &str, check: Check) -> Self {
        Self { kind, pattern: pattern.to_owned(), is_unicode: false, check, tail: None, is_vague: false }
    }

    fn with_tail(self, tail: Tail) -> Self {
        Self { tail: Some(tail), ..self }
    }

    fn vague(self) -> Self {
        Self { is_vague: true, ..self }
    }

    /// One's own.
    pub(super) fn custom(name: &str, pattern: &str) -> Self {
        let own = Self::new(Kind::Custom(name.into()), pattern, checks::any);
        Self { is_unicode: true, ..own }
    }
}

/// What is in a value that was given a name: no quotes, brackets, or what begins a placeholder.
const VALUE: &str = r#"([^\s"'`,;<>(){}\[\]&\\$|*][^\s"'`,;<>(){}\[\]&\\]{5,199})"#;

/// What a name for something secret ends with.
const NAME: &str = "(?i:pass(?:word|wd|phrase)|pwd|secret|token|api[_-]?key|access[_-]?key|auth[_-]?key|signing[_-]?key\
                    |encryption[_-]?key|account[_-]?key|credentials?)";

/// The table, in the order in which rules are asked.
pub(super) fn all() -> Vec<Rule> {
    let mut rules = tokens();
    rules.extend(named());
    rules.extend(personal());
    rules
}

fn tokens() -> Vec<Rule> {
    use checks::token;
    let rule = |kind, pattern| Rule::new(kind, pattern, token);
    vec![
        Rule::new(Kind::PrivateKey, r"-----BEGIN [A-Z ]{0,24}PRIVATE KEY(?: BLOCK)?-----", checks::any)
            .with_tail(Tail::Block),
        Rule::new(Kind::Jwt, r"\beyJ[A-Za-z0-9_-]{8}", checks::any).with_tail(Tail::Jwt),
        rule(Kind::GithubToken, r"\bgh[pousr]_[A-Za-z0-9]{36,255}"),
        rule(Kind::GithubToken, r"\bgithub_pat_[A-Za-z0-9_]{36,255}"),
        // A routable one has its length and a checksum behind dots.
        rule(
            Kind::GitlabToken,
            r"\bgl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|soat|oas)-[A-Za-z0-9_-]{20,255}(?:(?:\.[0-9a-z]{2})?\.[0-9a-z]{9}\b)?",
        ),
        rule(Kind::SlackToken, r"\bxox[abeoprs]-[A-Za-z0-9-]{20,255}"),
        rule(Kind::SlackToken, r"\bxapp-[0-9]-[A-Za-z0-9-]{20,255}"),
        rule(Kind::SlackToken, r"\bhttps://hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9/_+-]{20,200}"),
        rule(Kind::StripeKey, r"\b(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{16,255}"),
        rule(Kind::StripeKey, r"\bwhsec_[A-Za-z0-9]{24,255}"),
        rule(Kind::ModelKey, r"\bsk-(?:proj|svcacct|admin|or-v1|ant-[a-z0-9]{2,10})-[A-Za-z0-9_-]{20,255}"),
        rule(Kind::ModelKey, r"\bsk-[A-Za-z0-9]{32,128}"),
        rule(Kind::ModelKey, r"\b(?:hf_[A-Za-z]{34}|gsk_[A-Za-z0-9]{52}|r8_[A-Za-z0-9]{37}|xai-[A-Za-z0-9]{80})\b"),
        rule(Kind::GoogleKey, r"\bAIza[A-Za-z0-9_-]{35}"),
        rule(Kind::GoogleKey, r"\b(?:ya29\.|GOCSPX-)[A-Za-z0-9_-]{28,255}"),
        rule(Kind::AwsKey, r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b"),
        rule(Kind::PackageToken, r"\bnpm_[A-Za-z0-9]{36}\b"),
        rule(Kind::PackageToken, r"\bpypi-AgE[A-Za-z0-9_-]{50,255}"),
        rule(Kind::PackageToken, r"\brubygems_[a-f0-9]{48}\b"),
        rule(Kind::MailKey, r"\bSG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{32,64}"),
        rule(Kind::MailKey, r"\b(?:key-[a-f0-9]{32}|xkeysib-[a-f0-9]{64}-[A-Za-z0-9]{16})\b"),
    ]
}

/// Known by the name before it.
fn named() -> Vec<Rule> {
    let assigned = format!(
        r#"{NAME}(?:[_-]?(?:key|value))?\\{{0,2}}["'`]?[ \t]{{0,8}}(?:=>|:=|=|:)[ \t]{{0,8}}(?:[a-z]{{0,2}}\\{{0,2}}["'`])?{VALUE}"#
    );
    let flag = format!(r#"--(?:[a-z]{{1,12}}-){{0,2}}{NAME}[ =]["']?{VALUE}"#);
    let rule = |kind, pattern: &str| Rule::new(kind, pattern, checks::assigned).vague();
    vec![
        Rule::new(Kind::AzureKey, r"\b(?i:AccountKey|SharedAccessKey)=([A-Za-z0-9+/]{32,128}={0,2})", checks::token),
        Rule::new(Kind::UrlPassword, r#"://[^\s/:@"'<>`]{0,64}:([^\s/@"'<>`{}$]{3,128})@"#, checks::url_password)
            .vague(),
        rule(Kind::Assigned, &assigned),
        rule(Kind::Assigned, &flag),
        rule(Kind::Assigned, r"\b(?i:bearer|basic)[ ]{1,4}([A-Za-z0-9._~+/=-]{16,255})"),
    ]
}

fn personal() -> Vec<Rule> {
    const OCTET: &str = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
    let ip4 = format!(r"(?:\A|[^0-9A-Za-z_.])({OCTET}(?:\.{OCTET}){{3}})\b");
    vec![
        Rule::new(
            Kind::Email,
            r"(?:\A|[^A-Za-z0-9._%+'-])'{0,8}([A-Za-z0-9_%+][A-Za-z0-9._%+'-]{0,63}@[A-Za-z0-9][A-Za-z0-9-]{0,62}(?:\.[A-Za-z0-9-]{1,63}){0,5}\.[A-Za-z]{2,24})\b",
            checks::email,
        ),
        Rule::new(Kind::Iban, r"\b[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?\b", checks::iban),
        Rule::new(
            Kind::Card,
            r"(?:\A|[^0-9A-Za-z_.+-])([2-6][0-9]{3}(?:[ -]?[0-9]{4}){3}(?:[ -]?[0-9]{3})?|3[0-9]{3}[ -]?[0-9]{6}[ -]?[0-9]{4,5})\b",
            checks::card,
        ),
        Rule::new(
            Kind::Phone,
            r"(?:\A|[^0-9A-Za-z_+.])(\+[1-9][0-9]{0,2}[ .-]?(?:\([0-9]{1,4}\)[ .-]?)?[0-9]{1,14}(?:[ .-][0-9]{1,8}){0,5})\b",
            checks::phone,
        ),
        Rule::new(
            Kind::Phone,
            r"(?:\A|[^0-9A-Za-z_+.-])((?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[.-])[2-9][0-9]{2}[.-][0-9]{4})\b",
            checks::phone,
        ),
        Rule::new(Kind::Ip, &ip4, checks::ip),
        Rule::new(Kind::Ip, r"(?:\A|[^0-9A-Za-z_.:])([0-9A-Fa-f]{1,4}(?:::?[0-9A-Fa-f]{1,4}){2,7})\b", checks::ip),
    ]
}

//! What sort of secret something is.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use super::table::TABLE;

/// What sort of secret, or of personal data, something is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// A block from `-----BEGIN … PRIVATE KEY-----` to its end.
    PrivateKey,
    /// A signed JSON Web Token.
    Jwt,
    /// A personal, app or fine-grained token of GitHub.
    GithubToken,
    /// A token of GitLab.
    GitlabToken,
    /// A bot, user or app token of Slack, or one of its webhooks.
    SlackToken,
    /// A secret, restricted or webhook key of Stripe.
    StripeKey,
    /// A key of a provider of models: `OpenAI`, Anthropic, Hugging Face, Groq, Replicate, xAI, `OpenRouter`. Others are a
    /// [`Service`](Self::Service).
    ModelKey,
    /// An API key, OAuth token or client secret of Google.
    GoogleKey,
    /// An access key id of AWS, or a secret access key where something says that it is one.
    AwsKey,
    /// A token of a package registry: npm, `PyPI`, `RubyGems`.
    PackageToken,
    /// A key of a mail service: `SendGrid`, Mailgun, Brevo.
    MailKey,
    /// The key in a connection string of Azure.
    AzureKey,
    /// The password in a URL.
    UrlPassword,
    /// A value that looks random and is assigned to something called password, secret, token or API key; a bearer's
    /// token.
    Assigned,
    /// An e-mail address.
    Email,
    /// An IBAN with the right check digits.
    Iban,
    /// A payment card's number that passes Luhn's check.
    Card,
    /// A phone number: international, or North American.
    Phone,
    /// An IP address that is neither loopback nor unspecified, and no version number.
    Ip,
    /// A US social security number, where something says that it is one.
    Ssn,
    /// A key or token of a service, by the name that the [table](super::Scanner::table) gives it: `twilio_key`. Made by
    /// [`Kind::named`].
    Service(Service),
    /// One's own pattern, by its name.
    Custom(Arc<str>),
}

/// The name of a service's kind of secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Service(&'static str);

impl Kind {
    /// Those that have a variant of their own.
    const VARIANTS: [Self; 20] = [
        Self::PrivateKey,
        Self::Jwt,
        Self::GithubToken,
        Self::GitlabToken,
        Self::SlackToken,
        Self::StripeKey,
        Self::ModelKey,
        Self::GoogleKey,
        Self::AwsKey,
        Self::PackageToken,
        Self::MailKey,
        Self::AzureKey,
        Self::UrlPassword,
        Self::Assigned,
        Self::Email,
        Self::Iban,
        Self::Card,
        Self::Phone,
        Self::Ip,
        Self::Ssn,
    ];

    /// Those that tell of a person, and open nothing.
    pub const PERSONAL: [Self; 6] = [Self::Email, Self::Iban, Self::Card, Self::Phone, Self::Ip, Self::Ssn];

    /// Returns all kinds that are known without a pattern of your own, in the order in which they are asked.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for rule in TABLE {
            let kind = Self::of_line(rule.name);
            if !all.contains(&kind) {
                all.push(kind);
            }
        }
        all
    }

    /// Returns the kind of that name, if there is one: `twilio_key`, `email`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        TABLE.iter().find(|rule| rule.name == name).map(|rule| Self::of_line(rule.name))
    }

    /// The kind that a line of the table is about.
    pub(super) fn of_line(name: &'static str) -> Self {
        let variant = Self::VARIANTS.into_iter().find(|kind| kind.as_str() == name);
        variant.unwrap_or(Self::Service(Service(name)))
    }

    /// Its name, as it stands in events and in place of what was redacted.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::PrivateKey => "private_key",
            Self::Jwt => "jwt",
            Self::GithubToken => "github_token",
            Self::GitlabToken => "gitlab_token",
            Self::SlackToken => "slack_token",
            Self::StripeKey => "stripe_key",
            Self::ModelKey => "model_key",
            Self::GoogleKey => "google_key",
            Self::AwsKey => "aws_key",
            Self::PackageToken => "package_token",
            Self::MailKey => "mail_key",
            Self::AzureKey => "azure_key",
            Self::UrlPassword => "url_password",
            Self::Assigned => "assigned",
            Self::Email => "email",
            Self::Iban => "iban",
            Self::Card => "card",
            Self::Phone => "phone",
            Self::Ip => "ip",
            Self::Ssn => "ssn",
            Self::Service(Service(name)) => name,
            Self::Custom(name) => name,
        }
    }

    /// Whether it tells of a person, and opens nothing.
    #[must_use]
    pub const fn is_personal(&self) -> bool {
        matches!(self, Self::Email | Self::Iban | Self::Card | Self::Phone | Self::Ip | Self::Ssn)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

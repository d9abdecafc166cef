//! The kinds of secrets.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use super::table::TABLE;

/// A kind of secret, or of personal data.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// A private key, from `-----BEGIN … PRIVATE KEY-----` to the end of the block.
    PrivateKey,
    /// A JSON Web Token, signed or encrypted.
    Jwt,
    /// A GitHub token: personal, app or fine-grained.
    GithubToken,
    /// A GitLab token.
    GitlabToken,
    /// A Slack token of a bot, a user or an app, or the URL of a Slack webhook.
    SlackToken,
    /// A Stripe secret key, restricted key or webhook key.
    StripeKey,
    /// A key of a model provider: `OpenAI`, Anthropic, Hugging Face, Groq, Replicate, xAI, `OpenRouter`. Keys of
    /// other providers have the kind [`Service`](Self::Service).
    ModelKey,
    /// A Google API key, OAuth token, refresh token or client secret.
    GoogleKey,
    /// An AWS access key id, or an AWS secret access key next to a keyword.
    AwsKey,
    /// A token of a package registry: npm, `PyPI`, `RubyGems`.
    PackageToken,
    /// A key of a mail service: `SendGrid`, Mailgun, Brevo.
    MailKey,
    /// The key in an Azure connection string.
    AzureKey,
    /// The password in a URL.
    UrlPassword,
    /// A bearer token, or a value that is assigned to a name such as password, secret, token or API key: one that looks
    /// random, or one of at least 8 letters in an environment line, a file of settings, XML or a connection string.
    Assigned,
    /// An e-mail address.
    Email,
    /// An IBAN with valid check digits.
    Iban,
    /// The number of a payment card that passes Luhn's check.
    Card,
    /// An international or North American phone number.
    Phone,
    /// An IP address, except loopback addresses, IPv4 addresses that begin with 0 or 255, link-local IPv6 addresses,
    /// and IPv6 addresses without a decimal digit. Version numbers are not included.
    Ip,
    /// A US social security number next to a keyword.
    Ssn,
    /// A key or token of another service, with the name of its rule in the [table](super::Scanner::table), such as
    /// `twilio_key`. Returned by [`Kind::named`].
    Service(Service),
    /// The kind of your own pattern, with its name.
    Custom(Arc<str>),
}

/// The name of a kind of secret that belongs to a service, such as `twilio_key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Service(&'static str);

impl Kind {
    /// The kinds with a variant of their own.
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

    /// The kinds of personal data, which identifies a person but grants no access.
    pub const PERSONAL: [Self; 6] = [Self::Email, Self::Iban, Self::Card, Self::Phone, Self::Ip, Self::Ssn];

    /// Returns all built-in kinds, in the order in which they are tried.
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

    /// Returns the built-in kind with this name, such as `twilio_key` or `email`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        TABLE.iter().find(|rule| rule.name == name).map(|rule| Self::of_line(rule.name))
    }

    /// Returns the kind of a row of the table, by the name in that row.
    pub(super) fn of_line(name: &'static str) -> Self {
        let variant = Self::VARIANTS.into_iter().find(|kind| kind.as_str() == name);
        variant.unwrap_or(Self::Service(Service(name)))
    }

    /// Returns the name, as events and replacements show it.
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

    /// Returns `true` for personal data, which identifies a person but grants no access.
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

//! The table of built-in rules: a row for each format of a kind, in the order in which the rows are tried.
//!
//! 1. Every repetition is bounded, so that a match and the text before it have a maximum length.
//! 2. A pattern whose first part may be long begins with the character before that part, so that only one attempt to
//!    match the pattern is under way at a time.
//! 3. The secret is the first group of a match, or the whole match if that group is empty or missing. Of the rows that
//!    match at the same byte, the first whose match passes its check is used, unless it is vague and another row
//!    recognizes the secret itself.
//! 4. A secret without a recognizable format needs a keyword before it, on the same line.

use super::rules::{Check, Rule};

/// A row: name, pattern, keywords, check, source of the format, example (see [`Rule`]).
macro_rules! table {
    ($($name:literal, $pattern:expr, $near:expr, $check:ident, $source:literal, $example:literal;)*) => {
        &[$(Rule { name: $name, pattern: $pattern, near: &$near, check: Check::$check, source: $source, example: $example }),*]
    };
}

/// A value that is assigned to a name: 6 to 200 characters, without blanks, quotes or brackets. It does not begin like a
/// placeholder, with `<` or `*`.
macro_rules! value {
    () => {
        r#"([^\s"'`,;<>(){}\[\]&\\|*][^\s"'`,;(){}\[\]\\]{5,199})"#
    };
}

/// The last part of a name to which a secret is assigned, such as `API_KEY` in `MY_API_KEY`.
macro_rules! name {
    () => {
        concat!(
            r"(?i:pass(?:word|wd|phrase)|[_-]pass|\bpass|(?-i:Pass)|requirepass|pwd|secret|token|credentials?",
            r"|(?:app|api|access|auth|signing|encryption|account|master|session|private|cipher|hmac|jwt|shared)[_-]?key)"
        )
    };
}

macro_rules! uuid {
    () => {
        "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"
    };
}

macro_rules! octet {
    () => {
        "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
    };
}

pub(super) const TABLE: &[Rule] = table! {
    "private_key", r"-----BEGIN [A-Z ]{0,24}PRIVATE KEY(?: BLOCK)?-----", [], BLOCK, "https://www.rfc-editor.org/rfc/rfc7468", "-----BEGIN ‹›PRIVATE KEY-----\n‹s64›\n‹s64›\n-----END PRIVATE KEY-----";
    "mapbox_token", r"\b[st]k\.eyJ[A-Za-z0-9_-]{20,400}\.[A-Za-z0-9_-]{22}", [], RANDOM, "https://docs.mapbox.com/api/accounts/tokens/", "sk.‹›eyJ1Ijoi‹b60›.‹b22›";
    "grafana_token", r"\beyJrIjoi[A-Za-z0-9]{60,400}={0,3}", [], RANDOM, "https://grafana.com/docs/grafana/latest/developers/http_api/authentication/", "ey‹›JrIjoi‹a76›";
    "github_token", r"\bghs_(?:[0-9]{1,12}_)?eyJ[A-Za-z0-9_-]{8}", [], JWT, "https://docs.github.com/apps/creating-github-apps/authenticating-with-a-github-app/generating-an-installation-access-token-for-a-github-app", "gh‹›s_eyJ‹a32›.‹a80›.‹b86›";
    "buildkite_token", r"\bbkaj_eyJ[A-Za-z0-9_-]{8}", [], JWT, "https://buildkite.com/docs/platform/security/tokens", "bk‹›aj_eyJ‹a32›.‹a80›.‹b86›";
    "jwt", r"\be(?:yJ|yA|wo|w0)[A-Za-z0-9_-]{8}", [], JWT, "https://www.rfc-editor.org/rfc/rfc7519", "ey‹›J‹a32›.‹a80›.‹b43›";
    // A whole `config.json` of docker in base64.
    "docker_auth", r"\be(?:yJ|yA|wo|w0)[A-Za-z0-9+/]{8,200}", [], DOCKER_CONFIG, "https://kubernetes.io/docs/tasks/configure-pod-container/pull-image-private-registry/", "ey‹›JhdXRocyI6‹s60›";
    "github_token", r"\bgh[pousr]_[A-Za-z0-9]{36,255}", [], RANDOM, "https://docs.github.com/authentication/keeping-your-account-and-data-secure/about-authentication-to-github", "gh‹›p_‹a36›";
    "github_token", r"\bgithub_pat_[A-Za-z0-9_]{36,255}", [], RANDOM, "https://docs.github.com/authentication/keeping-your-account-and-data-secure/about-authentication-to-github", "github‹›_pat_‹a22›_‹a59›";
    "gitlab_token", r"\bgl(?:pat|dt|rt|rtr|cbt|ptt|ft|ffct|imt|agent|soat|oas)-[A-Za-z0-9_-]{20,255}(?:(?:\.[0-9a-z]{2})?\.[0-9a-z]{9}\b)?", [], RANDOM, "https://docs.gitlab.com/security/tokens/#token-prefixes", "gl‹›pat-‹b20›";
    "gitlab_token", r"\bGR1348941[A-Za-z0-9_-]{20}", [], RANDOM, "https://docs.gitlab.com/security/tokens/#token-prefixes", "GR‹›1348941‹b20›";
    "slack_token", r"\b(?:xoxe\.)?xox[abcdeoprs]-[A-Za-z0-9-]{20,255}", [], RANDOM, "https://docs.slack.dev/authentication/tokens", "xo‹›xb-‹d12›-‹d12›-‹a24›";
    "slack_token", r"\bxapp-[0-9]-[A-Za-z0-9-]{20,255}", [], RANDOM, "https://docs.slack.dev/authentication/tokens", "xa‹›pp-1-‹U11›-‹d13›-‹x64›";
    "slack_token", r"\bhttps:(?:\\?/){2}hooks\.slack\.com\\?/(?:services|workflows|triggers)\\?/[A-Za-z0-9/\\_+-]{20,200}", [], RANDOM, "https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks", "https://hooks.‹›slack.com/services/T‹U8›/B‹U10›/‹a24›";
    "stripe_key", r"\b(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{16,255}", [], RANDOM, "https://docs.stripe.com/keys", "sk_‹›live_‹a24›";
    "stripe_key", r"\bwhsec_[A-Za-z0-9]{24,255}", [], RANDOM, "https://docs.stripe.com/webhooks", "wh‹›sec_‹a32›";
    "model_key", r"\bsk-(?:proj|svcacct|admin|or-v1|ant-[a-z0-9]{2,10})-[A-Za-z0-9_-]{20,255}", [], RANDOM, "https://platform.openai.com/docs/api-reference/authentication", "sk‹›-proj-‹b120›";
    "model_key", r"\bsk-[A-Za-z0-9]{32,128}", [], RANDOM, "https://platform.openai.com/docs/api-reference/authentication", "sk‹›-‹a48›";
    "model_key", r"\b(?:(?:hf|api_org)_[A-Za-z]{34}|gsk_[A-Za-z0-9]{52}|r8_[A-Za-z0-9]{37}|xai-[A-Za-z0-9]{80})\b", [], RANDOM, "https://huggingface.co/docs/hub/security-tokens", "r8‹›_‹a37›";
    "perplexity_key", r"\bpplx-[A-Za-z0-9]{48,56}\b", [], RANDOM, "https://docs.perplexity.ai/getting-started/quickstart", "pplx‹›-‹a48›";
    "pinecone_key", r"\bpcsk_[A-Za-z0-9]{5,6}_[A-Za-z0-9]{63}\b", [], RANDOM, "https://docs.pinecone.io/guides/projects/manage-api-keys", "pcsk‹›_‹a6›_‹a63›";
    "langsmith_key", r"\b(?:lsv2_(?:pt|sk)_[a-f0-9]{32}_[a-f0-9]{10}|ls__[a-f0-9]{32})\b", [], RANDOM, "https://docs.smith.langchain.com/administration/how_to_guides/organization_management/create_account_api_key", "lsv2‹›_pt_‹x32›_‹x10›";
    "google_key", r"\bAIza[A-Za-z0-9_-]{35}", [], RANDOM, "https://cloud.google.com/docs/authentication/api-keys", "AI‹›za‹b35›";
    "google_key", r"\b(?:ya29\.|GOCSPX-)[A-Za-z0-9_-]{28,255}", [], RANDOM, "https://developers.google.com/identity/protocols/oauth2", "GOC‹›SPX-‹b28›";
    "google_key", r"\b1//0[A-Za-z0-9_-]{40,255}", [], RANDOM, "https://developers.google.com/identity/protocols/oauth2", "1//‹›0‹b100›";
    // An identifier followed by its secret, on one line.
    "aws_key", r"\bA(?:KIA|SIA)[A-Z2-7]{16}[^0-9A-Za-z\n](?:[^\n]{0,24}?[^0-9A-Za-z/+\n])?[A-Za-z0-9/+]{40}", [], MIXED, "https://docs.aws.amazon.com/IAM/latest/UserGuide/id_credentials_access-keys.html", "AK‹›IA‹u16›,'‹s40›";
    "aws_key", r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b", [], RANDOM, "https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html", "AK‹›IA‹u16›";
    "aws_key", r"\b(?:IQoJb3JpZ2luX2Vj|FwoGZXIvYXdzE)[A-Za-z0-9+/]{60,200}", [], RUN, "https://docs.aws.amazon.com/STS/latest/APIReference/API_GetSessionToken.html", "IQoJb3‹›JpZ2luX2Vj‹s320›==";
    "aws_key", r"\bABSK[A-Za-z0-9+/]{100,200}", [], RUN, "https://docs.aws.amazon.com/bedrock/latest/userguide/api-keys.html", "AB‹›SK‹s128›=";
    "package_token", r"\bnpm_[A-Za-z0-9]{36}\b", [], RANDOM, "https://docs.npmjs.com/about-access-tokens", "np‹›m_‹a36›";
    "package_token", r"\bpypi-AgE[A-Za-z0-9_-]{50,255}", [], RANDOM, "https://pypi.org/help/#apitoken", "py‹›pi-AgEIcHlwaS5vcmc‹b120›";
    "package_token", r"\brubygems_[a-f0-9]{48}\b", [], RANDOM, "https://guides.rubygems.org/api-key-scopes/", "ruby‹›gems_‹x48›";
    "package_token", r"\b(?:CLOJARS_[a-z0-9]{60}|oy2[a-z0-9]{43}|dckr_[op]at_[A-Za-z0-9_-]{27,32})", [], RANDOM, "https://docs.docker.com/security/access-tokens/", "dckr‹›_pat_‹b27›";
    "package_token", r"\bcio[A-Za-z0-9]{32}\b", [], MIXED, "https://doc.rust-lang.org/cargo/reference/publishing.html", "ci‹›o‹a32›";
    "mail_key", r"\bSG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{32,64}", [], RANDOM, "https://www.twilio.com/docs/sendgrid/ui/account-and-settings/api-keys", "S‹›G.‹b22›.‹b43›";
    "mail_key", r"\b(?:key-[a-f0-9]{32}|xkeysib-[a-f0-9]{64}-[A-Za-z0-9]{16})\b", [], RANDOM, "https://developers.brevo.com/docs/getting-started", "xkey‹›sib-‹x64›-‹a16›";
    "mail_key", r"\b[0-9a-f]{32}-[0-9a-f]{8}-[0-9a-f]{8}\b", [], RANDOM, "https://documentation.mailgun.com/docs/mailgun/api-reference/authentication/", "‹x32›-‹x8›-‹x8›";
    "mailchimp_key", r"\b[0-9a-f]{32}-us[0-9]{1,2}\b", [], RANDOM, "https://mailchimp.com/developer/marketing/guides/quick-start/", "‹x32›-us21";
    "twilio_key", r"\bSK[0-9a-f]{32}\b", [], RANDOM, "https://www.twilio.com/docs/iam/api-keys", "S‹›K‹x32›";
    "digitalocean_token", r"\bdo[opr]_v1_[a-f0-9]{64}\b", [], RANDOM, "https://docs.digitalocean.com/reference/api/create-personal-access-token/", "dop‹›_v1_‹x64›";
    "shopify_token", r"\bshp(?:at|ca|pa|ss|tka)_[0-9A-Fa-f]{32}\b", [], RANDOM, "https://shopify.dev/docs/apps/build/authentication-authorization/access-tokens", "shp‹›at_‹x32›";
    "facebook_token", r"\bEAA[A-Za-z0-9]{90,200}", [], RUN, "https://developers.facebook.com/docs/facebook-login/guides/access-tokens/", "EA‹›A‹a180›";
    "facebook_token", r"\b[0-9]{13,17}\|[A-Za-z0-9_-]{27,40}", [], MIXED, "https://developers.facebook.com/docs/facebook-login/guides/access-tokens/#apptokens", "1‹d14›‹›|‹b27›";
    "square_token", r"\b(?:EAAA[A-Za-z0-9_-]{60}|sq0atp-[A-Za-z0-9_-]{22}|(?:sandbox-)?sq0cs[bp]-[A-Za-z0-9_-]{43})", [], RANDOM, "https://developer.squareup.com/docs/build-basics/access-tokens", "EA‹›AA‹b60›";
    "telegram_token", r"\b(?:bot)?([0-9]{8,10}:AA[A-Za-z0-9_-]{33})", [], RANDOM, "https://core.telegram.org/bots/api#authorizing-your-bot", "1‹d9›‹›:AA‹b33›";
    "discord_token", r"\b[MNO][A-Za-z0-9_-]{23,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,42}", [], RANDOM, "https://discord.com/developers/docs/reference#authentication", "M‹›T‹b22›.G‹b5›.‹b38›";
    "discord_token", r"\bhttps:(?:\\?/){2}(?:canary\.|ptb\.)?discord(?:app)?\.com\\?/api\\?/webhooks\\?/[0-9]{17,20}\\?/[A-Za-z0-9_-]{60,80}", [], RANDOM, "https://discord.com/developers/docs/resources/webhook", "https://discord.com/api/‹›webhooks/1‹d17›/‹b68›";
    "databricks_token", r"\bdapi[a-f0-9]{32}(?:-[0-9]{1,2})?\b", [], RANDOM, "https://docs.databricks.com/dev-tools/auth/pat", "dapi‹›‹x32›";
    "doppler_token", r"\bdp\.(?:pt|ct|sa|said|scim|audit|st(?:\.[a-z0-9_-]{2,35})?)\.[A-Za-z0-9]{40,44}\b", [], RANDOM, "https://docs.doppler.com/reference/auth-token-formats", "dp‹›.pt.‹a43›";
    "terraform_token", r"\b[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9=_-]{60,70}", [], RANDOM, "https://developer.hashicorp.com/terraform/cloud-docs/users-teams-organizations/api-tokens", "‹a14›.atlas‹›v1.‹a67›";
    "vault_token", r"\bhv[sbr]\.[A-Za-z0-9_-]{24,300}", [], RANDOM, "https://developer.hashicorp.com/vault/docs/concepts/tokens#token-prefixes", "hv‹›s.‹b95›";
    "grafana_token", r"\bglsa_[A-Za-z0-9]{32}_[0-9A-Fa-f]{8}\b", [], RANDOM, "https://grafana.com/docs/grafana/latest/administration/service-accounts/", "gl‹›sa_‹a32›_‹x8›";
    "grafana_token", r"\bglc_[A-Za-z0-9+/]{32,400}={0,3}", [], RANDOM, "https://grafana.com/docs/grafana-cloud/account-management/authentication-and-permissions/access-policies/", "gl‹›c_eyJ‹a120›";
    "heroku_key", r"\bHRKU-[A-Za-z0-9_-]{36,64}", [], RANDOM, "https://devcenter.heroku.com/articles/authentication", "HRKU‹›-AA‹b58›";
    "linear_key", r"\blin_(?:api_[A-Za-z0-9]{40}|oauth_[a-f0-9]{64})\b", [], RANDOM, "https://linear.app/developers/graphql", "lin‹›_api_‹a40›";
    "notion_token", r"\b(?:secret_[A-Za-z0-9]{43}|ntn_[0-9]{11}[A-Za-z0-9]{35})\b", [], RANDOM, "https://developers.notion.com/docs/authorization", "ntn‹›_‹d11›‹a35›";
    "new_relic_key", r"\bNR(?:AK-[A-Z0-9]{27}|AA-[a-f0-9]{27}|I[IQ]-[A-Za-z0-9_-]{32}|JS-[a-f0-9]{19}|RA-[a-f0-9]{42})", [], RANDOM, "https://docs.newrelic.com/docs/apis/intro-apis/new-relic-api-keys/", "NR‹›AK-‹U27›";
    "new_relic_key", r"\b(?:[0-9a-f]{32}|[a-z]{2}[0-9]{2}xx[0-9a-f]{26})(?:FFFF|[0-9a-f]{4})NRAL\b", [], RANDOM, "https://docs.newrelic.com/docs/apis/intro-apis/new-relic-api-keys/", "‹x36›NR‹›AL";
    "planetscale_token", r"\bpscale_(?:tkn|pw|oauth)_[A-Za-z0-9=._-]{32,64}", [], RANDOM, "https://planetscale.com/docs/concepts/planetscale-api-oauth-applications", "pscale‹›_tkn_‹b43›";
    "postman_key", r"\bPMAK-[a-f0-9]{24}-[a-f0-9]{34}\b", [], RANDOM, "https://learning.postman.com/docs/developer/postman-api/authentication/", "PMAK‹›-‹x24›-‹x34›";
    "pulumi_token", r"\bpul-[a-f0-9]{40}\b", [], RANDOM, "https://www.pulumi.com/docs/pulumi-cloud/access-management/access-tokens/", "pul‹›-‹x40›";
    "sentry_token", r"\bsntrys_[A-Za-z0-9+/]{40,500}={0,2}_[A-Za-z0-9+/]{43}", [], RANDOM, "https://docs.sentry.io/account/auth-tokens/", "sntry‹›s_eyJ‹a120›=_‹s43›";
    "sentry_token", r"\bsntry[aiu]_[a-f0-9]{64}\b", [], RANDOM, "https://docs.sentry.io/account/auth-tokens/", "sntry‹›u_‹x64›";
    "atlassian_token", r"\bAT[AC]TT3xFf[A-Za-z0-9_-]{60,255}(?:=[A-F0-9]{8})?", [], RANDOM, "https://support.atlassian.com/atlassian-account/docs/manage-api-tokens-for-your-atlassian-account/", "AT‹›ATT3xFfGF0‹b172›=‹X8›";
    "atlassian_token", r"\bATBB[A-Za-z0-9]{32}\b", [], RANDOM, "https://support.atlassian.com/bitbucket-cloud/docs/app-passwords/", "AT‹›BB‹a32›";
    "atlassian_token", r"\bBBDC-[A-Za-z0-9+/@_-]{40,50}", [], RANDOM, "https://confluence.atlassian.com/bitbucketserver/http-access-tokens-939515499.html", "BB‹›DC-‹s44›";
    "age_key", r"\bAGE-SECRET-KEY-(?:PQ-)?1[QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L]{58}\b", [], RANDOM, "https://github.com/C2SP/C2SP/blob/main/age.md", "AGE-‹›SECRET-KEY-1‹B58›";
    "one_password_token", r"\bops_eyJ[A-Za-z0-9+/_-]{100,200}", [], RUN, "https://developer.1password.com/docs/service-accounts/", "ops‹›_eyJ‹a600›";
    "one_password_token", r"\bA3-[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})-[A-Z0-9]{5}-[A-Z0-9]{5}-[A-Z0-9]{5}\b", [], RANDOM, "https://support.1password.com/secret-key-security/", "A3‹›-‹U6›-‹U6›-‹U5›-‹U5›-‹U5›-‹U5›";
    "fly_token", r"\bfo1_[A-Za-z0-9_-]{43}", [], RANDOM, "https://fly.io/docs/security/tokens/", "fo‹›1_‹b43›";
    "fly_token", r"\bfm[12][ar]?_[A-Za-z0-9+/]{60,200}", [], RUN, "https://fly.io/docs/security/tokens/", "fm‹›2_lJPE‹s200›==";
    "dropbox_token", r"\bsl\.(?:u\.)?[A-Za-z0-9_-]{60,200}", [], RUN, "https://developers.dropbox.com/oauth-guide", "sl‹›.‹b140›";
    "dropbox_token", r"\b[A-Za-z0-9]{11}AAAAAAAAAA[A-Za-z0-9_-]{43}", [], MIXED, "https://developers.dropbox.com/oauth-guide", "‹a11›AAAAA‹›AAAAA‹b43›";
    "airtable_token", r"\bpat[A-Za-z0-9]{14}\.[a-f0-9]{64}\b", [], RANDOM, "https://airtable.com/developers/web/guides/personal-access-tokens", "pat‹›‹a14›.‹x64›";
    "dynatrace_token", r"\bdt0[a-z][0-9]{2}\.[A-Z0-9]{24}\.[A-Z0-9]{64}\b", [], RANDOM, "https://docs.dynatrace.com/docs/dynatrace-api/basics/dynatrace-api-authentication", "dt‹›0c01.‹u24›.‹u64›";
    "openshift_token", r"\bsha256~[A-Za-z0-9_-]{43}", [], RANDOM, "https://docs.openshift.com/container-platform/latest/authentication/managing-oauth-access-tokens.html", "sha‹›256~‹b43›";
    "azure_client_secret", r"(?:\A|[^A-Za-z0-9_~.-])([A-Za-z0-9_~.]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,34})", [], RANDOM, "https://learn.microsoft.com/entra/identity-platform/how-to-add-credentials", "‹a3›8Q‹›~‹a34›";
    "cloudflare_token", r"\bcf(?:k|ut|at)_[A-Za-z0-9_-]{40,64}", [], RANDOM, "https://developers.cloudflare.com/fundamentals/api/get-started/token-formats/", "cf‹›ut_‹a40›‹x8›";
    "cloudflare_token", r"\bv1\.0-[a-f0-9]{24}-[a-f0-9]{146}\b", [], RANDOM, "https://developers.cloudflare.com/fundamentals/api/get-started/ca-keys/", "v1‹›.0-‹x24›-‹x146›";
    "vercel_token", r"\bvc[piark]_[A-Za-z0-9_-]{24,80}", [], RANDOM, "https://vercel.com/changelog/new-token-formats-and-secret-scanning", "vc‹›p_‹a56›";
    "netlify_token", r"\bnf[pcoub]_[A-Za-z0-9]{36,40}\b", [], RANDOM, "https://docs.netlify.com/api/get-started/#authentication", "nf‹›p_‹a36›";
    "supabase_key", r"\bsb(?:p_(?:oauth_|v0_)?[a-f0-9]{40}\b|_secret_[A-Za-z0-9_-]{20,60})", [], RANDOM, "https://supabase.com/docs/guides/api/api-keys", "sb‹›_secret_‹b22›_‹b8›";
    "snyk_token", r"\bsnyk_(?:uat|sat|pat)\.[A-Za-z0-9]{8}\.[A-Za-z0-9._-]{40,400}", [], RANDOM, "https://docs.snyk.io/developer-tools/snyk-api/authentication-for-api", "snyk‹›_uat.‹x8›.‹a80›";
    "sonar_token", r"\bsq(?:[abpu]_[a-f0-9]{40}|co_[A-Za-z0-9]{59})\b", [], RANDOM, "https://docs.sonarsource.com/sonarqube-server/user-guide/managing-tokens/", "sq‹›u_‹x40›";
    "circleci_token", r"\bCCI(?:PAT|PRJ)_[A-Za-z0-9]{22}_[a-f0-9]{40}\b", [], RANDOM, "https://circleci.com/docs/managing-api-tokens/", "CCI‹›PAT_‹a22›_‹x40›";
    "buildkite_token", r"\bbk(?:ua|aa|ar|pt|ct|oi)_(?:[A-Za-z0-9]{2,12}={0,2}\.)?[A-Za-z0-9_-]{40,100}", [], RANDOM, "https://buildkite.com/docs/platform/security/tokens", "bk‹›ua_‹x40›";
    "alibaba_key", r"\bLTAI[A-Za-z0-9]{12,26}[^0-9A-Za-z\n](?:[^\n]{0,24}?[^0-9A-Za-z\n])?[A-Za-z0-9]{30}\b", [], MIXED, "https://www.alibabacloud.com/help/en/ram/user-guide/create-an-accesskey-pair", "LT‹›AI‹a20›, '‹a30›";
    "alibaba_key", r"\bLTAI[A-Za-z0-9]{12,26}\b", [], RANDOM, "https://www.alibabacloud.com/help/en/ram/user-guide/create-an-accesskey-pair", "LT‹›AI‹a20›";
    "tencent_key", r"\bAKID[A-Za-z0-9]{32}[^0-9A-Za-z\n](?:[^\n]{0,24}?[^0-9A-Za-z\n])?[A-Za-z0-9]{32}\b", [], MIXED, "https://www.tencentcloud.com/document/product/598/34228", "AK‹›ID‹a32›, '‹a32›";
    "tencent_key", r"\bAKID[A-Za-z0-9]{32}\b", [], RANDOM, "https://www.tencentcloud.com/document/product/598/34228", "AK‹›ID‹a32›";
    "yandex_key", r"\b(?:AQVN[A-Za-z0-9_-]{35,38}|y[0-3]_[A-Za-z0-9_-]{50,60}|[ct]1\.[A-Za-z0-9_-]{20,200}={0,2}\.[A-Za-z0-9_-]{86}={0,2})", [], RANDOM, "https://yandex.cloud/docs/iam/concepts/authorization/", "AQ‹›VN‹b36›";
    "yandex_key", r"\bYC[A-Za-z0-9_-]{38}", [], MIXED, "https://yandex.cloud/docs/iam/concepts/authorization/access-key", "YC‹›‹b38›";
    "plaid_key", concat!(r"\baccess-(?:sandbox|development|production)-", uuid!(), r"\b"), [], RANDOM, "https://plaid.com/docs/api/items/#itempublic_tokenexchange", "access‹›-sandbox-‹x8›-‹x4›-‹x4›-‹x4›-‹x12›";
    "adyen_key", r"\bAQE[A-Za-z0-9]{5}[A-Za-z0-9+/]{40,160}={0,2}-[A-Za-z0-9+/]{40,50}={0,2}-[^\s\x22'`\\]{10,24}", [], RANDOM, "https://docs.adyen.com/development-resources/api-credentials", "AQ‹›E‹a5›‹s80›-‹s43›=-‹s16›";
    "azure_key", r"\b(?i:AccountKey|SharedAccessKey)=([A-Za-z0-9+/]{32,128}={0,2})", [], RANDOM, "https://learn.microsoft.com/azure/storage/common/storage-configure-connection-string", "AccountKey=‹s86›==";
    "model_key", r"\b(?:nvapi-[A-Za-z0-9_-]{60,80}|csk-[a-z0-9]{48}\b|tgp_v1_[A-Za-z0-9_-]{43})", [], RANDOM, "https://docs.api.nvidia.com/nim/docs/api-quickstart", "nv‹›api-‹b64›";
    "tavily_key", r"\btvly-(?:dev-|prod-)?[A-Za-z0-9]{32}\b", [], RANDOM, "https://docs.tavily.com/documentation/api-reference/introduction", "tv‹›ly-‹a32›";
    "figma_token", r"\bfig[dor]_[A-Za-z0-9_-]{40}", [], RANDOM, "https://www.figma.com/developers/api#access-tokens", "fi‹›gd_‹b40›";
    "hubspot_token", concat!(r"\bpat-(?:na|eu|ap)[0-9]-", uuid!(), r"\b"), [], RANDOM, "https://developers.hubspot.com/docs/guides/apps/private-apps/overview", "pat‹›-na1-‹x8›-‹x4›-‹x4›-‹x4›-‹x12›";
    "tailscale_key", r"\btskey-(?:api|auth|client|scim|webhook)-[A-Za-z0-9]{8,24}-[A-Za-z0-9]{24,48}\b", [], RANDOM, "https://tailscale.com/kb/1277/key-prefixes", "ts‹›key-auth-k‹a11›CNTRL-‹a32›";
    "neon_key", r"\bnapi_[a-z0-9]{64}\b", [], RANDOM, "https://neon.com/docs/manage/api-keys", "na‹›pi_‹x64›";
    "posthog_key", r"\bph[xs]_[A-Za-z0-9]{43,48}\b", [], RANDOM, "https://posthog.com/docs/api", "ph‹›x_‹a43›";
    "resend_key", r"\bre_[A-Za-z0-9]{8}_[A-Za-z0-9]{24}\b", [], RANDOM, "https://resend.com/docs/api-reference/introduction", "r‹›e_‹a8›_‹a24›";
    "contentful_token", r"\bCFPAT-[A-Za-z0-9_-]{43}", [], RANDOM, "https://www.contentful.com/developers/docs/references/authentication/", "CF‹›PAT-‹b43›";
    "sourcegraph_token", r"\bsgp_(?:(?:[a-f0-9]{16}|local)_)?[a-f0-9]{40}\b", [], RANDOM, "https://sourcegraph.com/docs/cli/how-tos/creating_an_access_token", "sg‹›p_‹x16›_‹x40›";
    "prefect_key", r"\bpn[ub]_[A-Za-z0-9]{36}\b", [], RANDOM, "https://docs.prefect.io/v3/how-to-guides/cloud/manage-users/api-keys", "pn‹›u_‹a36›";
    "typeform_token", r"\btfp_[A-Za-z0-9_-]{40,60}", [], RANDOM, "https://www.typeform.com/developers/get-started/personal-access-token/", "tf‹›p_‹b44›_‹a14›";
    "artifactory_token", r"\b(?:AKCp[A-Za-z0-9]{69}|cmVmdGtu[A-Za-z0-9]{56})\b", [], RANDOM, "https://jfrog.com/help/r/jfrog-platform-administration-documentation/introduction-to-access-tokens", "AK‹›Cp‹a69›";
    "octopus_key", r"\bAPI-[A-Z0-9]{25,32}\b", [], RANDOM, "https://octopus.com/docs/octopus-rest-api/how-to-create-an-api-key", "AP‹›I-‹U26›";
    "shippo_token", r"\bshippo_(?:live|test)_[a-f0-9]{40}\b", [], RANDOM, "https://docs.goshippo.com/docs/guides_general/authentication/", "ship‹›po_live_‹x40›";
    "easypost_key", r"\bEZ[AT]K[A-Za-z0-9]{54}\b", [], RANDOM, "https://docs.easypost.com/docs/authentication", "EZ‹›AK‹a54›";
    "harness_token", r"\b[ps]at\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{20}\b", [], RANDOM, "https://developer.harness.io/docs/platform/automation/api/add-and-manage-api-keys/", "pa‹›t.‹b22›.‹x24›.‹a20›";
    "duffel_token", r"\bduffel_(?:live|test)_[A-Za-z0-9_-]{43}", [], RANDOM, "https://duffel.com/docs/api/overview/making-requests/authentication", "duf‹›fel_live_‹b43›";
    "readme_key", r"\brdme_[a-z0-9]{70}\b", [], RANDOM, "https://docs.readme.com/main/reference/intro/authentication", "rd‹›me_‹x70›";
    "frameio_token", r"\bfio-u-[A-Za-z0-9=_-]{64}", [], RANDOM, "https://developer.frame.io/docs/getting-started/authentication", "fi‹›o-u-‹b64›";
    "infracost_key", r"\bico-[A-Za-z0-9]{32}\b", [], RANDOM, "https://www.infracost.io/docs/integrations/environment_variables/", "ic‹›o-‹a32›";
    "flutterwave_key", r"\bFLWSECK(?:_TEST)?-(?:[a-z0-9]{32}-X|[a-z0-9]{12})\b", [], RANDOM, "https://developer.flutterwave.com/docs/authentication", "FLW‹›SECK-‹x32›-X";
    "adobe_secret", r"\bp8e-[A-Za-z0-9_-]{32}\b", [], RANDOM, "https://developer.adobe.com/developer-console/docs/guides/authentication/", "p8‹›e-‹a32›";
    "clickhouse_key", r"\b4b1d[A-Za-z0-9]{38}\b", [], MIXED, "https://clickhouse.com/docs/cloud/manage/openapi", "4b‹›1d‹a38›";
    "teams_webhook", concat!(r"\bhttps://[a-z0-9-]{1,40}\.webhook\.office\.com/webhookb2/", uuid!(), "@", uuid!(), r"/IncomingWebhook/[a-z0-9]{32}/", uuid!()), [], RANDOM, "https://learn.microsoft.com/microsoftteams/platform/webhooks-and-connectors/how-to/add-incoming-webhook", "https://acme.webhook.‹›office.com/webhookb2/‹x8›-‹x4›-‹x4›-‹x4›-‹x12›@‹x8›-‹x4›-‹x4›-‹x4›-‹x12›/IncomingWebhook/‹x32›/‹x8›-‹x4›-‹x4›-‹x4›-‹x12›";
    // Keys and tokens that are recognized by a keyword.
    "aws_key", "[A-Za-z0-9/+]{40}", ["aws[_-]?secret", "secret[ _-]?access[ _-]?key", r"\bsecret[_-]key"], MIXED, "https://docs.aws.amazon.com/IAM/latest/UserGuide/id_credentials_access-keys.html", "aws_secret_access_key = ‹s40›";
    "twilio_key", r"[A-Za-z0-9]{32}\b", ["twilio", r"\b(?:AC|SK)[0-9a-f]{32}"], MIXED, "https://www.twilio.com/docs/iam/api/authtoken", "twilio ‹x32›";
    "heroku_key", concat!(uuid!(), r"\b"), ["heroku"], RANDOM, "https://devcenter.heroku.com/articles/authentication", "heroku ‹x8›-‹x4›-‹x4›-‹x4›-‹x12›";
    "cloudflare_token", r"(?:[0-9a-f]{37,45}\b|[A-Za-z0-9_-]{40})", ["cloudflare", r"\bcf[_-](?:api|token|key)"], MIXED, "https://developers.cloudflare.com/fundamentals/api/get-started/token-formats/", "cloudflare ‹a40›";
    "vercel_token", r"[A-Za-z0-9]{24}\b", ["vercel"], MIXED, "https://vercel.com/docs/rest-api", "vercel ‹a24›";
    "netlify_token", "[A-Za-z0-9_-]{40,46}", ["netlify"], MIXED, "https://docs.netlify.com/api/get-started/#authentication", "netlify ‹b43›";
    "okta_token", "00[A-Za-z0-9_-]{40}", ["okta", r"\bssws"], MIXED, "https://developer.okta.com/docs/guides/create-an-api-token/main/", "SSWS 00‹b40›";
    "datadog_key", r"(?:[0-9A-Fa-f]{40}|[0-9A-Fa-f]{32})\b", ["datadog", r"\bdd[_-](?:api|app)"], RANDOM, "https://docs.datadoghq.com/account_management/api-app-keys/", "datadog ‹x32›";
    "pagerduty_key", r"(?:u\+[A-Za-z0-9_-]{18}|[A-Za-z0-9_+-]{20})", ["pagerduty", "pdpyras", "token token"], MIXED, "https://support.pagerduty.com/main/docs/api-access-keys", "pagerduty u+‹a18›";
    "pagerduty_key", r"(?:[0-9a-f]{32}|[0-9A-Z]{32})\b", ["pagerduty", "(?:routing|service|integration)_?key"], RANDOM, "https://developer.pagerduty.com/docs/events-api-v2/trigger-events/", "routing_key ‹x32›";
    "snyk_token", concat!(uuid!(), r"\b"), ["snyk"], RANDOM, "https://docs.snyk.io/developer-tools/snyk-api/authentication-for-api", "snyk ‹x8›-‹x4›-‹x4›-‹x4›-‹x12›";
    "sonar_token", r"[0-9a-f]{40}\b", ["sonar(?:qube)?[._-]?(?:token|login)"], RANDOM, "https://docs.sonarsource.com/sonarqube-server/user-guide/managing-tokens/", "sonar.login ‹x40›";
    "circleci_token", r"[0-9a-f]{40}\b", ["circle(?:ci)?[_-](?:api[_-])?token"], RANDOM, "https://circleci.com/docs/managing-api-tokens/", "Circle-Token ‹x40›";
    "consul_token", concat!(uuid!(), r"\b"), ["consul", "secret_?id"], RANDOM, "https://developer.hashicorp.com/consul/docs/security/acl/tokens", "consul ‹x8›-‹x4›-‹x4›-‹x4›-‹x12›";
    "alibaba_key", r"[A-Za-z0-9]{30}\b", ["alibaba", "alicloud", "aliyun"], MIXED, "https://www.alibabacloud.com/help/en/ram/user-guide/create-an-accesskey-pair", "alibaba ‹a30›";
    "tencent_key", r"[A-Za-z0-9]{32}\b", ["tencent(?:cloud)?", "tccli"], MIXED, "https://www.tencentcloud.com/document/product/598/34228", "tencent ‹a32›";
    "plaid_key", r"[0-9a-f]{30}\b", ["plaid"], RANDOM, "https://plaid.com/docs/api/", "plaid ‹x30›";
    "coinbase_key", r"(?:[A-Za-z0-9+/]{86}==|[A-Za-z0-9_-]{64}\b|[A-Za-z0-9]{32}\b)", ["coinbase"], MIXED, "https://docs.cdp.coinbase.com/get-started/authentication/cdp-api-keys", "coinbase ‹a32›";
    "coinbase_key", "[A-Za-z0-9+/]{86}==", ["private_?key", r"\bcdp[_-]api"], MIXED, "https://docs.cdp.coinbase.com/get-started/authentication/cdp-api-keys", "privateKey ‹s86›==";
    "azure_key", "[A-Za-z0-9+/]{86}==", ["azure", "(?:account|storage)[_-]?key"], MIXED, "https://learn.microsoft.com/azure/storage/common/storage-account-keys-manage", "AZURE_STORAGE_KEY ‹s86›==";
    "atlassian_token", r"[A-Za-z0-9]{24}\b", ["atlassian", "confluence", r"\bjira"], MIXED, "https://support.atlassian.com/atlassian-account/docs/manage-api-tokens-for-your-atlassian-account/", "JIRA_API_TOKEN ‹a24›";
    "package_token", concat!(uuid!(), r"\b"), ["_authtoken", "npm[_-]?token"], RANDOM, "https://docs.npmjs.com/about-access-tokens", "_authToken ‹x8›-‹x4›-‹x4›-‹x4›-‹x12›";
    "vault_token", r"[sbr]\.[A-Za-z0-9]{24}\b", ["vault", r"\btoken"], MIXED, "https://developer.hashicorp.com/vault/docs/upgrading/upgrade-to-1.0.0", "vault s.‹a24›";
    "new_relic_key", r"[0-9a-f]{40}\b", ["new[_-]?relic", "license[_-]?key"], RANDOM, "https://docs.newrelic.com/docs/apis/intro-apis/new-relic-api-keys/", "license_key ‹x40›";
    "discord_token", "[A-Za-z0-9_-]{32}", ["discord", "client[_-]?secret"], MIXED, "https://discord.com/developers/docs/topics/oauth2", "discord ‹b32›";
    "cohere_key", r"[A-Za-z0-9]{40}\b", ["cohere", r"\bco_api_key"], MIXED, "https://docs.cohere.com/reference/about", "cohere ‹a40›";
    "mistral_key", r"[A-Za-z0-9]{32}\b", ["mistral"], MIXED, "https://docs.mistral.ai/getting-started/quickstart", "mistral ‹a32›";
    "pinecone_key", concat!(uuid!(), r"\b"), ["pinecone"], RANDOM, "https://docs.pinecone.io/guides/projects/manage-api-keys", "pinecone ‹x8›-‹x4›-‹x4›-‹x4›-‹x12›";
    "airtable_token", r"key[A-Za-z0-9]{14}\b", ["airtable"], RANDOM, "https://airtable.com/developers/web/guides/personal-access-tokens", "airtable key‹a14›";
    "facebook_token", r"[0-9a-f]{32}\b", ["facebook[ ._-]?(?:app[ ._-]?)?secret", r"\bfb[ ._-]?(?:app[ ._-]?)?secret"], RANDOM, "https://developers.facebook.com/docs/facebook-login/security", "facebook_secret ‹x32›";
    // Values that are recognized by their context: an assignment to a name, an option, a header or a URL.
    "url_password", r#"://[^\s/:@"'<>`]{0,64}:([^\s/@"'<>`{}$]{3,128})@"#, [], URL_PASSWORD, "https://www.rfc-editor.org/rfc/rfc3986#section-3.2.1", "ftp://ana:‹a12›@host";
    "consul_token", concat!(r#"\b(?:agent|agent_recovery|initial_management|replication)[ \t]{0,8}=[ \t]{0,8}"("#, uuid!(), r#")""#), [], RANDOM, "https://developer.hashicorp.com/consul/docs/reference/agent/configuration-file/acl", "agent = \"‹x8›-‹x4›-‹x4›-‹x4›-‹x12›\"";
    "snyk_token", concat!(r#""api"[ \t]{0,2}:[ \t]{0,2}"("#, uuid!(), r#")""#), [], RANDOM, "https://docs.snyk.io/snyk-cli/commands/config", "\"api\": \"‹x8›-‹x4›-‹x4›-‹x4›-‹x12›\"";
    "cookie", r#"(?i:\b(?:set-)?cookie\\{0,2}["']?(?:,\s{0,40}\\{0,2}["']value\\{0,2}["'])?(?:[ ]{0,2}(?:=>|[:=,])[ ]{0,4}\[?\\{0,2}["'`]?|[ ]{1,4}\\{0,2}["'`])|\s(?:-b|--cookie)[ =]["']?)([^\s=;"'`\\]{1,64}=[^\n"'`\\]{8,400})"#, [], COOKIE, "https://www.rfc-editor.org/rfc/rfc6265", "Cookie: sid=‹x32›";
    "cookie", r#"["']name\\{0,2}["'][ ]{0,2}:[ ]{0,4}\\{0,2}["'][A-Za-z0-9_.-]{0,32}(?i:sess|sid|auth|token|login|remember|jwt)[A-Za-z0-9_.-]{0,32}\\{0,2}["'],[^{}]{0,100}?["']value\\{0,2}["'][ ]{0,2}:[ ]{0,4}\\{0,2}["']([^\s"'\\]{16,360})"#, [], SESSION, "https://w3c.github.io/web-performance/specs/HAR/Overview.html", "\"name\":\"sid\",\"value\":\"‹x32›\"";
    "cookie", r#"(?i:\bcookies?)\\{0,2}["']?[ ]{0,2}[:=][ ]{0,2}\{\s{0,20}[^{}]{0,100}?\\{0,2}["']?[ ]{0,2}:[ ]{0,4}\\{0,2}["']([^\s"'\\]{16,360})["'\\]"#, [], SESSION, "https://requests.readthedocs.io/en/latest/user/quickstart/#cookies", "cookies = {'sid': '‹x32›'";
    "docker_auth", r#"(?:\b|_)auth\\{0,2}["']?[ \t]{0,4}[:=]\s{0,40}\\{0,2}["']?([A-Za-z0-9+/]{12,255})"#, [], DOCKER_AUTH, "https://docs.docker.com/reference/cli/docker/login/", "\"auth\": \"ZGVwbG95Om‹a22›\"";
    "assigned", r#"\bdefine\([ ]{0,4}["'][A-Z_]{0,32}(?:PASS(?:WORD)?|KEY|SALT|SECRET|TOKEN)["'][ \t]{0,16},[ \t]{0,16}["']([^"'\n]{8,200})["']"#, [], ENTIRE, "https://developer.wordpress.org/apis/wp-config-php/", "define('DB_PASSWORD', '‹a16›')";
    "assigned", r#"\s(?:-u|--user)[ =]?["']?([A-Za-z0-9_.-]{16,128}):(?:[\s"'\\]|\z)"#, [], ASSIGNED, "https://curl.se/docs/manpage.html#-u", "curl -u ‹a38›1a:";
    // The user name is redacted with the password: otherwise, an e-mail address before the secret would stay.
    "assigned", r#"\s(?:-u|--user)[ =]?["']?([^\s:"'$@]{1,64}@[^\s:"'$@]{1,64}:[^\s"'$\\]{8,200})(?:[\s"'\\]|\z)"#, [], PAIR, "https://curl.se/docs/manpage.html#-u", "curl -u ‹l8›1a@mailbox.org:‹a22›1a";
    "assigned", r#"\b(?:basic_|http_)?auth[ ]?=[ ]?\(["']([^\s"']{1,64}["'],[ ]?["'][^\s"'$<]{8,200})["']\)"#, [], PAIR, "https://requests.readthedocs.io/en/latest/user/authentication/", "auth=('ana', '‹a24›1a')";
    "assigned", r#"\s(?:-u|--user)[ =]?["']?[^\s:"'$@]{1,64}:([^\s"'$\\]{8,200})(?:[\s"'\\]|\z)"#, [], ASSIGNED, "https://curl.se/docs/manpage.html#-u", "curl -u ana:‹a22›1a";
    // Names and values that a blank, a tag or a key separates.
    "assigned", concat!(r#"\b(?:ENV|ARG|setx|set -[gUx]{1,3})[ \t]{1,4}[A-Za-z0-9_]{0,40}"#, name!(), r#"(?i:[_-]?(?:key|value)(?:_base)?)?[ \t]{1,4}["']?"#, value!()), [], SETTING, "https://docs.docker.com/reference/dockerfile/#env", "ENV DB_PASSWORD ab‹l10›ef";
    "assigned", concat!(r#"\b(?:sshpass -p|(?:docker|podman|oc|skopeo) login[^\n]{0,80}? -p|redis-cli[^\n]{0,60}? -a|(?:mysql|mysqldump|mysqladmin|mariadb) (?:[^\n]{0,60}? )?-p|requirepass|masterauth)[ ]{0,4}["']?"#, value!()), [], SETTING, "https://linux.die.net/man/1/sshpass", "sshpass -p ab‹l10›ef";
    "assigned", concat!(name!(), r#"(?i:[_-]?(?:key|value)(?:_base)?)?(?:\r?\n|\\{0,2}["'],?)\s{0,40}\\{0,2}["']?[Vv]alue\\{0,2}["']?[ \t]{0,4}[:=][ \t]{0,4}\\{0,2}["']?"#, value!()), [], SETTING, "https://kubernetes.io/docs/tasks/inject-data-application/define-environment-variable-container/", "'DB_PASSWORD', value: ab‹l10›ef";
    "assigned", concat!(name!(), r#"["']?>([^\s"'<>&]{8,200})</"#), [], ELEMENT, "https://maven.apache.org/settings.html#servers", "<password>ab‹l10›ef</";
    "assigned", r#";[ ]?(?i:password|pwd)=([^\s;"'\\]{8,128})"#, [], SETTING, "https://learn.microsoft.com/dotnet/framework/data/adonet/connection-string-syntax", "Server=db;Password=ab‹l10›ef";
    "assigned", concat!(r#"\spassword[ \t]{1,4}"#, value!()), [], LOGIN, "https://everything.curl.dev/usingcurl/netrc.html", "login ana password ‹a14›1a";
    "assigned", r#"(?i:\bauthorization["']?:[ ]{0,4}["']?token)[ ]{1,4}([A-Za-z0-9._~+/=-]{16,255})"#, [], ASSIGNED, "https://www.rfc-editor.org/rfc/rfc9110#section-11.6.2", "Authorization: token ‹a36›";
    "assigned", concat!(name!(), r#"(?i:[_-]?(?:key|value)(?:_base)?)?\\{0,2}["'`]?\]?(?:[ \t]{0,2}:[ \t]{0,2}&?[A-Za-z]{2,12})?[ \t]{0,8}(?:=>|:=|=|:)[ \t]{0,8}[a-z]{0,2}\\{0,2}["'`]([^\s"'`\\]{8,200})["'`\\]"#), [], QUOTED, "https://12factor.net/config", "secret: '‹a14›$1a'";
    "assigned", concat!(name!(), r#"(?i:[_-]?(?:key|value)(?:_base)?)?\\{0,2}["'`]?[ \t]{0,8}(?:=>|:=|=|:)[ \t]{0,8}(?:[a-z]{0,2}\\{0,2}["'`])?"#, value!()), [], ASSIGNED, "https://12factor.net/config", "password=‹a14›1a";
    "assigned", r#"(?i:pass(?:word|wd|phrase)|[_-]pwd|[_-]pass|\bpass|(?-i:Pass))\\{0,2}["'`]?[ \t]{0,8}(?:=>|:=|=|:)[ \t]{0,8}\\{0,2}["'`]([A-Za-z][A-Za-z!#$%&<>^*+?~]{7,63})["'`\\]"#, [], LETTERS, "https://12factor.net/config", "password = 'ab‹l10›ef'";
    "assigned", r#"(?:PASS(?:WORD|WD|PHRASE)|_PASS|_PWD|SECRET|TOKEN|CREDENTIALS?|(?:API|APP|ACCESS|AUTH|SIGNING|ENCRYPTION|ACCOUNT|MASTER|SESSION|PRIVATE|CIPHER|HMAC|JWT|SHARED)_?KEY)(?:_KEY|_VALUE)?(?:_BASE)?=["']?([A-Za-z]{8,64})(?:[\s;&"'`\\,]|\z)"#, [], LETTERS, "https://12factor.net/config", "DB_PASSWORD=ab‹l10›ef";
    "assigned", concat!(name!(), r#"(?i:[_-]?(?:key|value)(?:_base)?)?["']?(?::[ \t]{1,8}|[ \t]{0,8}=[ \t]{0,8})["']?([A-Za-z]{8,64})["']?[ \t]{0,8}(?:#[^\n]{0,80})?(?:\r?\n|\z)"#), [], ENTRY, "https://yaml.org/spec/1.2.2/", "DB_PASSWORD: ab‹l10›ef";
    "assigned", concat!(r"--(?:[a-z]{1,12}-){0,2}", name!(), r#"[ =]["']?"#, value!()), [], ASSIGNED, "https://12factor.net/config", "--password ‹a14›1a";
    "assigned", r"\b(?i:bearer|basic)[ ]{1,4}([A-Za-z0-9._~+/=-]{16,255})", [], ASSIGNED, "https://www.rfc-editor.org/rfc/rfc6750", "bearer ‹a30›1a";
    // Personal data.
    "email", r"(?:\A|[^A-Za-z0-9._%+'-])'{0,8}([A-Za-z0-9_%+][A-Za-z0-9._%+'-]{0,63}@[A-Za-z0-9][A-Za-z0-9-]{0,62}(?:\.[A-Za-z0-9-]{1,63}){0,5}\.[A-Za-z]{2,24})\b", [], EMAIL, "https://www.rfc-editor.org/rfc/rfc5322#section-3.4.1", "a‹l6›@mailbox.org";
    "iban", r"\b[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?\b", [], IBAN, "https://www.swift.com/standards/data-standards/iban-international-bank-account-number", "DE75512108001245126199";
    "card", r"(?:\A|[^0-9A-Za-z_.+-])([2-6][0-9]{3}(?:[ -]?[0-9]{4}){3}(?:[ -]?[0-9]{3})?|3[0-9]{3}[ -]?[0-9]{6}[ -]?[0-9]{4,5})\b", [], CARD, "https://www.iso.org/standard/70484.html", "4111 1111 1111 1111";
    "phone", r"(?:\A|[^0-9A-Za-z_+.])(\+[1-9][0-9]{0,2}[ .-]?(?:\([0-9]{1,4}\)[ .-]?)?[0-9]{1,14}(?:[ .-][0-9]{1,8}){0,5})\b", [], PHONE, "https://www.itu.int/rec/T-REC-E.164", "+49 30 1‹d6›";
    "phone", r"(?:\A|[^0-9A-Za-z_+.-])((?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[.-])[2-9][0-9]{2}[.-][0-9]{4})\b", [], PHONE, "https://www.nanpa.com/numbering", "(212) 555-‹d4›";
    "ip", concat!(r"(?:\A|[^0-9A-Za-z_.])(", octet!(), r"(?:\.", octet!(), r"){3})\b"), [], IP, "https://www.rfc-editor.org/rfc/rfc791", "84.17.46.12";
    "ip", r"(?:\A|[^0-9A-Za-z_.:])([0-9A-Fa-f]{1,4}(?:::?[0-9A-Fa-f]{1,4}){2,7})\b", [], IP, "https://www.rfc-editor.org/rfc/rfc4291", "2a02:8109:9e40:‹x4›:1c2f:8a3b:9d10:7e6f";
    "ssn", r"[0-8][0-9]{2}[ -]?[0-9]{2}[ -]?[0-9]{4}\b", [r"\bssn", "social[ _-]?security"], SSN, "https://www.ssa.gov/employer/randomization.html", "SSN 219-09-1‹d3›";
};

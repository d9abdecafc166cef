//! The part of the corpus that was written from the formats in the providers' documentation, before patterns for these
//! formats existed.
//!
//! `‹a36›` stands for 36 letters and digits, see [`chars`](super::third); `§` stands for the secret.

use fastrand::Rng;

use super::third::made;
use super::{Half, Planted};

/// The number of texts that are made for each kind, each with its own secret.
const TEXTS: usize = 20;

impl Half {
    pub(crate) fn formats() -> Self {
        let rng = &mut Rng::with_seed(5);
        let planted =
            PLANTED.iter().flat_map(|(kind, shapes, texts)| (0..TEXTS).map(move |nth| (*kind, *shapes, *texts, nth)));
        let planted = planted.map(|(kind, shapes, texts, nth)| {
            let secret = made(shapes[nth % shapes.len()], rng);
            let text = texts[nth / shapes.len() % texts.len()].replace('§', &secret);
            Planted { kind, text, secret }
        });
        Self { planted: planted.collect(), look_alikes: Vec::new() }
    }
}

type Row = (&'static str, &'static [&'static str], &'static [&'static str]);

/// Texts for keys that are recognized without a name before them.
const ANYWHERE: &[&str] = &[
    "export TIDE_KEY=§",
    "{\"key\":\"§\"}",
    "curl -H 'Authorization: Bearer §' https://api.tide.dev/v1/me",
    "the key is §, do not share it.",
    "key: §\nnext: 1",
];

const PLANTED: &[Row] = &[
    ("twilio_key", &["SK‹x32›"], ANYWHERE),
    ("twilio_key", &["‹x32›"], &["TWILIO_AUTH_TOKEN=§", "twilio.auth_token: \"§\""]),
    ("digitalocean_token", &["dop_v1_‹x64›", "doo_v1_‹x64›", "dor_v1_‹x64›"], ANYWHERE),
    ("shopify_token", &["shpat_‹x32›", "shpca_‹x32›", "shppa_‹x32›", "shpss_‹x32›"], ANYWHERE),
    ("square_token", &["EAAA‹b60›", "sq0csp-‹b43›", "sq0atp-‹b22›"], ANYWHERE),
    (
        "telegram_token",
        &["‹n1›‹d8›:AA‹b33›", "‹n1›‹d9›:AA‹b33›"],
        &[
            "bot token: §",
            "https://api.telegram.org/bot§/getMe",
            "TELEGRAM_BOT_TOKEN=§",
            "Application.builder().token(\"§\")",
        ],
    ),
    (
        "discord_token",
        &["MT‹b22›.G‹b5›.‹b38›", "OD‹b24›.X‹b5›.‹b27›", "https://discord.com/api/webhooks/‹n1›‹d17›/‹b68›"],
        &["client.run('§')", "DISCORD_TOKEN=§", "Authorization: Bot §"],
    ),
    ("databricks_token", &["dapi‹x32›", "dapi‹x32›-2"], ANYWHERE),
    (
        "doppler_token",
        &["dp.pt.‹a43›", "dp.st.dev.‹a43›", "dp.ct.‹a43›", "dp.sa.‹a43›", "dp.scim.‹a43›", "dp.audit.‹a43›"],
        ANYWHERE,
    ),
    ("terraform_token", &["‹a14›.atlasv1.‹a67›"], ANYWHERE),
    ("vault_token", &["hvs.‹b95›", "hvb.‹b140›", "hvr.‹b100›", "hvs.CAES‹b91›"], ANYWHERE),
    ("grafana_token", &["glsa_‹a32›_‹x8›", "glc_eyJ‹a120›="], ANYWHERE),
    ("heroku_key", &["HRKU-AA‹b58›"], ANYWHERE),
    (
        "heroku_key",
        &["‹x8›-‹x4›-4‹x3›-a‹x3›-‹x12›"],
        &["HEROKU_API_KEY=§", "heroku auth:token prints §", "\"heroku_token\": \"§\""],
    ),
    ("linear_key", &["lin_api_‹a40›", "lin_oauth_‹x64›"], ANYWHERE),
    ("notion_token", &["secret_‹a43›", "ntn_‹d11›‹a35›"], ANYWHERE),
    ("new_relic_key", &["NRAK-‹U27›", "‹x36›NRAL", "eu01xx‹x30›NRAL", "NRII-‹b32›"], ANYWHERE),
    ("planetscale_token", &["pscale_tkn_‹b43›", "pscale_pw_‹b43›", "pscale_oauth_‹b43›"], ANYWHERE),
    ("postman_key", &["PMAK-‹x24›-‹x34›"], ANYWHERE),
    ("pulumi_token", &["pul-‹x40›"], ANYWHERE),
    ("sentry_token", &["sntrys_eyJ‹a120›=_‹s43›", "sntryu_‹x64›"], ANYWHERE),
    ("atlassian_token", &["ATATT3xFfGF0‹b172›=‹X8›", "ATCTT3xFfGN0‹b172›=‹X8›", "ATBB‹a32›"], ANYWHERE),
    ("age_key", &["AGE-SECRET-KEY-1‹B58›"], ANYWHERE),
    (
        "one_password_token",
        &["ops_eyJ‹a600›", "A3-‹U6›-‹U6›-‹U5›-‹U5›-‹U5›-‹U5›"],
        &["OP_SERVICE_ACCOUNT_TOKEN=§", "{\"token\":\"§\"}", "it is § here"],
    ),
    ("fly_token", &["fo1_‹b43›", "fm2_lJPE‹s200›==", "fm1r_lJPE‹s120›"], ANYWHERE),
    ("dropbox_token", &["sl.‹b140›", "sl.u.‹b180›"], ANYWHERE),
    ("airtable_token", &["pat‹a14›.‹x64›"], ANYWHERE),
    (
        "facebook_token",
        &["EAA‹a180›", "‹n1›‹d14›|‹b27›"],
        &["access_token=§", "https://graph.facebook.com/me?access_token=§&fields=id", "FB.token = \"§\""],
    ),
    ("mapbox_token", &["sk.eyJ1Ijoi‹a80›.‹b22›"], ANYWHERE),
    ("dynatrace_token", &["dt0c01.‹u24›.‹u64›", "dt0s16.‹u24›.‹u64›"], ANYWHERE),
    ("perplexity_key", &["pplx-‹a48›"], ANYWHERE),
    ("openshift_token", &["sha256~‹b43›"], &["oc login --token=§", "token: §", "Authorization: Bearer §"]),
    ("azure_client_secret", &["‹a3›8Q~‹a34›", "‹a3›7Q~‹b31›"], ANYWHERE),
    ("gitlab_token", &["glrt-‹b20›", "GR1348941‹b20›", "glrtr-‹b20›"], ANYWHERE),
    (
        "ssn",
        &["219-09-‹n1›‹d3›", "457-5‹n1›-5‹d2›2"],
        &["SSN: §", "{\"ssn\":\"§\"}", "Social Security number §", "her social security no. is §."],
    ),
    ("cloudflare_token", &["cfut_‹a40›‹x8›", "cfk_‹a40›‹x8›", "cfat_‹a40›‹x8›"], ANYWHERE),
    ("cloudflare_token", &["‹b40›"], &["CLOUDFLARE_API_TOKEN=§", "cloudflare_token = \"§\"", "CF_API_TOKEN: §"]),
    ("cloudflare_token", &["v1.0-‹x24›-‹x146›"], ANYWHERE),
    ("vercel_token", &["vcp_‹a56›", "vck_‹a56›", "vci_‹a56›", "vca_‹a56›", "vcr_‹a56›"], ANYWHERE),
    ("vercel_token", &["‹a24›"], &["VERCEL_TOKEN=§", "vercel deploy --token §", "vercel: { token: '§' }"]),
    ("netlify_token", &["nfp_‹a36›", "nfc_‹a36›"], ANYWHERE),
    ("netlify_token", &["‹b43›"], &["NETLIFY_AUTH_TOKEN=§", "netlify deploy --auth §"]),
    ("supabase_key", &["sbp_‹x40›", "sb_secret_‹b22›_‹b8›"], ANYWHERE),
    ("okta_token", &["00‹b40›"], &["Authorization: SSWS §", "OKTA_API_TOKEN=§", "okta.client.token=§"]),
    (
        "datadog_key",
        &["‹x32›", "‹x40›"],
        &["DD_API_KEY=§", "datadog_app_key: \"§\"", "DATADOG_API_KEY=§", "-H \"DD-APPLICATION-KEY: §\""],
    ),
    (
        "pagerduty_key",
        &["u+‹b18›", "‹b20›"],
        &["Authorization: Token token=§ # pagerduty", "PAGERDUTY_TOKEN=§", "pagerduty_api_key = \"§\""],
    ),
    ("snyk_token", &["‹x8›-‹x4›-4‹x3›-b‹x3›-‹x12›"], &["SNYK_TOKEN=§", "snyk auth §", "snyk config set api=§"]),
    ("snyk_token", &["snyk_uat.‹x8›.‹a80›", "snyk_sat.‹x8›.‹a80›"], ANYWHERE),
    ("sonar_token", &["squ_‹x40›", "sqp_‹x40›", "sqa_‹x40›"], ANYWHERE),
    ("sonar_token", &["‹x40›"], &["SONAR_TOKEN=§", "-Dsonar.login=§", "sonarqube.token: §"]),
    ("circleci_token", &["CCIPAT_‹a22›_‹x40›", "CCIPRJ_‹a22›_‹x40›"], ANYWHERE),
    ("circleci_token", &["‹x40›"], &["CIRCLE_TOKEN=§", "Circle-Token: §", "circleci_api_token: '§'"]),
    ("buildkite_token", &["bkua_‹x40›", "bkaa_‹x40›"], ANYWHERE),
    (
        "consul_token",
        &["‹x8›-‹x4›-‹x4›-‹x4›-‹x12›"],
        &["CONSUL_HTTP_TOKEN=§", "X-Consul-Token: §", "consul acl token read -id §"],
    ),
    ("alibaba_key", &["LTAI‹a20›", "LTAI‹a12›"], ANYWHERE),
    ("alibaba_key", &["‹a30›"], &["ALIBABA_CLOUD_ACCESS_KEY_SECRET=§", "alicloud_secret_key = \"§\""]),
    ("tencent_key", &["AKID‹a32›"], ANYWHERE),
    ("tencent_key", &["‹a32›"], &["TENCENTCLOUD_SECRET_KEY=§", "tencent.secret_key: §"]),
    ("yandex_key", &["AQVN‹b36›", "y0_‹b55›", "t1.9eu‹b60›.‹b86›", "YC‹b38›"], ANYWHERE),
    ("mailchimp_key", &["‹x32›-us1‹n1›", "‹x32›-us6"], ANYWHERE),
    (
        "plaid_key",
        &["access-sandbox-‹x8›-‹x4›-‹x4›-‹x4›-‹x12›", "access-production-‹x8›-‹x4›-‹x4›-‹x4›-‹x12›"],
        ANYWHERE,
    ),
    ("plaid_key", &["‹x30›"], &["PLAID_SECRET=§", "plaid.secret: '§'"]),
    ("adyen_key", &["AQE‹a5›‹s80›-‹s43›=-‹s16›", "AQEyhmfx‹s100›==-‹s40›=-‹s15›"], ANYWHERE),
    ("coinbase_key", &["‹a32›"], &["COINBASE_API_SECRET=§", "coinbase secret: \"§\""]),
    ("coinbase_key", &["‹s86›=="], &["COINBASE_PRIVATE_KEY=§", "coinbase.key_secret: §"]),
    ("model_key", &["r8_‹a37›"], ANYWHERE),
    ("cohere_key", &["‹a40›"], &["COHERE_API_KEY=§", "cohere.Client(\"§\")", "CO_API_KEY=§"]),
    ("mistral_key", &["‹a32›"], &["MISTRAL_API_KEY=§", "Mistral(api_key=\"§\")"]),
    ("pinecone_key", &["pcsk_‹a6›_‹a63›"], ANYWHERE),
    ("pinecone_key", &["‹x8›-‹x4›-4‹x3›-8‹x3›-‹x12›"], &["PINECONE_API_KEY=§", "Pinecone(api_key='§')"]),
    ("langsmith_key", &["lsv2_pt_‹x32›_‹x10›", "lsv2_sk_‹x32›_‹x10›", "ls__‹x32›"], ANYWHERE),
    (
        "aws_key",
        &["/‹s39›", "‹s40›"],
        &[
            "AWS_SECRET_ACCESS_KEY=§",
            "aws_secret_access_key = §",
            "\"SecretAccessKey\": \"§\"",
            "secretAccessKey: '§',",
            "aws configure set aws_secret_access_key §",
        ],
    ),
    (
        "assigned",
        &["Tr0ub$4dor&3x", "p<4>ss$w0rd&q", "a1$b2&c3<d4>"],
        &["password = \"§\"", "PASSWORD=§\nUSER=tide", "\"password\": \"§\"", "db_password: '§'"],
    ),
    (
        "assigned",
        &["correcthorsebattery", "Wintermorgenrot", "zugspitzewandern"],
        &[
            "password = \"§\"",
            "DB_PASSWORD=§\nDB_USER=tide",
            "\"password\": \"§\"",
            "export ADMIN_PASSWORD=§",
            "PGPASSWORD=§ psql -h db",
        ],
    ),
];

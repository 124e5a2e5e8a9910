//! The flags of `lily serve` and `lily ps`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::BoolishValueParser;

use super::{MemoryFlags, ModelFlags, Seed, TraceFlags, values};

/// `lily serve`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  lily serve
  lily serve --model mlx-community/Qwen3.6-35B-A3B-4bit --port 9000
  curl http://127.0.0.1:8080/v1/chat/completions \\
       -H 'content-type: application/json' \\
       -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}'")]
pub(crate) struct ServeFlags {
    /// Address to listen on.
    #[arg(long, env = "LILY_HOST", default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port to listen on; 0 takes a free one.
    #[arg(long, env = "LILY_PORT", default_value_t = 8080)]
    pub(crate) port: u16,
    /// Requests answered at the same time; more wait [default: 4, or as many as memory holds].
    #[arg(long, env = "LILY_PARALLEL", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) parallel: Option<u16>,
    /// Requests that may wait; one more is answered 429.
    #[arg(long, env = "LILY_QUEUE", value_name = "N", default_value_t = 64)]
    pub(crate) queue: u16,
    /// A socket in the file system to listen on, in place of --host and --port; only this user's programs can connect.
    #[arg(long, env = "LILY_SOCKET", value_name = "PATH", conflicts_with_all = ["host", "port", "tls_cert"])]
    pub(crate) socket: Option<PathBuf>,
    /// Serve https with this certificate (PEM, with those that it was signed by); a hangup signal reads it again.
    #[arg(long, env = "LILY_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The certificate's private key (PEM, not encrypted).
    #[arg(long, env = "LILY_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Names accepted in the Host header besides localhost, loopback addresses and --host.
    #[arg(long = "allowed-hosts", env = "LILY_ALLOWED_HOSTS", value_name = "NAME", value_delimiter = ',')]
    pub(crate) allowed_hosts: Vec<String>,
    /// A key that requests have to bring (Authorization: Bearer, or X-Api-Key), except to /health and /v1/models; several with
    /// commas. Others on this machine can see a command line: better in the environment, or in a file.
    #[arg(long, env = "LILY_API_KEY", value_name = "KEY", value_delimiter = ',', hide_env_values = true)]
    pub(crate) api_key: Vec<String>,
    /// A file with more keys, one a line; a hangup signal reads it again.
    #[arg(long, env = "LILY_API_KEY_FILE", value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Requests of one key running at the same time; one more is answered 429 [default: as many as there is room for].
    #[arg(long, env = "LILY_REQUESTS_PER_KEY", value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) requests_per_key: Option<u16>,
    /// Origins whose web pages may use this server, as `https://page.example`; * is every origin [default: none].
    #[arg(long = "cors-origins", env = "LILY_CORS_ORIGINS", value_name = "ORIGIN", value_delimiter = ',')]
    pub(crate) cors_origins: Vec<String>,
    /// Serve on an address that other machines reach, although no key is set.
    #[arg(long, env = "LILY_ALLOW_PUBLIC", value_parser = BoolishValueParser::new())]
    pub(crate) allow_public: bool,
    /// Seconds after which an answer that is not complete ends with an error [default: none].
    #[arg(long, env = "LILY_REQUEST_TIMEOUT", value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) request_timeout: Option<u32>,
    /// Seconds without a request after which the model is let go with its memory; the next request loads it again [default:
    /// never].
    #[arg(long, env = "LILY_IDLE_UNLOAD", value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) idle_unload: Option<u32>,
    /// A file to which the log is appended, in place of standard error; a hangup signal opens it again.
    #[arg(long, env = "LILY_LOG_FILE", value_name = "FILE")]
    pub(crate) log_file: Option<PathBuf>,
    /// Further names of the model: listed, and served with --strict-model too.
    #[arg(long, env = "LILY_ALIAS", value_name = "NAME", value_delimiter = ',', value_parser = values::alias)]
    pub(crate) alias: Vec<String>,
    /// Answer 404 to requests for a model of another name.
    #[arg(long, env = "LILY_STRICT_MODEL", value_parser = BoolishValueParser::new())]
    pub(crate) strict_model: bool,
    /// Seed of requests that bring none, so that the whole server repeats itself [default: random, as -1 is].
    #[arg(long, env = "LILY_SEED", value_name = "N")]
    pub(crate) seed: Option<Seed>,
    #[command(flatten)]
    pub(crate) trace: TraceFlags,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    #[command(flatten)]
    pub(crate) memory: MemoryFlags,
}

/// `lily ps`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  lily ps\n  lily ps --json")]
pub(crate) struct PsFlags {
    /// Print JSON.
    #[arg(long, env = "LILY_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
}

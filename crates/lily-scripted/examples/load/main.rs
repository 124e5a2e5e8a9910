//! What the server adds to each token, and how many streams it carries: `load STREAMS TOKENS_PER_SECOND SECONDS [ROUNDS]`.
//!
//! An engine that does nothing but say "a" at given moments, the real server and text side above it, and clients that note when each
//! "a" arrives, all in one process; beside it, in turns, the same thread writes the same pieces into the same clients' sockets with no
//! server between. Both times hold the loopback and the client's own waking and parsing: what the server adds is the difference. Every
//! token has to arrive; one that does not ends the program with status 1. Figures: bench/server/README.md.

mod client;
mod speaker;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use lily_scripted::builtin_text;
use lily_server::{ServerConfig, Service, bind};
use lily_text::TextModel;

use speaker::Beat;

const MODEL: &str = "a";

fn main() -> anyhow::Result<()> {
    let arguments: Vec<f64> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let (streams, rate, seconds, rounds) = match *arguments.as_slice() {
        [streams, rate, seconds] => (streams as usize, rate, seconds, 3),
        [streams, rate, seconds, rounds] => (streams as usize, rate, seconds, rounds as usize),
        _ => bail!("wanted: STREAMS TOKENS_PER_SECOND SECONDS [ROUNDS]"),
    };
    let text = Arc::new(builtin_text()?);
    let (mut bare, mut served) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let beat = || Beat {
            streams,
            period: Duration::from_secs_f64(1.0 / rate),
            count: (rate * seconds) as usize,
            start: Instant::now() + Duration::from_secs(1) + Duration::from_millis(5) * streams as u32,
        };
        bare.push(round(None, beat())?);
        bare.last().inspect(|times| times.report("without a server"));
        served.push(round(Some(&text), beat())?);
        served.last().inspect(|times| times.report("with it"));
    }
    let median = |of: &[Times], figure: fn(&Times) -> f64| {
        let mut figures: Vec<f64> = of.iter().map(figure).collect();
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    };
    println!(
        "the server adds {:.0} us a token (medians of {rounds} rounds), and {:.0} us of processor time",
        median(&served, |t| t.at(0.5)) - median(&bare, |t| t.at(0.5)),
        median(&served, |t| t.processor) - median(&bare, |t| t.processor),
    );
    Ok(())
}

/// All tokens of a beat, through a server with this text side, or through none.
fn round(text: Option<&Arc<TextModel>>, beat: Beat) -> anyhow::Result<Times> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let before = processor_seconds();
    let (arrived, speaking) = match text {
        None => {
            let (address, speaking) = speaker::bare(beat, MODEL)?;
            (runtime.block_on(client::listen_all(address, beat.streams))?, speaking)
        }
        Some(text) => {
            let id = text.tokenizer().byte_token(b'a').context("the vocabulary has no a")?;
            let (engine, speaking) = speaker::engine(beat, id, text.tokenizer().size());
            let arrived = runtime.block_on(async {
                let config = ServerConfig { port: 0, max_connections: 4096, ..ServerConfig::default() };
                let server = bind(config).await?;
                let address = server.address().context("no port")?;
                server.handle().ready(Service::new(Arc::new(engine), text.clone(), MODEL));
                tokio::spawn(server.serve(axum::Router::new()));
                client::listen_all(address, beat.streams).await
            })?;
            (arrived, speaking)
        }
    };
    let sent = speaking.join().map_err(|_| anyhow::anyhow!("the engine panicked"))??;
    Times::of(&sent, &arrived, processor_seconds() - before)
}

/// Of a round, in microseconds.
struct Times {
    streams: usize,
    /// From saying a token to its being parsed by the client, in order.
    tokens: Vec<f64>,
    /// A token, all parts of this process.
    processor: f64,
}

impl Times {
    fn of(sent: &[Vec<Instant>], arrived: &[Vec<Instant>], processor: f64) -> anyhow::Result<Self> {
        let mut tokens = Vec::new();
        for (stream, (sent, arrived)) in sent.iter().zip(arrived).enumerate() {
            let (said, read) = (sent.len(), arrived.len());
            ensure!(said == read, "stream {stream}: {said} sent, {read} arrived");
            tokens.extend(
                sent.iter().zip(arrived).map(|(sent, arrived)| (*arrived - *sent).as_secs_f64() * 1e6),
            );
        }
        ensure!(!tokens.is_empty(), "nothing was sent");
        tokens.sort_by(f64::total_cmp);
        let processor = processor * 1e6 / tokens.len() as f64;
        Ok(Times { streams: sent.len(), tokens, processor })
    }

    fn at(&self, share: f64) -> f64 {
        self.tokens[((self.tokens.len() - 1) as f64 * share) as usize]
    }

    fn report(&self, name: &str) {
        println!(
            "{name}: {} streams, {} tokens, none lost; us a token: median {:.0}, 90% {:.0}, 99% {:.0}, most {:.0}; processor time a token, \
             client and engine included: {:.0} us",
            self.streams,
            self.tokens.len(),
            self.at(0.5),
            self.at(0.9),
            self.at(0.99),
            self.at(1.0),
            self.processor
        );
    }
}

/// Of this process, on Linux; 0 elsewhere.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<f64> =
        stat.rsplit(") ").next().unwrap_or("").split(' ').filter_map(|field| field.parse().ok()).collect();
    // Fields 14 and 15 of the whole line, in hundredths of a second; the state before them is no number.
    fields.get(10).zip(fields.get(11)).map_or(0.0, |(user, system)| (user + system) / 100.0)
}
